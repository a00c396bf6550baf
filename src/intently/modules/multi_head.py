"""Multi-head attention: parameters around `intently.attend`.

Source: Vaswani et al. 2017, section 3.2.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from intently.attention import Attention, attend
from intently.errors import ArgumentError, CheckpointError, KindError, build, shape_of
from intently.masks import Geometry, Mask, as_mask
from intently.modules.caches import FixedCache, KeyValueCache


@dataclass(frozen=True)
class Projections:
    """How the four linear maps are made and stored.

    ``bias`` for queries, keys and values, ``out_bias`` for the output. ``fused`` keeps the first
    three in one weight, rows ordered q, k, v, each head after head; it is a storage choice: the
    same numbers, and checkpoints of either kind load into the other.
    """

    bias: bool = True
    out_bias: bool = True
    fused: bool = True


class MultiHeadAttention(nn.Module):
    """Self- or cross-attention with h heads between linear maps.

    ``width`` is c of the queries and the output, ``context_width`` that of what is attended
    (``width`` unless given), ``kv_heads`` the g key/value heads that h query heads share, and
    ``head_widths`` (d, e) of queries/keys and of values (c/h unless given). ``dropout`` acts on the
    weights while training.

    >>> layer = MultiHeadAttention(16, 4)
    >>> x = torch.zeros(2, 5, 16)
    >>> layer(x).shape, layer.attend(x).shape
    (torch.Size([2, 5, 16]), (2, 4, 5, 5))
    """

    qkv_weight: nn.Parameter
    qkv_bias: nn.Parameter | None
    q_weight: nn.Parameter
    q_bias: nn.Parameter | None
    k_weight: nn.Parameter
    k_bias: nn.Parameter | None
    v_weight: nn.Parameter
    v_bias: nn.Parameter | None
    out_weight: nn.Parameter
    out_bias: nn.Parameter | None

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        context_width: int | None = None,
        head_widths: tuple[int, int] | None = None,
        projections: Projections = Projections(),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if heads < 1 or (head_widths is None and width % heads):
            raise build(
                ArgumentError, "heads", f"a divisor of width={width}", heads,
                "each head gets width/heads", "choose another number, or give head_widths=(d, e)",
            )  # fmt: skip
        if kv_heads < 1 or heads % kv_heads:
            raise build(ArgumentError, "kv_heads", f"a divisor of heads={heads}", kv_heads)
        if head_widths is not None and not (len(head_widths) == 2 and min(head_widths) >= 1):
            raise build(ArgumentError, "head_widths", "two widths (d, e) ≥ 1", head_widths)
        if not 0 <= dropout < 1:
            raise build(ArgumentError, "dropout", "a probability in [0, 1)", dropout)
        self.width, self.heads, self.kv_heads = width, heads, kv_heads
        self.context_width = width if context_width is None else context_width
        self.d, self.e = (width // heads,) * 2 if head_widths is None else head_widths
        self.dropout = dropout
        self.projections = projections
        self._split = (heads * self.d, kv_heads * self.d, kv_heads * self.e)
        if projections.fused and self.context_width == width:
            self._add("qkv", sum(self._split), width, projections.bias)
        else:
            self._add("q", self._split[0], width, projections.bias)
            self._add("k", self._split[1], self.context_width, projections.bias)
            self._add("v", self._split[2], self.context_width, projections.bias)
        self._add("out", width, heads * self.e, projections.out_bias)
        self.reset_parameters()

    def _add(self, name: str, rows: int, columns: int, bias: bool) -> None:
        setattr(self, f"{name}_weight", nn.Parameter(torch.empty(rows, columns)))
        setattr(self, f"{name}_bias", nn.Parameter(torch.empty(rows)) if bias else None)

    @property
    def fused(self) -> bool:
        """Whether the three input maps are stored in one weight."""
        return hasattr(self, "qkv_weight")

    def reset_parameters(self) -> None:
        """Draw new weights, Xavier uniform (Glorot & Bengio 2010) for each map; biases are 0."""
        for weight in (*self._input_weights(), self.out_weight):
            nn.init.xavier_uniform_(weight)
        for name, p in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(p)

    def _input_weights(self) -> tuple[Tensor, ...]:
        if self.fused:
            return self.qkv_weight.split(self._split)
        return (self.q_weight, self.k_weight, self.v_weight)

    def _input_biases(self) -> tuple[Tensor | None, ...]:
        if not self.projections.bias:
            return (None, None, None)
        if self.fused:
            assert self.qkv_bias is not None
            return self.qkv_bias.split(self._split)
        return (self.q_bias, self.k_bias, self.v_bias)

    def forward(
        self,
        x: Float[Tensor, "b t c"],
        context: Float[Tensor, "b s k"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
        cache: KeyValueCache | FixedCache | None = None,
    ) -> Float[Tensor, "b t c"]:
        """Return y (b, t, c): what the tokens x take from ``context`` (b, s, k), or each other.

        With a `KeyValueCache`, x continues the steps the cache holds; with a `FixedCache` the keys
        and values of the context are computed on the first call only. A call that raises leaves
        the cache as it was.
        """
        matrix, v = self._matrix_and_values(x, context, mask, cache)
        y = matrix.matmul(v).transpose(1, 2).flatten(2)
        return F.linear(y, self.out_weight, self.out_bias)

    def attend(
        self,
        x: Float[Tensor, "b t c"],
        context: Float[Tensor, "b s k"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
        cache: KeyValueCache | FixedCache | None = None,
    ) -> Attention:
        """Return the lazy matrix (b, h, t, s) that `forward` of the same arguments multiplies."""
        return self._matrix_and_values(x, context, mask, cache)[0]

    def _matrix_and_values(
        self,
        x: Tensor,
        context: Tensor | None,
        mask: Mask | Tensor | None,
        cache: KeyValueCache | FixedCache | None,
    ) -> tuple[Attention, Tensor]:
        self._check(x, context)
        rule = None if mask is None else as_mask(mask)
        if rule is not None:
            rule.check(self._geometry(x, context, cache))
        if isinstance(cache, FixedCache):
            q = self._heads(self._project(0, x), self.heads)
            if cache.kv is None:
                cache.kv = self._keys_and_values(x if context is None else context)
            k, v = cache.kv
            if cache.keep_queries:
                cache.history.append(q)
        elif context is None:
            q, k, v = self._all_three(x)
            if cache is not None:
                if cache.keep_queries:
                    cache.history.append((q, k))
                k, v = cache.append(k, v)
        else:
            if cache is not None:
                raise build(
                    ArgumentError, "cache", "a FixedCache beside a context", "a KeyValueCache",
                    "a context does not grow",
                )  # fmt: skip
            q = self._heads(self._project(0, x), self.heads)
            k, v = self._keys_and_values(context)
        dropout = self.dropout if self.training else 0.0
        return attend(q, k, mask=rule, dropout=dropout), v

    def _project(self, which: int, x: Tensor) -> Tensor:
        return F.linear(x, self._input_weights()[which], self._input_biases()[which])

    def _all_three(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not self.fused:
            k, v = self._keys_and_values(x)
            return self._heads(self._project(0, x), self.heads), k, v
        joint = F.linear(x, self.qkv_weight, self.qkv_bias)
        if self.kv_heads == self.heads and self.d == self.e:
            b, t, _ = x.shape
            q, k, v = joint.view(b, t, 3, self.heads, self.d).permute(2, 0, 3, 1, 4).unbind(0)
            return q, k, v
        q, k, v = joint.split(self._split, -1)
        return (
            self._heads(q, self.heads),
            self._heads(k, self.kv_heads),
            self._heads(v, self.kv_heads),
        )

    def _keys_and_values(self, context: Tensor) -> tuple[Tensor, Tensor]:
        _, kd, ve = self._split
        if self.fused:
            bias = None if self.qkv_bias is None else self.qkv_bias[-kd - ve :]
            joint = F.linear(context, self.qkv_weight[-kd - ve :], bias)
            k, v = joint.split((kd, ve), -1)
        else:
            k, v = self._project(1, context), self._project(2, context)
        return self._heads(k, self.kv_heads), self._heads(v, self.kv_heads)

    @staticmethod
    def _heads(x: Tensor, heads: int) -> Tensor:
        """Split (b, t, h·d) into heads: (b, h, t, d)."""
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    def _geometry(
        self, x: Tensor, context: Tensor | None, cache: KeyValueCache | FixedCache | None
    ) -> Geometry:
        """The matrix (b, h, t, s) of a call, known before anything is computed or cached."""
        b, t, _ = x.shape
        s = t if context is None else context.shape[1]
        if isinstance(cache, KeyValueCache):
            s += cache.length
        elif cache is not None and cache.kv is not None:
            s = cache.kv[0].shape[-2]
        return Geometry((b, self.heads), t, s, x.device)

    def _check(self, x: Tensor, context: Tensor | None) -> None:
        for name, steps in (("x", x), ("context", context)):
            if steps is not None and not (isinstance(steps, Tensor) and steps.is_floating_point()):
                got = f"dtype {steps.dtype}" if isinstance(steps, Tensor) else type(steps).__name__
                raise build(
                    KindError, name, "a floating-point tensor (b, steps, width)", got,
                    fix="embed token ids first; NumPy arrays go through torch.as_tensor",
                )  # fmt: skip
        if x.ndim != 3 or x.shape[-1] != self.width:
            raise build(
                ArgumentError, "x", f"shape (b, t, c={self.width})", shape_of(x),
                fix="add the batch axis with x[None] where it is missing",
            )  # fmt: skip
        if context is None and self.context_width != self.width:
            raise build(
                ArgumentError, "context", f"shape (b, s, {self.context_width})", "None",
                "this layer was made for cross-attention (context_width)",
            )  # fmt: skip
        if context is not None and (
            context.ndim != 3
            or context.shape[-1] != self.context_width
            or context.shape[0] != x.shape[0]
        ):
            raise build(
                ArgumentError, "context", f"shape (b={x.shape[0]}, s, {self.context_width})",
                shape_of(context),
            )  # fmt: skip

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
        """Accept checkpoints of the other storage; where a shape is wrong, load nothing."""
        for kind in ("weight", "bias"):
            joint = f"{prefix}qkv_{kind}"
            names = [f"{prefix}{letter}_{kind}" for letter in "qkv"]
            if self.fused and all(name in state_dict for name in names):
                parts = [state_dict.pop(name) for name in names]
                if len({x.shape[1:] for x in parts}) == 1:
                    state_dict[joint] = torch.cat(parts)
                else:
                    state_dict[joint] = parts[1]
            elif not self.fused and joint in state_dict:
                whole = state_dict.pop(joint)
                fits = len(whole) == sum(self._split)
                state_dict.update(zip(names, whole.split(self._split) if fits else [whole] * 3))
        own = {prefix + name: p for name, p in self.named_parameters(recurse=False)}
        wrong = {n for n, p in own.items() if n in state_dict and state_dict[n].shape != p.shape}
        for name in sorted(wrong):
            error = build(
                CheckpointError, name, shape_of(own[name]), shape_of(state_dict[name]),
                "the checkpoint is of a layer with other widths or heads",
            )  # fmt: skip
            error_msgs.append(str(error))
        if wrong:
            return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def extra_repr(self) -> str:
        return f"width={self.width}, heads={self.heads}, kv_heads={self.kv_heads}, d={self.d}"
