"""Make a configuration of transformers tiny: the same architecture, few and narrow layers.

A number is replaced by what its name says it counts. `OVERRIDES` holds what a family needs beside.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from benchmarks.breadth.families import OVERRIDES, of_family

LAYERS, WIDTH, HEADS, HEAD, INNER, VOCABULARY, POSITIONS = 2, 32, 4, 8, 64, 99, 128
IMAGE, PATCH = 32, 8

NUMBERS: tuple[tuple[str, int], ...] = (
    (r"(.*_)?vocab(ulary)?_size(_.*)?|n_vocab|.*_vocab|num_embeddings", VOCABULARY),
    (r"(.*_)?codebook_size", 64),
    (r"num_filters", 8),
    (r"base_channels|upsample_initial_channel", 32),
    (r"max_(.*_)?position_embeddings|n_positions|n_ctx|max_.*positions|max_seq_len|seq_length|"
     r"max_position|max_target_positions|.*block_size|max_sequence_length", POSITIONS),
    (r"qk_rope_head_dim|qk_nope_head_dim|v_head_dim|(.*_)?head_dim(ension)?|.*_head_dim|d_kv|"
     r"kv_channels|attention_head_size|d_head|(.*_)?attention_head_dim|head_size", HEAD),
    (r"rotary_dim", HEAD),
    (r"num_hidden_layers|n_layers?|num_layers|depth|(.*_)?(encoder|decoder|transformer|conformer|"
     r"hidden|text|vision|audio)_layers|(.*_)?num_(.*_)?layers|num_blocks|.*_depth|"
     r"layers_num|num_hidden_blocks|num_(.*_)?blocks", LAYERS),
    (r"(.*_)?intermediate_size(_.*)?|(.*_)?ffn_dim|d_ff|ffn_hidden_size|n_inner|dim_feedforward|"
     r"(.*_)?mlp_dim|(.*_)?feed_forward_(hidden_)?(size|dim)|(.*_)?ffn_size|d_inner|"
     r"feedforward_dim|(.*_)?inner_dim|decoder_ffn_dim", INNER),
    (r"q_lora_rank|kv_lora_rank|o_lora_rank|.*lora_rank|.*_rank", 16),
    (r"n_routed_experts|num_(local_|routed_)?experts|moe_num_experts|n_experts|"
     r"num_(.*_)?experts", 4),
    (r"num_experts_per_tok(en)?|moe_topk|moe_k|top_k_experts|num_selected_experts|moe_top_?k|"
     r"experts_per_token|router_topk|num_experts_per_topk", 2),
    (r"mamba_(d_head|head_dim)", 16),
    (r"mamba_d_ssm|lru_width", 2 * WIDTH),
    (r"(mamba_)?n_groups", 1),
    (r"n_group|topk_group|num_expert_group", 1),
    (r"n_shared_experts|num_shared_experts|moe_num_shared_experts", 1),
    (r"(.*_)?(hidden_size|d_model|n_embd|embed_dim|embedding_size|hidden_dim|dim|"
     r"embedding_dim|emb_dim|encoder_dim|decoder_dim|width|projection_dim|projection_size|model_dim|"
     r"output_dim|embed_proj_dim|proj_dim|n_embed)", WIDTH),
    (r"(.*_)?(image_size|img_size|input_size|crop_size|image_height|image_width)", IMAGE),
    (r"(.*_)?patch_size", PATCH),
    (r"(.*_)?num_frames|tubelet_frames", 2),
    (r"(.*_)?num_queries|(.*_)?query_tokens|num_query_tokens|num_latents|num_object_queries|"
     r"n_queries", 6),
    (r"num_mel_bins|n_mels|feature_size|num_mel_.*", 16),
    (r".*sliding_window|attention_window|local_attention|window_size|.*chunk_size(?!_feed).*", 4),
    (r"conv_depthwise_kernel_size|num_conv_pos_embeddings", 5),
    (r"num_conv_pos_embedding_groups", 2),
)  # fmt: skip
HEADS_ALL = (
    r"(.*_)?num_(.*_)?attention_heads|n_heads?|num_heads|(.*_)?attention_heads|"
    r"(.*_)?num_(.*_)?heads|n_head|.*_heads|heads"
)
KEY_HEADS = r"(.*_)?num_key_value_heads|n_head_kv|num_kv_heads|multi_query_group_num|.*kv_heads"
DERIVED = (
    r"_.*|transformers_version|architectures|id2label|label2id|out_features|out_indices|"
    r"stage_names|torch_dtype|dtype|mlp_only_layers|no_rope_layers|per_layer_config|"
    r"attention_layers|feature_size"
)
KEPT_BY_WIDTH = {"num_layers", "stage_names"}
KEPT = (
    r"num_feat_extract_layers|num_convpos.*|num_channels|n_channels|chunk_size_feed_forward|"
    r"num_feature_levels|initializer_.*|.*_token_id|.*_ratio"
)

LISTS = {
    "hidden_sizes": WIDTH, "embed_dims": WIDTH, "encoder_hidden_size": WIDTH, "embed_dim": WIDTH,
    "depths": 1, "layer_depths": 1, "num_attention_heads": 2, "num_heads": 2, "dims": WIDTH,
    "conv_dim": 16, "tdnn_dim": 16, "neck_hidden_sizes": 16, "reassemble_factors": None,
    "decoder_in_channels": WIDTH, "encoder_in_channels": WIDTH, "stage_in_channels": WIDTH,
    "stage_mid_channels": 16, "stage_out_channels": WIDTH, "stem_channels": WIDTH,
    "post_process_channels": 16, "vision_features_channels": WIDTH,
}  # fmt: skip

STAGED = ("depths", "hidden_sizes", "num_blocks", "patch_sizes", "stage_config")
"""Lists with an entry for each stage: they keep their length."""

UNSET: dict[str, int] = {
    "head_dim": HEAD, "num_key_value_heads": HEADS, "n_routed_experts": 4, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "num_experts_per_token": 2, "prediction_length": 4,
}  # fmt: skip
"""What a number is where the default configuration leaves it open."""
INSTEAD: dict[str, dict[str, Any]] = {
    "timm_backbone": {
        "model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 16, 32, 32],
        "depths": [1, 1, 1, 1], "out_features": ["stage2", "stage3", "stage4"],
    },
    "timm_wrapper": {
        "model_type": "vit", "hidden_size": WIDTH, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "intermediate_size": INNER, "image_size": IMAGE,
        "patch_size": PATCH, "num_labels": 8, "model_args": {"embed_dim": WIDTH},
    },
}  # fmt: skip
"""In place of parts from timm, which transformers only wraps."""

TINY, SHALLOW, FULL = range(3)
LEVELS = (TINY, SHALLOW, FULL)
"""How far a configuration is shrunk: all numbers, numbers of layers only, or not at all."""


def shrunk(given: Mapping[str, Any], family: str = "", path: str = "", level: int = TINY) -> Any:
    """Return the dictionary of a configuration with small numbers, or a configuration instead."""
    if path and given.get("model_type") in INSTEAD:
        from transformers import AutoConfig

        return AutoConfig.for_model(**INSTEAD[given["model_type"]])
    outputs = _outputs(given) if level == TINY else {}
    given = {k: v for k, v in given.items() if not re.fullmatch(DERIVED, str(k))}
    if level != TINY:
        given = {k: v for k, v in given.items() if k not in KEPT_BY_WIDTH}
    out = dict(given)
    layers = _layers(out)
    for name, value in given.items():
        if not isinstance(name, str):
            continue
        inner = f"{path}{name}."
        if isinstance(value, Mapping):
            rotary = "rope" in name
            out[name] = _rotary(value) if rotary else shrunk(value, family, inner, level)
        elif value is None and level == TINY:
            out[name] = UNSET.get(name)
        elif type(value) is int and not re.fullmatch(KEPT, name):
            out[name] = _number(name, value, out) if level == TINY else _count(name, value, out)
        elif isinstance(value, (list, tuple)) and value and (level == TINY or layers):
            out[name] = _sequence(name, list(value), layers)
        if level == TINY and re.fullmatch(r".*_token_(id|index|idx)|.*_token", name):
            out[name] = _token(name, value)
    out |= outputs
    for name, value in of_family(OVERRIDES, family).items():
        prefix, _, last = name.rpartition(".")
        if (f"{prefix}." if prefix else "") == path:
            held = out.get(last)
            out[last] = {**held, **value} if isinstance(held, dict) else value
    return out


def _outputs(given: Mapping[str, Any]) -> dict[str, Any]:
    """A backbone with several outputs keeps its stages; or it has as many layers as outputs."""
    indices = given.get("out_indices")
    if not isinstance(indices, (list, tuple)) or len(indices) < 2:
        return {}
    if any(isinstance(given.get(name), (list, tuple)) for name in STAGED):
        return {"out_indices": list(indices)}
    return {"num_hidden_layers": len(indices), "out_indices": list(range(1, len(indices) + 1))}


def _count(name: str, value: int, config: dict[str, Any]) -> int:
    """A number of layers, or any other number as it is."""
    layers = next(pattern for pattern, small in NUMBERS if small == LAYERS and "depth" in pattern)
    if value > LAYERS and re.fullmatch(layers, name) and "depths" not in config:
        return _layer_count(value, config)
    return value


def _layers(config: Mapping[str, Any]) -> list[int] | None:
    """The layers that are kept where they differ: the first of each kind, two at least."""
    for name in ("layer_types", "layers_block_type", "attention_types", "attn_layers"):
        kinds = config.get(name)
        if isinstance(kinds, (list, tuple)) and len(kinds) > LAYERS:
            kept = sorted({kinds.index(kind) for kind in kinds})
            rest = (i for i in range(len(kinds)) if i not in kept)
            while len(kept) < LAYERS:
                kept.append(next(rest))
            return sorted(kept)
    return None


def _number(name: str, value: int, config: dict[str, Any]) -> int:
    if value <= 1:
        return value
    if re.fullmatch(KEY_HEADS, name):
        return 2 if value > 1 and not _all_heads(value, config) else HEADS
    for pattern, small in NUMBERS:
        if re.fullmatch(pattern, name):
            return min(value, small) if small != LAYERS else _layer_count(value, config)
    return HEADS if re.fullmatch(HEADS_ALL, name) else value


def _layer_count(value: int, config: dict[str, Any]) -> int:
    staged = [config[name] for name in STAGED if isinstance(config.get(name), (list, tuple))]
    if any(len(x) == value for x in staged):
        return value
    kept = _layers(config)
    return len(kept) if kept else min(value, LAYERS)


def _all_heads(value: int, config: dict[str, Any]) -> bool:
    """Whether there are as many heads of keys as of queries."""
    heads = config.get("num_attention_heads") or config.get("n_head") or config.get("num_heads")
    return not isinstance(heads, int) or heads <= value or heads == HEADS


def _sequence(name: str, values: list[Any], layers: list[int] | None) -> list[Any]:
    if layers and len(values) > max(layers) and len(values) > 4:
        return [values[i] for i in layers]
    if name in ("mlp_layer_types", "layer_types"):
        return values[:LAYERS]
    if name in LISTS and LISTS[name] and all(type(x) is int for x in values):
        small = LISTS[name] or 1
        return [min(x, small) for x in values]
    if re.fullmatch(r".*(image|img|input|crop)_size", name):
        return [min(x, IMAGE) for x in values]
    if re.fullmatch(r".*patch_size", name):
        return [min(x, PATCH) for x in values]
    return values


def _rotary(value: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary options: sections of a head have to fill the smaller one."""
    out: dict[str, Any] = {}
    for name, x in value.items():
        if isinstance(x, Mapping):
            x = _rotary(x)
        elif name == "mrope_section" and isinstance(x, (list, tuple)):
            x = [HEAD // 2 - 2 * (HEAD // 8), HEAD // 8, HEAD // 8][: len(x)]
        out[name] = x
    return out


def _token(name: str, value: Any) -> Any:
    """A token within the small vocabulary: each name has one of its own, from the end."""
    if not isinstance(value, int) or value < VOCABULARY:
        return value if not isinstance(value, list) else [min(x, VOCABULARY - 1) for x in value]
    return VOCABULARY - 1 - sum(map(ord, name)) % 40


def made(config_class: type, family: str, level: int = TINY) -> Any:
    """A small configuration of a class of transformers."""
    full = config_class()
    if level == FULL:
        return full
    given = full.to_dict()
    given.pop("model_type", None)
    return config_class(**shrunk(given, family, level=level))
