"""Our attention inside tiny random transformers models, beside their own eager formula."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from intently.interop.transformers.backend import RuleTensor

from .registered_models import DECODERS, SMALL, decoders, pair
from .tiny_models import MARIAN, T5, close, close_all, close_gradients, ids, padded, places

ENDLESS = {"eos_token_id": None, "forced_eos_token_id": None}

TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5ForConditionalGeneration", T5 | ENDLESS | {"decoder_start_token_id": 0}),
    "marian": ("MarianMTModel", MARIAN | ENDLESS | {"bos_token_id": 1}),
}


def sides(family: str) -> tuple[Any, Any]:
    return pair(*TEXTS[family])


@torch.no_grad()
def both(models: tuple[Any, Any], *inputs: Any, **given: Any) -> tuple[Any, Any]:
    """The outputs of ours and of theirs."""
    eager, ours = models
    return ours(*inputs, **given), eager(*inputs, **given)


def continued(models: tuple[Any, Any], **given: Any) -> tuple[Any, Any]:
    """Six tokens that ours and theirs write, without sampling."""
    eager, ours = models
    found, want = (
        model.generate(ids(), max_new_tokens=6, do_sample=False, **given) for model in (ours, eager)
    )
    return found, want


@pytest.mark.parametrize("family", DECODERS)
def test_logits(family: str) -> None:
    mask = padded("left")
    place = places(mask)
    found, want = both(decoders(family), ids(), attention_mask=mask, position_ids=place)
    close(found.logits, want.logits, mask)


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
    place = places(mask)
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


@pytest.mark.parametrize(
    ("family", "cache"),
    [
        *((family, "dynamic") for family in DECODERS),
        *((family, "static") for family in ("llama", "gemma3", "gpt_oss")),
    ],
)
def test_generate(family: str, cache: str) -> None:
    found, want = continued(
        decoders(family),
        attention_mask=padded("left"),
        cache_implementation=cache,
        disable_compile=True,
        output_scores=True,
        return_dict_in_generate=True,
    )
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
    close_gradients(ours, eager)


@pytest.mark.parametrize("family", DECODERS)
def test_weights_that_are_asked_for(family: str) -> None:
    found, want = both(decoders(family), ids(), output_attentions=True)
    assert len(want.attentions) == 2
    close_all(found.attentions, want.attentions)


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
    place = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 1, 2, 0, 1], [0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7]])
    found, want = both(decoders("qwen2"), ids(), position_ids=place, use_cache=False)
    close(found.logits, want.logits)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_of_the_caller(kind: str) -> None:
    eager, ours = decoders("llama")
    seen = torch.ones(11, 11, dtype=torch.bool).tril().triu(-3)
    added = torch.zeros(11, 11).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
    given = seen.expand(2, 1, 11, 11) if kind == "bool" else added + 0.5 * torch.eye(11)
    with torch.no_grad():
        want = eager(ids(), attention_mask=added if kind == "bool" else given).logits
        close(ours(ids(), attention_mask=given).logits, want)


@pytest.mark.parametrize(("training", "side"), [(False, None), (False, "left"), (True, "right")])
def test_bert(training: bool, side: str | None) -> None:
    config = {**SMALL, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    models = pair("BertForMaskedLM", config)
    mask = None if side is None else padded(side)
    for model in models:
        model.train(training)
    found, want = both(models, ids(), mask)
    close(found.logits, want.logits, mask)
    found, want = both(models, ids(), mask, output_attentions=True)
    close_all(found.attentions, want.attentions)


def test_bert_as_decoder_with_context() -> None:
    config = {**SMALL, "is_decoder": True, "add_cross_attention": True}
    given = {
        "encoder_hidden_states": torch.randn(2, 7, 32),
        "encoder_attention_mask": padded("right", t=7, n=3),
    }
    found, want = both(pair("BertLMHeadModel", config), ids(), **given)
    close(found.logits, want.logits)


def test_vit() -> None:
    config = {**SMALL, "image_size": 12, "patch_size": 4, "num_channels": 3}
    pixels = torch.randn(2, 3, 12, 12)
    found, want = both(pair("ViTModel", config), pixels, output_attentions=True)
    close(found.last_hidden_state, want.last_hidden_state)
    close_all(found.attentions, want.attentions)


@pytest.mark.parametrize("family", TEXTS)
def test_encoder_and_decoder(family: str) -> None:
    given = {
        "input_ids": ids(),
        "decoder_input_ids": ids(t=6),
        "output_attentions": True,
        "attention_mask": padded("right"),
    }
    found, want = both(sides(family), **given)
    close(found.logits, want.logits)
    for name in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
        close_all(found[name], want[name])


@pytest.mark.parametrize("family", TEXTS)
def test_gradients_of_both_sides(family: str) -> None:
    eager, ours = sides(family)
    for model in (eager.train(), ours.train()):
        model(ids(), padded("right"), ids(t=6)).logits.log_softmax(-1)[..., 5].sum().backward()
    close_gradients(ours, eager)


@pytest.mark.parametrize("family", TEXTS)
def test_generate_from_a_source(family: str) -> None:
    found, want = continued(sides(family), attention_mask=padded("right"), num_beams=2)
    assert found.tolist() == want.tolist()


def test_nothing_of_t_times_s_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding, windows and causality reach the kernel as values."""
    monkeypatch.setattr(RuleTensor, "dense", lambda self: pytest.fail("written out"))
    for family in ("llama", "gemma2", "gpt_oss"):
        _, ours = decoders(family)
        given = {"attention_mask": padded("left"), "max_new_tokens": 3, "disable_compile": True}
        ours.generate(ids(), **given)
        ours.generate(ids(), cache_implementation="static", **given)
