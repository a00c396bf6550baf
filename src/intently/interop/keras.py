"""Keras 3: a self-attention layer of ours in Keras, `load` and `dump` between its layers and ours.

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
from intently.attention_matrix import Attention as Matrix
from intently.attention_matrix import attend, attention
from intently.errors import ArgumentError, CheckpointError, KindError, build
from intently.foundation.checks import whole_number
from intently.interop.requires_grad import learns
from intently.interop.weights import Weights, check_kind, fill, refuse, separate
from intently.modules import AttentionOptions, MultiHeadAttention, Projections

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
        there. ``attend`` shows the weights, `load` and `dump` exchange them with our blocks. Raises
        `ArgumentError` where n_heads does not divide d_embd, inputs are not (b, t, c) or the mask
        is not (b, t); `KindError` where the sizes are no whole numbers.

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
                    ArgumentError,
                    "n_heads",
                    f"a divisor of d_embd={d_embd}",
                    n_heads,
                    "each head gets d_embd/n_heads",
                )
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
            q, k, v = self._heads(inputs)
            compute = _attend_torch if keras.backend.backend() == "torch" else _attend_ops
            y = ops.transpose(compute(q, k, v, causal_mask, mask), (0, 2, 1, 3))
            shape: Any = ops.shape(inputs)
            return self.out_proj(ops.reshape(y, (*shape[:2], self.d_embd)))

        def attend(self, inputs: Any, causal_mask: bool = False, mask: Any = None) -> Matrix:
            """Return the lazy matrix (b, h, t, t) that a call with these arguments multiplies.

            On the torch backend it can be differentiated and stays on its device. On others
            queries and keys are copied into PyTorch tensors on the CPU: numbers without gradients,
            and not inside a compiled function. Raises `ArgumentError` as a call does, `KindError`
            for a symbolic input.
            """
            if keras.backend.is_keras_tensor(inputs):
                raise build(
                    KindError,
                    "inputs",
                    "numbers",
                    type(inputs).__name__,
                    "a symbolic model has no weights to show",
                )
            mask = getattr(inputs, "_keras_mask", None) if mask is None else mask
            inputs = ops.convert_to_tensor(inputs)
            _check_inputs(inputs.shape, mask)
            if not self.built:
                self.build(inputs.shape)
            q, k, _ = self._heads(inputs)
            if keras.backend.backend() != "torch":
                q, k = _copied(q), _copied(k)
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
    known = len(found) == 2 and all(a == n or a is None or n is None for a, n in zip(found, want))
    if not known:
        raise build(
            ArgumentError, "mask", f"shape (b, t) = {want}, True at real steps", f"shape {found}"
        )


def _attend_torch(q: Tensor, k: Tensor, v: Tensor, causal: bool, padding: Any) -> Tensor:
    """On `intently.attention`: q, k, v (b, h, t, d), ``padding`` (b, t) True at real steps."""
    return attention(q, k, v, mask=_rule(causal, padding, q.device))


def _rule(causal: bool, padding: Any, device: torch.device) -> masks.Mask | None:
    """Our mask of what a call of the layer is told; ``padding`` (b, t), of any library."""
    rule = masks.causal() if causal else None
    if padding is None:
        return rule
    seen = padding if isinstance(padding, Tensor) else torch.from_numpy(np.array(padding))
    real = masks.allowed(seen.to(device).bool()[:, None, None])
    return real if rule is None else rule & real


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
def load(foreign: keras.layers.Layer) -> MultiHeadAttention:
    """Return our block with the weights of a Keras layer that was built, on any backend, in eval.

    The layer is a `MultiHeadAttention` or `GroupQueryAttention` of Keras, or our `SelfAttention`.
    Where Keras is called with ``(query, value)``, ours is with ``(query, context=value)``; where
    `SelfAttention` is with ``causal_mask=True``, ours is with ``mask=it.causal()``. Raises
    `KindError` for other layers, `ArgumentError` for options that ours cannot have (more than one
    attention axis, keys of another width than values) and
    `CheckpointError` where the layer was not built or has weights left over.
    """
    import keras

    kinds = keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention, _self_attention()
    check_kind(foreign, *kinds, verb="load")
    name = type(foreign).__name__
    if not foreign.built:
        raise build(
            CheckpointError,
            name,
            "a layer with weights",
            "one that was not built",
            fix="call it once, or layer.build(query_shape, value_shape)",
        )
    config = foreign.get_config()
    axes = config.get("attention_axes") or (1,)
    weights = Weights({"/".join(v.path.split("/")[-2:]): _tensor(v) for v in foreign.weights}, name)
    if isinstance(foreign, _self_attention()):
        return _fused(config["n_heads"], weights)
    return _filled(name, config, tuple(axes), weights)


def _fused(heads: int, weights: Weights) -> MultiHeadAttention:
    """Our block of `SelfAttention`, whose one map has the rows of ours."""
    joint, out = (weights.take(f"{name}/kernel") for name in _FUSED)
    bias, out_bias = (weights.optional(f"{name}/bias") for name in _FUSED)
    weights.finish()
    width, out_width = len(joint), len(out.T)
    projections = Projections(
        bias=bias is not None,
        out_bias=out_bias is not None,
        out_width=None if out_width == width else out_width,
    )
    d = out_width // heads
    return fill(
        lambda: MultiHeadAttention(width, heads, head_widths=(d, d), projections=projections),
        {
            "qkv_weight": joint.T.contiguous(),
            "qkv_bias": bias,
            "out_weight": out.T.contiguous(),
            "out_bias": out_bias,
        },
    ).eval()


@torch.inference_mode(False)
def dump(ours: MultiHeadAttention) -> Any:
    """Return `SelfAttention`, built, with the weights of our block, on the backend of Keras.

    What is frozen is not ``trainable`` there. Raises `KindError` for other modules and
    `ArgumentError` for what that layer cannot compute: attention to a context, shared key heads,
    widths of its own, dropout, and any score, mask, bias, positions, norms, softcap or sinks.
    """
    check_kind(ours, MultiHeadAttention, verb="dump")
    _check_plain(ours)
    weights = Weights.of(ours)
    parts = separate(ours, weights)
    tensors: dict[str, Tensor] = {}
    for kind, theirs in (("weight", "kernel"), ("bias", "bias")):
        names = [f"{letter}_{kind}" for letter in "qkv"]
        own = {name: x for name in names if (x := parts[name]) is not None}
        if own:
            joint = torch.cat(list(own.values())).detach()
            name = f"in_proj/{theirs}"
            tensors[name] = joint.requires_grad_(learns(f"dump: {name}", own))
        if (out := weights.optional(f"out_{kind}")) is not None:
            tensors[f"out_proj/{theirs}"] = out
    weights.finish()
    layer = _self_attention()(
        ours.heads,
        len(ours.out_weight),
        "in_proj/bias" in tensors,
        "out_proj/bias" in tensors,
        dtype=str(ours.out_weight.dtype).removeprefix("torch."),
    )
    layer.build((None, None, ours.width))
    for variable in layer.weights:
        x = tensors.pop("/".join(variable.path.split("/")[-2:]))
        array = (x.float() if x.dtype is torch.bfloat16 else x).detach().cpu().numpy()
        variable.assign(array.T)
        variable.trainable = x.requires_grad
    return layer


def _check_plain(ours: MultiHeadAttention) -> None:
    """Raise for what `SelfAttention` cannot compute."""
    name, own = "MultiHeadAttention", ours.attention
    for option in ("score", "mask", "bias", "positions", "softcap", "qk_norm", "sinks"):
        if getattr(own, option) is not None:
            refuse(
                name,
                f"attention.{option}",
                "None",
                getattr(own, option),
                "there is none in SelfAttention",
            )
    if own.scale not in (None, ours.d**-0.5):
        refuse(name, "attention.scale", "1/√d", own.scale, "SelfAttention knows no other")
    if ours.dropout:
        refuse(name, "dropout", "0", ours.dropout, "there is none in SelfAttention")
    if ours.context_width != ours.width:
        refuse(
            name,
            "context_width",
            f"width={ours.width}",
            ours.context_width,
            "SelfAttention has one input",
        )
    if ours.kv_heads != ours.heads:
        refuse(
            name,
            "kv_heads",
            f"kv_heads=heads={ours.heads}",
            ours.kv_heads,
            "heads share no keys in SelfAttention",
        )
    out_width = len(ours.out_weight)
    if (ours.d * ours.heads, ours.e) != (out_width, ours.d):
        refuse(
            name,
            "head_widths",
            "d = e = out_width/heads",
            f"d={ours.d}, e={ours.e}, out_width={out_width}",
            "SelfAttention has one width, d_embd",
        )


def _filled(
    name: str, config: dict[str, Any], axes: tuple[int, ...], weights: Weights
) -> MultiHeadAttention:
    q, k, v, out = (weights.take(f"{part}/kernel") for part in (*_INPUTS, "attention_output"))
    if axes != (1,) or q.ndim != 3:
        refuse(name, "attention_axes", "(1,), the steps of (b, t, c)", axes, "ours has one axis")
    if len(k) != len(v):
        refuse(
            name,
            "key",
            f"keys as wide as values, {len(v)}",
            len(k),
            "our block takes both from one context",
        )
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
    own = AttentionOptions(
        mask=None if window is None else masks.window(window - 1, window - 1, offset=0)
    )
    projections = Projections(
        bias=tensors["q_bias"] is not None,
        out_bias=tensors["out_bias"] is not None,
        out_width=None if out.shape[2] == width else out.shape[2],
    )
    return fill(
        lambda: MultiHeadAttention(
            width,
            heads,
            kv_heads=k.shape[1],
            context_width=len(k),
            head_widths=(d, e),
            attention=own,
            projections=projections,
            dropout=config["dropout"],
        ),
        tensors,
    ).eval()


_INPUTS = ("query", "key", "value")
_FUSED = ("in_proj", "out_proj")


def _tensor(variable: Any) -> Tensor:
    """Copy a Keras variable of any backend into a PyTorch tensor, which learns where it does."""
    return _copied(variable).requires_grad_(variable.trainable)


def _copied(x: Any) -> Tensor:
    """Copy the numbers of any backend into a PyTorch tensor of the same dtype."""
    import keras

    array = np.asarray(keras.ops.convert_to_numpy(x))
    if keras.backend.standardize_dtype(x.dtype) == "bfloat16":
        return torch.from_numpy(array.astype(np.float32)).bfloat16()
    return torch.tensor(array)
