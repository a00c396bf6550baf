"""Generations of models that write their attention out, joined like those of others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intently as it
from intently.observe.recording.recording import Recording

from .attending import close
from .decoders import MARIAN, T

FSMT: dict[str, Any] = MARIAN | {
    "langs": ["en", "de"],
    "src_vocab_size": 64,
    "tgt_vocab_size": 64,
    "forced_eos_token_id": None,
}
CODEGEN: dict[str, Any] = {
    "vocab_size": 50,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 32,
    "rotary_dim": 4,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
NEW = 5
HOWS: dict[str, dict[str, Any]] = {
    "greedy": {"num_beams": 1},
    "beams": {"num_beams": 3},
    "static": {"num_beams": 1, "cache_implementation": "static", "disable_compile": True},
}


def spread(kind: Any, options: dict[str, Any]) -> Any:
    """The same model at each call, with uneven attention."""
    torch.manual_seed(0)
    model = kind(kind.config_class(**options)).eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    model.generation_config.eos_token_id = None
    return model


@torch.no_grad()
def generated(model: Any, ids: Tensor, **options: Any) -> tuple[Recording, Tensor]:
    """What was seen without ``deep``, and the sequences."""
    given = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": NEW}
    expected = model.generate(ids, **given, **options)
    with it.watch(model) as seen:
        found = model.generate(ids, **given, **options)
    assert torch.equal(found, expected)
    assert all(entry.verified for entry in seen.calls), str(seen.coverage())
    return seen, found


def beams_are_right(found: Tensor, expected: Tensor, beams: int) -> None:
    """One of the beams of each text has the weights of what was returned."""
    found = found.unflatten(0, (len(expected), beams))
    alike = (found - expected[:, None]).abs().amax((2, 3, 4)) <= 1e-4
    assert alike.any(1).all(), alike


@pytest.mark.parametrize("how", ["greedy", "beams"])
def test_heads_that_lie_in_the_batch_tell_beams_of_cross_attention(how: str) -> None:
    """FSMT multiplies (b · h, t, d) in its decoder and masks (b, h, t, s) in cross-attention."""
    model, ids = spread(T.FSMTForConditionalGeneration, FSMT), torch.randint(3, 64, (2, 6))
    seen, sequences = generated(model, ids, **HOWS[how])
    assert len(seen.calls) == len(seen.layers) == 6, str(seen.coverage())
    given = {"decoder_input_ids": sequences[:, :-1], "use_cache": False}
    with torch.no_grad():
        told = model(ids, **given, output_attentions=True)
    beams = HOWS[how]["num_beams"]
    for n in range(2):
        own = seen[f"model.decoder.layers.{n}.self_attn"].dense()
        cross = seen[f"model.decoder.layers.{n}.encoder_attn"].dense()
        beams_are_right(own.unflatten(0, (-1, 4)), told.decoder_attentions[n], beams)
        beams_are_right(cross, told.cross_attentions[n], beams)


def test_a_softmax_that_a_forward_makes_tells_that_it_attends() -> None:
    """CodeGen calls `nn.Softmax(dim=-1)(scores)`."""
    model, ids = spread(T.CodeGenForCausalLM, CODEGEN), torch.randint(3, 50, (2, 5))
    seen, sequences = generated(model, ids)
    assert "themselves" not in str(seen.coverage()) and len(seen.calls) == 2
    with torch.no_grad():
        expected = model(sequences[:, :-1], output_attentions=True).attentions
    for entry, weights in zip(seen.calls, expected):
        close(entry, weights, gap=1e-4)
