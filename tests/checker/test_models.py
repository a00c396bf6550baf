"""Whole models of transformers: attention functions, beam search, encoder and decoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from intently.checker import check

from .reports import held

IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])


@pytest.fixture(scope="module")
def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"vocab_size": 20, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, initializer_range=0.3)).eval()


def test_a_model_that_is_right_by_either_function_and_in_a_beam_search(llama: Any) -> None:
    before = llama.config._attn_implementation
    report = check(llama, inputs={"input_ids": IDS})
    assert report.ok, str(report)
    assert held(report, "with attn_implementation='eager'") is True
    assert held(report, "beam search with a cache") is True
    assert llama.config._attn_implementation == before


def test_a_function_that_loses_the_mask(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    plain = modeling_llama.eager_attention_forward

    def unmasked(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **options: Any) -> Any:
        return plain(module, q, k, v, None, **options)

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", unmasked)
    (found,) = check(llama, inputs={"input_ids": IDS}).mistakes
    assert found.name == "mask-in-one-path"
    assert found.said.startswith("with attn_implementation='eager': causal: missing")


def test_a_cache_that_does_not_follow_the_beams(
    llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.cache_utils import DynamicCache

    monkeypatch.setattr(DynamicCache, "reorder_cache", lambda self, index: None)
    (found,) = check(llama, inputs={"input_ids": IDS}).mistakes
    assert found.name == "cache-rows-exchanged"


def test_steps_of_a_decoder_read_the_whole_encoder() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "d_model": 16, "d_kv": 8, "d_ff": 16}
    config = T5Config(**sizes, num_layers=1, num_heads=2, decoder_start_token_id=0, pad_token_id=0)
    given = {"input_ids": IDS, "decoder_input_ids": IDS.flip(-1)}  # of one length
    report = check(T5ForConditionalGeneration(config).eval(), inputs=given)
    assert report.ok, str(report)
    assert held(report, "with a cache, in steps of 1") is True
