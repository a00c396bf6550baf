"""The families beside transformers: PyTorch, Keras, x-transformers, packages, and by hand."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.breadth import of_diffusers, packages, packages_of_images, packages_of_text, styles
from benchmarks.breadth.run import Way, stirred, told

Ways = Iterator[Way | tuple[str, str]]
WIDTH, HEADS, LENGTH, BATCH = 32, 4, 10, 2


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _padded(side: str) -> Tensor:
    """True where there is padding, in the second text."""
    out = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    out[1, slice(-3, None) if side == "right" else slice(3)] = True
    return out


# --- PyTorch ------------------------------------------------------------------------------------


class Fused(nn.Module):
    """`F.scaled_dot_product_attention` with the options given, between projections."""

    def __init__(self, heads: int = HEADS, **options: Any) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * heads * WIDTH // HEADS)
        self.heads, self.options = heads, options

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.kv(x).chunk(2, -1))
        out = F.scaled_dot_product_attention(q, k, v, **self.options)
        return out.transpose(1, 2).flatten(2)


def _torch_models() -> dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, str], Any]]]:
    """Name: how it is made, and how it is called with padding at a side, or none."""
    x, y = _random(BATCH, LENGTH, WIDTH), _random(BATCH, 7, WIDTH)
    past = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    masked = past == 0
    options: dict[str, Any] = {"nhead": HEADS, "dim_feedforward": 48, "batch_first": True}

    def encoder_layer(**more: Any) -> nn.TransformerEncoderLayer:
        return nn.TransformerEncoderLayer(WIDTH, **options | more)

    def attends(m: nn.Module, side: str, **more: Any) -> Any:
        return m(x, x, x, key_padding_mask=_padded(side) if side else None, **more)

    def encodes(m: nn.Module, side: str, **more: Any) -> Any:
        return m(x, src_key_padding_mask=_padded(side) if side else None, **more)

    def multi_head(**more: Any) -> nn.Module:
        return nn.MultiheadAttention(WIDTH, HEADS, **{"batch_first": True, **more})

    def alone(m: nn.Module, _: str) -> Any:
        return m(x)

    plain = functools.partial(attends, need_weights=False)
    return {
        "MultiheadAttention": (multi_head, attends),
        "MultiheadAttention, no weights": (multi_head, plain),
        "MultiheadAttention, causal": (
            multi_head,
            lambda m, side: attends(m, side, attn_mask=~masked, is_causal=True, need_weights=False),
        ),
        "MultiheadAttention, batch second": (lambda: multi_head(batch_first=False), alone3(x)),
        "MultiheadAttention, kdim": (
            lambda: multi_head(kdim=20, vdim=24),
            lambda m, _: m(x, _random(BATCH, 6, 20), _random(BATCH, 6, 24)),
        ),
        "MultiheadAttention, bias_k and zero": (
            lambda: multi_head(add_bias_kv=True, add_zero_attn=True), attends),
        "TransformerEncoderLayer": (encoder_layer, encodes),
        "TransformerEncoderLayer, norm first": (lambda: encoder_layer(norm_first=True), encodes),
        "TransformerEncoder": (
            lambda: nn.TransformerEncoder(encoder_layer(), 2, enable_nested_tensor=False),
            encodes,
        ),
        "TransformerEncoder, nested": (lambda: nn.TransformerEncoder(encoder_layer(), 2), encodes),
        "TransformerDecoder": (
            lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, **options), 2),
            lambda m, side: m(
                y, x, tgt_mask=past[:7, :7],
                memory_key_padding_mask=_padded(side) if side else None,
            ),
        ),
        "Transformer": (
            lambda: nn.Transformer(WIDTH, HEADS, 1, 1, 48, batch_first=True),
            lambda m, side: m(
                x, y, tgt_mask=past[:7, :7],
                src_key_padding_mask=_padded(side) if side else None,
            ),
        ),
        "scaled_dot_product_attention": (Fused, alone),
        "scaled_dot_product_attention, causal": (lambda: Fused(is_causal=True), alone),
        "scaled_dot_product_attention, scale": (lambda: Fused(scale=0.5), alone),
        "scaled_dot_product_attention, mask": (lambda: Fused(attn_mask=masked), alone),
        "scaled_dot_product_attention, bias": (lambda: Fused(attn_mask=past), alone),
        "scaled_dot_product_attention, groups": (lambda: Fused(2, enable_gqa=True), alone),
    }  # fmt: skip


def alone3(x: Tensor) -> Callable[[nn.Module, str], Any]:
    """Call with one tensor as queries, keys and values."""
    return lambda m, _: m(x, x, x)


def _of_torch(family: str) -> Ways:
    build, call = _torch_models()[family]
    model = stirred(build())
    for side in ("", "right", "left"):
        yield Way(side or "plain", model, functools.partial(call, model, side))


# --- Keras --------------------------------------------------------------------------------------

KERAS: dict[str, Callable[[Any, Any], Any]] = {
    "MultiHeadAttention": lambda k, x: k.layers.MultiHeadAttention(4, 8)(x, x),
    "MultiHeadAttention, causal": lambda k, x: k.layers.MultiHeadAttention(4, 8)(
        x, x, use_causal_mask=True
    ),
    "MultiHeadAttention, not flash": lambda k, x: k.layers.MultiHeadAttention(
        4, 8, flash_attention=False
    )(x, x),
    "MultiHeadAttention, two axes": lambda k, x: k.layers.MultiHeadAttention(
        4, 8, attention_axes=(1, 2)
    )(*2 * [k.layers.Reshape((2, 5, 32))(x)]),
    "GroupQueryAttention": lambda k, x: k.layers.GroupQueryAttention(8, 4, 2)(x, x),
    "GroupQueryAttention, causal": lambda k, x: k.layers.GroupQueryAttention(8, 4, 2)(
        x, x, use_causal_mask=True
    ),
    "Attention": lambda k, x: k.layers.Attention()([x, x]),
    "Attention, causal": lambda k, x: k.layers.Attention(use_scale=True)(
        [x, x], use_causal_mask=True
    ),
    "Attention, concat": lambda k, x: k.layers.Attention(score_mode="concat")([x, x]),
    "AdditiveAttention": lambda k, x: k.layers.AdditiveAttention()([x, x]),
}


def _of_keras(family: str) -> Ways:
    os.environ.update(KERAS_BACKEND="torch", KERAS_TORCH_DEVICE="cpu")
    import keras

    keras.utils.set_random_seed(0)
    inputs = keras.Input((LENGTH, WIDTH))
    model: Any = keras.Model(inputs, KERAS[family](keras, inputs))
    x = _random(BATCH, LENGTH, WIDTH)
    model(x)
    stirred(model)
    yield Way("call", model, functools.partial(model, x, training=False))


# --- x-transformers -----------------------------------------------------------------------------

VALUES: dict[str, Any] = {
    "sparse_topk": 3, "num_mem_kv": 2, "max_attend_past": 4, "kv_heads": 2, "value_dim_head": 12,
    "dim_latent_q": None, "dim_latent_kv": None, "rotate_num_heads": 2, "sandwich_coef": None,
    "par_ratio": None, "shift_tokens": 1, "num_residual_streams": 2, "alibi_num_heads": 2,
    "rotary_emb_dim": 8,
}  # fmt: skip
BESIDE: dict[str, dict[str, Any]] = {
    "attn_use_latent_q": {"attn_dim_latent_q": 16},
    "attn_use_latent_kv": {"attn_dim_latent_kv": 16},
    "attn_qk_norm_dim_scale": {"attn_qk_norm": True},
    "attn_cope_talking_heads": {"attn_use_cope": True},
    "attn_cope_soft_onehot_pos": {"attn_use_cope": True},
    "attn_data_dependent_alibi_per_row": {"attn_data_dependent_alibi": True},
    "attn_rotate_num_heads": {"rotary_pos_emb": True},
    "rotate_num_heads": {"rotary_pos_emb": True},
    "rotary_xpos": {"rotary_pos_emb": True},
    "alibi_num_heads": {"alibi_pos_bias": True},
    "dynamic_pos_bias_log_distance": {"dynamic_pos_bias": True},
    "dynamic_pos_bias_norm": {"dynamic_pos_bias": True},
    "attn_learned_value_residual_mix": {"add_value_residual": True},
    "cross_residual_attn": {"cross_attend": True},
    "only_cross": {"cross_attend": True},
    "adaptive_condition_mlp": {"use_adaptive_layernorm": True},
    "attn_flash_pack_seq": {"rotary_pos_emb": True},
    "attn_aggregated_residuals": {"attn_aggregated_residual_kwargs": {"lora_rank": 8}},
    "gated_multi_residual": {"residual_fn_kwargs": {"read_gate_rank": 8}},
    "qkv_receive_diff_residuals": {"integrate_layers": True},
}
SKIPPED = {"causal", "flash", "verbose", "dropout", "onnxable", "cross_attend_kwargs"}


@functools.cache
def _x_options() -> dict[str, dict[str, Any]]:
    """Every option of x-transformers' layers and attention that can be switched, switched."""
    try:
        from x_transformers.x_transformers import Attention, AttentionLayers
    except ImportError:
        return {}
    found: dict[str, dict[str, Any]] = {"plain": {}}
    for kind, prefix in ((AttentionLayers, ""), (Attention, "attn_")):
        for name, x in inspect.signature(kind.__init__).parameters.items():
            if name in SKIPPED:
                continue
            if isinstance(x.default, bool):
                value = not x.default
            elif VALUES.get(name) is not None:
                value = VALUES[name]
            else:
                continue
            option = f"{prefix}{name}"
            if prefix and name in found:  # the layers hand it on under its own name
                continue
            found[option] = {option: value, **BESIDE.get(option, {})}
    return found


def _of_x_transformers(family: str) -> Ways:
    from x_transformers import Decoder, Encoder, TransformerWrapper

    options = {"dim": WIDTH, "depth": 2, "heads": HEADS, "attn_dim_head": 8}
    options |= _x_options()[family]
    ids = torch.randint(0, 50, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    more: dict[str, Any] = {}
    if options.get("cross_attend") or options.get("only_cross"):
        more["context"] = _random(BATCH, 7, WIDTH)
    if any("adaptive" in name for name in options):
        options["dim_condition"] = WIDTH
        more["condition"] = _random(BATCH, WIDTH)
    for kind in (Decoder, Encoder):
        for flash in (False, True):
            name = f"{kind.__name__}{' flash' if flash else ''}"
            try:
                layers = kind(**options, **({"attn_flash": True} if flash else {}))
                made = TransformerWrapper(num_tokens=50, max_seq_len=64, attn_layers=layers)
                model = stirred(made)
                with torch.no_grad():
                    model(ids, **more)
            except Exception as error:
                yield name, told(error)
                continue
            yield Way(name, model, functools.partial(model, ids, **more))
            if not more:
                mask = ~_padded("right")
                yield Way(f"{name} right", model, functools.partial(model, ids, mask=mask))


# --- by hand, and all together ------------------------------------------------------------------


def _by_hand(family: str) -> Ways:
    model, given = styles.build(family)
    model = stirred(model)
    yield Way("call", model, functools.partial(model, **given))


PACKAGES = {**packages_of_images.CASES, **packages_of_text.CASES}
WAYS: dict[str, Callable[[str], Ways]] = {
    "diffusers": of_diffusers.ways,
    "x-transformers": _of_x_transformers,
    "torch": _of_torch,
    "keras": _of_keras,
    "by hand": _by_hand,
    "packages": functools.partial(packages.ways, PACKAGES),
}
FAST = (
    ("diffusers", "UNet2DConditionModel"), ("diffusers", "FluxTransformer2DModel"),
    ("diffusers", "SlicedAttnProcessor"), ("x-transformers", "plain"),
    ("x-transformers", "alibi_pos_bias"), ("torch", "MultiheadAttention"),
    ("torch", "TransformerEncoder"), ("torch", "Transformer"), ("keras", "MultiHeadAttention"),
    ("by hand", "mingpt"), ("by hand", "lucidrains"), ("by hand", "annotated_transformer"),
    ("by hand", "concatenated"), ("by hand", "exp_and_sum"), ("by hand", "pooling"),
    ("by hand", "divided_last"), ("by hand", "online"), ("by hand", "two_axes_biased"),
    ("by hand", "in_closure"), ("by hand", "CaiT"),
)  # fmt: skip
"""The families in the fast part of the benchmark."""


def families() -> dict[str, list[str]]:
    """The names of all families, by library."""
    return {
        "diffusers": of_diffusers.families(),
        "x-transformers": list(_x_options()),
        "torch": list(_torch_models()),
        "keras": list(KERAS),
        "by hand": list(styles.STYLES),
        "packages": list(PACKAGES),
    }


def ways(library: str) -> Callable[[str], Ways]:
    """What builds and runs the families of a library."""
    return WAYS[library]
