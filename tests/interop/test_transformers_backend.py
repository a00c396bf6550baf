"""Our attention inside tiny random transformers models, beside their own eager formula."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from intently.interop.transformers.rules import RuleTensor

from .registered_models import DECODERS, SMALL, close, decoders, ids, padded, pair
from .registered_models import registered as registered

SIDES: dict[str, Any] = {
    "vocab_size": 64,
    "d_model": 32,
    "pad_token_id": 0,
    "eos_token_id": None,
    "decoder_start_token_id": 0,
    "dropout": 0.0,
    "forced_eos_token_id": None,
    "bos_token_id": 1,
}


TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": (
        "T5ForConditionalGeneration",
        {**SIDES, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0},
    ),
    "marian": (
        "MarianMTModel",
        {
            **SIDES,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 64,
        },
    ),
}


def sides(family: str) -> tuple[Any, Any]:
    name, config = TEXTS[family]
    return pair({"t5": "T5", "marian": "Marian"}[family], config, name)


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_logits(family: str, side: str | None) -> None:
    eager, ours = decoders(family)
    mask = None if side is None else padded(side)
    place = None if mask is None else (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        given = {"attention_mask": mask, "position_ids": place}
        want = eager(ids(), **given).logits
        close(ours(ids(), **given).logits, want, mask)


@pytest.mark.parametrize("family", DECODERS)
def test_what_is_attended_makes_a_difference(family: str) -> None:
    """So that the comparisons of this file can fail: masks, windows, caps and sinks matter."""
    _, ours = decoders(family)
    with torch.no_grad():
        whole = ours(ids()).logits
        other = ours(ids(), attention_mask=padded("left")).logits
        assert (whole - other)[1, 4:].abs().max() > 1e-3
        if family == "gpt_oss":
            for layer in ours.model.layers:
                layer.self_attn.sinks.fill_(-1e4)
            assert (ours(ids()).logits - whole).abs().max() > 1e-3


@pytest.mark.parametrize("family", DECODERS)
def test_chunks_through_a_cache(family: str) -> None:
    eager, ours = decoders(family)
    mask = padded("left")
    place = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        want = eager(ids(), attention_mask=mask, position_ids=place).logits
        cache, found = None, []
        for first, last in ((0, 3), (3, 8), (8, 9), (9, 11)):
            out = ours(
                ids()[:, first:last],
                attention_mask=mask[:, :last],
                position_ids=place[:, first:last],
                past_key_values=cache,
                use_cache=True,
            )
            cache = out.past_key_values
            found.append(out.logits)
        close(torch.cat(found, 1), want, mask)


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate(family: str, cache: str) -> None:
    eager, ours = decoders(family)
    given = {
        "attention_mask": padded("left"),
        "max_new_tokens": 6,
        "do_sample": False,
        "cache_implementation": cache,
        "disable_compile": True,
        "output_scores": True,
        "return_dict_in_generate": True,
    }
    want, found = eager.generate(ids(), **given), ours.generate(ids(), **given)
    assert found.sequences.tolist() == want.sequences.tolist()
    close(torch.stack(found.scores), torch.stack(want.scores))


@pytest.mark.parametrize("family", DECODERS)
def test_gradients_in_training(family: str) -> None:
    eager, ours = decoders(family)
    seen = padded("right")
    for model in (eager, ours):
        model.train()
        logits = model(ids(), attention_mask=seen).logits[seen.bool()]
        logits.log_softmax(-1)[:, 5].sum().backward()
    for (name, p), q in zip(eager.named_parameters(), ours.parameters()):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None and q.grad is not None:
            close(q.grad, p.grad, tol=2e-5)


@pytest.mark.parametrize("family", DECODERS)
def test_weights_that_are_asked_for(family: str) -> None:
    eager, ours = decoders(family)
    with torch.no_grad():
        want = eager(ids(), output_attentions=True).attentions
        found = ours(ids(), output_attentions=True).attentions
        assert len(found) == len(want) == 2
        for a, b in zip(found, want):
            close(a, b)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "gpt2"])
def test_bfloat16(family: str) -> None:
    """Against the same weights in float32, where ours may be no further away than theirs.

    Two rounded results differ by the sum of their errors, which depends on the processor.
    """
    eager, ours = (model.bfloat16() for model in decoders(family))
    exact = copy.deepcopy(eager).float()
    with torch.no_grad():
        found, theirs, want = (m(ids()).logits.float() for m in (ours, eager, exact))
    close(found, want, tol=2e-2)
    assert (found - want).square().mean() <= 1.1 * (theirs - want).square().mean()


def test_packed_sequences() -> None:
    eager, ours = decoders("qwen2")
    place = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 1, 2, 0, 1], [0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7]])
    with torch.no_grad():
        close(
            ours(ids(), position_ids=place, use_cache=False).logits,
            eager(ids(), position_ids=place, use_cache=False).logits,
        )


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_of_the_caller(kind: str) -> None:
    eager, ours = decoders("llama")
    seen = torch.ones(11, 11, dtype=torch.bool).tril() & torch.ones(11, 11, dtype=torch.bool).triu(
        -3
    )
    added = torch.zeros(11, 11).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
    given = seen.expand(2, 1, 11, 11) if kind == "bool" else added + 0.5 * torch.eye(11)
    with torch.no_grad():
        want = eager(ids(), attention_mask=added if kind == "bool" else given).logits
        close(ours(ids(), attention_mask=given).logits, want)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_bert(training: bool, side: str | None) -> None:
    config = {**SMALL, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    eager, ours = pair("Bert", config, "BertForMaskedLM")
    mask = None if side is None else padded(side)
    eager.train(training), ours.train(training)
    close(ours(ids(), mask).logits, eager(ids(), mask).logits, mask)
    found = ours(ids(), mask, output_attentions=True).attentions
    want = eager(ids(), mask, output_attentions=True).attentions
    for a, b in zip(found, want, strict=True):
        close(a, b)


def test_bert_as_decoder_with_context() -> None:
    config = {**SMALL, "is_decoder": True, "add_cross_attention": True}
    eager, ours = pair("Bert", config, "BertLMHeadModel")
    states, seen = torch.randn(2, 7, 32), padded("right", t=7, n=3)
    given = {"encoder_hidden_states": states, "encoder_attention_mask": seen}
    with torch.no_grad():
        close(ours(ids(), **given).logits, eager(ids(), **given).logits)


def test_vit() -> None:
    config = {**SMALL, "image_size": 12, "patch_size": 4, "num_channels": 3}
    eager, ours = pair("ViT", config, "ViTModel")
    pixels = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        want, found = (m(pixels, output_attentions=True) for m in (eager, ours))
    close(found.last_hidden_state, want.last_hidden_state)
    for a, b in zip(found.attentions, want.attentions, strict=True):
        close(a, b)


@pytest.mark.parametrize("family", TEXTS)
@pytest.mark.parametrize("side", [None, "right"])
def test_encoder_and_decoder(family: str, side: str | None) -> None:
    eager, ours = sides(family)
    given = {
        "input_ids": ids(),
        "decoder_input_ids": ids(t=6),
        "output_attentions": True,
        "attention_mask": None if side is None else padded(side),
    }
    with torch.no_grad():
        want, found = eager(**given), ours(**given)
    close(found.logits, want.logits)
    for name in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
        for a, b in zip(found[name], want[name], strict=True):
            close(a, b)


@pytest.mark.parametrize("family", TEXTS)
def test_gradients_of_both_sides(family: str) -> None:
    eager, ours = sides(family)
    for model in (eager.train(), ours.train()):
        model(ids(), padded("right"), ids(t=6)).logits.log_softmax(-1)[..., 5].sum().backward()
    for p, q in zip(eager.parameters(), ours.parameters()):
        if p.grad is not None:
            close(q.grad, p.grad, tol=2e-5)


@pytest.mark.parametrize("family", TEXTS)
@pytest.mark.parametrize("beams", [1, 2])
def test_generate_from_a_source(family: str, beams: int) -> None:
    eager, ours = sides(family)
    given = {
        "attention_mask": padded("right"),
        "max_new_tokens": 6,
        "num_beams": beams,
        "do_sample": False,
    }
    assert ours.generate(ids(), **given).tolist() == eager.generate(ids(), **given).tolist()


def test_nothing_of_t_times_s_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding, windows and causality reach the kernel as values."""
    monkeypatch.setattr(RuleTensor, "dense", lambda self: pytest.fail("written out"))
    for family in ("llama", "gemma2", "gpt_oss"):
        _, ours = decoders(family)
        given = {"attention_mask": padded("left"), "max_new_tokens": 3, "disable_compile": True}
        ours.generate(ids(), **given)
        ours.generate(ids(), cache_implementation="static", **given)
