"""Our attention inside tiny random transformers models, beside their own eager formula."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import intently as it
from intently.errors import ArgumentError, KernelError
from intently.interop.transformers import register
from intently.interop.transformers.backend import attention_forward
from intently.interop.transformers.rules import RuleTensor, _Reader, make_mask

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


def sides(family: str) -> tuple[Any, Any]:
    name, config = TEXTS[family]
    return pair({"t5": "T5", "marian": "Marian"}[family], config, name)


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


def functions() -> dict[str, Any]:
    """Mask functions as transformers joins them, for 2 rows and 9 positions."""
    from transformers import masking_utils as theirs

    left = torch.tensor([0, 3])
    blocks = torch.tensor([[-1, 0, 0, -1, 1, 1, 1, -1, -1], [0, 0, -1, -1, -1, 1, 1, 2, 2]])
    causal = theirs.causal_mask_function
    return {
        "causal": causal,
        "both ways": theirs.bidirectional_mask_function,
        "window": theirs.sliding_window_causal_mask_function(3),
        "window both ways": theirs.sliding_window_bidirectional_mask_function(2),
        "chunks": theirs.chunked_causal_mask_function(4, left),
        "blocks": theirs.or_masks(causal, theirs.blockwise_overlay(blocks)),
    }


@pytest.mark.parametrize("name", functions())
@pytest.mark.parametrize(
    "t, s, q_offset, kv_offset",
    [(9, 9, 0, 0), (1, 9, 8, 0), (3, 7, 4, 0), (3, 9, 0, 0), (3, 5, 6, 4), (2, 9, 3, 0)],
)
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_masks_are_theirs(
    name: str, t: int, s: int, q_offset: int, kv_offset: int, side: str | None
) -> None:
    from transformers.masking_utils import sdpa_mask

    seen = None if side is None else padded(side, t=9, n=2).bool()
    given = (2, t, s, torch.tensor(q_offset), kv_offset, functions()[name], seen)
    found, want = make_mask(*given), sdpa_mask(*given, allow_is_causal_skip=False)
    assert isinstance(found, RuleTensor) and found.shape == want.shape
    assert torch.equal(found.dense(), want)


def test_offsets_that_stay_on_the_device() -> None:
    """Static caches count their steps in a tensor, which an accelerator is not asked for."""
    offset = torch.tensor(3)
    for name, function in functions().items():
        rule = _Reader(2, 9, offset, offset, 0).read(function)
        want = _Reader(2, 9, 3, 3, 0).read(function)
        assert rule is not None and want is not None
        q, k = torch.randn(2, 1, 2, 4), torch.randn(2, 1, 9, 4)
        found, right = (it.attention(q, k, k, mask=m) for m in (rule, want))
        assert torch.equal(found, right), name


@pytest.mark.parametrize("vmapped", [False, True])
def test_mask_functions_of_the_caller_are_written_out(vmapped: bool) -> None:
    from transformers.masking_utils import and_masks, causal_mask_function

    def even(b: Any, h: Any, i: Any, j: Any) -> Any:
        return j % 2 == 0

    found = make_mask(
        2, 4, 4, mask_function=and_masks(causal_mask_function, even), use_vmap=vmapped
    )
    want = torch.ones(4, 4, dtype=torch.bool).tril() & (torch.arange(4) % 2 == 0)
    assert type(found) is Tensor and torch.equal(found, want.expand(2, 1, 4, 4))


def test_decoders_that_look_both_ways() -> None:
    config = {**SMALL, "is_causal": False}
    eager, ours = pair("Llama", config, "LlamaForCausalLM")
    for mask in (None, padded("right")):
        with torch.no_grad():
            want = eager(ids(), attention_mask=mask, use_cache=False).logits
            close(ours(ids(), attention_mask=mask, use_cache=False).logits, want, mask)


def test_gradient_checkpoints() -> None:
    _, ours = decoders("gemma2")
    grads = []
    for kept in (False, True):
        ours.train().zero_grad()
        if kept:
            ours.gradient_checkpointing_enable()
        ours(
            ids(), attention_mask=padded("right"), use_cache=False
        ).logits.square().sum().backward()
        grads.append(ours.model.embed_tokens.weight.grad.clone())
    close(grads[1], grads[0])


def test_dropout_acts_in_training_alone() -> None:
    _, ours = pair("Llama", {**SMALL, "attention_dropout": 0.5}, "LlamaForCausalLM")
    with torch.no_grad():
        assert torch.equal(ours(ids()).logits, ours(ids()).logits)
        ours.train()
        assert not torch.equal(ours(ids()).logits, ours(ids()).logits)


def test_rule_tensors_act_as_tensors() -> None:
    mask = RuleTensor(it.causal(), 2, 3, 5, torch.device("cpu"))
    dense = torch.ones(3, 5, dtype=torch.bool).tril(2)
    assert torch.equal(mask[:, :, -1:, :4], dense[-1:, :4].expand(2, 1, 1, 4))
    assert torch.equal(~mask, (~dense).expand(2, 1, 3, 5))
    assert repr(mask) == "RuleTensor(causal(), (2, 1, 3, 5))"
    with pytest.raises(ArgumentError, match="mask: expected operations that make a new tensor"):
        mask[0] = False
    with pytest.raises(ArgumentError, match=r"got aten.logical_not_"):
        mask.logical_not_()


def test_paged_caches_are_refused() -> None:
    x = torch.zeros(1, 1, 2, 4)
    with pytest.raises(KernelError, match="cache: expected keys and values that lie in one piece"):
        attention_forward(torch.nn.Module(), x, x, x, None, cache=object())


def test_masks_of_another_kind_are_refused() -> None:
    x = torch.zeros(1, 1, 2, 4)
    with pytest.raises(
        ArgumentError, match=r"attention_mask: expected shape \(b, 1 or h, t=2, s=2"
    ):
        attention_forward(torch.nn.Module(), x, x, x, torch.ones(1, 2))


def test_releases_with_other_mask_functions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import masking_utils

    monkeypatch.setattr(masking_utils, "sdpa_mask", lambda batch_size, cache_position: None)
    with pytest.raises(KernelError, match="transformers: expected a release that tells mask"):
        register()


@pytest.mark.parametrize("first_token", ["read", "not read"])
def test_the_loss_reads_the_last_query_of_a_padding_on_the_left(first_token: str) -> None:
    eager, ours = decoders("llama")
    seen, labels = padded("left"), ids()
    labels[-1, : 4 if first_token == "read" else 5] = -100
    losses = []
    for model in (eager, ours):
        losses.append(model(ids(), attention_mask=seen, labels=labels).loss)
        losses[-1].backward()
    apart = max(
        float((p.grad - q.grad).abs().max()) for p, q in zip(eager.parameters(), ours.parameters())
    )
    if first_token == "read":
        assert abs(float(losses[0] - losses[1])) > 1e-3 and apart > 1e-3
    else:
        assert abs(float(losses[0] - losses[1])) < 1e-5 and apart < 2e-5
