"""The single head of the tutorials: three linear maps and the formula."""

from __future__ import annotations

import pytest
import torch

import intently as it
from intently.errors import ArgumentError
from intently.nn import AttentionHead, AttentionOptions, MultiHeadAttention

from ..messages import raises
from ..tensors import drawn


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("widths", [(None, None), (5, None), (None, 7), (5, 7)])
def test_it_is_the_formula(bias: bool, widths: tuple[int | None, int | None]) -> None:
    context_width, value_width = widths
    head = drawn(
        AttentionHead(12, 4, context_width=context_width, value_width=value_width, bias=bias)
    )
    x, context = torch.randn(2, 3, 12).double(), torch.randn(2, 6, context_width or 12).double()
    e = value_width or 4
    state = dict(head.state_dict())
    if head.fused:
        names = [f"{letter}_{kind}" for kind in ("weight", "bias") for letter in "qkv"]
        parts = [y for kind in state for y in state[kind].split((4, 4, e))]
        state = dict(zip(names, parts))
    q, k, v = (
        y @ state[f"{name}_weight"].T + state.get(f"{name}_bias", 0)
        for name, y in zip("qkv", (x, context, context))
    )
    weights = torch.softmax(q @ k.mT / 2.0, -1)
    torch.testing.assert_close(head(x, context), weights @ v)
    A = head.attend(x, context)
    assert A.shape == (2, 3, 6)
    torch.testing.assert_close(A.dense(), weights)


def test_a_head_is_a_block_of_one_head_with_nothing_behind_it() -> None:
    head = AttentionHead(8, 4, bias=True, attention=AttentionOptions(mask=it.causal(), softcap=3.0))
    block = MultiHeadAttention(8, 1, head_widths=(4, 4), attention=head.attention)
    block.load_state_dict(
        {**head.state_dict(), **{"out_weight": torch.eye(4, 8).T, "out_bias": torch.zeros(8)}}
    )
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(head(x), block(x)[..., :4])
    torch.testing.assert_close(head.attend(x).dense(), block.attend(x)[:, 0].dense())


def test_it_is_described() -> None:
    assert repr(AttentionHead(8, 4, value_width=3)) == "AttentionHead(width=8, d=4, e=3)"


test_errors = raises(
    {
        ArgumentError: {
            "head_width: expected an int ≥ 1; got 0": lambda: AttentionHead(8, 0),
            "x: expected shape (b, t, c=8), or (t, c); got": lambda: AttentionHead(8, 4)(
                torch.zeros(8)
            ),
            "context: expected shape (b, s, 3); got None": lambda: AttentionHead(
                8, 4, context_width=3
            )(torch.zeros(1, 5, 8)),
        }
    }
)
