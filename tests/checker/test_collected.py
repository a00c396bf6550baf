"""Mistakes as others made them, each named, and their mended twins, each right."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from intently.checker import check

from .reports import names

TOLD = """
    a_neox_cached_query aematter_strips_time_first annotated_values_by_key_projection
    classifier_heads_viewed_from_batch conformer_one_sided_shift detr_maps_normalised_over_heads
    dnadiffusion_context_thrown_away executorch_angles_from_zero hyunwoongko_pad_mask_on_rows
    keras_window_one_too_wide labml_value_rotated_twice linear_state_without_key_sum
    memcompressed_softmax_unused mlc_fallback_without_scale mlx_gemma_mask_meets_groups
    opensora_frames_not_moved pointer_decoder_points_again qwen_no_mask_with_cache
    resshift_swin_mask_wrong_axes te_decoding_hides_what_was_written te_jax_bias_inside_scale
    transformer_mask_from_summed_embeddings trax_first_key_cannot_be_masked
    ttmetal_mask_scaled_too xtransformers_bias_ignores_memory
"""


@pytest.mark.parametrize("name", TOLD.split())
def test_a_mistake_is_named_and_its_twin_is_right(name: str) -> None:
    case = import_module(f"benchmarks.checking.field.dev.{name}")
    torch.manual_seed(0)
    wrong, right = (check(subject(), **case.asks()) for subject in (case.wrong, case.right))
    assert wrong.ok is False and (not case.expect or {*names(wrong)} & {*case.expect}), str(wrong)
    assert right.ok, str(right)
