"""A step of a search through the decoder of a `Transformer`, straight from its weights.

`Transformer.decode` serves any number of tokens, under any options, with hooks and while watched.
For one token of few rows the calls of its modules cost more than their products: a step takes 2 to
2.6 × as long by it, one of 32 sentences with 5 beams 1.3 ×. The numbers are the same bit for bit:
the same products, norms and attention in the same order, in the same caches.
"""

from __future__ import annotations

import math
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from intently.core.attention import attention, replaced
from intently.core.kernels import _asked_for, native
from intently.core.kernels.operands import forward_mode, in_autocast, transformed
from intently.nn.blocks import DecoderLayer, EncoderLayer
from intently.nn.caches.key_value import FixedCache, KeyValueCache
from intently.nn.feed_forward import FeedForward, GatedFeedForward
from intently.nn.linear import Linear, linear
from intently.nn.models.transformer import DecoderCache, Memory, Transformer
from intently.nn.multi_head import MultiHeadAttention
from intently.nn.projected_attention import turned

PARTS = {
    *(Transformer, EncoderLayer, DecoderLayer, MultiHeadAttention, FeedForward, GatedFeedForward),
    *(Linear, nn.ModuleList, nn.Embedding, nn.LayerNorm, nn.Identity),
}
REPLACED = {"forward", "hidden", "decode", "_step", "attend"}
"""Methods that an object may have replaced by its own."""


def serves(model: object) -> TypeGuard[Transformer]:
    """Whether a `SearchStep` computes the same as ``model.decode``, unseen by any hook or watch.

    False on accelerators, for dtypes other than float32 and float64, while training, under
    gradients, autocast, transforms, watches and `intently.kernels.use`, and if any part has a hook,
    a custom ``forward``, or another class or options than a `Transformer` makes.
    """
    if type(model) is not Transformer or torch.is_grad_enabled() or replaced() or transformed():
        return False
    weights = list(model.parameters())
    kind, device = weights[0].dtype, weights[0].device
    if device.type != "cpu" or kind not in (torch.float32, torch.float64) or in_autocast(device):
        return False
    if torch.compiler.is_compiling() or forward_mode(weights) or _asked_for() is not None:
        return False
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return False
    own = all(type(x) is nn.Parameter and x.dtype is kind and x.device == device for x in weights)
    return own and all(map(_plain, model.modules()))


def _plain(part: nn.Module) -> bool:
    """Whether a part behaves as its class does, with options that a `Transformer` may have."""
    if type(part) not in PARTS or part.training or not REPLACED.isdisjoint(vars(part)):
        return False
    if part._forward_hooks or part._forward_pre_hooks:
        return False
    if isinstance(part, nn.Embedding):
        return part.max_norm is None
    if not isinstance(part, MultiHeadAttention):
        return True
    positions = part.attention.positions
    others = [x for x in vars(part.attention).values() if x is not None and x is not positions]
    turns = part._turns == (positions is not None)
    return not others and part.fused and part.d == part.e and turns


class SearchStep:
    """Reads one more token in each row, with the keys and values in a cache.

    >>> from intently.nn.models import TransformerOptions
    >>> model = Transformer(TransformerOptions(source_vocabulary=20, target_vocabulary=30)).eval()
    >>> cache = model.new_cache()
    >>> with torch.no_grad():
    ...     memory = model.encode(torch.tensor([[5, 6, 2]]))
    ...     SearchStep(model, memory, cache)(torch.tensor([1]), memory).shape
    torch.Size([1, 30])
    """

    def __init__(self, model: Transformer, memory: Memory, cache: DecoderCache) -> None:
        self._model, self._cache, self._memory = model, cache, memory
        self._layers = [_DecoderStep(layer) for layer in model.decoder]
        self._mask = self._added(memory)
        for layer, (_, cross) in zip(self._layers, cache.layers):
            k, v = layer.cross._keys_and_values(memory.states)
            if self._mask is not None:  # NaN in padding would spread
                seen = self._mask.mT == 0
                k, v = torch.where(seen, k, 0), torch.where(seen, v, 0)
            cross.kv = k.contiguous(), v.contiguous()

    def __call__(self, tokens: Tensor, memory: Memory) -> Tensor:
        """Return the logits (rows, V) after one more token (rows,) each."""
        model, t = self._model, self._cache.length
        if memory is not self._memory:  # another pick of its rows
            self._memory, self._mask = memory, self._added(memory)
        x = F.embedding(tokens, model.output_weight) * math.sqrt(model.options.width)
        if model.options.positions != "rotary":
            x = x + model._added("target", t, t + 1)
        for layer, caches in zip(self._layers, self._cache.layers):
            x = layer(x, *caches, self._mask, memory)
        return linear(model.decoder_norm(x), model.output_weight)

    def _added(self, memory: Memory) -> Tensor | None:
        """The padding of the states as numbers (n, 1, 1, s) to add, None where there is none."""
        if memory.lengths is None:
            return None
        seen = torch.arange(memory.states.shape[1]) < memory.lengths[:, None]
        return torch.where(seen, 0.0, -math.inf).to(memory.states.dtype)[:, None, None]


class _DecoderStep:
    """A layer of the decoder, with its weights at hand."""

    def __init__(self, layer: Any) -> None:
        own, cross, feed = layer.self_attention, layer.cross_attention, layer.feed_forward
        self.cross, self._pre = cross, layer.norm == "pre"
        self._own, self._asking = (own.heads, own.kv_heads, own.d), (cross.heads, cross.d)
        self._positions = own.attention.positions
        self._norms = [
            (norm.normalized_shape, norm.weight, norm.bias, norm.eps)
            for norm in (layer.self_norm, layer.cross_norm, layer.feed_norm)
        ]
        self._gated, self._activation = isinstance(feed, GatedFeedForward), feed.activation
        up, down = feed.gate_up if self._gated else feed.up, feed.down
        n, bias = cross.heads * cross.d, cross.qkv_bias
        self._maps = (
            (own.qkv_weight, own.qkv_bias),
            (own.out_weight, own.out_bias),
            (cross.qkv_weight[:n], None if bias is None else bias[:n]),
            (cross.out_weight, cross.out_bias),
            (up.weight, up.bias),
            (down.weight, down.bias),
        )

    def __call__(
        self, x: Tensor, own: KeyValueCache, cross: FixedCache, mask: Tensor | None, memory: Memory
    ) -> Tensor:
        """Return the states (rows, c) of the next step; the caches keep its keys and queries."""
        norm, pre, (first, second, third) = torch.native_layer_norm, self._pre, self._norms
        joint, out, asking, read_out, up, down = self._maps
        (h, g, d), rows, t = self._own, x.shape[0], own.length
        heads = linear(norm(x, *first)[0] if pre else x, *joint).view(rows, 1, h + 2 * g, d)
        if self._positions is None:
            q, new, v = heads.view(rows, -1, 1, d).split_with_sizes((h, g, g), 1)
        else:
            both, v = heads.split_with_sizes((h + g, g), 2)
            both = turned(self._positions, both, t, t + 1)
            q, new = both.view(rows, -1, 1, d).split_with_sizes((h, g), 1)
            v = v.transpose(1, 2)
        y = _attended(q, *own.append(new, v), None, None)
        x = linear(y.view(rows, h * d), *out).add_(x)
        if not pre:
            x = norm(x, *first)[0]

        assert cross.kv is not None
        k, v = cross.kv
        n = k.shape[0]
        asked = linear(norm(x, *second)[0] if pre else x, *asking)
        asked = asked.view(n, rows // n, *self._asking).transpose(1, 2)
        some = mask if mask is None or rows == n else mask.expand(n, 1, rows // n, -1)
        y = _attended(asked, k, v, some, memory)
        x = linear(y.transpose(1, 2).reshape(rows, -1), *read_out).add_(x)
        if not pre:
            x = norm(x, *second)[0]
        if own.keep_queries:
            own.history.append((q, new))
            cross.history.append(asked)

        inner = linear(norm(x, *third)[0] if pre else x, *up)
        if self._gated:
            gate, other = inner.chunk(2, -1)
            inner = self._activation(gate) * other
        else:
            inner = self._activation(inner)
        x = linear(inner, *down).add_(x)
        return x if pre else norm(x, *third)[0]


def _attended(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, memory: Memory | None
) -> Tensor:
    """The product of a call, by the shortest way that can; ``added`` is the mask of the memory."""
    y = None if added is None else native.quick(q, k, v, None, added)
    return attention(q, k, v, mask=memory and memory.mask) if y is None else y
