"""Figures show themselves in a notebook."""

import pickle

import intently as it
from intently import show


def test_a_figure_is_a_picture_without_a_backend() -> None:
    figure = show.mask(it.causal(), 4, 4)
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert pickle.loads(pickle.dumps(figure)).get_size_inches().tolist() == (
        figure.get_size_inches().tolist()
    )
