from __future__ import annotations

import gc
import weakref

import pytest
import torch

from intently.decoding import Hypothesis, SearchOptions, search
from intently.matrix import LazyMatrix

from .slow_beam import EOS, SOS, tiny_model

SOURCES = [[5, 6, 7], [], [4, 9, 9, 12, 3, 8, 5], [8], [10, 4, 11, 6, 7, 3], [7, 7, 5]]


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("seed", range(3))
def test_it_equals_forced_decoding_of_the_same_output(seed: int, beam: int) -> None:
    model = tiny_model(seed)
    options = SearchOptions(beam=beam, n_best=beam, max_length=8)
    for source, hypotheses in zip(SOURCES, search(model, SOURCES, options)):
        for h in hypotheses:
            read = [SOS, *h.ids] if h.ended else [SOS, *h.ids[:-1]]
            forced = model.attentions(torch.tensor([[*source, EOS]]), torch.tensor([read]))
            assert list(h.attention) == list(forced)
            for name, expected in forced.items():
                found = h.attention[name]
                assert isinstance(found, LazyMatrix) and found.shape == expected.shape[1:]
                torch.testing.assert_close(
                    found.dense(), expected.dense()[0], atol=1e-5, rtol=0, msg=name
                )


def test_shapes_have_a_row_for_each_produced_token_and_no_padding() -> None:
    found = search(tiny_model(3), SOURCES, SearchOptions(beam=4, n_best=4, max_length=6))
    kinds = set()
    for source, hypotheses in zip(SOURCES, found):
        for h in hypotheses:
            s, t = len(source) + 1, len(h.ids) + h.ended
            kinds.add(h.ended)
            assert h.attention["encoder.1.self"].shape == (2, s, s)
            assert h.attention["decoder.1.self"].shape == (2, t, t)
            assert h.attention["decoder.1.cross"].shape == (2, t, s)
    assert kinds == {True, False}


def test_it_outlives_the_search_and_the_model() -> None:
    model = tiny_model(0)
    [[h]] = search(model, [[5, 6]], SearchOptions(max_length=5))
    before = search(model, [[5, 6]], SearchOptions(max_length=5))[0][0].attention
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    search(model, SOURCES)
    for name, matrix in h.attention.items():
        assert torch.equal(matrix.dense(), before[name].dense())


def test_it_can_be_multiplied_labelled_and_differentiated_through() -> None:
    [[h]] = search(tiny_model(0), [[5, 6]], SearchOptions(max_length=5))
    cross = h.attention["decoder.1.cross"].label(columns=["a", "b", "</s>"])
    v = torch.randn(2, 3, 8, requires_grad=True)
    (cross @ v).sum().backward()
    assert v.grad is not None and cross.labels[1] == ("a", "b", "</s>")


def test_the_trace_is_freed_with_its_hypotheses() -> None:
    found = search(tiny_model(0), SOURCES, SearchOptions(max_length=5))
    trace = weakref.ref(found[0][0]._trace)
    del found
    gc.collect()
    assert trace() is None


def test_a_search_that_did_not_keep_it_says_so() -> None:
    options = SearchOptions(beam=3, n_best=3, max_length=6)
    kept = search(tiny_model(0), SOURCES, options)
    found = search(tiny_model(0), SOURCES, options, keep_attention=False)
    assert found == kept
    with pytest.raises(ValueError) as caught:
        _ = found[0][0].attention
    assert str(caught.value) == (
        "attention: expected a search that kept it; got one that did not. "
        "Call search(…, keep_attention=True)."
    )


def test_a_hypothesis_shows_what_matters() -> None:
    shown = repr(Hypothesis([4, 5], -1.0, -0.5))
    assert shown == "Hypothesis(ids=[4, 5], log_probability=-1.0, score=-0.5, ended=True)"
