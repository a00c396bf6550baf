"""Rows of x that share a row of states: equal to repeated states, under any mask."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

import intently as it
from intently.core.masks import Geometry, as_mask
from intently.errors import ArgumentError
from intently.nn import (
    AttentionOptions,
    DecoderLayer,
    FixedCache,
    KeyValueCache,
    MultiHeadAttention,
)
from intently.nn.caches.masks import side_by_side

from ..combinations import each
from ..core.formula import knows_its_entries
from ..messages import refused
from ..tensors import drawn
from .test_blocks import C, H, T, x

N, M, S = 2, 3, 7
LENGTHS = torch.tensor([6, 3])
SEEN = torch.rand(N * M, 1, T, S, generator=torch.Generator().manual_seed(0)) < 0.6
BEAM_MASKS: dict[str, Any] = {
    "none": None,
    "causal": it.causal(),
    "causal from 0": it.causal(offset=0),
    "offsets of the states": it.causal(offset=torch.tensor([2, 0])),
    "offsets of x": it.causal(offset=torch.arange(N * M)),
    "window": it.window(2, 1),
    "lengths of the states": it.padding(LENGTHS),
    "lengths of x": it.padding(torch.tensor([7, 1, 4, 0, 5, 2])),
    "joined": (it.causal(offset=1) | it.prefix(1)) & it.padding(LENGTHS),
    "segments": it.segments(torch.arange(T) // 2, torch.arange(S) // 2),
    "segments of x": it.segments(
        torch.arange(N * M * T).view(N * M, T) % 3, torch.arange(S).expand(N * M, S) % 3
    ),
    "(t, s)": it.allowed(SEEN[0, 0]),
    "(h, t, s)": SEEN[:H, 0],
    "(n, 1, t, s)": SEEN[:N],
    "(n, 1, 1, s)": SEEN[:N, :, :1],
    "(n, 1, t, 1)": SEEN[:N, :, :, :1],
    "(n, h, t, s)": SEEN[:N] & SEEN[:H, 0],
    "(b, 1, t, s)": SEEN,
    "(b, 1, 1, s)": SEEN[:, :, :1],
    "(b, 1, t, 1)": SEEN[..., :1],
    "(b, h, t, s)": SEEN & SEEN[:H, 0],
}


def for_each_row(mask: Any) -> Any:
    """The same mask for states that are repeated: what has a row for each of n gets one of b."""
    if mask is None:
        return None
    mask = as_mask(mask)
    return mask.replaced(lambda x: x.repeat_interleave(M, 0) if len(x) == N else x)


@each({"kernel": ["eager", "tiled", None], "mask": BEAM_MASKS.values()})
def test_rows_share_states_under_any_mask(mask: Any, kernel: Any) -> None:
    layer = drawn(DecoderLayer(C, H, 20))
    states, steps = x(N, S).requires_grad_(), x(N * M).requires_grad_()
    with it.kernels.use(kernel) if kernel else nullcontext():
        found = layer(steps, states, mask=it.causal(), states_mask=mask)
        repeated = states.repeat_interleave(M, 0)
        want = layer(steps, repeated, mask=it.causal(), states_mask=for_each_row(mask))
    torch.testing.assert_close(found, want)
    up = torch.randn_like(want)
    torch.testing.assert_close(
        torch.autograd.grad(found, (steps, states), up),
        torch.autograd.grad(want, (steps, states), up),
    )


@torch.no_grad()
def test_rows_share_states_in_steps() -> None:
    layer = drawn(DecoderLayer(C, H, 20))
    states, steps, seen = x(N, S), x(N * M), SEEN
    whole = layer(
        steps, states.repeat_interleave(M, 0), mask=it.causal(), states_mask=it.causal() & seen
    )
    cache = (KeyValueCache(), FixedCache())
    found = [
        layer(
            steps[:, i:j],
            states,
            mask=it.causal(),
            cache=cache,
            states_mask=it.causal(offset=i + S - T) & seen[:, :, i:j],
        )
        for i, j in ((0, 2), (2, 3), (3, 6))
    ]
    torch.testing.assert_close(torch.cat(found, 1), whole)


@pytest.mark.parametrize("name", [n for n, m in BEAM_MASKS.items() if m is not None])
def test_queries_side_by_side_are_those_of_each_row(name: str) -> None:
    """Entries one by one, keys seen, blocks and parts, as statistics and other kernels ask."""
    g = Geometry((N, H), T, S, torch.device("cpu"))
    each, wide = g._replace(lead=(N * M, H)), g._replace(t=M * T)
    want = for_each_row(BEAM_MASKS[name]).dense(each).expand(each.shape)
    want = want.unflatten(0, (N, M)).movedim(1, 2).flatten(2, 3)
    mask = side_by_side(as_mask(BEAM_MASKS[name]), M, g)
    mask.check(wide)
    knows_its_entries(mask, wide, want)
    blocks = mask.blocks(wide, 4, 3)
    parts = want.flatten(0, 1).split(4, 1)
    for row, part in zip(blocks, parts):
        for state, block in zip(row, part.split(3, -1)):
            assert state == 1 or block.all() == block.any() == bool(state)
    part = mask.part((1, slice(0, 2)), wide)
    assert torch.equal(part.dense(wide._replace(lead=(2,))).expand(2, M * T, S), want[1, :2])


def crossed(**options: Any) -> Any:
    """A decoder layer whose cross-attention attends by options of its own."""
    cross = MultiHeadAttention(12, 4, attention=AttentionOptions(**options))
    return DecoderLayer(12, 4, 20, cross=cross)


@torch.no_grad()
def test_options_of_the_cross_attention_that_beams_leave_alone() -> None:
    """One row of states to each row of x takes any; m rows take those that look at keys alone."""
    for options in ({"mask": it.causal()}, {"bias": it.alibi(4)}):
        assert crossed(**options)(x().float(), x(2, 5).float()).shape == (2, T, C)
    for options in ({"mask": it.prefix(3)}, {"softcap": 5.0}, {"sinks": torch.zeros(4)}):
        layer, steps, states = drawn(crossed(**options)), x(4), x(2)
        repeated = states.repeat_interleave(2, 0)
        mask = it.causal(offset=0)
        torch.testing.assert_close(
            layer(steps, states, states_mask=mask), layer(steps, repeated, states_mask=mask)
        )


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("options", [{"mask": it.causal()}, {"bias": it.alibi(4)}], ids=str)
def test_a_mask_or_bias_of_the_cross_attention_is_refused(options: Any) -> None:
    refused(
        lambda: crossed(**options)(x(4).float(), x(2).float()),
        ArgumentError,
        "states: expected as many rows as x, b=4; got shape (2, 6, 12). The cross-attention has a "
        "mask or bias of its own, which may look at where a query stands. Repeat them: "
        "states.repeat_interleave(2, 0), and rows of their mask.",
        whole=True,
    )


@pytest.mark.usefixtures("as_users_call")
def test_a_mask_that_is_of_neither_batch() -> None:
    layer = DecoderLayer(C, H, 20)
    refused(
        lambda: layer(x(6).float(), x().float(), states_mask=it.padding(torch.tensor([1, 2, 3]))),
        ArgumentError,
        "states_mask: expected a mask over (n, h, t, s) = (2, 3, 6, 6) or (b, h, t, s) = "
        "(6, 3, 6, 6); got padding([1, 2, 3]). Lengths: expected a shape that matches the leftmost "
        "leading axes (2, 3); got shape (3,). Lengths, offsets and ids hold one entry per batch "
        "row (b,).",
        whole=True,
    )
