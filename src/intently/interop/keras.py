"""Keras 3: our self-attention layer for Keras, and `load`, which makes its layers ours.

`SelfAttention` is made on first access, so that importing this module loads no Keras; after
``from intently.interop.keras import SelfAttention`` Keras can load saved models that hold one.

Where Keras's layers differ from ours in use:

* in its masks True means attend, as in ours, but a row without keys is the mean of the values there
  and zero here;
* ``use_causal_mask`` starts at the first key (top-left); `it.causal()` lets the last query see the
  last key. The two agree where t = s; elsewhere write `it.causal(offset=0)`;
* masks that Keras propagates automatically (``Embedding(mask_zero=True)``) are arguments here:
  ``mask=it.padding(lengths)``. Keras's masks also hide padded queries, whose outputs are then the
  mean of all values. A ``query_mask`` handed to `MultiHeadAttention` itself is ignored (Keras
  3.15).

Weights are copied; what is not ``trainable`` is frozen. Blocks come in eval mode, as a Keras layer
that is called without ``training`` drops nothing.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import intently.core.masks as masks
from intently.core.attention import Attention as Matrix
from intently.core.attention import attend, attention
from intently.errors import ArgumentError, CheckpointError, KindError, build
from intently.foundation.checks import whole_number
from intently.foundation.on_demand import listed, require
from intently.interop.transfer import check_kind, check_options, rows, transfer
from intently.nn import AttentionOptions, MultiHeadAttention, Projections

if TYPE_CHECKING:
    import keras

__all__ = ["SelfAttention", "load"]  # noqa: F822  # pyright: ignore[reportUnsupportedDunderAll]

require("keras", "has these layers")


def __getattr__(name: str) -> Any:
    if name == "SelfAttention":
        return self_attention()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__dir__ = listed(__name__)


@torch.inference_mode(False)
def load(foreign: keras.layers.Layer) -> MultiHeadAttention:
    """Return our block with the weights of a Keras layer that was built, on any backend, in eval.

    The layer is a `MultiHeadAttention` or `GroupQueryAttention` of Keras, or our `SelfAttention`.
    Where Keras is called with ``(query, value)``, ours is with ``(query, context=value)``; where
    `SelfAttention` is with ``causal_mask=True``, ours is with ``mask=it.causal()``. Raises
    `KindError` for other layers, `ArgumentError` for options that ours cannot have (more than one
    attention axis, keys and values of different widths) and `CheckpointError` if the layer was not
    built or has weights left over.
    """
    import keras

    kinds = keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention, self_attention()
    check_kind(foreign, *kinds, verb="load")
    name = type(foreign).__name__
    if not foreign.built:
        fix = "call it once, or layer.build(query_shape, value_shape)"
        raise build(CheckpointError, name, "a layer with weights", "one not built", fix=fix)
    tensors = {
        "/".join(v.path.split("/")[-2:]): copied(v).requires_grad_(v.trainable)
        for v in foreign.weights
    }
    read, table = (_ours, OURS) if isinstance(foreign, self_attention()) else (_theirs, THEIRS)
    kernels = [theirs for _, [theirs] in rows(table) if theirs.endswith("kernel")]
    if missing := set(kernels) - set(tensors):
        cause = "it is a different form or version of this layer"
        raise build(CheckpointError, name, f"tensors {kernels}", f"none for {missing}", cause)
    with torch.device("meta"):
        ours = read(tensors, foreign.get_config(), name)
    return transfer(ours, rows(table), tensors, name, _rows_first).eval()


OURS = "qkv_{weight,bias} in_proj/{kernel,bias}\n out_{weight,bias} out_proj/{kernel,bias}"
THEIRS = """
    {q,k,v}_weight       {query,key,value}/kernel
    {q,k,v}_bias         {query,key,value}/bias
    out_{weight,bias}    attention_output/{kernel,bias}
"""


def _ours(tensors: dict[str, Tensor], config: dict[str, Any], source: str) -> MultiHeadAttention:
    """The counterpart of a `SelfAttention`, whose fused projection has our order of rows."""
    heads, width = config["n_heads"], config["d_embd"]
    return MultiHeadAttention(
        len(tensors["in_proj/kernel"]),
        heads,
        head_widths=(width // heads,) * 2,
        projections=Projections(
            bias=config["in_proj_bias"], out_bias=config["out_proj_bias"], out_width=width
        ),
    )


def _theirs(tensors: dict[str, Tensor], config: dict[str, Any], source: str) -> MultiHeadAttention:
    """The counterpart of Keras's own layers, whose kernels are (c, h, d) and (h, e, c)."""
    axes = tuple(config.get("attention_axes") or (1,))
    q, k, v, out = (tensors[f"{x}/kernel"] for x in ("query", "key", "value", "attention_output"))
    check_options(
        source,
        ("attention_axes", axes if q.ndim == 3 else "several", (1,), "ours has one axis, t"),
        ("key", len(k), len(v), "our block takes keys and values from one context"),
        ("output_shape", tuple(out.shape[2:]), tuple(out.shape[2:3]), "ours is (b, t, c)"),
    )
    window = config.get("sliding_window")
    rule = None if window is None else masks.window(window - 1, window - 1, offset=0)
    bias = "query/bias" in tensors
    return MultiHeadAttention(
        len(q),
        q.shape[1],
        kv_heads=v.shape[1],
        context_width=len(k),
        head_widths=(q.shape[2], v.shape[2]),
        attention=AttentionOptions(mask=rule),
        projections=Projections(bias=bias, out_bias=bias, out_width=out.shape[2]),
        dropout=config["dropout"],
    )


def _rows_first(name: str, x: Tensor) -> Tensor:
    """A kernel (c, h, d), (h, e, c) or (in, out) as (out, in); a bias as one axis."""
    if name.endswith("bias"):
        return x.flatten()
    return (x.flatten(0, -2) if name == "out_weight" else x.flatten(1)).T.contiguous()


@cache
def self_attention() -> type:
    """Make the class once and register it with Keras."""
    import keras
    from keras import ops

    @keras.saving.register_keras_serializable(package="intently")
    class SelfAttention(keras.layers.Layer):
        """Multi-head self-attention with one fused projection: (b, t, c) → (b, t, d_embd).

        ``in_proj`` is a `Dense` of width 3·d_embd whose columns are q, k, v, each head after head
        ("3 h d"), ``out_proj`` one of width d_embd; each has a bias or not. With the torch backend
        attention is `intently.attention`, with others it is written in `keras.ops`. A mask that
        Keras propagates (``Embedding(mask_zero=True)``) hides padded keys, whatever they contain.
        ``attend`` returns the attention weights; `load` makes it a block of ours.
        Raises `ArgumentError` where n_heads does not divide d_embd, inputs are not (b, t, c) or the
        mask is not (b, t); `KindError` if the sizes are not integers.

        Source: Vaswani et al. 2017, section 3.2.2.
        """

        def __init__(
            self,
            n_heads: int,
            d_embd: int,
            in_proj_bias: bool = True,
            out_proj_bias: bool = True,
            **options: Any,
        ) -> None:
            super().__init__(**options)
            whole_number(n_heads, "n_heads", 1)
            whole_number(d_embd, "d_embd", 1)
            if d_embd % n_heads:
                expected, cause = f"a divisor of d_embd={d_embd}", "each head gets d_embd/n_heads"
                raise build(ArgumentError, "n_heads", expected, n_heads, cause)
            self.n_heads, self.d_embd = n_heads, d_embd
            self.in_proj_bias, self.out_proj_bias = in_proj_bias, out_proj_bias
            self.supports_masking = True
            dense = partial(keras.layers.Dense, dtype=self.dtype_policy)
            self.in_proj = dense(3 * d_embd, use_bias=in_proj_bias, name="in_proj")
            self.out_proj = dense(d_embd, use_bias=out_proj_bias, name="out_proj")

        def build(self, input_shape: tuple[int | None, ...]) -> None:
            _check_inputs(input_shape)
            self.in_proj.build(input_shape)
            self.out_proj.build((*input_shape[:-1], self.d_embd))

        def call(self, inputs: Any, causal_mask: bool = False, mask: Any = None) -> Any:
            """Return y (b, t, d_embd); with ``causal_mask`` a step sees itself and those before."""
            _check_inputs(inputs.shape, mask)
            q, k, v = self._heads(inputs)
            if keras.backend.backend() == "torch":
                y = attention(q, k, v, mask=_rule(causal_mask, mask, q.device))
            else:
                y = _attend_ops(q, k, v, causal_mask, mask)
            y = ops.transpose(y, (0, 2, 1, 3))
            shape: Any = ops.shape(inputs)
            return self.out_proj(ops.reshape(y, (*shape[:2], self.d_embd)))

        def attend(self, inputs: Any, causal_mask: bool = False, mask: Any = None) -> Matrix:
            """Return the lazy matrix (b, h, t, t) that a call with these arguments multiplies.

            On the torch backend it can be differentiated and stays on its device. On other
            backends, queries and keys are copied into PyTorch tensors on the CPU: without
            gradients, and not inside a compiled function. Raises `ArgumentError` as a call does,
            `KindError` for a symbolic input.
            """
            if keras.backend.is_keras_tensor(inputs):
                got, cause = type(inputs).__name__, "a symbolic model has no weights to show"
                raise build(KindError, "inputs", "numbers", got, cause)
            mask = getattr(inputs, "_keras_mask", None) if mask is None else mask
            inputs = ops.convert_to_tensor(inputs)
            _check_inputs(inputs.shape, mask)
            if not self.built:
                self.build(inputs.shape)
            q, k, _ = self._heads(inputs)
            if keras.backend.backend() != "torch":
                q, k = copied(q), copied(k)
            return attend(q, k, mask=_rule(causal_mask, mask, q.device))

        def _heads(self, inputs: Any) -> tuple[Any, Any, Any]:
            """Queries, keys and values (b, h, t, d)."""
            shape: Any = ops.shape(inputs)
            split = (3, self.n_heads, self.d_embd // self.n_heads)
            joint = ops.reshape(self.in_proj(inputs), (*shape[:2], *split))
            heads: Any = ops.transpose(joint, (2, 0, 3, 1, 4))
            return heads[0], heads[1], heads[2]

        def compute_output_shape(
            self, input_shape: tuple[int | None, ...], *_: Any, **options: Any
        ) -> tuple[int | None, ...]:
            return (*input_shape[:-1], self.d_embd)

        def get_config(self) -> dict[str, Any]:
            options = ("n_heads", "d_embd", "in_proj_bias", "out_proj_bias")
            return super().get_config() | {name: getattr(self, name) for name in options}

    return SelfAttention


def _check_inputs(shape: Any, mask: Any = None) -> None:
    if len(shape) != 3:
        raise build(ArgumentError, "inputs", "shape (b, t, c)", f"shape {tuple(shape)}")
    if mask is None:
        return
    given, want = tuple(np.shape(mask) if isinstance(mask, list) else mask.shape), tuple(shape[:2])
    fits = len(given) == 2 and all(a == n or a is None or n is None for a, n in zip(given, want))
    if not fits:
        expected = f"shape (b, t) = {want}, True at real steps"
        raise build(ArgumentError, "mask", expected, f"shape {given}")


def _rule(causal: bool, padding: Any, device: torch.device) -> masks.Mask | None:
    """Return our mask for the arguments of a call; ``padding`` (b, t) of any library."""
    rule = masks.causal() if causal else None
    if padding is None:
        return rule
    seen = padding if isinstance(padding, Tensor) else torch.from_numpy(np.array(padding))
    real = masks.allowed(seen.to(device).bool()[:, None, None])
    return real if rule is None else rule & real


def _attend_ops(q: Any, k: Any, v: Any, causal: bool, padding: Any) -> Any:
    """Compute the same in `keras.ops`; rows without keys are zero, and padded keys never matter."""
    import keras
    from keras import ops

    if q.shape[2] == 0:
        return v
    steps: Any = ops.arange(q.shape[2])
    real: Any = steps[:, None] >= steps[None] if causal else ops.ones((1, 1), dtype="bool")
    if padding is not None:
        keys: Any = ops.cast(padding, "bool")
        real = ops.logical_and(real, keys[:, None, None])
        k, v = (ops.where(keys[:, None, :, None], x, ops.zeros_like(x)) for x in (k, v))
    precise = keras.backend.result_type(q.dtype, "float32")
    z = ops.cast(ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))), precise)
    z = ops.where(real, z / float(q.shape[-1]) ** 0.5, -1e30)
    weights = ops.where(real, ops.softmax(z, axis=-1), 0.0)
    return ops.matmul(ops.cast(weights, v.dtype), v)


def copied(x: Any) -> Tensor:
    """Copy a tensor of any backend into a PyTorch tensor of the same dtype."""
    import keras

    array = np.asarray(keras.ops.convert_to_numpy(x))
    if keras.backend.standardize_dtype(x.dtype) == "bfloat16":
        return torch.from_numpy(array.astype(np.float32)).bfloat16()
    return torch.tensor(array)
