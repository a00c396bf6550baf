"""The linear maps before attention: queries, keys and values of h and g heads, and their storage.

`Projected` holds the parameters and makes the lazy matrix; `AttentionHead` and `MultiHeadAttention`
decide what to do with the product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from intently.core.attention import Attention, attend, attention
from intently.core.biases import as_bias
from intently.core.kernels.operands import transformed
from intently.core.masks import Geometry, Mask, as_mask
from intently.core.positions import Rotary
from intently.errors import ArgumentError, build
from intently.foundation.arrays import valued
from intently.foundation.checks import check_kind, probability, whole_number
from intently.foundation.field_names import answered
from intently.foundation.values import Value
from intently.nn.caches.key_value import FixedCache
from intently.nn.checks import Cache, check_call, forgiving
from intently.nn.linear import linear
from intently.nn.options import AttentionOptions
from intently.nn.weights.copying import AllOrNothing, restore, wrong_shapes


@answered
@dataclass(frozen=True)
class Projections:
    """How the four linear maps are made and stored.

    ``bias`` applies to queries, keys and values, ``out_bias`` to the output, which is ``out_width``
    wide (the width of the queries unless given). ``fused`` keeps the first three in one weight,
    rows ordered q, k, v, each head after head; it is a storage choice: the same numbers, and
    checkpoints of either kind load into the other.
    """

    bias: bool = True
    out_bias: bool = True
    fused: bool = True
    out_width: int | None = None

    def __post_init__(self) -> None:
        if self.out_width is not None:
            whole_number(self.out_width, "out_width", 1)


class Projected(AllOrNothing):
    """Projections to queries of h heads and keys and values of g heads, and the lazy matrix."""

    qkv_weight: nn.Parameter
    qkv_bias: nn.Parameter | None
    q_weight: nn.Parameter
    q_bias: nn.Parameter | None
    k_weight: nn.Parameter
    k_bias: nn.Parameter | None
    v_weight: nn.Parameter
    v_bias: nn.Parameter | None

    def __init__(
        self,
        width: int,
        context_width: int | None,
        heads: tuple[int, int],
        head_widths: tuple[int, int],
        attention: AttentionOptions,
        projections: Projections,
        dropout: float,
    ) -> None:
        super().__init__()
        for kind, given, name in (
            (AttentionOptions, attention, "attention"),
            (Projections, projections, "projections"),
        ):
            check_kind(given, kind, name, f"intently.nn.{kind.__name__}(…)")
        self.width = whole_number(width, "width", 1)
        own = context_width is None
        self.context_width = width if own else whole_number(context_width, "context_width", 1)
        (self.heads, self.kv_heads), (self.d, self.e) = heads, head_widths
        self.dropout, self.projections = probability(dropout, "dropout"), projections
        h, g = heads
        self._split = (h * self.d, g * self.d, g * self.e)
        self.fused = projections.fused and self.context_width == width
        if self.fused:
            self._add("qkv", sum(self._split), width, projections.bias)
        else:
            self._add("q", self._split[0], width, projections.bias)
            self._add("k", self._split[1], self.context_width, projections.bias)
            self._add("v", self._split[2], self.context_width, projections.bias)
        self._take(attention)

    def _add(self, name: str, rows: int, columns: int, bias: bool) -> None:
        setattr(self, f"{name}_weight", nn.Parameter(torch.empty(rows, columns)))
        setattr(self, f"{name}_bias", nn.Parameter(torch.empty(rows)) if bias else None)

    def _take(self, options: AttentionOptions) -> None:
        """Register learned parts and prepare the values that every call needs."""
        positions = options.positions
        if positions is not None and positions.d != self.d:
            raise build(
                ArgumentError,
                "positions",
                f"Rotary(d={self.d}), as wide as a head",
                f"Rotary(d={positions.d})",
                fix="to rotate only some dimensions, write Rotary(d, width=…)",
            )
        self.attention = options
        self.mask = None if options.mask is None else as_mask(options.mask)
        self.score, self.sinks, bias = options.score, options.sinks, options.bias
        self.bias = bias if bias is None or isinstance(bias, nn.Module) else as_bias(bias)
        norm = options.qk_norm
        self.q_norm = None if norm is None else norm(self.d)
        self.k_norm = None if norm is None else norm(self.d)
        self._turns = positions is not None and not by_length(positions)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Projected:
        """Move the tensors in masks, biases and scores with the parameters."""
        super()._apply(fn, recurse)
        moved: dict[str, Any] = {}
        for name in ("mask", "score", "bias", "sinks"):
            value = getattr(self, name)
            if isinstance(value, Value):
                moved[name] = value.replaced(fn)
            elif isinstance(value, Tensor):
                moved[name] = fn(value)
        if moved:
            self.__dict__.update(moved, attention=replace(self.attention, **moved))
        return self

    def reset_parameters(self) -> None:
        """Draw new weights, Xavier uniform (Glorot & Bengio 2010) for each map; biases are 0."""
        joint = self.qkv_weight.split(self._split) if self.fused else ()
        for weight in joint or (self.q_weight, self.k_weight, self.v_weight):
            nn.init.xavier_uniform_(weight)
        for name, p in self.named_parameters(recurse=False):
            if name.endswith("bias"):
                nn.init.zeros_(p)

    @forgiving(2)
    def forward(
        self,
        x: Float[Tensor, "*b t c"],
        context: Float[Tensor, "*b s k"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "*b t o"]:
        """Return y (b, t, o): the attention of the tokens x to ``context`` (b, s, k), or to each
        other.

        o is c after several heads, e after one. Tokens x (t, c) and a context (s, k) are one item,
        and so is y (t, o). ``mask`` is combined with the layer's own mask. With a `KeyValueCache`
        or a `WindowCache`, x continues the steps in the cache; with a `FixedCache` only the first
        call computes the keys and values of the context. A call that raises leaves the cache
        unchanged. The content of padded steps affects only padded rows of y, and only the gradients
        of the projections: these sum over all steps, and 0 · NaN is NaN. Fill padding with finite
        numbers for training.
        """
        check_call(self, x, context, cache)
        q, k, v, settings = self._operands(x, context, mask, cache)
        return self._output(attention(q, k, v, **settings))

    @forgiving(2)
    def attend(
        self,
        x: Float[Tensor, "*b t c"],
        context: Float[Tensor, "*b s k"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
        cache: Cache | None = None,
    ) -> Attention:
        """Return the lazy matrix (b, h, t, s) that `forward` of the same arguments multiplies.

        It is (b, t, s) of a single `AttentionHead`, and has no axis b for tokens (t, c). With a
        cache, it appends the steps of x as `forward` does. Later steps may overwrite the buffers
        behind the matrix, which then refuses to answer. Call only one of the two per step.
        """
        check_call(self, x, context, cache)
        q, k, _, settings = self._operands(x, context, mask, cache)
        return self._of_heads(attend(q, k, **settings))

    def _output(self, y: Tensor) -> Tensor:
        """Return the output (b, t, o) from the products (b, h, t, e) of all heads."""
        raise NotImplementedError

    def _of_heads(self, matrix: Attention) -> Attention:
        return matrix

    def _operands(
        self, x: Tensor, context: Tensor | None, mask: Mask | Tensor | None, cache: Cache | None
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        """Queries (b, h, t, d), keys (b, g, s, d), values (b, g, s, e), and what `attend` takes."""
        rule = self.mask
        if mask is not None:
            rule = as_mask(mask) if rule is None else rule & as_mask(mask)
        bias = self.bias() if isinstance(self.bias, nn.Module) else self.bias
        t, offset, end, growing = x.shape[1], 0, x.shape[1], None
        if cache is not None and not isinstance(cache, FixedCache):
            growing, offset, end = cache, cache.offset, cache.length + t
            # before the steps are written: a refused call leaves matrices over the cache readable
            whole = Geometry((x.shape[0], self.heads), t, end, x.device)
            if rule is not None:
                rule.check(whole)
            rule = cache.mask(rule, t)
            if bias is not None:
                bias = as_bias(bias)
                bias.check(whole)
                bias = cache.bias(bias, t)
        if isinstance(cache, FixedCache):
            q = self._queries(x)
            if cache.kv is None:
                assert context is not None
                cache.kv = self._keys_and_values(context)
            if cache.keep_queries:
                cache.history.append(q)
            k, v = cache.kv
        elif context is not None:
            q, (k, v) = self._queries(x), self._keys_and_values(context)
        else:
            q, k, v = self._own(x, offset, end)
        if growing is not None:
            new = k
            k, v = growing.append(k, v)
            if growing.keep_queries:
                growing.history.append((q, new))
        if self.attention.positions is not None and not self._turns:
            end = offset + t
            places = None if growing is None else growing.places(x.device)
            q = self.attention.positions(q, offset, length=end)
            k = self.attention.positions(k, positions=places, length=end)
        score, sinks = self.score, self.sinks
        settings = {
            "score": score() if isinstance(score, nn.Module) else score,
            "mask": rule,
            "bias": bias,
            "scale": self.attention.scale,
            "softcap": self.attention.softcap,
            "sinks": sinks() if isinstance(sinks, nn.Module) else sinks,
            "dropout": self.dropout if self.training else 0.0,
        }
        return q, k, v, settings

    def _own(self, x: Tensor, offset: int | Tensor, end: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of x itself, with rotary positions applied."""
        h, g = self.heads, self.kv_heads
        positions = self.attention.positions if self._turns else None
        if not self.fused:
            q = self._query_map(x)
            k, v = self._key_and_value_maps(x)
        else:
            joint = linear(x, self.qkv_weight, self.qkv_bias)
            if self.d == self.e:
                heads = joint.unflatten(-1, (-1, self.d))
                if self.q_norm is None and positions is not None:
                    both, v = heads.split_with_sizes((h + g, g), -2)
                    both = turned(positions, both, offset, end)
                    q, k = both.split_with_sizes((h, g), -2)
                    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
                q, k, v = heads.split_with_sizes((h, g, g), -2)
            else:
                q, k, v = joint.split_with_sizes(self._split, -1)
                q, k, v = _heads(q, h), _heads(k, g), _heads(v, g)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if positions is not None:
            q, k = turned(positions, q, offset, end), turned(positions, k, offset, end)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def _queries(self, x: Tensor) -> Tensor:
        q = self._query_map(x)
        return (q if self.q_norm is None else self.q_norm(q)).transpose(1, 2)

    def _query_map(self, x: Tensor) -> Tensor:
        """(b, t, h, d)."""
        n = self._split[0]
        if self.fused:
            bias = None if self.qkv_bias is None else self.qkv_bias[:n]
            return _heads(linear(x, self.qkv_weight[:n], bias), self.heads)
        return _heads(linear(x, self.q_weight, self.q_bias), self.heads)

    def _keys_and_values(self, context: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self._key_and_value_maps(context)
        k = k if self.k_norm is None else self.k_norm(k)
        return k.transpose(1, 2), v.transpose(1, 2)

    def _key_and_value_maps(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """(b, s, g, d) and (b, s, g, e)."""
        n, kd, ve = self._split
        if self.fused:
            bias = None if self.qkv_bias is None else self.qkv_bias[n:]
            k, v = linear(context, self.qkv_weight[n:], bias).split((kd, ve), -1)
        else:
            k = linear(context, self.k_weight, self.k_bias)
            v = linear(context, self.v_weight, self.v_bias)
        return _heads(k, self.kv_heads), _heads(v, self.kv_heads)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Accept checkpoints of the other storage; if a shape is wrong, load nothing."""
        restore(state_dict, prefix, self._split, self.fused)
        wrong = wrong_shapes(self, state_dict, prefix)
        error_msgs += wrong
        if wrong:
            return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


def _heads(x: Tensor, heads: int) -> Tensor:
    """Split (b, t, h·d) into heads: (b, t, h, d)."""
    return x.unflatten(-1, (heads, -1))


def turned(rotary: Rotary, x: Tensor, offset: int | Tensor, end: int) -> Tensor:
    """Heads (b, t, n, d) rotated to the positions ``offset + i`` < ``end``; offsets may be (b,).

    >>> x = torch.ones(1, 2, 1, 2)
    >>> turned(Rotary(2), x, 0, 2)[0, :, 0]
    tensor([[ 1.0000,  1.0000],
            [-0.3012,  1.3818]])
    """
    if not valued(x) or transformed() or by_length(rotary):
        return rotary(x.transpose(1, 2), offset).transpose(1, 2)
    dtype = torch.promote_types(x.dtype, torch.float32)
    cos, sin = _table(rotary, dtype, x.device).upto(end)
    t = x.shape[1]
    if isinstance(offset, int):
        cos, sin = cos[offset : offset + t, None], sin[offset : offset + t, None]
    else:
        at = offset[:, None] + torch.arange(t, device=x.device)
        cos, sin = cos[at, None], sin[at, None]
    width = cos.shape[-1]
    whole = width == x.shape[-1]
    y = x if whole else x[..., :width]
    y = y if y.dtype is dtype else y.to(dtype)
    if rotary.layout == "half":
        swapped = y.roll(width // 2, -1)
    else:
        swapped = y.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    y = (y * cos).addcmul_(swapped, sin).to(x.dtype)
    return y if whole else torch.cat([y, x[..., width:]], -1)


def by_length(rotary: Rotary) -> bool:
    """Whether the angles of all steps change when the text grows."""
    return rotary.scaling is not None and rotary.scaling.by_length


class AngleTable:
    """Cosines and signed sines (n, width) of the first n positions; n doubles when it must.

    Threads share it: the pair is read and written as one value, never half of it.
    """

    def __init__(self, rotary: Rotary, dtype: torch.dtype, device: torch.device) -> None:
        self.rotary, self.dtype, self.device = rotary, dtype, device
        self.pair = torch.empty(0, 0), torch.empty(0, 0)

    def upto(self, end: int) -> tuple[Tensor, Tensor]:
        """Return the table for at least ``end`` positions."""
        pair = self.pair
        if end > len(pair[0]):
            with torch.inference_mode(False), torch.no_grad():
                pair = self.pair = self._made(max(2 * end, 256))
        return pair

    def _made(self, n: int) -> tuple[Tensor, Tensor]:
        angles = self.rotary.angles(n, dtype=self.dtype, device=self.device)
        gain = 1.0 if self.rotary.scaling is None else self.rotary.scaling.gain()
        cos, sin = angles.cos() * gain, angles.sin() * gain
        join = torch.cat if self.rotary.layout == "half" else _side_by_side
        return join([cos, cos], -1), join([-sin, sin], -1)


def _side_by_side(pair: list[Tensor], axis: int) -> Tensor:
    return torch.stack(pair, axis).flatten(-2)


@lru_cache(maxsize=16)
def _table(rotary: Rotary, dtype: torch.dtype, device: torch.device) -> AngleTable:
    return AngleTable(rotary, dtype, device)
