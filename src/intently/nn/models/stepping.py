"""The steps of a search through the decoder of a `Transformer`, straight from its weights.

A search asks for one token per row, again and again. `Transformer.decode` serves any number of
tokens, under any options, with hooks and while watched; Python overhead dominates its small steps.
Here all options are read once, before the first step. The numbers are
the same bit for bit: the same products, norms and fused attention in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from intently.core.attention import replaced
from intently.core.kernels import _asked_for, native
from intently.core.kernels.operands import forward_mode, in_autocast, transformed
from intently.core.scores import Dot
from intently.nn.blocks import DecoderLayer, EncoderLayer
from intently.nn.caches.rotary import turned
from intently.nn.feed_forward import FeedForward, GatedFeedForward
from intently.nn.linear import Linear, chosen, linear, prefers_onednn
from intently.nn.models.transformer import Memory, Transformer
from intently.nn.multi_head import MultiHeadAttention

PARTS = (
    nn.ModuleList,
    nn.Embedding,
    nn.LayerNorm,
    nn.Identity,
    Linear,
    EncoderLayer,
    DecoderLayer,
    MultiHeadAttention,
    FeedForward,
    GatedFeedForward,
)
ROOM = 4
"""Steps by which the room for keys and values grows."""


def serves(model: object) -> TypeGuard[Transformer]:
    """Whether `Steps` computes the same as ``model.decode``, unobserved by any hook or watch.

    False on accelerators, for dtypes other than float32 and float64, while training, under
    gradients, autocast, transforms, compilers, `intently.watch` and `intently.kernels.use`,
    and if any part has a hook, a custom ``forward``, or another class or options than a
    `Transformer` makes.
    """
    if type(model) is not Transformer:
        return False
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or transformed():
        return False
    if _asked_for() is not None or replaced():
        return False
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return False
    if not torch.backends.cuda.flash_sdp_enabled():
        return False
    weights = list(model.parameters())
    kind, device = weights[0].dtype, weights[0].device
    if device.type != "cpu" or kind not in (torch.float32, torch.float64) or in_autocast(device):
        return False
    for x in weights:
        if x.dtype is not kind or x.device != device or type(x) is not nn.Parameter:
            return False
    if forward_mode(weights):
        return False
    for part in model.modules():  # noqa: SIM110 - every search asks, and generators cost
        if not ((part is model or type(part) in PARTS) and _plain(part)):
            return False
    return True


REPLACED = ("forward", "hidden", "decode", "_step", "attend")
"""Methods that an object may have replaced by its own."""


def _plain(part: nn.Module) -> bool:
    """Whether a part behaves as its class does, with the options that `Steps` supports."""
    if part.training or part._forward_hooks or part._forward_pre_hooks:
        return False
    if not vars(part).keys().isdisjoint(REPLACED):
        return False
    if isinstance(part, nn.Embedding):
        return part.max_norm is None
    if not isinstance(part, MultiHeadAttention):
        return True
    how, turns = part.attention, part._turns or part.attention.positions is None
    rest = (how.score, how.mask, how.bias, how.softcap, how.qk_norm, how.scale, how.sinks)
    return rest == (None,) * len(rest) and part.fused and part.d == part.e and turns


class Steps:
    """The state of one search: keys, values and the recorded attention.

    >>> from intently.nn.models import Transformer, TransformerOptions
    >>> model = Transformer(TransformerOptions(source_vocabulary=20, target_vocabulary=30)).eval()
    >>> with torch.no_grad():
    ...     steps = Steps(model, model.encode(torch.tensor([[5, 6, 2]])))
    ...     steps.logits(torch.tensor([1])).shape
    torch.Size([1, 30])
    """

    def __init__(self, model: Transformer, memory: Memory, *, keep_queries: bool = False) -> None:
        o = self._options = model.options
        self._model, self._keep = model, keep_queries
        self._length, self._mask = 0, None
        states, seen = memory.states, None
        if memory.lengths is not None:
            seen = torch.arange(states.shape[1]) < memory.lengths[:, None]
            self._mask = torch.where(seen, 0.0, -math.inf).to(states.dtype)[:, None, None]
        blocks = [layer.cross_attention for layer in _layers(model)]
        pairs = [block._keys_and_values(states) for block in blocks]
        self.cross_keys = {f"decoder.{i}.cross_attention": k for i, (k, _) in enumerate(pairs)}
        """Keys (n, g, s, d) of the encoder's states, in the rows of the first step."""
        self._cross = [tuple(_seen(x, seen) for x in pair) for pair in pairs]
        self._layers = [_Layer(layer) for layer in _layers(model)]
        self.history: dict[str, list[tuple[Tensor, Tensor | None]]] = {
            f"decoder.{i}.{name}_attention": []
            for i in range(len(blocks))
            for name in ("self", "cross")
        }
        """The same as `DecoderCache.history`, if ``keep_queries``."""
        heads = 0 if not blocks else 2 * blocks[0].kv_heads
        self._shape = (len(blocks), heads, o.width // o.heads)
        self._kept = states.new_empty(0)
        self._spare, self._logits = self._kept, self._kept

    def logits(self, tokens: Tensor) -> Tensor:
        """Return the logits (rows, V) after one more token (rows,) each; the next call's too."""
        model, t, rows = self._model, self._length, tokens.shape[0]
        x = F.embedding(tokens, model.target_embedding.weight) * math.sqrt(self._options.width)
        if self._options.positions != "rotary":
            x = x + model._added("target", t, t + 1)
        if not t:
            self._kept = self._storage(self._kept, rows, ROOM)
        elif t == self._kept.shape[3]:
            room = self._storage(self._spare, rows, t + ROOM)
            room[:, :, :, :t] = self._kept
            self._kept, self._spare = room, self._kept
        for i, layer in enumerate(self._layers):
            x = layer(x, self._kept[:, i], t, self._cross[i], self._mask)
            if self._keep:
                q, k, read = layer.told
                self.history[f"decoder.{i}.self_attention"].append((q, k))
                self.history[f"decoder.{i}.cross_attention"].append((read, None))
        self._length = t + 1
        x = model.decoder_norm(x)
        weight = model.output_weight
        if prefers_onednn():
            return linear(x, weight)
        if self._logits.shape[0] < rows:
            self._logits = x.new_empty(rows, weight.shape[0])
        return torch.mm(x, weight.t(), out=self._logits[:rows])

    def reorder_targets(self, index: Tensor) -> None:
        """Continue with rows ``index`` of the targets."""
        room = self._storage(self._spare, len(index), self._kept.shape[3])
        torch.index_select(self._kept, 0, index, out=room)
        self._kept, self._spare = room, self._kept

    def reorder_memory(self, index: Tensor) -> None:
        """Continue with rows ``index`` of the memory."""
        self._cross = [tuple(x.index_select(0, index) for x in pair) for pair in self._cross]
        if self._mask is not None:
            self._mask = self._mask.index_select(0, index)

    def _storage(self, old: Tensor, rows: int, room: int) -> Tensor:
        """Room for keys and values (rows, layers, 2·g, steps, d), in old storage if it suffices."""
        layers, heads, d = self._shape
        shape = rows, layers, heads, room, d
        size = math.prod(shape)
        held = old.untyped_storage().nbytes() // old.element_size()
        if held < size:
            return old.new_empty(2 * size if room > ROOM else size)[:size].view(shape)
        return old.as_strided((size,), (1,), 0).view(shape)


class _Layer:
    """One layer of the decoder, with direct access to its weights."""

    def __init__(self, layer: DecoderLayer) -> None:
        self._pre = layer.norm == "pre"
        a, c = layer.self_attention, layer.cross_attention
        self._h, self._g, self._d = a.heads, a.kv_heads, a.d
        self._scale, self._grouped = Dot().default_scale(a.d), a.heads != a.kv_heads
        self._positions = a.attention.positions
        self._norms = [_norm(x) for x in (layer.self_norm, layer.cross_norm, layer.feed_norm)]
        self._feed: Any = layer.feed_forward
        self._gated = isinstance(self._feed, GatedFeedForward)
        relu = self._feed.activation is F.relu
        self._activation: Any = torch.relu_ if relu else self._feed.activation
        up = self._feed.gate_up if self._gated else self._feed.up
        down, n = self._feed.down, c.heads * c.d
        self._weights = (
            (a.qkv_weight, a.qkv_bias),
            (a.out_weight, a.out_bias),
            (c.qkv_weight[:n], None if c.qkv_bias is None else c.qkv_bias[:n]),
            (c.out_weight, c.out_bias),
            (up.weight, up.bias),
            (down.weight, down.bias),
        )
        self._rows = 0
        self._products: list[Callable[[Tensor], Tensor]] = []

    def __call__(
        self, x: Tensor, kept: Tensor, t: int, cross: tuple[Tensor, ...], mask: Tensor | None
    ) -> Tensor:
        """Return the states (rows, c) of step t, which writes its keys and values into ``kept``."""
        norm, pre, (first, second, third) = torch.native_layer_norm, self._pre, self._norms
        rows, h, g, d = x.shape[0], self._h, self._g, self._d
        if rows != self._rows:
            self._rows, self._products = rows, [chosen(rows, *pair) for pair in self._weights]
        joint, out, asking, read_out, up, down = self._products
        y = norm(x, *first)[0] if pre else x
        heads = joint(y).view(rows, 1, h + 2 * g, d)
        if self._positions is not None:
            both, v = heads.split_with_sizes((h + g, g), 2)
            heads = torch.cat([turned(self._positions, both, t, t + 1), v], 2)
        heads = heads.view(rows, h + 2 * g, 1, d)
        q, new = heads.split_with_sizes((h, 2 * g), 1)
        kept[:, :, t : t + 1] = new
        k, v = kept[:, :, : t + 1].split_with_sizes((g, g), 1)
        y = self._attended(q, k, v, None)
        x = out(y.view(rows, h * d)).add_(x)
        if not pre:
            x = norm(x, *first)[0]

        y = norm(x, *second)[0] if pre else x
        ask = asking(y)
        k, v = cross
        n = k.shape[0]
        m = rows // n
        read = ask.view(n, m, h, d).transpose(1, 2) if m > 1 else ask.view(n, h, 1, d)
        if mask is not None and m > 1:
            mask = mask.expand(n, 1, m, -1)
        y = self._attended(read, k, v, mask)
        x = read_out(y.transpose(1, 2).reshape(rows, h * d)).add_(x)
        if not pre:
            x = norm(x, *second)[0]

        y = norm(x, *third)[0] if pre else x
        inner = up(y)
        if self._gated:
            gate, other = inner.chunk(2, -1)
            inner = self._feed.activation(gate) * other
        else:
            inner = self._activation(inner)
        x = down(inner).add_(x)
        self.told = q, new[:, :g], ask.view(rows, h, 1, d)
        return x if pre else norm(x, *third)[0]

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        y = native.quick(q, k, v, self._scale, mask)
        if y is not None:
            return y
        return F.scaled_dot_product_attention(
            q, k, v, mask, 0.0, False, scale=self._scale, enable_gqa=self._grouped
        )


def _layers(model: Transformer) -> list[Any]:
    return list(model.decoder)


def _norm(norm: Any) -> tuple[Any, ...]:
    return norm.normalized_shape, norm.weight, norm.bias, norm.eps


def _seen(x: Tensor, seen: Tensor | None) -> Tensor:
    """Keys or values (n, g, s, d) with zeros in padded steps, where NaN would spread."""
    return x.contiguous() if seen is None else torch.where(seen[:, None, :, None], x, 0)
