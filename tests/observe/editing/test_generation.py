"""Edits of a generation name positions of the whole text, whatever a cache keeps of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import intently as it
from intently import edits

from ...combinations import pairs
from ...observe.decoders import continued, drawn, prompts

NEW = 8
EDITS = {
    "forbid": edits.forbid([2, 7], rows=slice(6, None), heads=[1, 2]),
    "off": edits.off(heads=[0, 3], rows=[4, 7, 9]),
    "only": edits.look_only_at([0, 3, 8, 9], rows=slice(8, None)),
    "last": edits.favour(6, 4.0) & edits.previous(heads=[0], rows=[5, 8]),
}
CACHES: dict[str, dict[str, Any]] = {"dynamic": {}, "static": {"cache_implementation": "static"}}
torch.manual_seed(0)
IDS, GIVEN = prompts()
DECODERS = ("gpt2", "llama", "mistral", "gemma 3")
OWN = {"t5": "decoder.block.*.SelfAttention", "marian": "model.decoder.layers.*.self_attn"}
CROSS = {"t5": "*.EncDecAttention", "marian": "model.decoder.*.encoder_attn"}


def generated(model: Any, edit: Any, **options: Any) -> Any:
    options = GIVEN | options | {"max_new_tokens": NEW, "return_dict_in_generate": True}
    with it.edit(model, edit):
        return model.generate(IDS, **options)


def whole(model: Any, made: Tensor, edit: Any) -> Tensor:
    """The logits of the new tokens in one pass over the whole text."""
    ids, real = (
        x.repeat_interleave(len(made) // len(IDS), 0) for x in (IDS, GIVEN["attention_mask"])
    )
    with it.edit(model, edit):
        if model.config.is_encoder_decoder:
            given = {"input_ids": ids, "attention_mask": real, "decoder_input_ids": made[:, :-1]}
            return model(**given).logits
        return model(**continued(made, real), use_cache=False).logits[:, -NEW - 1 : -1]


@pairs({"cache": CACHES, "edit": EDITS, "name": DECODERS})
@torch.no_grad()
def test_decoders(name: str, edit: str, cache: str) -> None:
    model = drawn(name, "sdpa")
    made = generated(model, EDITS[edit], output_logits=True, **CACHES[cache])
    expected = whole(model, made.sequences, EDITS[edit])
    size = float(expected.abs().max())
    torch.testing.assert_close(torch.stack(made.logits, 1), expected, rtol=0, atol=1e-5 * size)
    plain = model(**continued(made.sequences, GIVEN["attention_mask"])).logits
    assert (plain[:, -NEW - 1 : -1] - expected).abs().max() > 1e-3 * size


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("layers", [OWN, CROSS], ids=["own", "cross"])
@pytest.mark.parametrize("name", ["t5", "marian"])
@torch.no_grad()
def test_encoders_and_decoders(name: str, layers: dict[str, str], cache: str) -> None:
    edit = {layers[name]: edits.forbid([0, 2], rows=[1, 3, 6]) & edits.off(heads=[1], rows=[2, 5])}
    model = drawn(name, "sdpa")
    made = generated(model, edit, output_logits=True, **CACHES[cache])
    expected = whole(model, made.sequences, edit)
    size = float(expected.abs().max())
    torch.testing.assert_close(torch.stack(made.logits, 1), expected, rtol=0, atol=1e-5 * size)


@pytest.mark.parametrize("edit", ["forbid", "off"])
@pytest.mark.parametrize("name", ["gpt2", "mistral", "t5", "marian"])
@torch.no_grad()
def test_beams(name: str, edit: str) -> None:
    """The score that a search gives its texts is theirs under the same edit."""
    model = drawn(name, "sdpa")
    options = {"num_beams": 3, "length_penalty": 0.0, "output_scores": True}
    made = generated(model, EDITS[edit], num_return_sequences=3, **options)
    logits = whole(model, made.sequences, EDITS[edit])
    tokens = made.sequences[:, -NEW:, None]
    found = logits.log_softmax(-1).gather(-1, tokens).sum((1, 2))
    torch.testing.assert_close(found, made.sequences_scores, rtol=1e-4, atol=1e-4)
