"""Rotary positions are those of transformers: its rates, its turning, its tiny random models."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from intently.core.positions import DynamicNTK, Linear, Llama3, LongRope, Rotary, Scaling, YaRN
from intently.core.positions.scaling import RotaryPairs

from ..combinations import pairs
from .formula import random

D = 16
"""Head width; two heads."""

SHORT = [1.0 + 0.1 * i for i in range(D // 2)]
LONG = [1.0 + 0.7 * i for i in range(D // 2)]

PAIRS: dict[str, tuple[dict[str, Any], Scaling | None]] = {
    "default": ({"rope_type": "default"}, None),
    "linear": ({"rope_type": "linear", "factor": 4.0}, Linear(4.0)),
    "dynamic": ({"rope_type": "dynamic", "factor": 2.0}, DynamicNTK(2.0, 24)),
    "yarn": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24},
        YaRN(4.0, 24),
    ),
    "yarn, wide": (
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096},
        YaRN(8.0, 4096),
    ),
    "yarn, as in gpt-oss": (
        {
            "rope_type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
        },
        YaRN(32.0, 4096, truncate=False),
    ),
    "yarn, everything given": (
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "attention_factor": 0.7,
        },
        YaRN(4.0, 1024, beta_fast=16.0, beta_slow=2.0, attention=0.7),
    ),
    "longrope": (
        {
            "rope_type": "longrope",
            "factor": 4.0,
            "short_factor": SHORT,
            "long_factor": LONG,
            "original_max_position_embeddings": 24,
        },
        LongRope(SHORT, LONG, factor=4.0, original=24),
    ),
    "longrope, attention given": (
        {
            "rope_type": "longrope",
            "factor": 4.0,
            "short_factor": SHORT,
            "long_factor": LONG,
            "original_max_position_embeddings": 24,
            "attention_factor": 1.3,
        },
        LongRope(SHORT, LONG, factor=4.0, original=24, attention=1.3),
    ),
    "llama3": (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 1024,
        },
        Llama3(8.0, original=1024),
    ),
}

close: dict[str, Any] = {"rtol": 0.0, "atol": 1e-6}


def options(theirs: dict[str, Any], base: float, **more: Any) -> dict[str, Any]:
    return dict(
        hidden_size=2 * D,
        intermediate_size=8,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_hidden_layers=1,
        vocab_size=8,
        max_position_embeddings=24,
        rope_parameters={"rope_theta": base, **theirs},
        attn_implementation="eager",
        **more,
    )


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
@pytest.mark.parametrize("name", [name for name in PAIRS if name != "default"])
def test_rates(name: str, base: float) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theirs, ours = PAIRS[name]
    assert ours is not None
    config = LlamaConfig(**options(theirs, base))
    pairs = RotaryPairs(base, D, torch.float32, torch.device("cpu"))
    for length in (1, 24, 25, 100):
        want, gain = ROPE_INIT_FUNCTIONS[theirs["rope_type"]](config, seq_len=length)
        rates = ours.rates(pairs, length)
        torch.testing.assert_close(rates, want, rtol=1e-6, atol=0)
        ragged = torch.tensor([length, 1])[:, None, None]
        rates = ours.rates(pairs, ragged)
        torch.testing.assert_close(rates.expand(2, 1, -1)[0, 0], want, rtol=1e-6, atol=0)
        assert ours.gain() == pytest.approx(gain, rel=1e-12)


@pairs(
    {
        "t, offset": [(5, 0), (24, 0), (40, 0), (3, 20), (3, 37), (3, 4000)],
        "name": PAIRS,
        "kind": ["llama", "cohere"],
    }
)
def test_turning(kind: str, name: str, t: int, offset: int) -> None:
    import transformers as hf

    theirs, scaling = PAIRS[name]
    q, k = random(2, 2, t, D, dtype=torch.float32), random(2, 1, t, D, dtype=torch.float32)
    positions = torch.arange(offset, offset + t)
    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    config = getattr(hf, f"{kind.title()}Config")(**options(theirs, 10_000.0))
    cos, sin = getattr(module, f"{kind.title()}RotaryEmbedding")(config)(q, positions[None])
    want = module.apply_rotary_pos_emb(q, k, cos, sin)
    layout = "half" if kind == "llama" else "interleaved"
    rotary = Rotary(D, scaling=scaling, layout=layout)
    for x, y in zip((q, k), want):
        torch.testing.assert_close(rotary(x, offset), y, **close)
        torch.testing.assert_close(rotary(x, positions=positions), y, **close)
