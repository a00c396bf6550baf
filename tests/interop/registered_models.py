"""Tiny random transformers models twice: theirs, and with our attention."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from intently.interop.transformers import register

transformers = pytest.importorskip("transformers")


SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "max_position_embeddings": 64,
    "attention_dropout": 0.0,
}


DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", SMALL),
    "qwen2": (
        "Qwen2",
        {**SMALL, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", SMALL),
    "gemma2": ("Gemma2", {**SMALL, "sliding_window": 4, "attn_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3", {**SMALL, "sliding_window": 4, "sliding_window_pattern": 2}),
    "gpt_oss": (
        "GptOss",
        {**SMALL, "sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    "gpt2": (
        "GPT2",
        {
            "vocab_size": 64,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": None,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "scale_attn_by_inverse_layer_idx": True,
        },
    ),
}


MADE: dict[str, tuple[Any, Any]] = {}


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    register()


def spread(model: Any) -> Any:
    """Weights so far from zero that what is attended makes a difference."""
    torch.manual_seed(1)
    for p in model.parameters():
        if p.ndim > 1:
            torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5)
        elif p.numel() == 4:
            torch.nn.init.normal_(p)
    return model.eval()


def pair(kind: str, config: dict[str, Any], name: str) -> tuple[Any, Any]:
    """The same model twice: theirs, and with our attention."""
    key = repr((kind, config, name))
    if key not in MADE:
        MADE[key] = made_pair(kind, config, name)
    return copy.deepcopy(MADE[key])


def made_pair(kind: str, config: dict[str, Any], name: str) -> tuple[Any, Any]:
    theirs = {"Gemma3": "Gemma3TextConfig"}.get(kind, f"{kind}Config")
    made = getattr(transformers, theirs)(**config)
    made._attn_implementation = "eager"
    eager = spread(getattr(transformers, name)(made))
    ours = copy.deepcopy(eager)
    ours.set_attn_implementation("intently")
    assert ours.config._attn_implementation == "intently"
    return eager, ours


def decoders(family: str) -> tuple[Any, Any]:
    kind, config = DECODERS[family]
    name = {"GPT2": "GPT2LMHeadModel"}.get(kind, f"{kind}ForCausalLM")
    return pair(kind, config, name)


def ids(b: int = 2, t: int = 11) -> Tensor:
    return torch.randint(2, 64, (b, t), generator=torch.Generator().manual_seed(3))


def padded(side: str, b: int = 2, t: int = 11, n: int = 4) -> Tensor:
    seen = torch.ones(b, t, dtype=torch.long)
    seen[-1, slice(0, n) if side == "left" else slice(t - n, t)] = 0
    return seen


def close(ours: Tensor, theirs: Tensor, at: Tensor | None = None, tol: float = 1e-5) -> None:
    if at is not None:
        ours, theirs = ours[at.bool()], theirs[at.bool()]
    assert float((ours - theirs).detach().abs().max()) <= tol * max(
        1.0, float(theirs.detach().abs().max())
    )
