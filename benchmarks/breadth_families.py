"""What single families of transformers need beside the general rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

MAMBA = {"mamba_n_heads": 4, "mamba_num_heads": 4, "num_heads": 4}
MROPE = {"rope_parameters": {"mrope_section": [2, 1, 1]}}

OVERRIDES: dict[str, dict[str, Any]] = {
    "glm46v glm4v glm_image glm_ocr glmga colqwen2 paddleocr_vl qwen2_5_vl qwen2_vl": {
        "text_config.rope_parameters": {"mrope_section": [2, 1, 1]},
    },
    "glm4v_moe": {"text_config.rope_parameters": {"mrope_section": [1, 1, 0]}},
    "glm4v_moe_text": {"rope_parameters": {"mrope_section": [1, 1, 0]}},
    "glm4v_text glm_image_text glm_ocr_text qwen2_5_vl_text qwen2_vl_text": MROPE,
    "colqwen2": {"vlm_config.text_config.rope_parameters": {"mrope_section": [2, 1, 1]}},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 4},
    "granitemoehybrid": {
        "mamba_n_heads": 4, "layer_types": ["linear_attention", "full_attention"],
    },
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "nemotron_h nemo_speechlm nemotron_h_omni": {
        "mamba_num_heads": 4, "n_groups": 1, "text_config.mamba_num_heads": 4,
        "text_config.n_groups": 1,
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "lru_width": 32},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "cohere_compass_text": {"rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }},
    "cohere_compass": {"text_config.rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }},
    "mistral4": {"head_dim": 16, "qk_head_dim": 16},
    "longcat_flash": {"head_dim": 8, "qk_head_dim": 16, "zero_expert_num": 2},
    "mimo_v2_flash": {"head_dim": 16, "num_key_value_heads": 2},
    "gemma3n_text": {"num_kv_shared_layers": 0, "activation_sparsity_pattern": None,
                     "intermediate_size": 64, "hidden_size_per_layer_input": 8},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [4, 32],
                 "attn_layers": ["local", "lsh"], "num_buckets": 4, "num_hashes": 1,
                 "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4},
    "bridgetower": {"vision_config.hidden_size": 64},
    "perceiver": {"d_latents": 32, "num_latents": 8, "num_self_attends_per_block": 2},
    "mobilebert": {"embedding_size": 32, "hidden_size": 32, "true_hidden_size": 32,
                   "intra_bottleneck_size": 32},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4},
    "lilt": {"hidden_size": 48, "channel_shrink_ratio": 2},
    "sam sam_hq": {"vision_config.window_size": 0, "vision_config.global_attn_indexes": [1]},
    "detr conditional_detr table-transformer dab-detr deformable_detr": {
        "use_timm_backbone": False, "use_pretrained_backbone": False},
    "chameleon": {"vocabulary_map": {"<image>": 9}},
    "pvt": {"image_size": 64},
    "decision_transformer": {"hidden_size": 32, "n_head": 4},
    "time_series_transformer informer autoformer": {
        "prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2], "d_model": 32,
        "num_time_features": 1},
    "timesfm": {"patch_length": 8, "horizon_length": 8, "context_length": 32},
    "clvp": {"text_config.use_rotary_embedding": False,
             "speech_config.use_rotary_embedding": False},
    "falcon_h1": {"mamba_n_heads": 4, "mamba_d_ssm": 64, "mamba_d_head": 16},
    "bailing_hybrid kimi_linear dots3_note_text kyutai_speech_to_text glm_image_text": {
        "pad_token_id": 0, "num_experts_per_token": 2, "num_experts_per_tok": 2,
        "num_expert_group": 1, "n_group": 1, "topk_group": 1, "codebook_size": 64},
    "dots3_note glm_image": {"text_config.pad_token_id": 0},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "hunyuan_vl": {"text_config.rope_parameters": {"alpha": 1.0}},
    "musicgen musicgen_melody": {"dropout": 0.0, "layerdrop": 0.0},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "qwen2_5_vl_vision exaone4_5_vision": {"window_size": 16, "fullatt_block_indexes": [1]},
    "neomme": {"head_dim": 16},
    "qwen3_omni_moe_thinker qwen2_5_omni_thinker": {"vision_start_token_id": 90},
    "csm mimi mimi_decoder mimi_encoder moshi": {"codebook_size": 64, "num_filters": 16,
        "hidden_size": 64, "upsample_groups": 32},
}  # fmt: skip
"""Values that configurations need: family patterns, then the path of the value."""


def _token_types(_: Any) -> torch.Tensor:
    return torch.zeros(2, 12, dtype=torch.long)


INPUTS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "perceiver": {"inputs": lambda c: torch.randn(
        2, 12, c.d_model, generator=torch.Generator().manual_seed(1))},
    "decision_transformer": {
        "states": lambda c: torch.randn(2, 5, c.state_dim),
        "actions": lambda c: torch.randn(2, 5, c.act_dim),
        "rewards": lambda c: torch.randn(2, 5, 1),
        "returns_to_go": lambda c: torch.randn(2, 5, 1),
        "timesteps": lambda c: torch.arange(5).expand(2, 5),
    },
    "speecht5": {
        "input_values": lambda c: torch.randn(2, 4000),
        "decoder_input_values": lambda c: torch.randn(2, 6, c.hidden_size),
    },
    "timesfm": {"past_values": lambda c: torch.randn(2, c.context_length),
                "past_values_padding": lambda c: torch.zeros(2, c.context_length),
                "freq": lambda c: torch.zeros(2, 1, dtype=torch.long)},
    "siglip2_vision_model": {
        "pixel_values": lambda c: torch.randn(2, 16, c.num_channels * c.patch_size**2),
        "pixel_attention_mask": lambda c: torch.ones(2, 16, dtype=torch.long),
        "spatial_shapes": lambda c: torch.tensor([[4, 4], [4, 4]]),
        "attention_mask": lambda c: torch.ones(2, 16, dtype=torch.long),
    },
    "lightglue": {"pixel_values": lambda c: torch.rand(1, 2, 3, 64, 64)},
    "superglue": {"pixel_values": lambda c: torch.rand(1, 2, 3, 64, 64)},
    "efficientloftr": {"pixel_values": lambda c: torch.rand(1, 2, 3, 64, 64)},
    "pix2struct": {
        "flattened_patches": lambda c: torch.cat([
            torch.arange(12.0).repeat(2, 1)[..., None] % 4, torch.ones(2, 12, 1),
            torch.randn(2, 12, c.vision_config.patch_embed_hidden_size)], -1),
        "decoder_input_ids": lambda c: torch.randint(5, 50, (2, 7)),
    },
    "oneformer": {"pixel_values": lambda c: torch.randn(2, 3, 64, 64),
                  "task_inputs": lambda c: torch.randint(5, 50, (2, 77))},
    "instructblip": {
        "pixel_values": lambda c: torch.randn(
            2, 3, c.vision_config.image_size, c.vision_config.image_size),
        "qformer_input_ids": lambda c: torch.randint(5, 50, (2, 6)),
        "input_ids": lambda c: torch.cat([
            torch.full((2, c.num_query_tokens), c.image_token_index or 98),
            torch.randint(5, 50, (2, 6))], 1),
    },
}  # fmt: skip
"""Inputs that a family needs: by its type, the name in its forward, from its configuration."""
