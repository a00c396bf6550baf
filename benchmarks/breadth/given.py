"""Inputs of single families of transformers, and what a family runs instead of its forward."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch

INPUTS: dict[str, dict[str, Callable[[Any], Any] | None]] = {
    "perceiver": {"inputs": lambda c: torch.randn(
        2, 12, c.d_model, generator=torch.Generator().manual_seed(1))},
    "decision_transformer": {
        "states": lambda c: torch.randn(2, 5, c.state_dim),
        "actions": lambda c: torch.randn(2, 5, c.act_dim),
        "rewards": lambda c: torch.randn(2, 5, 1),
        "returns_to_go": lambda c: torch.randn(2, 5, 1),
        "timesteps": lambda c: torch.arange(5).expand(2, 5),
    },
    "speecht5": {"input_values": lambda c: torch.randn(2, 12, c.hidden_size),
                 "decoder_input_values": lambda c: torch.randn(2, 6, c.hidden_size)},
    "SpeechT5ForSpeechToText": {"input_values": lambda c: torch.randn(2, 4000)},
    "timesfm": {"past_values": lambda c: torch.randn(2, c.context_length),
                "past_values_padding": lambda c: torch.zeros(2, c.context_length),
                "freq": lambda c: torch.zeros(2, 1, dtype=torch.long)},
    "siglip2 siglip2_vision_model": {
        "pixel_values": lambda c: torch.randn(2, 16, 3 * getattr(
            c, "vision_config", c).patch_size**2),
        "pixel_attention_mask": lambda c: torch.ones(2, 16, dtype=torch.long),
        "spatial_shapes": lambda c: torch.tensor([[4, 4], [4, 4]]),
    },
    "seggpt": {name: lambda c: torch.randn(2, 3, 32, 32) for name in (
        "pixel_values", "prompt_pixel_values", "prompt_masks")},
    "speech-encoder-decoder": {"inputs": lambda c: torch.randn(2, 4000)},
    "udop": {"bbox": lambda c: torch.tensor([0.1, 0.2, 0.3, 0.4]) + torch.rand(2, 12, 1) / 2},
    "video_llama_3_vision": {
        "pixel_values": lambda c: torch.randn(16, 3 * c.patch_size**2),
        "merge_sizes": lambda c: torch.tensor([2]),
    },
    "tvp": {"pixel_values": lambda c: torch.randn(1, 2, 3, 64, 64),
            "input_ids": lambda c: torch.randint(5, 50, (1, 12))},
    "vibevoice_acoustic_tokenizer_decoder": {
        "hidden_states": lambda c: torch.randn(2, c.hidden_size, 3)},
    "vibevoice_acoustic_tokenizer_encoder": {
        "hidden_states": lambda c: torch.randn(2, 1, 3200)},
    "omdet-turbo": {
        "pixel_values": lambda c: torch.randn(2, 3, 64, 64),
        "classes_input_ids": lambda c: torch.randint(5, 50, (4, 5)),
        "classes_attention_mask": lambda c: torch.ones(4, 5, dtype=torch.long),
        "tasks_input_ids": lambda c: torch.randint(5, 50, (2, 6)),
        "tasks_attention_mask": lambda c: torch.ones(2, 6, dtype=torch.long),
        "classes_structure": lambda c: torch.tensor([2, 2]),
    },
    "voxtral_realtime": {"input_features": lambda c: torch.randn(
        2, c.audio_config.num_mel_bins, 12 * c.audio_length_per_tok)},
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
    **{family: {
        "input_features": lambda c, n=n: torch.randn(2, c.num_mel_bins, n),
        "input_features_mask": lambda c, n=n: torch.ones(2, n, dtype=torch.long),
    } for family, n in (("audioflamingo3_encoder", 256), ("qwen3_asr_encoder", 200))},
    "clap": {"input_features": lambda c: torch.randn(2, 1, 64, 16)},
    "depth_pro": {"pixel_values": lambda c: torch.randn(2, 3, 64, 64)},
    "dia": {"decoder_input_ids": lambda c: torch.randint(
        5, 50, (2, 7, c.decoder_config.num_channels))},
    "idefics": {"pixel_values": lambda c: torch.randn(2, 1, 3, 32, 32),
                "image_attention_mask": lambda c: torch.ones(2, 12, 1, dtype=torch.long)},
    "jev": {
        "marks": lambda c: torch.tensor([[4, 9]]), "num_options": lambda c: torch.tensor([[2, 3]]),
        "question_type_ids": lambda c: torch.tensor([[0, 2]]),
        "input_ids": lambda c: torch.randint(5, 50, (1, 12)),
    },
    "kosmos-2": {
        "pixel_values": lambda c: torch.randn(2, 3, 32, 32),
        "image_embeds_position_mask": lambda c: (
            torch.arange(12) < c.latent_query_num).repeat(2, 1),
    },
    "muse_glimmer_vision muse_spark_vision": {
        "pixel_values": lambda c: torch.randn(16, 3 * c.patch_temporal * c.patch_size**2),
        "grid_thw": lambda c: torch.tensor([[1, 4, 4]]),
    },
    "muse_spark_audio": {"input_values": lambda c: torch.randn(2, 3840)},
    "muse_glimmer_assistant": {
        "noise_embeds": lambda c: torch.randn(2, 6, c.hidden_size),
        "context_hidden_states": lambda c: torch.randn(2, 9, 2 * c.hidden_size),
        "attention_mask": lambda c: torch.ones(2, 15, dtype=torch.long),
    },
    "kimi_k25_vision": {"pixel_values": lambda c: torch.randn(16, 3, c.patch_size, c.patch_size)},
    "inkling2_vision": {
        "pixel_values": lambda c: torch.randn(4, 2 * c.patch_size, 2 * c.patch_size, 3),
        "image_grid_thw": lambda c: torch.tensor([[1, 2, 2]]),
    },
    "minicpm_ocr_vision minicpmv4_7_vision": {
        "pixel_values": lambda c: torch.randn(1, 3, 8, 8 * 32),
        "target_sizes": lambda c: torch.tensor([[4, 4], [4, 4]], dtype=torch.int32),
    },
    "pi0": {"action_embeds": lambda c: torch.randn(2, 5, c.dit_config.hidden_size),
            "pixel_values": lambda c: torch.randn(2, 1, 3, 32, 32),
            "pixel_attention_mask": lambda c: torch.ones(2, 1, dtype=torch.bool),
            "input_ids": lambda c: torch.cat([
                torch.full((2, 16), c.vlm_config.image_token_id),
                torch.randint(5, 50, (2, 6))], 1)},
    "musicgen musicgen_melody": {"decoder_input_ids": lambda c: torch.randint(
        5, 50, (2 * c.decoder.num_codebooks, 7))},
    "instructblipvideo": {
        "pixel_values": lambda c: torch.randn(2, 2, 3, 32, 32),
        "qformer_input_ids": lambda c: torch.randint(5, 50, (2, 6)),
        "input_ids": lambda c: torch.cat([
            torch.full((2, 2 * c.num_query_tokens), c.video_token_index or 98),
            torch.randint(5, 50, (2, 6))], 1),
    },
    "fun_asr_nano_encoder": {
        "input_features": lambda c: torch.randn(2, 12, c.num_mel_bins * c.num_stacked_frames),
        "input_features_mask": lambda c: torch.ones(2, 12, dtype=torch.long),
    },
    "gemma3n_audio": {"audio_mel": lambda c: torch.randn(2, 64, c.input_feat_size),
                      "audio_mel_mask": lambda c: torch.zeros(2, 64, dtype=torch.bool)},
    "gemma4_audio": {"input_features": lambda c: torch.randn(2, 64, 128),
                     "attention_mask": lambda c: torch.ones(2, 64, dtype=torch.bool)},
    "gemma4_vision": {
        "pixel_values": lambda c: torch.rand(2, 36, 3 * c.patch_size**2),
        "pixel_position_ids": lambda c: torch.cartesian_prod(
            torch.arange(6), torch.arange(6)).expand(2, -1, -1),
    },
    "gemma4_unified_assistant": {
        "inputs_embeds": lambda c: torch.randn(2, 5, 2 * c.backbone_hidden_size),
        "position_ids": lambda c: torch.arange(5).expand(2, 5),
        "shared_kv_states": lambda c: {kind: (torch.randn(
            2, c.text_config.num_key_value_heads, 5, width),) * 2
            for kind, width in (("full_attention", 512), ("sliding_attention", 8))},
    },
    "pe_audio_video_encoder": {"input_values": lambda c: torch.randn(2, 1, 3200),
                               "pixel_values_videos": lambda c: torch.randn(2, 2, 3, 32, 32)},
    "neucodec xcodec2": {"input_values": lambda c: torch.randn(2, 1, 6400),
                 "input_features": lambda c: torch.randn(2, 20, 32)},
    "pocket_tts gradium_phonon_tts": {"input_ids": lambda c: torch.cat([
        torch.randint(5, 50, (2, 11)), torch.full((2, 1), c.audio_bos_token_id)], 1)},
    "pop2piano": {"input_ids": None, "input_features": lambda c: torch.randn(2, 12, c.d_model)},
}  # fmt: skip
"""Inputs that a family or class needs: by its type, then the name in its forward; None: not it."""


OPTIONS: dict[str, dict[str, Any]] = {
    "clvp": {"return_dict_in_generate": True},
    "kyutai_speech_to_text": {"inputs_embeds": None, "input_values": torch.randn(2, 1, 1920 * 24)},
    "vibevoice": {"attention_mask": torch.ones(2, 12, dtype=torch.long)},
    "pop2piano": {"composer_to_feature_token": {f"composer{n}": n for n in range(1, 22)}},
}
"""What the generation of a family has to be told: its options, and tensors that it is given."""


def _video(model: Any) -> Any:
    """Follow one object, given by a point, through two frames."""
    kind = next(
        x for x in vars(sys.modules[type(model).__module__]).values()
        if isinstance(x, type) and x.__name__.endswith("InferenceSession")
    )  # fmt: skip
    size = getattr(model.config, "image_size", 32)
    draw = torch.Generator().manual_seed(1)
    session = kind(torch.randn(2, 3, size, size, generator=draw), size, size, dtype=torch.float32)
    if hasattr(session, "add_prompt"):
        session.prompt_input_ids[session.add_prompt("a")] = torch.arange(5, 17)[None]
        session.prompt_attention_masks[0] = torch.ones(1, 12, dtype=torch.long)
        return [model(session, frame_idx=i).obj_id_to_mask for i in range(2)]
    session.add_point_inputs(session.obj_id_to_idx(1), 0, {
        "point_coords": torch.tensor([[[[8.0, 9.0]]]]),
        "point_labels": torch.tensor([[[1]]], dtype=torch.int32),
    })  # fmt: skip
    session.obj_with_new_inputs = [1]
    return [model(session, frame_idx=i).pred_masks for i in range(2)]


def _bark(model: Any) -> Any:
    """The three transformers of Bark, one after the other."""
    ids = torch.arange(5, 17).repeat(2, 1)
    codes = ids[..., None].repeat(1, 1, model.config.fine_acoustics_config.n_codes_total) % 50
    return [
        model.semantic(ids).logits, model.coarse_acoustics(ids).logits,
        model.fine_acoustics(1, codes).logits,
    ]  # fmt: skip


def _says(model: Any) -> Any:
    """Generate a text, the part that answers in speech left out."""
    model.speaker_map = {"Chelsie": {}}
    speech = inspect.signature(model.generate).parameters.get("return_audio")
    how = {"generation_mode": "text"} if speech is None else {"return_audio": False}
    return model.generate(torch.arange(5, 17).repeat(2, 1), thinker_max_new_tokens=5, **how)


CALLS: dict[str, Callable[[Any], Any]] = {
    "qwen2_5_omni": _says, "qwen3_omni_moe": _says,
    "bark": _bark, "sam2_video": _video, "edgetam_video": _video,
    "sam3_tracker_video": _video, "sam3_video": _video,
    "glm_image_vqmodel": lambda model: model.encode(
        torch.rand(2, model.config.latent_channels, 4, 4)),
}  # fmt: skip
"""What a family runs whose model has no forward, or one that keeps a state."""
