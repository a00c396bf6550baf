"""What single families of transformers need beside the general rules."""

from __future__ import annotations

import fnmatch
from typing import Any

INTRACLASS = {
    "reduce_channel": [1, 1, 0], "return_channel": [1, 1, 0],
    **{f"{way}_{size}ratio": [[n, 1], [1, 1], [n // 2, 0]] if "vertical" in way else
       [[1, n], [1, 1], [0, n // 2]] if "horizontal" in way else [[n, n], [1, 1], [n // 2, n // 2]]
       for way in ("vertical_long_to_small_conv", "horizontal_small_to_long_conv",
                   "symmetric_conv_long")
       for size, n in (("long", 7), ("mid", 5), ("short", 3))},
}  # fmt: skip
INDEXER = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8,
           "indexer_budget": 4, "indexer_compress_ratio": 2, "ngram_vocab_size_base": 50,
           "split_ngram_parts": 2}  # fmt: skip
HIERA = {"image_size": [64, 64], "embed_dim_per_stage": [16, 32, 64, 128], "hidden_size": 16,
         "blocks_per_stage": [1, 1, 2, 1], "num_attention_heads_per_stage": [1, 2, 4, 8],
         "window_size_per_stage": [8, 4, 4, 2], "global_attention_blocks": [3],
         "window_positional_embedding_background_size": [4, 4]}  # fmt: skip
FPN = {"backbone_channel_list": [128, 64, 32, 16], "fpn_hidden_size": 32,
       "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]}  # fmt: skip
LATENT = {"num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 16,
          "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
          "head_dim": 16}  # fmt: skip
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
    "sam sam_hq": {"vision_config.window_size": 0, "vision_config.global_attn_indexes": [1],
                   "vision_config.output_channels": 32, "vision_config.num_pos_feats": 16,
                   "prompt_encoder_config.image_embedding_size": 4},
    "sam_hq": {"vision_config.output_channels": 32, "mask_decoder_config.vit_dim": 32},
    "sam2 sam2_video edgetam_video": {f"vision_config.{name}": x for name, x in FPN.items()} | {
        f"vision_config.backbone_config.{name}": x for name, x in HIERA.items()} | {
        "prompt_encoder_config.image_size": 64, "prompt_encoder_config.patch_size": 16,
        "image_size": 64, "memory_attention_rope_feat_sizes": [4, 4]},
    "sam2_video edgetam_video sam3_tracker_video": {name: 128 for name in (
        "vision_config.fpn_hidden_size", "prompt_encoder_config.hidden_size",
        "mask_decoder_config.hidden_size", "memory_attention_hidden_size",
        "memory_encoder_hidden_size", "mask_downsampler_embed_dim", "memory_fuser_embed_dim",
    )} | {"memory_encoder_output_channels": 64, "perceiver_resampler_hidden_size": 64,
          "perceiver_resampler_attention_head_dim": 64},
    "sam3_tracker": {
        "vision_config.backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
        "prompt_encoder_config.image_size": 32, "prompt_encoder_config.patch_size": 8},
    "edgetam_video": {
        "perceiver_resampler_num_latents": 4, "perceiver_resampler_num_latents_2d": 4,
        "memory_attention_rope_k_sizes": [2, 2]},
    "sam2_vision_model": FPN | {f"backbone_config.{name}": x for name, x in HIERA.items()},
    "sam2_hiera_det_model": HIERA,
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
    "dots3_note": {"text_config.per_layer_config": {1: LATENT}},
    "dots3_note_text": {"per_layer_config": {1: LATENT}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "hunyuan_vl": {"text_config.rope_parameters": {"mrope_section": [1, 1, 1, 1]}},
    "musicgen musicgen_melody": {"decoder.vocab_size": 64},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "qwen2_5_vl_vision exaone4_5_vision": {"window_size": 16, "fullatt_block_indexes": [1]},
    "neomme": {"head_dim": 16},
    "qwen3_omni_moe_thinker qwen2_5_omni_thinker": {"vision_start_token_id": 90},
    "mimi mimi_decoder mimi_encoder moshi": {"codebook_size": 64, "num_filters": 16,
        "hidden_size": 64, "upsample_groups": 32},
    "csm kyutai_speech_to_text": {
        "codec_config.upsample_groups": 32,
        "codec_config.vector_quantization_hidden_dimension": 32},
    "align": {"vision_config.width_coefficient": 0.25, "vision_config.depth_coefficient": 0.1,
              "vision_config.hidden_dim": 80, "projection_dim": 80},
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.1, "hidden_dim": 320},
    "blip-2 instructblip instructblipvideo": {"image_token_index": 98, "video_token_index": 98},
    "blt": {"num_hidden_layers": 2, "encoder_config.hidden_size_global": 32,
            "decoder_config.hidden_size_global": 32},
    "clap clap_audio_model": {
        "audio_config.num_mel_bins": 16, "audio_config.spec_size": 64,
        "audio_config.window_size": 2,
        "audio_config.patch_embeds_hidden_size": 16, "audio_config.hidden_size": 32,
        "audio_config.depths": [1, 1], "audio_config.num_attention_heads": [2, 2],
        "audio_config.num_hidden_layers": 2, "audio_config.patch_size": 4,
    },
    "deepseek_ocr2": {"text_config.mlp_layer_types": ["dense", "sparse"],
                      "text_config.num_experts_per_tok": 2, "text_config.n_group": 1,
                      "text_config.topk_group": 1},
    "depth_pro": {
        "patch_size": 16, "scaled_images_feature_dims": [32, 32, 16],
        "intermediate_hook_ids": [1, 0], "intermediate_feature_dims": [32, 32],
        **{f"{part}_model_config.{name}": n for part in ("image", "patch", "fov")
           for name, n in (("image_size", 16), ("patch_size", 4))},
    },
    "diffusion_gemma": {"text_config.num_experts": 4, "text_config.top_k_experts": 2,
                        "text_config.moe_intermediate_size": 16},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16},
    "janus": {"vq_config.base_channels": 32, "vq_config.latent_channels": 16,
              "vq_config.num_patches": 4},
    "kimi_k25_vision": {"pos_emb_height": 4, "pos_emb_width": 4},
    "lw_detr": {"backbone_config.num_windows": 4, "backbone_config.num_windows_side": 2,
                "backbone_config.image_size": 64, "backbone_config.pretrain_image_size": 64,
                "backbone_config.window_block_indices": [0],
                "projector_scale_factors": [1.0], "num_feature_levels": 1},
    "molmo2": {"adapter_config.vision_feature_layer": [1, 0],
               "vision_config.num_position_embeddings": 16},
    "minicpm_ocr_vision minicpmv4_7_vision": {"insert_layer_id": 1},
    "muse_glimmer_assistant": {"target_layer_ids": [0, 1]},
    "edgetam": {"vision_config.backbone_config": {"model_type": "timm_wrapper"}},
    "edgetam_vision_model": {"backbone_config": {"model_type": "timm_wrapper"}},
    "gemma3 shieldgemma2 t5gemma2": {"mm_tokens_per_image": 4},
    "qwen2_5_vl exaone4_5 hyperclovax_vision_v2 qwen2_5_omni_thinker": {
        "vision_config.window_size": 32, "vision_config.fullatt_block_indexes": [1]},
    "aria": {"projector_patch_to_query_dict": {16: 4}},
    "emu3": {"vocabulary_map": {"<image>": 9, "<|extra_200|>": 95}, "image_token_id": 9,
             "vq_config.base_channels": 32},
    "ernie4_5_vl_moe": {"text_config.rope_parameters": {"mrope_section": [1, 1, 2]}},
    "ernie4_5_vl_moe_text": {"rope_parameters": {"mrope_section": [1, 1, 2]}},
    "fastspeech2_conformer_with_hifigan": {"vocoder_config.model_in_dim": 16,
                                           "vocoder_config.upsample_initial_channel": 32},
    "fun_asr_nano": {"adaptor_config.intermediate_size": 8},
    "gemma4_unified_assistant": {
        "text_config.layer_types": ["sliding_attention", "full_attention"] * 2,
        "text_config.num_hidden_layers": 4, "text_config.num_kv_shared_layers": 2,
        "backbone_hidden_size": 32},
    "granite4_vision": {"deepstack_layer_map": [[-1, 0]], "spatial_target_layers": [0, 0, 1, 1],
                        "downsample_rate": "1/2", "qformer_config.encoder_hidden_size": 64,
                        "vision_config.hidden_size": 64},
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},
    "hunyuan_vl_text": {"rope_parameters": {"mrope_section": [1, 1, 1, 1]}},
    "kosmos-2": {"latent_query_num": 6},
    "neucodec xcodec2": {"encoder_hidden_size": 2, "quantization_dim": 64},
    "pp_doclayout_v2": {"class_thresholds": [0.5] * 25, "class_order": [0] * 25},
    "pp_ocrv5_server_det pp_ocrv6_medium_det": {"intraclass_block_config": INTRACLASS,
        "kernel_list": [3, 2, 2], "scale_factor_list": [1, 2, 4, 8]},
    "pp_ocrv6*det": {
        "backbone_config.stem_channels": [3, 48, 96], "backbone_config.out_indices": [1, 2, 3, 4],
        "backbone_config.stage_out_channels": [96, 96, 192, 384],
        "backbone_config.block_configs": [[[3, 96, 96, 1, True]], [[3, 96, 96, 2, False]],
                                          [[3, 96, 192, 2, False]], [[3, 192, 384, 2, False]]]},
    "pp_ocrv6_small_det": {"layer_list_out_channels": [96, 96, 192, 384]},
    "qwen2_5_omni": {"thinker_config.vision_start_token_id": 90,
        "thinker_config.text_config.rope_parameters": {"mrope_section": [2, 1, 1]},
        "talker_config.rope_parameters": {"mrope_section": [2, 1, 1]},
        "token2wav_config.bigvgan_config.upsample_initial_channel": 64},
    "qwen3_omni_moe": {
        "thinker_config.vision_start_token_id": 90, "talker_config.spatial_merge_size": 2,
        "talker_config.text_config.shared_expert_intermediate_size": 16},
    "qwen4_exp": {f"text_config.{name}": n for name, n in INDEXER.items()},
    "qwen4_exp_text": INDEXER,
    "qwen2_5_omni_thinker": {"text_config.rope_parameters": {"mrope_section": [2, 1, 1]}},
    "seggpt": {"image_size": [64, 32]},
    "shieldgemma2": {"yes_token_index": 7, "no_token_index": 8},
    "step3p7": {"text_config.sliding_window": 4},
    "t5gemma2_encoder": {"text_config.dropout_rate": 0.0, "text_config.attention_dropout": 0.0},
    "tvp": {"visual_prompt_size": 4, "max_img_size": 64},
    "swin donut-swin": {"depths": [2, 2], "num_heads": [2, 2], "embed_dim": 16},
    "uvdoc": {"backbone_config.out_indices": [1, 2, 3, 4, 5, 6]},
    "vitmatte": {"backbone_config.patch_size": 16, "backbone_config.image_size": 64},
    "zoedepth": {"bottleneck_features": 32},
    "efficientloftr": {"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 8},
    "xcodec": {"codebook_dim": 64},
    "lw_detr_vit": {"num_windows": 4, "num_windows_side": 2, "image_size": 64,
                    "pretrain_image_size": 64, "window_block_indices": [0]},
    "vibevoice_asr": {"acoustic_tokenizer_chunk_size": 3200},
    "xmod": {"default_language": "en_XX"},
    "pp_lcnet_v4": {"stem_channels": [3, 48, 96], "stage_out_channels": [96, 96, 192, 384]},
    "omdet-turbo": {
        "encoder_in_channels": [16, 32, 32], "class_embed_dim": 64, "text_config.hidden_size": 64,
        "text_projection_in_dim": 64, "text_projection_out_dim": 64,
        "apply_layernorm_after_vision_backbone": False},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128},
    "zamba zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2, "num_hidden_layers": 4,
        "hybrid_layer_ids": [1, 3], "attention_hidden_size": 64, "attention_head_dim": 16,
        "mamba_dt_rank": 4, "mamba_headdim": 16},
    "pocket_tts_audio_tokenizer*": {"upsample_groups": 32},
}  # fmt: skip
"""Values that configurations need: family patterns, then the path of the value."""


IMPOSSIBLE = {"gemma4_assistant"}
"""Types that transformers lists and no auto class builds from any configuration, in this release.

Its check wants every layer of `gemma4_assistant` to share keys; the model then refuses to be made.
"""


def of_family(entries: dict[str, dict[str, Any]], family: str) -> dict[str, Any]:
    """What all patterns that match a family say."""
    found: dict[str, Any] = {}
    for pattern, values in entries.items():
        if any(fnmatch.fnmatch(family, x) for x in pattern.split()):
            found |= values
    return found
