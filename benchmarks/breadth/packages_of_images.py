"""Models of images in other packages, vit-pytorch first: options and inputs, see `packages`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from benchmarks.breadth.packages import DEEP, IMAGE, MAP, PLAIN, Case, X, floats, found, whole

VIDEO, SERIES = floats(2, 3, 4, 32, 32), floats(2, 3, 32)
VIT: dict[str, Any] = {**DEEP, "image_size": 32, "patch_size": 8, "num_classes": 5, "mlp_dim": 48}
VIT_1D = {k: x for k, x in VIT.items() if k != "image_size"} | {"seq_len": 32}
VIT_3D = {k: x for k, x in VIT.items() if k != "patch_size"} | {
    "image_patch_size": 8, "frames": 4, "frame_patch_size": 2,
}  # fmt: skip
VIT_ND = {k: x for k, x in VIT.items() if k != "image_size"} | {"ndim": 2, "input_shape": 32}
VIVIT = {k: x for k, x in VIT_3D.items() if k != "depth"} | {
    "spatial_depth": 1, "temporal_depth": 1,
}  # fmt: skip
STAGES = {"num_classes": 5, "dim": 16, "depth": (1, 1), "dim_head": 8, "window_size": 4}
TWINS = {
    f"s{i}_{name}": x[i - 1]
    for name, x in {
        "emb_dim": (16, 16, 32, 32), "patch_size": (2, 2, 2, 1), "local_patch_size": (4, 4, 4, 4),
        "global_k": (4, 4, 2, 2), "depth": (1, 1, 1, 1),
    }.items()
    for i in (1, 2, 3, 4)
}  # fmt: skip
CVT = {
    f"s{i}_{name}": x
    for name, x in {"emb_dim": 16, "heads": 2, "depth": 1, "mlp_mult": 2}.items()
    for i in (1, 2, 3)
}
FOLD: dict[str, Any] = {"d_model": 32, "d_k": 8, "d_v": 8, "h": 4}
UNET: dict[str, Any] = {"dim": 16, "dim_mults": (1, 2), "attn_dim_head": 8, "attn_heads": 2}


def around(path: str, name: str, **more: Any) -> Callable[[Any], nn.Module]:
    """What builds a class around a ViT, handed in as ``name``."""
    return lambda kind: kind(**{name: found(path)(**VIT)}, **more)


VIT_PYTORCH: dict[str, Case] = {
    **{
        f"vit_pytorch.{name}": (VIT, IMAGE)
        for name in (
            "vit.ViT", "simple_vit.SimpleViT", "deepvit.DeepViT", "parallel_vit.ViT",
            "jumbo_vit.JumboViT", "normalized_vit.nViT", "rvt.RvT",
            "simple_flash_attn_vit.SimpleViT", "simple_uvit.SimpleUViT",
            "simple_vit_with_patch_dropout.SimpleViT", "simple_vit_with_qk_norm.SimpleViT",
            "simple_vit_with_register_tokens.SimpleViT",
            "simple_vit_with_value_residual.SimpleViT", "vit_for_small_dataset.ViT", "vit_5.ViT",
            "vit_with_patch_dropout.ViT", "vit_with_patch_merger.ViT", "vit_with_decorr.ViT",
            "vit_with_keel_post_ln.ViT", "vit_detpool.ViTDetPool", "jet_vit.JetViT",
            "attn_residual_with_dca_simple_vit.SimpleViT",
            "simple_vit_attn_residual.SimpleViTAttnResidual",
            "simple_vit_orthog_residual_update.SimpleViT",
            "simple_vit_with_relative_proj_pos_bias.SimpleViT",
            "simple_vit_with_sparse_gating.SimpleViTWithSparseGating",
            "simple_vit_with_specialized_cls.SimpleViT",
        )
    },
    "vit_pytorch.cait.CaiT": ({**VIT, "cls_depth": 1}, IMAGE),
    "vit_pytorch.xcit.XCiT": ({**VIT, "cls_depth": 1}, IMAGE),
    "vit_pytorch.ats_vit.ViT": ({**VIT, "max_tokens_per_depth": (8, 4)}, IMAGE),
    "vit_pytorch.pit.PiT": ({**VIT, "depth": (1, 1)}, IMAGE),
    "vit_pytorch.simple_vit_with_fft.SimpleViT": ({**VIT, "freq_patch_size": 8}, IMAGE),
    "vit_pytorch.simple_vit_with_hyper_connections.SimpleViT": (
        {**VIT, "num_residual_streams": 2}, IMAGE),
    "vit_pytorch.looped_vit.LoopedViT": (
        {**{k: x for k, x in VIT.items() if k != "depth"}, "pre_loop_depth": 1,
         "num_looped_blocks": 1, "post_loop_depth": 1, "loop_depth": 2}, IMAGE),
    "vit_pytorch.wwt.WWT": ({**VIT, "num_slots": 4}, IMAGE),
    "vit_pytorch.cct.CCT": (
        {"img_size": 32, "embedding_dim": 32, "num_layers": 2, "num_heads": 4, "mlp_ratio": 2.0,
         "num_classes": 5}, IMAGE),
    "vit_pytorch.cross_vit.CrossViT": (
        {"image_size": 32, "num_classes": 5, "depth": 1, "sm_dim": 16, "lg_dim": 32,
         "sm_patch_size": 8, "lg_patch_size": 16, "cross_attn_depth": 1,
         **{f"{x}_enc_{k}": n for x in ("sm", "lg") for k, n in
            (("depth", 1), ("heads", 2), ("mlp_dim", 32), ("dim_head", 8))}}, IMAGE),
    "vit_pytorch.crossformer.CrossFormer": (
        {"dim": (32, 64, 64, 64), "depth": (1, 1, 1, 1), "global_window_size": (4, 2, 2, 1),
         "local_window_size": 2, "num_classes": 5}, floats(2, 3, 64, 64)),
    "vit_pytorch.cvt.CvT": ({**CVT, "num_classes": 5}, IMAGE),
    "vit_pytorch.efficient.ViT": (
        lambda kind: kind(
            **{k: VIT[k] for k in ("dim", "image_size", "patch_size", "num_classes")},
            transformer=found("nystrom_attention.Nystromformer")(**DEEP, num_landmarks=4)), IMAGE),
    "vit_pytorch.levit.LeViT": (
        {"image_size": 32, "num_classes": 5, "stages": 2, "dim": (16, 32), "depth": 1,
         "heads": (2, 4), "mlp_mult": 2, "dim_key": 8, "dim_value": 8}, IMAGE),
    "vit_pytorch.look_vit.LookViT": (
        {**{k: VIT[k] for k in ("dim", "image_size", "num_classes", "heads", "dim_head")},
         "depth": 1, "patch_size": 8, "highres_patch_size": 4, "cross_attn_heads": 2,
         "cross_attn_dim_head": 8}, IMAGE),
    "vit_pytorch.max_vit.MaxViT": (STAGES, IMAGE),
    "vit_pytorch.max_vit_with_registers.MaxViT": (STAGES, IMAGE),
    "vit_pytorch.mobile_vit.MobileViT": (
        {"image_size": (64, 64), "dims": [16, 16, 16], "num_classes": 5,
         "channels": [8, 8, 8, 8, 16, 16, 16, 16, 16, 16, 16]}, floats(1, 3, 64, 64)),
    "vit_pytorch.na_vit.NaViT": (VIT, {"batched_images": [[IMAGE[0], IMAGE[1, :, :16]]]}),
    "vit_pytorch.na_vit_nested_tensor.NaViT": (VIT, {"images": [IMAGE[0], IMAGE[1, :, :16]]}),
    "vit_pytorch.nest.NesT": (
        {k: VIT[k] for k in ("dim", "heads", "dim_head", "num_classes")}
        | {"image_size": 32, "patch_size": 4, "num_hierarchies": 2, "block_repeats": 1}, IMAGE),
    "vit_pytorch.recorder.Recorder": (around("vit_pytorch.vit.ViT", "vit"), IMAGE),
    "vit_pytorch.learnable_memory_vit.Adapter": (
        lambda kind: kind(vit=found("vit_pytorch.learnable_memory_vit.ViT")(**VIT)), IMAGE),
    "vit_pytorch.regionvit.RegionViT": (
        {"dim": (16, 32, 32, 32), "depth": (1, 1, 1, 1), "window_size": 2, "num_classes": 5},
        floats(2, 3, 64, 64)),
    "vit_pytorch.scalable_vit.ScalableViT": (
        {"num_classes": 5, "dim": 16, "heads": (2, 2), "depth": (1, 1), "window_size": (4, None),
         "reduction_factor": (2, 1), **dict.fromkeys(
             ("ssa_dim_key", "ssa_dim_value", "iwsa_dim_key", "iwsa_dim_value"), (8, 8))}, IMAGE),
    "vit_pytorch.sep_vit.SepViT": (
        {**STAGES, "heads": (2, 2), "window_size": 7}, floats(1, 3, 56, 56)),
    "vit_pytorch.t2t.T2TViT": (
        {**{k: x for k, x in VIT.items() if k != "patch_size"},
         "t2t_layers": ((7, 4), (3, 2))}, IMAGE),
    "vit_pytorch.twins_svt.TwinsSVT": ({**TWINS, "num_classes": 5}, IMAGE),
    "vit_pytorch.vit_1d.ViT": (VIT_1D, SERIES),
    "vit_pytorch.simple_vit_1d.SimpleViT": (VIT_1D, SERIES),
    "vit_pytorch.vit_3d.ViT": (VIT_3D, VIDEO),
    "vit_pytorch.simple_vit_3d.SimpleViT": (VIT_3D, VIDEO),
    "vit_pytorch.simple_flash_attn_vit_3d.SimpleViT": (VIT_3D, VIDEO),
    "vit_pytorch.vit_nd.ViTND": (VIT_ND, IMAGE),
    "vit_pytorch.vit_nd_rotary.ViTND": (VIT_ND, IMAGE),
    "vit_pytorch.vit_nd_pope.ViTND": (VIT_ND, IMAGE),
    "vit_pytorch.vivit.ViViT": (VIVIT, VIDEO),
    "vit_pytorch.vivit.ViViT, not flash": ({**VIVIT, "use_flash_attn": False}, VIDEO),
}  # fmt: skip

OTHERS: dict[str, Case] = {
    "halonet_pytorch.HaloAttention": ({**PLAIN, "block_size": 4, "halo_size": 2}, MAP),
    "bottleneck_transformer_pytorch.BottleStack": (
        {**PLAIN, "fmap_size": 8, "dim_out": 32, "proj_factor": 2, "num_layers": 1,
         "rel_pos_emb": True}, MAP),
    "denoising_diffusion_pytorch.Unet": (
        {**UNET, "full_attn": (False, True)}, (IMAGE, whole(2))),
    "denoising_diffusion_pytorch.Unet, flash": (
        {**UNET, "full_attn": (False, True), "flash_attn": True}, (IMAGE, whole(2))),
    "denoising_diffusion_pytorch.Unet1D": (UNET, (SERIES, whole(2))),
    "denoising_diffusion_pytorch.KarrasUnet": (
        {"image_size": 16, "dim": 16, "dim_max": 32, "channels": 3, "num_downsamples": 1,
         "num_blocks_per_stage": 1, "attn_res": (8,), "attn_dim_head": 8},
        (floats(2, 3, 16, 16), floats(2))),
    "nuwa_pytorch.Sparse3DNA": ({**PLAIN, "video_shape": (2, 4, 4)}, floats(2, 32, 32)),
    "uformer_pytorch.Uformer": (
        {**PLAIN, "dim": 16, "stages": 2, "num_blocks": 1, "window_size": 4},
        floats(2, 3, 16, 16)),
    "segment_anything.modeling.ImageEncoderViT": (
        {"img_size": 32, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4,
         "out_chans": 8, "use_rel_pos": True, "window_size": 3, "global_attn_indexes": (1,)},
        IMAGE),
    "segment_anything.modeling.TwoWayTransformer": (
        {"depth": 1, "embedding_dim": 32, "num_heads": 4, "mlp_dim": 48},
        (MAP, floats(2, 32, 8, 8), floats(2, 5, 32))),
    "kornia.models.vit.VisionTransformer": (
        {"image_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}, IMAGE),
    "kornia.feature.loftr.loftr_module.transformer.LocalFeatureTransformer": (
        lambda kind: kind({"d_model": 32, "nhead": 4, "layer_names": ["self", "cross"],
                           "attention": "full"}), (X, floats(2, 12, 32))),
    "kornia.feature.lightglue.CrossBlock": (
        {"embed_dim": 32, "num_heads": 4}, (X, floats(2, 12, 32))),
    "self_attention_cv.ViT": (
        {"img_dim": 32, "patch_dim": 8, "dim": 32, "blocks": 2, "heads": 4,
         "dim_linear_block": 48}, IMAGE),
    "self_attention_cv.TransformerEncoder": (
        {"dim": 32, "blocks": 1, "heads": 4, "dim_linear_block": 48}, X),
    "self_attention_cv.LinformerEncoder": (
        {"dim": 32, "tokens": 16, "k": 4, "blocks": 1, "heads": 4, "dim_linear_block": 48}, X),
    "self_attention_cv.AxialAttentionBlock": (
        {"in_channels": 32, "dim": 8, "heads": 4}, MAP),
    "self_attention_cv.Timesformer": (
        {"img_dim": 32, "frames": 2, "num_classes": 5, "patch_dim": 8, "dim": 32, "blocks": 1,
         "heads": 4, "dim_linear_block": 48}, floats(2, 2, 3, 32, 32)),
    **{
        f"fightingcv_attention.attention.{name}": case
        for name, case in {
            "SelfAttention.ScaledDotProductAttention": (FOLD, (X, X, X)),
            "SimplifiedSelfAttention.SimplifiedScaledDotProductAttention": (
                {"d_model": 32, "h": 4}, (X, X, X)),
            "EMSA.EMSA": ({**FOLD, "H": 4, "W": 4, "ratio": 2}, (X, X, X)),
            "MUSEAttention.MUSEAttention": (FOLD, (X, X, X)),
            "UFOAttention.UFOAttention": (FOLD, (X, X, X)),
            "ExternalAttention.ExternalAttention": ({"d_model": 32, "S": 8}, X),
            "DANet.DAModule": ({}, floats(1, 512, 7, 7)),
            "OutlookAttention.OutlookAttention": (
                {"dim": 32, "num_heads": 4}, floats(2, 8, 8, 32)),
            "A2Atttention.DoubleAttention": ({"in_channels": 32, "c_m": 16, "c_n": 8}, MAP),
            "CoTAttention.CoTAttention": ({"dim": 32}, MAP),
            "MobileViTAttention.MobileViTAttention": (
                {"in_channel": 3, "dim": 32, "patch_size": 4}, IMAGE),
            "MobileViTv2Attention.MobileViTv2Attention": ({"d_model": 32}, X),
            "ACmixAttention.ACmix": (
                {"in_planes": 32, "out_planes": 32, "kernel_att": 3}, MAP),
            "AFT.AFT_FULL": ({"d_model": 32, "n": 16}, X),
            "PolarizedSelfAttention.SequentialPolarizedSelfAttention": ({"channel": 32}, MAP),
            "Axial_attention.AxialImageTransformer": (
                {"dim": 32, "depth": 1, "heads": 4}, MAP),
        }.items()
    },
}  # fmt: skip

CASES: dict[str, Case] = {**VIT_PYTORCH, **OTHERS}
