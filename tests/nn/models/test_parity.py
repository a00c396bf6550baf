"""GPT-2, Llama and ViT of transformers are settings of our options, weight for weight."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intently as it
from intently.nn.feed_forward import GatedFeedForward
from intently.nn.models.language import LanguageModel, LanguageOptions
from intently.nn.models.shared import mlp
from intently.nn.models.vision import VisionOptions, VisionTransformer
from intently.nn.projected_attention import Projections
from intently.tasks.decoding.sampling import sample

from ...tensors import renamed

transformers = pytest.importorskip("transformers")

GPT2 = {
    "transformer.wte": "embedding",
    "transformer.wpe.weight": "positions",
    "transformer.ln_f": "norm",
    "transformer.h": "decoder",
    "ln_1": "self_norm",
    "ln_2": "feed_norm",
    "attn.c_attn.": "self_attention.qkv_",
    "attn.c_proj.": "self_attention.out_",
    "mlp.c_fc": "feed_forward.up",
    "mlp.c_proj": "feed_forward.down",
}
LLAMA = {
    "model.embed_tokens": "embedding",
    "model.norm": "norm",
    "lm_head": "output",
    "model.layers": "decoder",
    "input_layernorm": "self_norm",
    "post_attention_layernorm": "feed_norm",
    **{f"self_attn.{x}_proj.": f"self_attention.{x}_" for x in "qkv"},
    "self_attn.o_proj.": "self_attention.out_",
    "mlp.down_proj": "feed_forward.down",
}
VIT = {
    "vit.embeddings.cls_token": "class_token",
    "vit.embeddings.position_embeddings": "positions",
    "vit.embeddings.patch_embeddings.projection": "patches",
    "vit.layernorm": "norm",
    "classifier": "head",
    "vit.layers": "encoder",
    "layernorm_before": "self_norm",
    "layernorm_after": "feed_norm",
    **{f"attention.{x}_proj.": f"self_attention.{x}_" for x in "qkv"},
    "attention.o_proj.": "self_attention.out_",
    "mlp.fc1": "feed_forward.up",
    "mlp.fc2": "feed_forward.down",
}


def drawn(model: Any) -> Any:
    for p in model.parameters():
        nn.init.normal_(p, std=0.2)
    return model


@torch.no_grad()
def compare(ours: Any, theirs: Any, given: Tensor) -> None:
    """Compare the logits, in float32 and in bfloat16."""
    torch.testing.assert_close(ours(given), theirs(given).logits, atol=1e-5, rtol=1e-5)
    if given.is_floating_point():
        given = given.bfloat16()
    expected = theirs.bfloat16()(given).logits.float()
    error = (ours.bfloat16()(given).float() - expected).abs().max()
    assert float(error / expected.abs().max()) < 2e-2


def compare_texts(ours: LanguageModel, theirs: Any) -> None:
    """Compare the greedy tokens that both write with their caches, and the logits."""
    ids = torch.randint(23, (2, 9))
    wanted = theirs.generate(
        ids,
        max_new_tokens=6,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        attention_mask=torch.ones_like(ids),
    )
    assert sample(ours, ids.tolist(), steps=6, top_k=1) == wanted[:, ids.shape[1] :].tolist()
    compare(ours, theirs, ids)


@pytest.mark.parametrize("train", [False, True])
def test_gpt2(train: bool) -> None:
    config = transformers.GPT2Config(
        vocab_size=23,
        n_positions=16,
        n_embd=12,
        n_layer=2,
        n_head=3,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    theirs = drawn(transformers.GPT2LMHeadModel(config)).train(train)
    feed_forward = mlp(48, partial(F.gelu, approximate="tanh"))
    options = LanguageOptions(23, 12, 3, 2, positions=16, feed_forward=feed_forward)
    ours = LanguageModel(options).train(train)
    state = {  # its maps are stored (in, out)
        name: x.T if x.ndim == 2 and ".c_" in name else x
        for name, x in theirs.state_dict().items()
        if name != "lm_head.weight"
    }
    ours.load_state_dict(renamed(state, GPT2))
    compare_texts(ours, theirs)


@pytest.mark.parametrize("tied", [False, True])
def test_llama(tied: bool) -> None:
    config = transformers.LlamaConfig(
        vocab_size=23,
        hidden_size=12,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=4,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_theta": 500.0, "rope_type": "default"},
        tie_word_embeddings=tied,
        max_position_embeddings=64,
    )
    theirs = drawn(transformers.LlamaForCausalLM(config)).eval()
    options = LanguageOptions(
        23,
        12,
        6,
        2,
        kv_heads=2,
        head_width=4,
        positions=partial(it.Rotary, base=500.0),
        norm=partial(nn.RMSNorm, eps=1e-6),
        tied=tied,
        projections=Projections(False, False, False),
        feed_forward=partial(GatedFeedForward, inner=20, activation=F.silu, bias=False),
    )
    ours = LanguageModel(options).eval()
    state = renamed(theirs.state_dict(), LLAMA)
    if tied:
        del state["output.weight"]
    for i in range(2):
        parts = [state.pop(f"decoder.{i}.mlp.{part}_proj.weight") for part in ("gate", "up")]
        state[f"decoder.{i}.feed_forward.gate_up.weight"] = torch.cat(parts)
    ours.load_state_dict(state)
    compare_texts(ours, theirs)


@pytest.mark.parametrize("train", [False, True])
def test_vit(train: bool) -> None:
    config = transformers.ViTConfig(
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=48,
        image_size=12,
        patch_size=4,
        num_channels=3,
        num_labels=5,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    theirs = drawn(transformers.ViTForImageClassification(config)).train(train)
    norm = partial(nn.LayerNorm, eps=1e-12)
    options = VisionOptions((12, 12), 4, 5, width=12, heads=3, layers=2, norm=norm)
    ours = VisionTransformer(options).train(train)
    state = renamed(theirs.state_dict(), VIT)
    state["class_token"], state["positions"] = state["class_token"][0, 0], state["positions"][0]
    ours.load_state_dict(state)
    compare(ours, theirs, torch.randn(2, 3, 12, 12))
