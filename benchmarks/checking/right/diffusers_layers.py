"""diffusers' attention, its processors and blocks."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.checking.right import Case, normal, of, real

B, T, S, C, H, D = 2, 6, 9, 32, 4, 8
X, WORDS = normal(B, T, C), normal(B, S, C)


def _attention(processor: str = "", **options: Any) -> Any:
    from diffusers.models import attention_processor as a

    options = {"query_dim": C, "heads": H, "dim_head": D, **options}
    made = a.Attention(**options)
    if processor:
        given = {"slice_size": 2} if "Sliced" in processor else {}
        made.set_processor(getattr(a, processor)(**given))
    return made


_case = of("diffusers' Attention", _attention)


def _block(name: str, **options: Any) -> Any:
    from diffusers.models.attention import BasicTransformerBlock

    return BasicTransformerBlock(C, H, D, **options)


def _transformer(**options: Any) -> Any:
    from diffusers import Transformer2DModel

    return Transformer2DModel(H, D, in_channels=C, norm_num_groups=4, **options)


def _flux(added: bool) -> Any:
    from diffusers.models.transformers.transformer_flux import FluxAttention

    more = {"added_kv_proj_dim": C, "context_pre_only": False} if added else {}
    return FluxAttention(C, heads=H, dim_head=D, bias=True, **more)


def _unet() -> Any:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1,
        block_out_channels=(16, 32), norm_num_groups=4, cross_attention_dim=C,
        attention_head_dim=8, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip


def _dit() -> Any:
    from diffusers import DiTTransformer2DModel

    return DiTTransformer2DModel(
        H, D, in_channels=4, num_layers=1, sample_size=8, patch_size=2, norm_num_groups=4,
        num_embeds_ada_norm=10,
    )  # fmt: skip


CROSS = {"inputs": {"hidden_states": X, "encoder_hidden_states": WORDS}}
ADDED = torch.zeros(B, S).masked_fill(~real(B, S), -10_000.0)[:, None].repeat(1, 1, 1)
CASES = (
    _case("nothing said"), _case("self", {"inputs": {"hidden_states": X}}),
    _case("cross", CROSS), _case("cross, another width", {"inputs": {
        "hidden_states": X, "encoder_hidden_states": normal(B, S, 20)}}, cross_attention_dim=20),
    _case("plain products", CROSS, "AttnProcessor"), _case("fused", CROSS, "AttnProcessor2_0"),
    _case("sliced", CROSS, "SlicedAttnProcessor"),
    _case("bias", CROSS, bias=True),
    _case("normed queries and keys", CROSS, qk_norm="rms_norm"),
    _case("layer norms", CROSS, qk_norm="layer_norm"), _case("residual", CROSS,
                                                            residual_connection=True),
    _case("an image, nothing said", norm_num_groups=4, residual_connection=True),
    _case("an image", {"inputs": {"hidden_states": normal(B, C, 4, 4)}}, norm_num_groups=4,
          residual_connection=True),
    _case("scaled after", CROSS, scale_qk=True, rescale_output_factor=2.0),
    _case("in float32 inside", CROSS, "AttnProcessor", upcast_attention=True,
          upcast_softmax=True),
    _case("padding", {"inputs": {"hidden_states": X, "encoder_hidden_states": WORDS,
                                 "attention_mask": ADDED},
                      "arguments": {"attention_mask": "add"}}, "AttnProcessor2_0"),
    Case("diffusers' BasicTransformerBlock", lambda: _block("")),
    Case("diffusers' BasicTransformerBlock, cross", lambda: _block("", cross_attention_dim=C),
         CROSS),
    Case("diffusers' Transformer2DModel", lambda: _transformer(cross_attention_dim=C),
         {"inputs": {"hidden_states": normal(B, C, 4, 4), "encoder_hidden_states": WORDS}}, 30),
    Case("diffusers' FluxAttention", lambda: _flux(False), {"inputs": {"hidden_states": X}}),
    Case("diffusers' FluxAttention, joint", lambda: _flux(True), CROSS),
    Case("diffusers' UNet2DConditionModel", _unet, {"inputs": {
        "sample": normal(B, 4, 8, 8), "timestep": 10, "encoder_hidden_states": WORDS}}, 30),
    Case("diffusers' DiTTransformer2DModel", _dit, {"inputs": {
        "hidden_states": normal(B, 4, 8, 8), "timestep": torch.tensor([10, 20]),
        "class_labels": torch.tensor([1, 2])}}, 30),
)  # fmt: skip
