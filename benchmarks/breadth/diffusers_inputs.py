"""Inputs of the models of diffusers, by the names in the signature of their forward.

Each name has one or several possible tensors; the first combination with which the model runs is
taken.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.breadth.diffusers_options import SIDE, WIDTH, WORDS, of
from benchmarks.breadth.inputs import BATCH, normal

TRIALS = 60

EACH = ("controlnet_cond", "controlnet_mode", "conditioning_scale", "xs")
"""Inputs of which a model made of several others takes a list."""

RARE = {"guidance", "class_labels", "image_latents", "timestep_ratio", "r_timestep", "fps"}
"""Inputs that a model of the default configuration refuses."""


ONES = torch.ones(BATCH, WORDS, dtype=torch.long)
STEP, STEPS = torch.tensor([10, 10]), torch.tensor([[10.0, 10.0]] * BATCH)


def tokens(width: int, length: int = WORDS) -> Tensor:
    """Random features of the tokens of a batch."""
    return normal(BATCH, length, width)


def video(channels: int, frames: int = 2, side: int = SIDE) -> Tensor:
    """A random video."""
    return normal(BATCH, channels, frames, side, side)


def rotary(length: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of a rotary embedding."""
    angles = normal(length, width)
    return angles.cos(), angles.sin()


def _cache(layers: int) -> Any:
    from diffusers.models.transformers.transformer_wan_animate_2 import WanAnimate2KVCache

    return WanAnimate2KVCache(layers)


INPUTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "AceStepAudioTokenizer": lambda c: {"hidden_states": normal(BATCH, 3, 5, 64)},
    "AceStepConditionEncoder": lambda c: {
        "text_hidden_states": tokens(c.text_hidden_dim), "text_attention_mask": ONES,
        "lyric_hidden_states": tokens(c.text_hidden_dim), "lyric_attention_mask": ONES,
        "refer_audio_acoustic_hidden_states_packed": tokens(c.timbre_hidden_dim),
        "refer_audio_order_mask": torch.arange(BATCH)},
    "AceStepTransformer1DModel": lambda c: {
        "hidden_states": tokens(64, 8), "context_latents": tokens(128, 8),
        "timestep": torch.tensor([1.0, 1.0]), "timestep_r": torch.tensor([0.5, 0.5]),
        "encoder_hidden_states": tokens(c.hidden_size)},
    "AnimaTextConditioner": lambda c: {
        "source_hidden_states": tokens(c.source_dim, 9), "target_input_ids": ONES.cumsum(1)},
    "AnyFlowTransformer3DModel AnyFlowFARTransformer3DModel": lambda c: {
        "hidden_states": video(2, c.in_channels), "timestep": STEPS, "r_timestep": STEPS / 2,
        "chunk_partition": [1, 1]},
    "AudioLDM2ProjectionModel": lambda c: {
        "hidden_states": tokens(32), "hidden_states_1": tokens(32, 5)},
    "AutoencoderKLHunyuanVideo15": lambda c: {"sample": normal(1, 3, 2, 8, 8)},
    "AutoencoderKLLTX2Video": lambda c: {"sample": video(3, 9, 64)},
    "AutoencoderKLMagvit AutoencoderKLWan AutoencoderVidTok AutoencoderKLHunyuanImageRefiner":
        lambda c: {"sample": video(3, 5, 32)},
    "AutoencoderKLCosmos": lambda c: {"sample": video(3, 9, 64)},
    "AutoencoderKLHunyuanVideo": lambda c: {"sample": video(3, 9, 32)},
    "AutoencoderKLFlux2": lambda c: {"sample": normal(BATCH, 3, 32, 32)},
    "AutoencoderKLQwenImage21": lambda c: {"sample": video(4, 1, 64)},
    "AutoencoderKLAllegro": lambda c: {"sample": normal(1, 3, 8, 32, 32)},
    "AutoencoderKLMiniMaxH3": lambda c: {"sample": video(3, 22, 16)},
    "AutoencoderKLMiniMaxH3Audio": lambda c: {"sample": normal(BATCH, 1, 64)},
    "Cosmos3AVAEAudioTokenizer": lambda c: {"sample": normal(BATCH, 2, 256)},
    "AutoencoderSAME": lambda c: {"sample": normal(BATCH, 2, 256)},
    "BriaFibo2Transformer2DModel": lambda c: {
        "hidden_states": normal(BATCH, c.in_channels, SIDE, SIDE),
        "encoder_hidden_states": normal(BATCH, 2, WORDS, c.cap_feat_dim)},
    "BriaFiboTransformer2DModel": lambda c: {
        "text_encoder_layers": [tokens(c.text_encoder_dim)] * 2, "timestep": STEP},
    "ChromaTransformer2DModel": lambda c: {
        "img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(WORDS, 3)},
    "ControlNetUnionModel": lambda c: {
        "controlnet_cond": [normal(BATCH, 3, 8 * SIDE, 8 * SIDE)],
        "control_type": torch.eye(6)[:BATCH], "control_type_idx": [0]},
    "Cosmos3OmniTransformer": lambda c: {
        "input_ids": torch.arange(5), "text_indexes": torch.arange(5),
        "position_ids": torch.arange(13).expand(3, -1), "und_len": 5, "sequence_length": 13,
        "vision_tokens": [normal(1, c.latent_channel, 2, 4, 4)],
        "vision_token_shapes": [(2, 2, 2)], "vision_sequence_indexes": torch.arange(5, 13),
        "vision_mse_loss_indexes": torch.arange(5, 13), "vision_timesteps": torch.full((8,), 10.0),
        "vision_noisy_frame_indexes": [torch.arange(2)]},
    "CosmosControlNetModel": lambda c: {
        "controls_latents": video(16), "latents": video(16), "condition_mask": video(1),
        "padding_mask": torch.zeros(1, 1, SIDE, SIDE)},
    "ErnieImageTransformer2DModel": lambda c: {
        "text_bth": tokens(c.text_in_dim), "text_lens": torch.tensor([7, 5])},
    "GlmImageTransformer2DModel": lambda c: {
        "prior_token_id": torch.arange(16).expand(BATCH, -1),
        "prior_token_drop": torch.zeros(BATCH, 16, dtype=torch.bool)},
    "HiDreamImageTransformer2DModel": lambda c: {
        "timesteps": STEP, "encoder_hidden_states_t5": tokens(32),
        "encoder_hidden_states_llama3": tokens(32).expand(1, -1, -1, -1),
        "pooled_embeds": normal(BATCH, c.text_emb_dim)},
    "HunyuanDiT2DModel HunyuanDiT2DControlNetModel": lambda c: {
        "timestep": STEP.float(), "controlnet_cond": normal(BATCH, 4, SIDE, SIDE),
        "encoder_hidden_states": tokens(c.cross_attention_dim), "text_embedding_mask": ONES,
        "encoder_hidden_states_t5": tokens(c.cross_attention_dim_t5),
        "text_embedding_mask_t5": ONES, "image_meta_size": torch.ones(BATCH, 6),
        "style": torch.zeros(BATCH, dtype=torch.long), "image_rotary_emb": rotary(16, 88)},
    "HunyuanVideo15Transformer3DModel": lambda c: {
        "hidden_states": video(c.in_channels), "timestep": STEP.float(),
        "encoder_attention_mask": ONES, "encoder_hidden_states_2": tokens(c.text_embed_2_dim),
        "encoder_attention_mask_2": ONES, "image_embeds": tokens(c.image_embed_dim, 3)},
    "HunyuanVideoFramepackTransformer3DModel": lambda c: {
        "hidden_states": video(c.in_channels), "timestep": STEP,
        "encoder_hidden_states": tokens(c.text_embed_dim), "image_embeds": tokens(32, 3),
        "indices_latents": torch.arange(2), "guidance": STEP.float(),
        "latents_clean": video(c.in_channels), "indices_latents_clean": torch.arange(2),
        "latents_history_2x": video(c.in_channels), "indices_latents_history_2x": torch.arange(2),
        "latents_history_4x": video(c.in_channels, 4),
        "indices_latents_history_4x": torch.arange(4)},
    "I2VGenXLUNet": lambda c: {
        "sample": video(4), "fps": torch.tensor([8, 8]), "image_latents": video(4),
        "image_embeddings": normal(BATCH, c.cross_attention_dim),
        "encoder_hidden_states": tokens(c.cross_attention_dim)},
    "Ideogram4Transformer2DModel": lambda c: {
        "hidden_states": tokens(c.in_channels, 23), "timestep": STEP.float(),
        "encoder_hidden_states": tokens(c.llm_features_dim, 23),
        "position_ids": torch.arange(23)[:, None].expand(BATCH, -1, 3),
        "segment_ids": torch.ones(BATCH, 23, dtype=torch.long),
        "indicator": (torch.arange(23) < WORDS).long().add(2).expand(BATCH, -1)},
    "JoyImageEditPlusTransformer3DModel": lambda c: {
        "hidden_states": normal(BATCH, 16, c.in_channels, *c.patch_size),
        "encoder_hidden_states_mask": ONES, "shape_list": [[(1, 4, 4)]] * BATCH},
    "Kandinsky5Transformer3DModel": lambda c: {
        "hidden_states": normal(1, 2, SIDE, SIDE, c.in_visual_dim), "timestep": STEP[:1],
        "encoder_hidden_states": normal(1, WORDS, c.in_text_dim),
        "pooled_projections": normal(1, c.in_text_dim2), "text_rope_pos": torch.arange(WORDS),
        "visual_rope_pos": [torch.arange(2), torch.arange(4), torch.arange(4)]},
    "Kandinsky6SRTransformer3DModel": lambda c: {
        "hidden_states": normal(BATCH, 2, 16, 16, 2 * c.in_visual_dim + 1)},
    "Kandinsky6Transformer3DModel": lambda c: {
        "hidden_states": normal(BATCH, 2, SIDE, SIDE, 2 * c.in_visual_dim + 1),
        "encoder_hidden_states": tokens(c.in_text_dim),
        "pooled_projections": normal(BATCH, c.in_text_dim2),
        "audio_hidden_states": tokens(c.in_audio_dim, 6)},
    "Kandinsky6SRLatentUpscalerBank": lambda c: {"latents": video(c.in_channels), "scale": 2},
    "Krea2Transformer2DModel": lambda c: {
        "hidden_states": tokens(c.in_channels, 16), "position_ids": torch.zeros(23, 3),
        "encoder_hidden_states": normal(BATCH, WORDS, c.num_text_layers, c.text_hidden_dim),
        "encoder_attention_mask": ONES.bool()},
    "LTX2VideoDiffusionDecoderModel": lambda c: {"z": normal(1, c.latent_channels, 3, 4, 4)},
    "LTX2VideoTransformer3DModel": lambda c: {
        "hidden_states": tokens(c.in_channels, 32), "timestep": STEP,
        "audio_hidden_states": tokens(c.audio_in_channels, 6),
        "encoder_hidden_states": tokens(c.caption_channels),
        "audio_encoder_hidden_states": tokens(c.caption_channels),
        "num_frames": 2, "height": 4, "width": 4, "audio_num_frames": 6},
    "SanaWMLTX2RefinerTransformer3DModel": lambda c: {
        "hidden_states": tokens(c.in_channels, 16), "video_rotary_emb": rotary(16, 256),
        "encoder_hidden_states": tokens(c.caption_channels)},
    "LTXVideoTransformer3DModel": lambda c: {
        "hidden_states": tokens(c.in_channels, 32), "num_frames": 2, "height": 4, "width": 4},
    "LatteTransformer3DModel": lambda c: {"hidden_states": video(4)},
    "LongCatAudioDiTTransformer": lambda c: {
        "hidden_states": tokens(c.latent_dim, 16), "timestep": torch.tensor([0.5, 0.5]),
        "encoder_hidden_states": tokens(c.dit_text_dim), "encoder_attention_mask": ONES,
        "latent_cond": tokens(c.latent_dim, 16)},
    "Lumina2Transformer2DModel": lambda c: {
        "encoder_attention_mask": ONES, "encoder_hidden_states": tokens(c.cap_feat_dim)},
    "LuminaNextDiT2DModel": lambda c: {
        "hidden_states": normal(BATCH, 4, SIDE, SIDE), "encoder_mask": ONES,
        "encoder_hidden_states": tokens(c.cross_attention_dim),
        "timestep": STEP, "cross_attention_kwargs": {},
        "image_rotary_emb": torch.polar(torch.ones(4, 4, 36), normal(4, 4, 36))},
    "MiniMaxH3Transformer3DModel": lambda c: {
        "hidden_states": normal(1, 8, 4 * c.in_channels),
        "audio_hidden_states": normal(1, 3, c.audio_in_channels),
        "encoder_hidden_states": normal(1, WORDS, c.text_dim), "timestep": torch.tensor([10.0]),
        "timestep_indices": torch.zeros(18, dtype=torch.long),
        "token_tags": torch.tensor([0] * 7 + [1] * 8 + [2] * 3), "position_ids": torch.zeros(18, 3),
        "text_indices": torch.arange(7), "video_indices": torch.arange(7, 15),
        "audio_indices": torch.arange(15, 18)},
    "MiniMaxMusic3ConditionEncoder": lambda c: {"hidden_states": tokens(64)},
    "MiniMaxMusic3Transformer1DModel": lambda c: {
        "hidden_states": normal(BATCH, c.in_channels, WORDS),
        "encoder_hidden_states": tokens(c.condition_dim)},
    "OmniGenTransformer2DModel": lambda c: {
        "input_ids": ONES.cumsum(1), "input_img_latents": [], "input_image_sizes": {},
        "attention_mask": torch.ones(BATCH, 24, 24),
        "position_ids": torch.arange(24).repeat(BATCH, 1)},
    "PriorTransformer": lambda c: {
        "hidden_states": normal(BATCH, c.embedding_dim),
        "encoder_hidden_states": tokens(c.embedding_dim)},
    "QwenImage21Transformer2DModel": lambda c: {
        "hidden_states": tokens(c.in_channels, 16), "img_shapes": [[(1, 4, 4)]] * BATCH,
        "img_mask": (torch.arange(11) >= WORDS).expand(BATCH, -1),
        "encoder_hidden_states_mask": ONES},
    "RFD4ProteinaAutoencoder": lambda c: {
        "z_latent": tokens(c.latent_dim), "ca_coors_nm": tokens(3), "padding_mask": ONES.bool(),
        "token_type": ONES, "atom37_mask": torch.ones(BATCH, WORDS, 37).bool(),
        "conditioning": {
            "is_in_context_conditioning": ONES * 0, "supports_local_latent": ONES}},
    "RFD4ProteinaTransformer": lambda c: {
        "bb_ca": tokens(3), "local_latents": tokens(c.latent_dim), "padding_mask": ONES.bool(),
        "bb_ca_time": torch.tensor([0.5, 0.5]), "local_latents_time": torch.tensor([0.5, 0.5]),
        "token_type": ONES, "conditioning": {
            "is_in_context_conditioning": ONES * 0, "supports_local_latent": ONES}},
    "SanaControlNetModel": lambda c: {"controlnet_cond": normal(BATCH, 32, SIDE, SIDE)},
    "SanaWMTransformer3DModel": lambda c: {
        "hidden_states": video(c.in_channels), "timestep": STEPS[:, None],
        "encoder_hidden_states": normal(BATCH, 1, WORDS, c.caption_channels),
        "mask": ONES[:, None, None]},
    "SparseControlNetModel": lambda c: {
        "sample": video(4), "controlnet_cond": video(4), "conditioning_mask": video(1),
        "encoder_hidden_states": normal(2 * BATCH, WORDS, c.cross_attention_dim)},
    "UNetMotionModel": lambda c: {
        "sample": video(4),
        "encoder_hidden_states": normal(2 * BATCH, WORDS, c.cross_attention_dim)},
    "StableAudio3DiTModel": lambda c: {
        "hidden_states": normal(BATCH, c.io_channels, 16), "timestep": torch.tensor([0.5, 0.5]),
        "encoder_hidden_states": tokens(c.cond_token_dim),
        "global_hidden_states": normal(BATCH, c.global_cond_dim)},
    "StableAudioDiTModel": lambda c: {
        "hidden_states": normal(BATCH, c.in_channels, 16), "timestep": torch.tensor([0.5, 0.5]),
        "encoder_hidden_states": tokens(c.cross_attention_input_dim),
        "global_hidden_states": normal(BATCH, 1, c.global_states_input_dim),
        "rotary_embedding": rotary(17, 32)},
    "StableAudio3DurationEmbedder": lambda c: {"seconds": torch.tensor([10.0, 20.0])},
    "T5FilmDecoder": lambda c: {
        "encodings_and_masks": [(tokens(c.d_model), ONES)],
        "decoder_input_tokens": tokens(c.input_dims, 16),
        "decoder_noise_time": torch.tensor([0.5, 0.5])},
    "TransformerTemporalModel": lambda c: {
        "hidden_states": normal(2 * BATCH, c.in_channels, SIDE, SIDE), "num_frames": 2},
    "UNet1DModel": lambda c: {"sample": normal(BATCH, c.in_channels, 64), "timestep": STEP},
    "UNetControlNetXSModel": lambda c: {
        "controlnet_cond": normal(BATCH, 3, 8 * SIDE, 8 * SIDE)},
    "UVit2DModel": lambda c: {
        "input_ids": torch.arange(64).view(1, SIDE, SIDE).expand(BATCH, -1, -1) % 48,
        "encoder_hidden_states": tokens(32), "pooled_text_emb": normal(BATCH, 32)},
    "UniDiffuserModel": lambda c: {
        "latent_image_embeds": normal(BATCH, 4, SIDE, SIDE), "image_embeds": tokens(32, 1),
        "prompt_embeds": tokens(32), "timestep_img": STEP, "timestep_text": STEP},
    "UniDiffuserTextDecoder": lambda c: {
        "input_ids": ONES.cumsum(1), "prefix_embeds": tokens(32, 5)},
    "WanAnimateTransformer3DModel": lambda c: {
        "hidden_states": video(c.in_channels, 3), "pose_hidden_states": video(c.latent_channels),
        "face_pixel_values": video(3, 9, 16), "encoder_hidden_states_image": tokens(32, 5)},
    "WanAnimate2Transformer3DModel": lambda c: {
        "hidden_states": [normal(16, 1, SIDE, SIDE)] * BATCH, "timestep": STEP,
        "encoder_hidden_states": [normal(WORDS, c.text_dim)] * BATCH,
        "condition_latents": [normal(c.in_dim - 16, 1, SIDE, SIDE)] * BATCH, "seq_len": 16,
        "kv_cache": _cache(c.num_layers), "kv_cache_mode": "extract",
        "encoder_hidden_states_image": tokens(1280, 3),
        "offset_grid_sizes": torch.tensor([[1, 4, 4]] * BATCH)},
    "WanVACETransformer3DModel": lambda c: {"control_hidden_states": video(c.vace_in_channels)},
    "ZImageTransformer2DModel ZImageControlNetModel": lambda c: {
        "x": [normal(16, 1, SIDE, SIDE)] * BATCH, "t": torch.tensor([0.5, 0.5]),
        "cap_feats": [normal(WORDS, c.get("cap_feat_dim") or 32)] * BATCH,
        "control_context": [normal(16, 1, SIDE, SIDE)] * BATCH},
    "MMAudioVAE": lambda c: {"sample": normal(BATCH, 8000)},
    "MMAudioVocoder": lambda c: {"mel": tokens(16, c.num_mels)},
}  # fmt: skip
"""Inputs that single models need: by the names in their forward, from their configuration."""


def inputs(model: nn.Module, c: Any) -> Iterator[dict[str, Any]]:
    """Inputs by the names in the signature of forward: what is needed, then all that is known."""
    name = type(model).__name__
    needs = of(INPUTS, name.replace("Multi", ""))
    fixed = needs(c) if needs else {}
    known = _known(c) | {name: [value] for name, value in fixed.items()}
    parameters = inspect.signature(model.forward).parameters
    fixed = {n: x for n, x in fixed.items() if n in parameters}
    if "Multi" in name:
        known |= {n: [[x] for x in known[n]] for n in EACH if n in known}
    needed = [
        n
        for n, x in parameters.items()
        if n in fixed or (x.default is x.empty and x.kind == x.POSITIONAL_OR_KEYWORD)
    ]
    every = [n for n in parameters if n in known]
    some = [n for n in every if n in needed or n.startswith(("encoder_hid", "timestep", "pooled"))]
    usual = [n for n in every if n in needed or n not in RARE]
    for names in dict.fromkeys(map(tuple, (needed, some, usual, every))):
        if all(n in known for n in names):
            kinds = [known[n] for n in reversed(names)]  # the first input, the image, varies first
            for tensors in itertools.islice(itertools.product(*kinds), TRIALS):
                yield dict(zip(names, reversed(tensors)))


def _first(config: Any, names: str, default: int) -> int:
    found = (config.get(name) for name in names.split())
    return next((x for x in found if isinstance(x, int)), default)


def _known(c: Any) -> dict[str, list[Any]]:
    """The tensors that an input may be, by its name."""
    channels = _first(
        c, "in_channels latent_channels in_chans num_channels audio_channels input_dim", 4
    )
    text = _first(
        c,
        "joint_attention_dim text_dim caption_channels cross_attention_dim "
        "cross_attention_input_dim text_embed_dim text_in_dim cap_feat_dim context_dim hidden_size",
        WIDTH,
    )
    image = [
        normal(BATCH, channels, SIDE, SIDE),
        normal(BATCH, channels, 2, SIDE, SIDE),
        normal(BATCH, 16, channels),
        normal(BATCH, 2, channels, SIDE, SIDE),
        normal(BATCH, channels, 32),
        normal(BATCH, 3, 32, 32),
        normal(BATCH, 3, 5, 32, 32),
        normal(BATCH, channels, 1, SIDE, SIDE),
        normal(BATCH, channels, 1600),
        normal(BATCH, WORDS, _first(c, "hidden_size", WIDTH)),
    ]
    steps = [torch.tensor([10, 10]), torch.tensor([0.5, 0.5]), torch.tensor(10)]
    pooled = [normal(BATCH, _first(c, "pooled_projection_dim embedding_dim", WIDTH))]
    ids = [torch.randint(0, 40, (BATCH, WORDS), generator=torch.Generator().manual_seed(1))]
    axes = len(c.get("axes_dims_rope") or (0, 0, 0))
    words = [normal(BATCH, WORDS, n) for n in dict.fromkeys((text, WIDTH, 768))]
    return {
        "hidden_states": image, "sample": image, "x": image, "latents": image, "z": image,
        "xs": image,
        "timestep": steps, "t": steps,
        "encoder_hidden_states": words, "text_hidden_states": words,
        "encoder_attention_mask": [torch.ones(BATCH, WORDS)],
        "encoder_hidden_states_mask": [torch.ones(BATCH, WORDS)],
        "encoder_mask": [torch.ones(BATCH, WORDS)],
        "pooled_projections": pooled, "proj_embedding": pooled, "pooled_text_emb": pooled,
        "img_ids": [torch.zeros(16, axes)], "txt_ids": [torch.zeros(WORDS, axes)],
        "guidance": [torch.tensor([3.0, 3.0])],
        "img_shapes": [[[(1, 4, 4)]] * BATCH],
        "txt_seq_lens": [[WORDS] * BATCH],
        "position_ids": [torch.arange(WORDS).expand(BATCH, -1), torch.zeros(16, 3)],
        "input_ids": ids, "attention_mask": [torch.ones(BATCH, WORDS, dtype=torch.long)],
        "controlnet_cond": [normal(BATCH, 3, 8 * SIDE, 8 * SIDE), *image],
        "conditioning_scale": [1.0], "controlnet_mode": [torch.zeros(BATCH, 1, dtype=torch.long)],
        "added_time_ids": [normal(BATCH, 3)],
        "target_size": [torch.tensor([[64.0, 64.0]] * BATCH)],
        "original_size": [torch.tensor([[64.0, 64.0]] * BATCH)],
        "crop_coords": [torch.zeros(BATCH, 2)],
        "padding_mask": [torch.zeros(1, 1, SIDE, SIDE), torch.zeros(BATCH, WORDS)],
        "fps": [torch.tensor([8, 8]), torch.tensor(8)],
        "image_latents": image[1:2], "r_timestep": steps, "timestep_ratio": steps[1:2],
        "clip_text_pooled": [normal(BATCH, 1, _first(c, "clip_text_pooled_in_channels", WIDTH))],
        "image_embeds": [normal(BATCH, _first(c, "image_embed_dim", WIDTH))],
        "micro_conds": [normal(BATCH, 6)],
        "inputs_embeds": words, "global_hidden_states": [normal(BATCH, 1, _first(
            c, "global_states_input_dim", WIDTH))],
        "num_frames": [2, 1], "height": [4], "width": [4],
        "class_labels": [torch.tensor([1, 2])],
    }  # fmt: skip
