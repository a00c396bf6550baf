"""A block takes one item as it takes a batch of one, and answers without a batch axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intently as it
from intently.core.matrix import LazyMatrix
from intently.errors import ArgumentError, KindError
from intently.nn import (
    AttentionHead,
    AttentionOptions,
    DecoderLayer,
    EncoderLayer,
    FixedCache,
    ImageAttention,
    KeyValueCache,
    MultiHeadAttention,
    SpatialTransformer,
    WindowCache,
    convolution_as_attention,
)

from ..combinations import each
from ..messages import raises

CAUSAL = AttentionOptions(mask=it.causal(), positions=it.Rotary(4))


def steps() -> tuple[Tensor, Tensor]:
    return torch.randn(5, 8), torch.randn(3, 6)


def image() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 4, 6), torch.randn(3, 6)


BLOCKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]], bool]] = {
    "head": (lambda: AttentionHead(8, 4, attention=CAUSAL), steps, False),
    "head, cross": (lambda: AttentionHead(8, 4, context_width=6), steps, True),
    "heads": (lambda: MultiHeadAttention(8, 2, kv_heads=1, attention=CAUSAL), steps, False),
    "heads, cross": (lambda: MultiHeadAttention(8, 2, context_width=6), steps, True),
    "encoder": (lambda: EncoderLayer(8, 2, 16), steps, False),
    "decoder": (
        lambda: DecoderLayer(8, 2, 16, cross=MultiHeadAttention(8, 2, context_width=6)),
        steps,
        True,
    ),
    "image": (lambda: ImageAttention(8, 2), image, False),
    "image, cross": (lambda: ImageAttention(8, 2, context_width=6), image, True),
    "spatial": (lambda: SpatialTransformer(8, 2, 4), image, False),
    "spatial, cross": (lambda: SpatialTransformer(8, 2, 4, context_width=6), image, True),
    "convolution": (lambda: convolution_as_attention(nn.Conv2d(8, 4, 3, padding=1)), image, False),
}


def methods(block: nn.Module) -> list[str]:
    return [name for name in ("forward", "attend", "attentions") if hasattr(block, name)]


def first(found: Any) -> Any:
    return {name: A[0] for name, A in found.items()} if isinstance(found, dict) else found[0]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, LazyMatrix):
        one, other = one.dense(), other.dense()
    return torch.equal(one, other)


@each({"by_name": [False, True], "name": BLOCKS})
def test_one_item_is_a_batch_of_one_without_its_axis(name: str, by_name: bool) -> None:
    make, inputs, crosses = BLOCKS[name]
    block, (x, context) = make(), inputs()
    given, named = [x], {}
    if crosses:
        if by_name:
            named = {"states" if isinstance(block, DecoderLayer) else "context": context}
        else:
            given.append(context)
    if by_name:
        named, given = named | {"x": x}, []
    for method in methods(block):
        ask = getattr(block, method)
        batch = ask(*(v[None] for v in given), **{key: v[None] for key, v in named.items()})
        assert equal(ask(*given, **named), first(batch))
    assert equal(block(*given, **named), block.forward(*given, **named))


@pytest.mark.parametrize(
    "mask",
    [it.causal(), it.padding(torch.tensor([3])), torch.rand(5, 5) > 0.3, torch.rand(2, 5, 5) > 0.3],
)
def test_masks_mean_what_they_mean_in_a_batch_of_one(mask: Any) -> None:
    block, x = MultiHeadAttention(8, 2), torch.randn(5, 8)
    assert equal(block(x, mask=mask), block(x[None], mask=mask)[0])
    assert equal(block.attend(x, mask=mask), block.attend(x[None], mask=mask)[0])


@pytest.mark.parametrize("make", [KeyValueCache, lambda: WindowCache(4)])
def test_a_cache_goes_on_with_one_item(make: Callable[[], Any]) -> None:
    block, x = MultiHeadAttention(8, 2, attention=CAUSAL), torch.randn(5, 8)
    one, batch = make(), make()
    for part in (x[:2], x[2:3], x[3:]):
        assert equal(block(part, cache=one), block(part[None], cache=batch)[0])
    assert one.length == batch.length
    with pytest.raises(ArgumentError):
        block(torch.randn(2, 1, 8), cache=one)


def test_a_fixed_cache_keeps_the_context_of_one_item() -> None:
    block = MultiHeadAttention(8, 2, context_width=6)
    (x, context), cache = steps(), FixedCache()
    once = block(x, context, cache=cache)
    assert equal(once, block(x[None], context[None])[0])
    assert equal(block(x, cache=cache), once)
    decoder = DecoderLayer(8, 2, 16, cross=MultiHeadAttention(8, 2, context_width=6))
    options = {"mask": it.causal()}
    wanted = decoder(x[None], context[None], **options)[0]
    caches = KeyValueCache(), FixedCache()
    found = [decoder(part, context, cache=caches, **options) for part in (x[:4], x[4:])]
    torch.testing.assert_close(torch.cat(found), wanted)


def crossing(x: Any, context: Any) -> Tensor:
    return MultiHeadAttention(8, 2, context_width=6)(x, context)


X, CONTEXT = steps()
test_a_batch_axis_stands_before_both_or_neither = raises(
    {
        ArgumentError: {
            "context: expected shape (s, k), as x has no batch": lambda: crossing(X, CONTEXT[None]),
            "context: expected shape (b=1, s, 6); got": lambda: crossing(X[None], CONTEXT),
            "states: expected shape (s, k)": lambda: DecoderLayer(8, 2, 16)(
                X, states=torch.randn(1, 3, 8)
            ),
            "x: expected shape (b, t, c=8), or (t, c); got": lambda: crossing(
                torch.randn(8), CONTEXT
            ),
            "x: expected shape (b, c=8, height, width), or (c": lambda: ImageAttention(8, 2)(
                torch.randn(4, 6)
            ),
        },
        KindError: {"context: expected a floating-point tensor": lambda: crossing(X, [[1.0]])},
    }
)
