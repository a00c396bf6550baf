"""Keras 3: a self-attention layer of ours in Keras, and Keras's attention layers as ours.

`SelfAttention` is made when it is first asked for, so that importing this module loads no Keras;
``from intently.interop.keras import SelfAttention`` is also what makes Keras able to load models
that hold one.

Where Keras's layers differ from ours in use:

* their masks say True where attention is allowed, as ours do, but a row without keys is the mean of
  the values there and zero here;
* ``use_causal_mask`` starts at the first key (top-left); `it.causal()` lets the last query see the
  last key. They are the same where t = s; elsewhere write `it.causal(offset=0)`;
* masks that Keras carries along on its own (``Embedding(mask_zero=True)``) are arguments here:
  ``mask=it.padding(lengths)``. They hide padded queries there, too, which then hold the mean of
  all values. A ``query_mask`` handed to `MultiHeadAttention` itself is ignored (Keras 3.15).

Weights are copied; what is not ``trainable`` is frozen. Blocks come in eval mode, as a Keras layer
that is called without ``training`` drops nothing.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import intently.masks as masks
from intently.attention_matrix import attention
from intently.errors import ArgumentError, CheckpointError, build
from intently.interop.weights import Weights, check_kind, fill, refuse
from intently.masks.geometry import whole_number
from intently.modules import Attention, MultiHeadAttention, Projections

if TYPE_CHECKING:
    import keras


def __getattr__(name: str) -> Any:
    if name == "SelfAttention":
        return _self_attention()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _self_attention() -> type:
    """Make the class, once, and make it known to Keras."""
    import keras
    from keras import ops

    @keras.saving.register_keras_serializable(package="intently")
    class SelfAttention(keras.layers.Layer):
        """Multi-head self-attention with one fused projection: (b, t, c) → (b, t, d_embd).

        ``in_proj`` is a `Dense` of width 3·d_embd whose columns are q, k, v, each head after head
        ("3 h d"), ``out_proj`` one of width d_embd; each has a bias or not. With the torch backend
        attention is `intently.attention`, with others it is written in `keras.ops`. A mask that
        Keras carries along (``Embedding(mask_zero=True)``) hides padded keys, whatever stands
        there. Raises `ArgumentError` where n_heads does not divide d_embd, inputs are not
        (b, t, c) or the mask is not (b, t); `KindError` where the sizes are no whole numbers.

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
                raise build(
                    ArgumentError, "n_heads", f"a divisor of d_embd={d_embd}", n_heads,
                    "each head gets d_embd/n_heads",
                )  # fmt: skip
            self.n_heads, self.d_embd = n_heads, d_embd
            self.in_proj_bias, self.out_proj_bias = in_proj_bias, out_proj_bias
            self.supports_masking = True
            policy = self.dtype_policy
            self.in_proj = keras.layers.Dense(
                3 * d_embd, use_bias=in_proj_bias, name="in_proj", dtype=policy
            )
            self.out_proj = keras.layers.Dense(
                d_embd, use_bias=out_proj_bias, name="out_proj", dtype=policy
            )

        def build(self, input_shape: tuple[int | None, ...]) -> None:
            _check_inputs(input_shape)
            self.in_proj.build(input_shape)
            self.out_proj.build((*input_shape[:-1], self.d_embd))

        def call(self, inputs: Any, causal_mask: bool = False, mask: Any = None) -> Any:
            """Return y (b, t, d_embd); with ``causal_mask`` a step sees itself and those before."""
            _check_inputs(inputs.shape, mask)
            shape: Any = ops.shape(inputs)
            split = (3, self.n_heads, self.d_embd // self.n_heads)
            joint = ops.reshape(self.in_proj(inputs), (*shape[:2], *split))
            heads: Any = ops.transpose(joint, (2, 0, 3, 1, 4))
            attend = _attend_torch if keras.backend.backend() == "torch" else _attend_ops
            y = attend(heads[0], heads[1], heads[2], causal_mask, mask)
            y = ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (*shape[:2], self.d_embd))
            return self.out_proj(y)

        def compute_output_shape(
            self, input_shape: tuple[int | None, ...], *_: Any, **options: Any
        ) -> tuple[int | None, ...]:
            return (*input_shape[:-1], self.d_embd)

        def get_config(self) -> dict[str, Any]:
            return super().get_config() | {
                "n_heads": self.n_heads,
                "d_embd": self.d_embd,
                "in_proj_bias": self.in_proj_bias,
                "out_proj_bias": self.out_proj_bias,
            }

    return SelfAttention


def _check_inputs(shape: Any, mask: Any = None) -> None:
    if len(shape) != 3:
        raise build(ArgumentError, "inputs", "shape (b, t, c)", f"shape {tuple(shape)}")
    if mask is None:
        return
    found, want = tuple(np.shape(mask) if isinstance(mask, list) else mask.shape), tuple(shape[:2])
    known = len(found) == 2 and all(
        a == n or a is None or n is None for a, n in zip(found, want)
    )  # fmt: skip
    if not known:
        raise build(
            ArgumentError, "mask", f"shape (b, t) = {want}, True at real steps", f"shape {found}"
        )


def _attend_torch(q: Tensor, k: Tensor, v: Tensor, causal: bool, padding: Any) -> Tensor:
    """On `intently.attention`: q, k, v (b, h, t, d), ``padding`` (b, t) True at real steps."""
    rule = masks.causal() if causal else None
    if padding is not None:
        real = masks.allowed(torch.as_tensor(padding).bool()[:, None, None])
        rule = real if rule is None else rule & real
    return attention(q, k, v, mask=rule)


def _attend_ops(q: Any, k: Any, v: Any, causal: bool, padding: Any) -> Any:
    """Compute the same in `keras.ops`; a row without keys is zero, and no padded key counts."""
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


@torch.inference_mode(False)
def load(
    foreign: keras.layers.MultiHeadAttention | keras.layers.GroupQueryAttention,
) -> MultiHeadAttention:
    """Return our block with the weights of a Keras layer that was built, on any backend, in eval.

    Where Keras is called with ``(query, value)``, ours is with ``(query, context=value)``. Raises
    `KindError` for other layers, `ArgumentError` for options that ours cannot have (more than one
    attention axis, keys of another width than values) and
    `CheckpointError` where the layer was not built or has weights left over.
    """
    import keras

    kinds = keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention
    check_kind(foreign, *kinds, verb="load")
    name = type(foreign).__name__
    if not foreign.built:
        raise build(
            CheckpointError, name, "a layer with weights", "one that was not built",
            fix="call it once, or layer.build(query_shape, value_shape)",
        )  # fmt: skip
    config = foreign.get_config()
    axes = config.get("attention_axes") or (1,)
    weights = Weights({"/".join(v.path.split("/")[-2:]): _tensor(v) for v in foreign.weights}, name)
    return _filled(name, config, tuple(axes), weights)


def _filled(
    name: str, config: dict[str, Any], axes: tuple[int, ...], weights: Weights
) -> MultiHeadAttention:
    q, k, v, out = (weights.take(f"{part}/kernel") for part in (*_INPUTS, "attention_output"))
    if axes != (1,) or q.ndim != 3:
        refuse(name, "attention_axes", "(1,), the steps of (b, t, c)", axes, "ours has one axis")
    if len(k) != len(v):
        refuse(name, "key", f"keys as wide as values, {len(v)}", len(k),
               "our block takes both from one context")  # fmt: skip
    if out.ndim != 3:
        refuse(name, "output_shape", "one width", tuple(out.shape[2:]), "ours is (b, t, c)")
    tensors: dict[str, Tensor | None] = {"out_weight": out.flatten(0, 1).T.contiguous()}
    for letter, part, kernel in zip("qkv", _INPUTS, (q, k, v)):
        tensors[f"{letter}_weight"] = kernel.flatten(1).T.contiguous()
        bias = weights.optional(f"{part}/bias")
        tensors[f"{letter}_bias"] = None if bias is None else bias.flatten()
    tensors["out_bias"] = weights.optional("attention_output/bias")
    weights.finish()
    width, heads, d, e = len(q), q.shape[1], q.shape[2], v.shape[2]
    window = config.get("sliding_window")
    own = Attention(mask=None if window is None else masks.window(window - 1, window - 1, offset=0))
    projections = Projections(
        bias=tensors["q_bias"] is not None,
        out_bias=tensors["out_bias"] is not None,
        out_width=None if out.shape[2] == width else out.shape[2],
    )
    return fill(
        lambda: MultiHeadAttention(
            width, heads, kv_heads=k.shape[1], context_width=len(k), head_widths=(d, e),
            attention=own, projections=projections, dropout=config["dropout"],
        ),
        tensors,
    ).eval()  # fmt: skip


_INPUTS = ("query", "key", "value")


def _tensor(variable: Any) -> Tensor:
    """Copy a Keras variable of any backend into a PyTorch tensor, which learns where it does."""
    import keras

    array = np.asarray(keras.ops.convert_to_numpy(variable))
    half = variable.dtype == "bfloat16"
    x = torch.from_numpy(array.astype(np.float32)).bfloat16() if half else torch.tensor(array)
    return x.requires_grad_(variable.trainable)
