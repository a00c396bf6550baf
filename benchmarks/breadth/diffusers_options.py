"""How single models of diffusers are built, beside the general rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

WIDTH, HEADS, WORDS, SIDE = 32, 2, 7, 8


def of(table: dict[str, Any], name: str) -> Any:
    """What a table holds for a class; its keys are names, several beside each other."""
    return next((x for names, x in table.items() if name in names.split()), None)


OPTIONS: dict[str, dict[str, Any]] = {
    "CogVideoXTransformer3DModel": {"max_text_seq_length": WORDS},
    "ConsisIDTransformer3DModel": {"max_text_seq_length": WORDS},
    "SanaTransformer2DModel": {"cross_attention_dim": 64, "num_cross_attention_heads": 2,
                               "cross_attention_head_dim": 32},
    "SanaControlNetModel": {"cross_attention_dim": 64, "num_cross_attention_heads": 2,
                            "cross_attention_head_dim": 32},
    "UNet3DConditionModel": {"attention_head_dim": 8},
    "UNetMotionModel": {"num_attention_heads": 2},
    "Transformer2DModel": {"in_channels": 32, "num_attention_heads": 2, "attention_head_dim": 16},
    "TransformerTemporalModel": {"in_channels": 32, "num_attention_heads": 2},
    "DreamLiteTransformer2DModel": {"in_channels": 32, "num_attention_heads": 2},
    "WanVACETransformer3DModel": {"vace_layers": [0]},
    "PriorTransformer": {"embedding_dim": 32, "num_embeddings": WORDS},
    "AutoencoderKLHunyuanImage": {
        "in_channels": 3, "out_channels": 3, "latent_channels": 8, "block_out_channels": (32, 64),
        "layers_per_block": 1, "spatial_compression_ratio": 2, "sample_size": 32},
    "AutoencoderKLHunyuanImageRefiner AutoencoderKLHunyuanVideo15": {
        "block_out_channels": (32, 64), "spatial_compression_ratio": 2, "latent_channels": 8,
        "temporal_compression_ratio": 1},
    "AutoencoderKLKVAE AutoencoderKLKVAEVideo": {"ch_mult": (1, 2)},
    "AutoencoderKLKVAEAudio": {
        "encoder_dim": 8, "encoder_rates": [2, 4], "latent_dim": 32, "codebook_dim": 8,
        "decoder_dim": 32, "decoder_rates": [4, 2], "attn_num_heads": HEADS},
    "AutoencoderKLMiniMaxH3": {
        "block_out_channels": (32, 32), "spatial_downsample_factors": (2, 2),
        "temporal_downsample_factors": (2, 2), "decoder_attention_head_dim": 16},
    "AutoencoderKLMiniMaxH3Audio": {
        "encoder_dim": 8, "encoder_rates": (2, 4), "latent_dim": 64, "decoder_dim": 32,
        "decoder_rates": (4, 2), "decoder_kernel_sizes": (8, 4)},
    "AutoencoderKLQwenImage AutoencoderKLQwenImage21 AutoencoderKLWan": {"dim_mult": [1, 1, 1, 1]},
    "AutoencoderOobleck": {
        "encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "channel_multiples": [1, 2],
        "decoder_channels": 8, "decoder_input_channels": 4},
    "AutoencoderSAME": {
        "patch_size": 8, "encoder_channels": 16, "encoder_c_mults": (2,), "encoder_strides": (4,),
        "encoder_transformer_depths": (1,), "latent_dim": 16, "dim_heads": 16},
    "AutoencoderVidTok": {"ch_mult": [1, 1]},
    "Cosmos3AVAEAudioTokenizer": {
        "vocoder_input_dim": 8, "dec_dim": 8, "dec_c_mults": (1, 2), "dec_strides": (8, 8),
        "enc_dim": 8, "enc_c_mults": (1, 2), "enc_strides": (2, 2), "enc_latent_dim": 16,
        "enc_num_blocks": 1},
    "LTX2VideoDiffusionDecoderModel": {
        "latent_channels": 8, "decoder_head_dim": 16, "decoder_t_emb_dim": 32,
        "decoder_stage_channels": (64, 32, 32, 32, 32), "decoder_stage_depths": (1, 1, 1, 1, 1),
        "decoder_stage_kernels": ((3, 3, 3),) * 4, "decoder_stage5_kernel": (3, 3, 3),
        "decoder_upsample_channel_reductions": (2, 1, 1, 1),
        "decoder_upsample_strides": ((1, 1, 1),) * 4,
        "temporal_compression_ratio": 1},
    "LongCatAudioDiTVae": {
        "channels": 8, "c_mults": [1, 2], "strides": [2, 4], "latent_dim": 8,
        "encoder_latent_dim": 16, "downsampling_ratio": 8},
    "MMAudioVAE": {"latent_channels": 8, "channel_multipliers": (1, 2)},
    "MMAudioVocoder": {
        "num_mels": 8, "upsample_initial_channel": 64, "upsample_rates": (4, 2),
        "upsample_kernel_sizes": (8, 4)},
    "AceStepConditionEncoder": {"timbre_hidden_dim": 32},
    "AnimaTextConditioner": {
        "source_dim": 32, "target_dim": 32, "model_dim": 32, "target_vocab_size": 50,
        "min_sequence_length": 16},
    "AceStepAudioTokenizer": {"fsq_dim": 256},
    "AutoencoderKLLTX2Audio": {"mid_block_add_attention": True},
    "AutoencoderKLLTX2Video": {
        "block_out_channels": (32, 64, 128, 256), "decoder_block_out_channels": (32, 64, 128)},
    "MotionAdapter": {"motion_layers_per_block": 1},
    "BriaFibo2Transformer2DModel": {
        "injection_layer_ids": (0,), "min_num_gist_tokens": 4, "max_num_gist_tokens": 8,
        "gist_step": 2, "gist_min_text_len": 4, "gist_max_text_len": 16},
    "ControlNetUnionModel": {
        "addition_time_embed_dim": 8, "num_trans_channel": 32, "num_trans_head": HEADS,
        "num_proj_channel": 32, "projection_class_embeddings_input_dim": 48},
    "CosmosTransformer3DModel": {"concat_padding_mask": False},
    "DreamLiteUNetModel": {"attention_head_dim": HEADS},
    "EasyAnimateTransformer3DModel": {"in_channels": 4, "out_channels": 4, "patch_size": 2},
    "HiDreamImageTransformer2DModel": {
        "patch_size": 2, "in_channels": 4, "out_channels": 4, "caption_channels": (32, 32),
        "llama_layers": [0, 0], "axes_dims_rope": (64, 32, 32), "max_resolution": (16, 16)},
    "HunyuanDiT2DModel HunyuanDiT2DControlNetModel": {
        "in_channels": 4, "patch_size": 2, "sample_size": 8, "text_len": WORDS,
        "text_len_t5": WORDS},
    "HunyuanVideoFramepackTransformer3DModel": {
        "has_clean_x_embedder": True, "has_image_proj": True, "image_proj_dim": 32},
    "I2VGenXLUNet": {"attention_head_dim": 8, "num_attention_heads": HEADS},
    "Ideogram4Transformer2DModel": {"llm_features_dim": 32},
    "Kandinsky3UNet": {
        "groups": 4, "attention_head_dim": 16, "layers_per_block": 2},
    "Kandinsky5Transformer3DModel Kandinsky6SRTransformer3DModel": {"model_dim": 128},
    "Kandinsky6Transformer3DModel": {"model_dim": 256, "ff_dim": 64},
    "Kandinsky6SRLatentUpscalerBank": {"stage_channels": (32, 32, 32)},
    "Krea2Transformer2DModel": {
        "text_num_attention_heads": HEADS, "text_num_key_value_heads": HEADS,
        "text_intermediate_size": 64, "num_text_layers": 2},
    "LTX2VideoTransformer3DModel SanaWMLTX2RefinerTransformer3DModel": {
        "audio_cross_attention_dim": 128, "cross_attention_dim": 256},
    "LTXVideoTransformer3DModel": {"cross_attention_dim": 128},
    "AllegroTransformer3DModel": {"cross_attention_dim": 192},
    "SanaVideoTransformer3DModel": {
        "cross_attention_dim": 224, "num_cross_attention_heads": HEADS,
        "cross_attention_head_dim": 112},
    "LatteTransformer3DModel": {
        "in_channels": 4, "patch_size": 2, "sample_size": 8, "caption_channels": 32,
        "cross_attention_dim": 176, "norm_type": "ada_norm_single", "num_embeds_ada_norm": 1000,
        "activation_fn": "gelu-approximate", "norm_elementwise_affine": False},
    "LuminaNextDiT2DModel": {"cross_attention_dim": 32, "num_kv_heads": HEADS},
    "MiniMaxH3Transformer3DModel": {"time_embed_hidden_dim": 64},
    "MiniMaxMusic3ConditionEncoder": {"num_condition_layers": 4, "condition_hidden_dim": 16},
    "MiniMaxMusic3Transformer1DModel": {"condition_dim": 32},
    "OmniGenTransformer2DModel": {
        "pad_token_id": 0, "rope_scaling": {"short_factor": [1.0] * 48, "long_factor": [1.0] * 48}},
    "RFD4ProteinaAutoencoder": {
        "atom37_mask": [[True] * 37] * 147, "allowed_residue_types": [[True] * 147] * 7,
        "decoder_feats_seq": ("ca_coors_nm", "z_latent_seq", "token_type"), "dim_cond": 32},
    "RFD4ProteinaTransformer": {
        "feats_seq": ("xt_bb_ca", "xt_local_latents", "token_type"), "dim_cond": 32,
        "feats_cond_seq": ("time_emb_bb_ca", "time_emb_local_latents"), "pair_repr_dim": 32,
        "feats_pair_repr": ("xt_bb_ca_pair_dists",), "tri_mult_c": 16, "nlayers": 2},
    "ReduxImageEncoder": {"redux_dim": 32, "txt_in_features": 32},
    "StableAudio3DiTModel": {"cond_token_dim": 32, "global_cond_dim": 32, "num_memory_tokens": 4},
    "T5FilmDecoder": {
        "input_dims": 16, "targets_length": 16, "d_model": 32, "d_kv": 16, "d_ff": 64},
    "UNet1DModel": {"extra_in_channels": 64},
    "UNetSpatioTemporalConditionModel": {
        "num_attention_heads": HEADS, "addition_time_embed_dim": 32,
        "projection_class_embeddings_input_dim": 96},
    "UVit2DModel": {
        "encoder_hidden_size": 32, "cond_embed_dim": 32, "in_channels": 32,
        "block_out_channels": 32, "micro_cond_encode_dim": 8, "micro_cond_embed_dim": 48,
        "codebook_size": 48},
    "UniDiffuserModel": {
        "in_channels": 4, "out_channels": 4, "patch_size": 2, "sample_size": 8, "text_dim": 32,
        "clip_img_dim": 32, "num_text_tokens": WORDS, "num_layers": 2,
        "norm_type": "layer_norm", "use_patch_pos_embed": True},
    "UniDiffuserTextDecoder": {
        "prefix_length": 5, "prefix_inner_dim": 32, "prefix_hidden_dim": 16, "n_embd": 32,
        "n_positions": 64},
    "WanAnimateTransformer3DModel": {
        "image_dim": 32, "motion_encoder_size": 16, "motion_style_dim": 16, "motion_dim": 4,
        "motion_encoder_dim": 16, "face_encoder_hidden_dim": 32, "face_encoder_num_heads": HEADS,
        "inject_face_latents_blocks": 1,
        "motion_encoder_channel_sizes": {"4": 16, "8": 16, "16": 16}},
    "WanAnimate2Transformer3DModel": {"text_len": 16},
    "ZImageControlNetModel": {
        "control_layers_places": [0], "control_refiner_layers_places": [0],
        "control_in_dim": 16},
}  # fmt: skip
"""What the configuration of single models needs beside the general rules."""


def _tiled(model: Any) -> Any:
    model.enable_tiling()
    model.kernel, model.stride = (8, 32, 32), (4, 16, 16)
    return model


MADE: dict[str, Callable[[Any, Callable[..., Any]], nn.Module]] = {
    "AutoencoderKLAllegro": lambda of, tiny: _tiled(tiny("AutoencoderKLAllegro")),
    "ControlNetXSAdapter": lambda of, tiny: of.UNetControlNetXSModel.from_unet(
        (unet := tiny("UNet2DConditionModel", layers_per_block=2)),
        of.ControlNetXSAdapter.from_unet(unet, 0.5)),
    "MotionAdapter": lambda of, tiny: of.UNetMotionModel.from_unet2d(
        tiny("UNet2DConditionModel"), tiny("MotionAdapter")),
    "MultiAdapter": lambda of, tiny: of.MultiAdapter([tiny("T2IAdapter")] * 2),
    "ZImageControlNetModel": lambda of, tiny: of.ZImageControlNetModel.from_transformer(
        tiny("ZImageControlNetModel"), tiny("ZImageTransformer2DModel")),
}  # fmt: skip
"""Models that run within another only, or after a call: from diffusers and what builds a class."""
