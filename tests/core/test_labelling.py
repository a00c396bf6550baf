"""One name for a row everywhere: recordings, pages, figures and rollout ask the same module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import intently as it
from intently import show
from intently.core.matrix import Dense
from intently.core.matrix.labelling import crosses, looks_back
from intently.observe import load_recording
from intently.show.page import Text, items_of

WORDS = ("the", "cat", "and", "softmax")
ROWS = ("the (writes cat)", "cat (writes and)", "and (writes softmax)", "softmax")


def decoder() -> Dense:
    """Weights of a decoder: rows are labelled with the token that they write."""
    A = torch.tensor([[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0.25, 0.75, 0], [0, 0, 0, 1]])
    return Dense(A, labels=((*WORDS[1:], ""), WORDS))


def written(figure: Any) -> list[str]:
    drawn = [text.get_text() for axes in figure.axes for text in axes.texts]
    ticks = [
        text.get_text()
        for axes in figure.axes
        for text in (*axes.get_xticklabels(), *axes.get_yticklabels())
    ]
    return [*drawn, *ticks]


@pytest.mark.parametrize("draw", [show.heatmap, show.heads, show.lines])
def test_a_row_of_a_decoder_has_one_name_in_every_figure(draw: Any) -> None:
    A: Any = {"decoder.0": decoder()} if draw is show.heads else decoder()
    found = written(draw(A))
    assert set(ROWS) <= set(found), found


def test_a_row_of_a_decoder_has_the_same_name_in_a_terminal() -> None:
    lines = show.blocks(decoder(), width=80, colour=False).splitlines()
    assert [line for line in lines if line.startswith("and (writes softmax) ")]


def test_a_text_frames_the_token_that_reads() -> None:
    figure = show.text(decoder(), "and")
    assert "What ‘and (writes softmax)’ looks at" in [text.get_text() for text in figure.texts]
    found = written(figure)
    assert found[found.index("and") + 1] == "0.75"
    assert found[found.index("cat") + 1] == "0.25"
    back = written(show.text(decoder(), "cat", looks="from"))
    assert back[back.index("cat") + 1] == "0.50" and back[back.index("and") + 1] == "0.25"


def test_a_word_is_found_by_the_name_of_its_row() -> None:
    one = show.lines(decoder(), "and")
    framed = [text for axes in one.axes for text in axes.texts if text.get_text() == ROWS[2]]
    other = [text for axes in one.axes for text in axes.texts if text.get_text() == ROWS[1]]
    assert framed[0].get_color() != other[0].get_color()


def test_names_that_tell_only_beside_others() -> None:
    assert crosses("layers.0.multihead_attn") is None  # a self-attention of that name, say
    assert crosses("layers.0.multihead_attn", ["layers.0.self_attn"])
    assert crosses("multihead_attn", ["self_attn"])
    assert crosses("up.0.attn2", ["up.0.attn1"]) and crosses("up.0.attn2", ["up.1.attn1"]) is None
    assert crosses("decoder.layers.0.multihead_attn")


@pytest.mark.parametrize("whole", [True, False])
def test_rollout_takes_no_cross_attention_of_pytorch_for_self_attention(
    whole: bool, tmp_path: Path
) -> None:
    model = nn.Transformer(16, 2, 1, 2, 32, 0.0, batch_first=True).eval()
    past = nn.Transformer.generate_square_subsequent_mask(5)
    x = torch.randn(1, 5, 16)
    root: Any = model if whole else model.decoder
    with torch.no_grad(), it.watch(root, layers="*decoder*" if whole else None) as seen:
        model(x, x, tgt_mask=past)
    assert len(seen) == 4
    seen.save(tmp_path / "run.safetensors")
    for found in (seen, load_recording(tmp_path / "run.safetensors")):
        own = [found[name] for name in found if name.endswith("self_attn")]
        assert torch.equal(found.rollout(4), it.rollout(own, queries=4))


def hiding(t: int, s: int, lead: tuple[int, ...] = ()) -> torch.Tensor:
    """A bias under which no query sees a later key."""
    return torch.zeros(*lead, t, s).masked_fill(torch.ones(t, s).triu(s - t + 1).bool(), -torch.inf)


@pytest.mark.parametrize("t", [3, 6])
@pytest.mark.parametrize(
    "how",
    [
        lambda t: {"bias": hiding(t, 6)},
        lambda t: {"mask": it.causal(), "bias": torch.zeros(t, 6)},
        lambda t: {"mask": it.causal()},
        # the first row and the last look as if it were causal, one between them sees all
        lambda t: {
            "mask": it.allowed(
                torch.ones(t, 6).tril(6 - t).index_fill(0, torch.tensor([1]), 1).bool()
            )
        },
        lambda t: {},
    ],
    ids=["bias", "both", "mask", "middle", "none"],
)
def test_a_page_and_a_recording_label_alike(how: Any, t: int) -> None:
    x, texts = torch.randn(1, 2, 6, 4), tuple("abcdef")
    with it.watch(tokens=texts) as seen:
        it.attention(x[:, :, -t:], x, x, **how(t))
    matrix = seen.calls[0].matrix()
    back = looks_back(matrix)
    (item,) = items_of(seen)
    (layer,) = item.layers
    assert back == (matrix.labels[0] is not None and matrix.labels[0] != texts)
    assert layer.row_labels == (matrix.labels[0] if back else None)
    assert (layer.rows == layer.columns) == (back or t == 6)
    assert item.sides[layer.columns] == Text(texts)


def test_what_looks_back() -> None:
    """No query sees a later key, and the last query sees the last key."""
    x, low = torch.ones(2, 4, 3), torch.full((4, 4), -1e9)
    ways: list[tuple[dict[str, Any], bool]] = [
        ({"mask": it.causal()}, True),
        ({"mask": it.window(2, 0)}, True),
        ({"bias": low.triu(1)}, True),
        ({"mask": it.window(2, 1)}, False),
        ({"mask": it.causal(-1)}, False),
        ({"bias": low.triu(2)}, False),
        ({}, False),
    ]
    for options, back in ways:
        assert looks_back(it.attend(x, x, **options)) == back, options


@pytest.mark.parametrize(
    ("name", "words", "own"),
    [
        ("attention", ("I", "go", "on"), False),
        ("attention", ("cat", "and", "then"), True),  # each row writes the next token
        ("0.self_attn", ("I", "go", "on"), True),
        ("0.cross_attn", ("cat", "and", "then"), False),
    ],
    ids=["two texts", "one text", "named self", "named cross"],
)
def test_a_page_takes_the_name_of_a_matrix_then_its_labels(
    name: str, words: Any, own: bool
) -> None:
    A = Dense(torch.eye(3), labels=(words, ("the", "cat", "and")))
    (layer,) = items_of({name: A})[0].layers
    assert (layer.rows == layer.columns) == own
