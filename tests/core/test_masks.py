"""Masks are values: they draw themselves, join, know what they leave unseen, and refuse misfits."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import intently as it
from intently.core.masks import Geometry
from intently.errors import ArgumentError, KindError

from ..combinations import each
from ..messages import raises
from .formula import families, knows_its_entries, written_out

CPU = torch.device("cpu")
SIZES = [
    (2, 2, 5, 7),
    (2, 2, 7, 5),
    (2, 3, 6, 6),
    (2, 1, 1, 6),
    (2, 2, 4, 4),
    (2, 2, 1, 1),
    (2, 2, 8, 8),
]


@each({"size": SIZES, "family": families(2, 2, 6, 6)}, times=3)
def test_each_rule_written_out(family: str, size: tuple[int, int, int, int]) -> None:
    b, h, t, s = size
    known = families(b, h, t, s)
    if known.get(family, (None,))[0] is None:
        pytest.skip("no mask of this size")
    mask, rule = known[family]
    assert mask is not None
    g = Geometry((b, h), t, s, CPU)
    mask.check(g)
    expected = written_out(rule, b, h, t, s)
    knows_its_entries(mask, g, expected)
    last = [torch.tensor(n - 1) for n in g.shape]
    assert bool(mask.at(g, tuple(last[:-2]), *last[-2:])) == bool(expected[-1, -1, -1, -1])
    rows, cols = torch.tensor([t - 1, 0]), torch.tensor([s - 1, 0, 0])
    part = mask.allow(g, rows, cols).expand(b, h, 2, 3)
    assert torch.equal(part, expected[:, :, rows][..., cols])


DRAWINGS = [
    (it.causal(), 3, 5, "███··\n████·\n█████"),
    (it.causal(), 5, 3, "···\n···\n█··\n██·\n███"),
    (it.causal(0), 3, 5, "█····\n██···\n███··"),
    (it.causal(torch.tensor([1, 2])), 2, 3, "██·\n███"),
    (it.window(1, 0), 4, 4, "█···\n██··\n·██·\n··██"),
    (it.window(0, 1), 3, 3, "██·\n·██\n··█"),
    (it.window(1, 1, offset=2), 2, 5, "·███·\n··███"),
    (it.causal() | it.prefix(2), 4, 4, "██··\n██··\n███·\n████"),
    (it.padding(torch.tensor([2])), 2, 4, "██··\n██··"),
    (it.prefix(torch.tensor([1, 2])), 2, 2, "█·\n█·"),
    (it.segments(torch.tensor([0, 0, 1])), 3, 3, "██·\n██·\n··█"),
    (it.segments(torch.tensor([[1, 2]]), torch.tensor([[2, 1, 0]])), 2, 3, "·█·\n█··"),
    (it.dilated(2), 4, 4, "█·█·\n·█·█\n█·█·\n·█·█"),
    (it.grid(1, 4, 1), 4, 4, "██··\n███·\n·███\n··██"),
    (it.grid(2, 2, 0), 4, 4, "█···\n·█··\n··█·\n···█"),
    (it.allowed(torch.eye(2, dtype=torch.bool)), 2, 2, "█·\n·█"),
    (~it.causal(), 3, 3, "·██\n··█\n···"),
    (it.causal() & ~it.window(1, 0), 4, 4, "····\n····\n█···\n██··"),
]


@pytest.mark.parametrize(("mask", "t", "s", "drawing"), DRAWINGS, ids=lambda x: repr(x)[:40])
def test_it_draws_itself(mask: it.Mask, t: int, s: int, drawing: str) -> None:
    assert mask.draw(t, s).replace(" ", "") == drawing
    if t == s:
        assert mask.draw(t) == mask.draw(t, s)


@pytest.mark.parametrize(
    "written",
    [
        "causal()",
        "causal(offset=2)",
        "window(3, 0)",
        "window(1, 2, offset=4)",
        "prefix(3)",
        "dilated(2)",
        "dilated(2, offset=1)",
        "grid(2, 3, 1)",
        "~causal()",
        "causal() & ~window(1, 0)",
        "causal() | prefix(2)",
        "(causal() | prefix(2)) & window(4, 4)",
        "~(causal() & prefix(2))",
        "causal() & prefix(1) & prefix(2)",
    ],
)
def test_it_is_written_as_it_was_made(written: str) -> None:
    names = {name: getattr(it, name) for name in it.__all__}
    assert repr(eval(written, names)) == written


LONG = torch.arange(65)
WRITTEN = [
    (it.padding(torch.tensor([2, 3])), "padding([2, 3])"),
    (it.causal(torch.tensor([2, 3])), "causal(offset=[2, 3])"),
    (it.segments(torch.tensor([0, 1])), "segments([0, 1])"),
    (it.segments(torch.tensor([0]), torch.tensor([1])), "segments([0], [1])"),
    (it.allowed(torch.ones(2, 3, dtype=torch.bool)), "allowed(2×3 tensor)"),
    (it.segments(torch.zeros(2, 4096, dtype=torch.long)), "segments(2×4096 tensor)"),
    (it.padding(LONG[:64]), f"padding({list(range(64))})"),
    (it.padding(LONG), "padding(65 tensor)"),
    (it.causal() & (it.prefix(2) & it.dilated(2)), "causal() & (prefix(2) & dilated(2))"),
    (it.causal() & it.prefix(2) & it.dilated(2), "causal() & prefix(2) & dilated(2)"),
    (it.causal() | (it.prefix(2) | it.dilated(2)), "causal() | (prefix(2) | dilated(2))"),
]


@pytest.mark.parametrize(("mask", "text"), WRITTEN, ids=[text[:40] for _, text in WRITTEN])
def test_tensors_and_brackets_in_the_repr(mask: it.Mask, text: str) -> None:
    assert repr(mask) == text


atoms = st.sampled_from([x for x in families(2, 2, 4, 4) if x != "none"])


@settings(max_examples=60)
@given(
    names=st.tuples(atoms, atoms, atoms),
    signs=st.tuples(st.booleans(), st.booleans()),
    negated=st.booleans(),
)
def test_masks_join_like_booleans(
    names: tuple[str, str, str], signs: tuple[bool, bool], negated: bool
) -> None:
    known = families(2, 2, 4, 4)
    g = Geometry((2, 2), 4, 4, CPU)
    masks = [known[name][0] for name in names]
    truths = [written_out(known[name][1], 2, 2, 4, 4) for name in names]
    mask, truth = masks[0], truths[0]
    for sign, other, its_truth in zip(signs, masks[1:], truths[1:]):
        assert mask is not None and other is not None
        mask, truth = (
            (mask & other, truth & its_truth) if sign else (mask | other, truth | its_truth)
        )
    assert mask is not None
    mask, truth = (~mask, ~truth) if negated else (mask, truth)
    knows_its_entries(mask, g, truth)
    k = torch.randn(2, 2, 4, 3)
    A = it.attend(k, k, mask=mask)
    assert torch.equal(A.dense() > 0, truth)


def attend(mask: object) -> it.Attention:
    return it.attend(torch.ones(2, 3, 4, 2), torch.ones(2, 3, 5, 2), mask=mask)  # type: ignore[arg-type]


test_errors = raises(
    {
        KindError: {
            "before: expected an int ≥ 0; got 1.5.": lambda: it.window(1.5, 0),
            "before: expected an int ≥ 0; got True.": lambda: it.window(True, 0),
            "offset: expected integers; got dtype": lambda: it.causal(1.5),
            "offset: expected integers; got 'x'.": lambda: it.causal("x"),
            "offset: expected integers; got dtype torch.bool.": lambda: it.causal(True),
            "lengths: expected integers; got dtype torch.float32.": lambda: it.padding(
                torch.tensor([1.0])
            ),
            "mask: expected a boolean tensor, True where a query may attend; got zeros and ones of "
            "dtype torch.float32. If 1 means attend, pass mask.bool().": lambda: it.allowed(
                torch.eye(2)
            ),
            "mask: expected a boolean tensor, True where a query may attend; got dtype "
            "torch.float32. Numbers to add are a bias. Pass it as bias=, or write `mask == 0` if "
            "all else in it is very negative.": lambda: it.allowed(torch.full((2, 2), -1e4)),
            "mask: expected a mask such as it.causal(), or a boolean tensor; got str. "
            "True means attend in every mask.": lambda: attend("causal"),
        },
        ArgumentError: {
            "before: expected an int ≥ 0; got -1.": lambda: it.window(-1, 0),
            "after: expected an int ≥ 0; got -1.": lambda: it.window(0, -1),
            "step: expected an int ≥ 1; got 0.": lambda: it.dilated(0),
            "n: expected an int ≥ 0; got -1.": lambda: it.prefix(-1),
            "height: expected an int ≥ 1; got 0.": lambda: it.grid(0, 2, 1),
            "mask: expected a shape that broadcasts to (b, h, t, s) = (2, 3, 4, 5); got shape "
            "(2, 4, 5). Its first axis is b, where broadcasting looks for h. "
            "Use m[:, None], shape (b, 1, t, s).": lambda: attend(
                torch.ones(2, 4, 5, dtype=torch.bool)
            ),
            "mask: expected a shape that broadcasts to (…, t, s) = (2, 3, 4, 5); got shape (2, 5). "
            "It holds one entry per batch row and key, (b, s). "
            "Pass it.padding(m), or use m[:, None, None].": lambda: attend(
                torch.ones(2, 5, dtype=torch.bool)
            ),
            "mask: expected a shape that broadcasts to (…, t, s) = (2, 3, 4, 5); got "
            "shape (3, 3).": lambda: attend(torch.ones(3, 3, dtype=torch.bool)),
            "lengths: expected a shape that matches the leftmost leading axes (2, 3); got shape "
            "(3,). Lengths, offsets and ids hold one entry per batch row (b,).": lambda: attend(
                it.padding(torch.tensor([1, 2, 3]))
            ),
            "offset: expected a shape that matches the leftmost leading axes (2, 3)": lambda: (
                attend(it.causal(torch.tensor([1, 2, 3])))
            ),
            "n: expected a shape that matches the leftmost leading axes (2, 3)": lambda: attend(
                it.prefix(torch.tensor([1, 2, 3]))
            ),
            "key_ids: expected shape (…, s=5); got shape (4,). Give one id per step, and key_ids "
            "of their own where t and s differ.": lambda: attend(
                it.segments(torch.zeros(4, dtype=torch.long))
            ),
            "query_ids: expected shape (…, t=4); got shape (3,).": lambda: attend(
                it.segments(torch.zeros(3, dtype=torch.long))
            ),
            "mask: expected t = s = 2·2 = 4 for grid(2, 2, 1); got t=4, s=5. "
            "Grid joins the pixels of one image, row after row.": lambda: attend(
                it.causal() & it.grid(2, 2, 1)
            ),
            "mask: expected t = s = 2·2 = 4 for grid(2, 2, 1); got t=3, s=3.": lambda: it.grid(
                2, 2, 1
            ).draw(3),
        },
    }
)


@pytest.mark.parametrize("shape", [(2, 1, 4, 5), (3, 4, 5), (2, 1, 1, 5)], ids=str)
def test_shapes_that_the_advice_makes(shape: tuple[int, ...]) -> None:
    assert attend(torch.rand(shape) > 0.5).shape == (2, 3, 4, 5)


# --- masks as other libraries make them -----------------------------------------------------------

SEEN = [[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]]


@pytest.mark.parametrize("make", [np.array, torch.tensor, list], ids=["numpy", "torch", "list"])
@pytest.mark.parametrize("number", [int, float])
def test_zeros_and_ones_are_answered_with_booleans(make: Any, number: type) -> None:
    rows = [[number(j <= i) for j in range(5)] for i in range(5)]
    x, made = torch.randn(5, 8), make(rows)
    with pytest.raises(KindError, match=r"zeros and ones .* If 1 means attend, pass (\S+)\.$") as e:
        it.attend(x, x, mask=made)
    advice = re.search(r"pass (\S+)\.$", str(e.value))
    assert advice
    mask = eval(advice.group(1), {"mask": made, "torch": torch})  # what the message says
    torch.testing.assert_close(
        it.attend(x, x, mask=mask).dense(), it.attend(x, x, mask=it.causal()).dense()
    )


def test_advice_for_a_mask_to_be_added_keeps_its_meaning() -> None:
    x = torch.randn(4, 8)
    added = torch.full((4, 4), -math.inf).triu(1)
    want = it.attend(x, x, mask=it.causal()).dense()
    for mask in (added, torch.zeros(4, 4)):
        with pytest.raises(KindError, match=r"bias=, or write `mask == 0` if"):
            it.attend(x, x, mask=mask)
        same = it.attend(x, x, bias=mask).dense()
        torch.testing.assert_close(it.attend(x, x, mask=mask == 0).dense(), same)
    torch.testing.assert_close(it.attend(x, x, bias=added).dense(), want)


@pytest.mark.parametrize(
    "ask",
    [
        lambda m: m and it.padding([2]),
        lambda m: m or it.padding([2]),
        lambda m: not m,
        bool,
        lambda m: 1 if m else 0,
    ],
)
@pytest.mark.parametrize("mask", [it.causal(), it.allowed([[True]]), ~it.causal() & it.prefix(1)])
def test_a_mask_has_no_truth(mask: it.Mask, ask: Any) -> None:
    with pytest.raises(KindError, match=r"Write `a & b`, `a \| b`, `~a`"):
        ask(mask)


@pytest.mark.parametrize("lead", [(2,), (2, 3)])
@pytest.mark.parametrize("kernel", ["eager", "tiled", "native"])
def test_an_attention_mask_is_padding(lead: tuple[int, ...], kernel: str) -> None:
    seen = torch.tensor(SEEN)
    q, k, v = torch.randn(*lead, 4, 8), torch.randn(*lead, 5, 8), torch.randn(*lead, 5, 8)
    spread = seen.bool().reshape(2, *(1,) * len(lead), 5)
    for mask, same in (
        (it.padding(seen.bool()), it.allowed(spread)),
        (it.causal() & it.padding(seen.bool()), it.causal() & spread),
        (~it.padding(seen.bool().tolist()), it.allowed(~spread)),
    ):
        with it.kernels.use(kernel):
            y, want = (it.attention(q, k, v, mask=m) for m in (mask, same))
        torch.testing.assert_close(y, want)
        A, B = it.attend(q, k, mask=mask), it.attend(q, k, mask=same)
        assert torch.equal(A[1].dense(), B[1].dense())
        assert torch.equal(A[[1, 0]].dense(), B[[1, 0]].dense())
        assert torch.equal(A.scores[..., :2, 1:], B.scores[..., :2, 1:])


def test_an_attention_mask_and_lengths_are_one_padding() -> None:
    g = Geometry((2, 1), 6, 5, torch.device("cpu"))
    seen = torch.arange(5) < torch.tensor([[2], [5]])
    one, other = it.padding([2, 5]), it.padding(seen)
    assert torch.equal(one.blocks(g, 2, 2), other.blocks(g, 2, 2))
    assert torch.equal(one.dense(g).expand(2, 1, 6, 5), other.dense(g).expand(2, 1, 6, 5))
    assert repr(other) == "padding(2×5 booleans)" and one.draw(2, 5) == other.draw(2, 5)


@pytest.mark.parametrize("made", [torch.tensor(SEEN), np.array(SEEN), SEEN, SEEN[:1]], ids=str)
def test_a_matrix_of_zeros_and_ones_is_no_lengths(made: Any) -> None:
    with pytest.raises(KindError, match=r"attention_mask of a tokenizer. Pass (\S+)\.$") as e:
        it.padding(made)
    code = str(e.value).rpartition("Pass ")[2].rstrip(".")
    mask = eval(code, {"mask": made, "torch": torch, "it": it})
    assert mask.draw(1, 5) == "█ █ █ · ·"


def test_what_is_no_padding_is_answered() -> None:
    with pytest.raises(ArgumentError, match=r"One text is a batch of 1. Pass it.padding\(m\[None"):
        it.padding(torch.tensor(SEEN).bool()[0])
    x = torch.randn(2, 7, 8)
    with pytest.raises(ArgumentError, match=r"padding: expected shape \(b, s=7\)"):
        it.attend(x, x, mask=it.padding(torch.tensor(SEEN).bool()))
    with pytest.raises(ArgumentError, match="padding: expected a shape that matches"):
        it.attend(x[:1], x[:1], mask=it.padding(torch.ones(2, 7).bool()))


@pytest.mark.parametrize("lead", [(4,), (4, 3)])
def test_booleans_of_texts_are_not_read_as_those_of_queries(lead: tuple[int, ...]) -> None:
    x, seen = torch.randn(*lead, 4, 8), torch.ones(4, 4).tril().bool()
    layer = it.nn.MultiHeadAttention(8, 2)
    calls = [
        lambda m: it.attend(x, x, mask=m).dense(),
        lambda m: it.attend(x, x, mask=it.causal() & m).dense(),
        lambda m: it.attention(x, x, x, mask=m),
    ]
    for call in [*calls, lambda m: layer(x.reshape(-1, 4, 8)[:4], mask=m)]:
        for made in (seen, seen.numpy(), seen.tolist())[: 1 if call not in calls else 3]:
            with pytest.raises(
                ArgumentError, match=r"a text of the batch or a query, since b = t = 4"
            ):
                call(made)
        texts, queries = call(it.padding(seen)), call(seen[None])
        assert not torch.allclose(texts, queries)
        torch.testing.assert_close(queries, call(it.causal()))
        torch.testing.assert_close(call(it.allowed(seen)), queries)


def test_booleans_that_can_mean_one_thing_need_no_axis() -> None:
    seen = torch.ones(4, 4).tril().bool()
    for lead in ((), (3,), (1,), (3, 4), (1, 4)):
        x = torch.randn(*lead, 4, 8)
        want = it.attend(x, x, mask=it.causal()).dense()
        torch.testing.assert_close(it.attend(x, x, mask=seen).dense(), want)
    x = torch.randn(4, 4, 8)  # made by a batch, asked about one text
    A = it.attend(x, x, mask=seen[None])
    torch.testing.assert_close(A[1].dense(), it.attend(x[1], x[1], mask=seen).dense())
