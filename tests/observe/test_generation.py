"""Generations that crop and reorder their caches, against one pass of the plain formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

import intently as it
from intently.decoding import SearchOptions
from intently.translation.translator import Translator

T: Any = transformers
ENDS: dict[str, Any] = {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": None}
SIZES: dict[str, Any] = ENDS | {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.5,
    "vocab_size": 64,
}
WINDOW: dict[str, Any] = {"sliding_window": 4}
DECODERS: dict[str, Any] = {
    "llama": lambda: T.LlamaForCausalLM(T.LlamaConfig(**SIZES)),
    "mistral": lambda: T.MistralForCausalLM(T.MistralConfig(**SIZES, **WINDOW)),
    "mistral, wide": lambda: T.MistralForCausalLM(T.MistralConfig(**SIZES, sliding_window=40)),
    "gemma 2": lambda: T.Gemma2ForCausalLM(T.Gemma2Config(**SIZES, **WINDOW, head_dim=8)),
    "qwen 2": lambda: T.Qwen2ForCausalLM(T.Qwen2Config(**SIZES)),
    "gemma 3": lambda: T.Gemma3ForCausalLM(T.Gemma3TextConfig(**SIZES, **WINDOW, head_dim=8)),
}
MARIAN: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "init_std": 0.5,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
    "pad_token_id": 0,
    "eos_token_id": None,
}


def drawn(name: str, implementation: str = "eager") -> Any:
    torch.manual_seed(0)
    model = DECODERS[name]().eval()
    model.set_attn_implementation(implementation)
    return model


@torch.no_grad()
def plain(model: Any, ids: Tensor, real: Tensor) -> tuple[Tensor, ...]:
    """The weights of one pass over the whole sequence."""
    model.set_attn_implementation("eager")
    at = (real.cumsum(-1) - 1).clamp(min=0)
    return model(ids, attention_mask=real, position_ids=at, output_attentions=True).attentions


@pytest.mark.parametrize("name", ["llama", "mistral, wide", "qwen 2", "gemma 2", "gemma 3"])
def test_a_static_cache_with_padding_on_the_left(name: str) -> None:
    """Queries of padding see, in the plain formula, the places that are not written, too."""
    model, ids = drawn(name), torch.randint(2, 64, (2, 6))
    real = torch.ones_like(ids)
    real[1, :2] = 0
    given: dict[str, Any] = {
        "attention_mask": real,
        "max_new_tokens": 7,
        "do_sample": False,
        "pad_token_id": 0,
        "cache_implementation": "static",
    }
    expected = model.generate(ids, **given)
    with it.watch(model) as seen:
        found = model.generate(ids, **given)
    assert torch.equal(found, expected)
    assert [(entry.steps, entry.verified) for entry in seen.calls] == [(7, True)] * 2
    real = torch.cat([real, real.new_ones(2, 6)], 1)
    for name, weights in zip(seen.layers, plain(model, found[:, :-1], real)):
        A = seen[name].dense()
        assert A.shape == weights.shape
        for row, start in ((0, 0), (1, 2)):
            assert torch.allclose(A[row, :, start:], weights[row, :, start:], atol=1e-5), name
        assert torch.allclose(A.sum(-1), torch.ones(()), atol=1e-5)  # of padding, too


@pytest.mark.parametrize("store", ["copy", "disk"])
@pytest.mark.parametrize("how", ["lookup", "assistant"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["llama", "mistral", "mistral, wide"])
def test_drafts_that_were_rejected_are_left_out(
    name: str, implementation: str, how: str, store: Any
) -> None:
    model, assistant = drawn(name, implementation), drawn(name, implementation)
    generator = torch.Generator().manual_seed(1)
    for p in assistant.parameters():
        p.data += 0.1 * torch.randn(p.shape, generator=generator)
    ids = torch.randint(2, 64, (1, 6), generator=generator).repeat(1, 2)
    given: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    given |= {"prompt_lookup_num_tokens": 4} if how == "lookup" else {"assistant_model": assistant}
    lengths: list[int] = []
    hook = model.get_input_embeddings().register_forward_hook(
        lambda module, given, y: lengths.append(y.shape[1])
    )
    expected = model.generate(ids, **given)
    hook.remove()
    with it.watch(model, store=store) as seen:
        found = model.generate(ids, **given)
    s = found.shape[1] - 1
    assert torch.equal(found, expected) and sum(lengths) > s  # some were rejected
    assert [(entry.steps, entry.verified) for entry in seen.calls] == [(len(lengths), True)] * 2
    assert "drafts that were rejected" in str(seen.coverage())
    for layer, weights in zip(seen.layers, plain(model, found[:, :-1], torch.ones(1, s).long())):
        A = seen[layer].dense()  # after the last token, drafts that nothing followed
        assert A.shape[-1] - s in range(lengths[-1])
        assert torch.allclose(A[..., :s, :s], weights, atol=1e-5), layer
        assert not A[..., :s, s:].any()


class Attend(nn.Module):
    """Attention alone."""

    def forward(self, q: Tensor, k: Tensor, **options: Any) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k, **options)


def test_a_cache_is_cropped_within_its_last_call_alone() -> None:
    block, k = Attend(), torch.randn(1, 2, 9, 4)
    other = torch.randn(1, 2, 1, 4)
    see_past = torch.ones(9, 9, dtype=torch.bool).tril()

    def run(*parts: int, crop: int) -> Any:
        with it.watch(block) as seen:
            end = 0
            for t in parts:
                end += t
                block(k[..., :t, :], k[..., :end, :], attn_mask=see_past[end - t : end, :end])
            block(other, torch.cat([k[..., : end - crop, :], other], -2))
        return seen

    (entry,) = run(5, 4, crop=3).calls
    assert entry.shape == (1, 2, 7, 7) and repr(entry.attention().mask) == "causal()"
    assert entry.steps == 3
    q = torch.cat([k[..., :5, :], k[..., :1, :], other], -2)
    keys = torch.cat([k[..., :6, :], other], -2)
    expected = it.attend(q, keys, mask=it.causal()).dense()
    assert torch.allclose(entry.matrix().dense(), expected, atol=1e-6)
    (entry,) = run(6, crop=2).calls
    assert entry.shape == (1, 2, 5, 5)
    seen = run(5, 2, 1, crop=2)
    assert [entry.shape[-2:] for entry in seen.calls] == [(8, 8), (1, 7)]
    assert "Attend: a cache showed other keys than those that were kept" in str(seen.coverage())


def test_what_was_seen_is_not_cropped() -> None:
    """Rows that stay saw the keys that went: they are no drafts."""
    block, k = Attend(), torch.randn(1, 2, 6, 4)
    other = torch.randn(1, 2, 1, 4)
    with it.watch(block) as seen:
        block(k, k)
        block(other, torch.cat([k[..., :4, :], other], -2))
    assert [entry.shape[-2:] for entry in seen.calls] == [(6, 6), (1, 5)]


def test_queries_of_the_same_keys_again_are_no_crop() -> None:
    block, k = Attend(), torch.randn(1, 2, 5, 4)
    with it.watch(block) as seen:
        block(k, k, is_causal=True)
        block(k[..., 3:, :], k)
    assert [entry.shape[-2:] for entry in seen.calls] == [(5, 5), (2, 5)]


def test_a_cropped_window_that_fits_in_several_ways_begins_anew() -> None:
    block, k = Attend(), torch.randn(1, 2, 4, 4)
    same = k[..., -1:, :].expand(1, 2, 5, 4)
    other = torch.randn(1, 2, 1, 4)
    kept = torch.cat([k, same], -2)
    with it.watch(block) as seen:
        block(kept, kept, is_causal=True)
        block(other, torch.cat([same[..., :3, :], other], -2))
    assert [entry.shape[-2:] for entry in seen.calls] == [(9, 9), (1, 4)]


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_beams_carry_cross_attention_where_self_attention_is_left_out(name: str) -> None:
    torch.manual_seed(0)
    if name == "marian":
        model, layers = T.MarianMTModel(T.MarianConfig(**MARIAN)).eval(), "*.encoder_attn"
    else:
        config = T.T5Config(
            vocab_size=64,
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=1,
            eos_token_id=None,
        )
        model, layers = T.T5ForConditionalGeneration(config).eval(), "*.EncDecAttention"
    ids = torch.randint(2, 64, (2, 6))
    real = torch.ones_like(ids)
    real[1, :2] = 0
    given: dict[str, Any] = {
        "attention_mask": real,
        "max_new_tokens": 9,
        "do_sample": False,
        "num_beams": 3,
    }
    with it.watch(model) as whole:
        expected = model.generate(ids, **given)
    with it.watch(model, layers=layers) as seen:
        found = model.generate(ids, **given)
    assert torch.equal(found, expected)
    assert [(entry.steps, entry.verified) for entry in seen.calls] == [(9, True)] * 2
    model.set_attn_implementation("eager")
    with torch.no_grad():
        told = model(
            ids, attention_mask=real, decoder_input_ids=found[:, :-1], output_attentions=True
        ).cross_attentions
    for layer, weights in zip(seen.layers, told):
        assert torch.equal(seen[layer].dense(), whole[layer].dense())
        rows = seen[layer].dense().unflatten(0, (2, 3))
        for text in range(2):  # the best of its beams
            best = (rows[text, :, :, :-1] - weights[text, :, :-1]).abs().amax((1, 2, 3)).min()
            assert best <= 1e-5


TEXTS = ["The road was too wide.", "I drink milk.", "How are you?"]


@pytest.mark.parametrize("layers", [None, "*.cross_attention"])
@pytest.mark.parametrize("texts", [TEXTS[:1], TEXTS])
def test_beams_of_our_translator(texts: list[str], layers: str | None) -> None:
    """The rows that go on longest are those of the text that ended last."""
    translator, options = Translator.load(), SearchOptions(beam=4)
    expected = [made.text for made in translator.translate(texts, options)]
    with it.watch(translator.model, layers=layers) as seen:
        made = translator.translate(texts, options)
    assert [x.text for x in made] == expected
    often = [entry.name for entry in seen.calls if entry.index]
    assert not often and all(entry.verified for entry in seen.calls), seen.coverage()
    longest = max(made, key=lambda x: x.attention["decoder.1.cross"].shape[-2])
    for n in range(2):
        weights = longest.attention[f"decoder.{n}.cross"].dense()
        t, s = weights.shape[-2:]
        rows = seen[f"decoder.{n}.cross_attention"].dense()[..., :t, :s]
        assert min(float((row - weights).abs().max()) for row in rows) <= 1e-5


def test_without_what_tells_beams_apart_steps_stay_apart_and_it_is_said() -> None:
    block, states = Attend(), torch.randn(4, 2, 7, 4)
    with it.watch(block) as seen:
        for _ in range(2):
            block(torch.randn(4, 2, 1, 4), states.clone())
    assert [entry.shape for entry in seen.calls] == [(4, 2, 1, 7)] * 2
    assert "Attend: queries see the same keys again" in str(seen.coverage())


class Thrice(nn.Module):
    """Asks the same keys several times in one forward."""

    def forward(self, q: Tensor, k: Tensor, times: int = 3) -> None:
        for n in range(times):
            F.scaled_dot_product_attention(q + n, k, k)


def test_calls_of_one_forward_are_calls_of_their_own() -> None:
    block, k = Thrice(), torch.randn(1, 2, 5, 4)
    for model in (block, None):
        with it.watch(model) as seen:
            block(torch.randn(1, 2, 1, 4), k)
        assert [entry.shape for entry in seen.calls] == [(1, 2, 1, 5)] * 3


class InChunks(nn.Module):
    """Causal attention, some queries at a time."""

    def forward(self, q: Tensor, k: Tensor, size: int) -> None:
        for end in range(size, q.shape[-2] + 1, size):
            part = torch.ones(size, end, dtype=torch.bool).tril(end - size)
            own = k[..., :end, :]
            F.scaled_dot_product_attention(q[..., end - size : end, :], own, own, attn_mask=part)


def test_chunks_of_queries_are_calls_of_their_own() -> None:
    block, x = InChunks(), torch.randn(1, 2, 6, 4)
    with it.watch(block) as seen:
        block(x, x, 2)
    assert [entry.shape[-2:] for entry in seen.calls] == [(2, 2), (2, 4), (2, 6)]


class Twice(nn.Module):
    """Two attentions in each forward, as differential attention has."""

    def forward(self, q: Tensor, one: Tensor, two: Tensor) -> None:
        for k in (one, two):
            F.scaled_dot_product_attention(q, k, k)


def test_each_attention_of_a_forward_goes_on_for_itself() -> None:
    block, q = Twice(), torch.randn(1, 2, 6, 4)
    one, two = torch.randn(1, 2, 6, 4), torch.randn(1, 2, 6, 4)
    with it.watch(block) as seen:
        for s in (3, 4, 5, 6):
            start = 0 if s == 3 else s - 1
            block(q[..., start:s, :], one[..., :s, :], two[..., :s, :])
    assert [(entry.index, entry.steps) for entry in seen.calls] == [(0, 4), (1, 4)]
    for entry, k in zip(seen.calls, (one, two)):
        assert torch.equal(entry.rows.operands()[1], k)


class Loop(nn.Module):
    """A decoder that asks its attention step by step in one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attend()

    def forward(self, q: Tensor, k: Tensor) -> None:
        for n in range(q.shape[-2]):
            self.attention(q[..., n : n + 1, :], k)


def test_steps_of_a_recurrent_decoder_are_joined() -> None:
    block, k = Loop(), torch.randn(1, 2, 5, 4)
    with it.watch(block) as seen:
        block(torch.randn(1, 2, 3, 4), k)
    assert [(entry.shape, entry.steps) for entry in seen.calls] == [((1, 2, 3, 5), 3)]


class Asks(nn.Module):
    """Self-attention and cross-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = Attend(), Attend()

    def forward(self, q: Tensor, k: Tensor, states: Tensor) -> None:
        past = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
        self.own(q, k, attn_mask=past.tril(k.shape[-2] - q.shape[-2]))
        self.cross(q, states)


def test_drafts_that_ask_an_encoder_are_said_to_stay_apart() -> None:
    own, states = torch.randn(1, 2, 6, 4), torch.randn(1, 2, 7, 4)
    other = torch.randn(1, 2, 6, 4)
    with it.watch(model := Asks()) as seen:
        model(own[:, :, :2], own[:, :, :2], states)
        drafts = torch.cat([own[:, :, 2:4], other[:, :, 4:5]], -2)
        model(drafts, torch.cat([own[:, :, :2], drafts], -2), states)
        for n in (4, 5):  # the last draft was rejected
            model(own[:, :, n : n + 1], own[:, :, : n + 1], states)
    assert [entry.shape for entry in seen.entries("cross")] == [
        (1, 2, 2, 7),
        (1, 2, 3, 7),
        (1, 2, 2, 7),
    ]
    assert str(seen.coverage()).count("cross: queries see the same keys again") == 1
    assert "own: " not in str(seen.coverage())


class TwoCaches(nn.Module):
    """One attention that is called with two caches in a forward, or with one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = Attend()

    def forward(self, *calls: tuple[Tensor, Tensor]) -> None:
        for q, k in calls:
            self.attend(q, k, is_causal=q.shape == k.shape)


@pytest.mark.parametrize("same", [False, True])
def test_one_module_with_two_caches_has_two_matrices(same: bool) -> None:
    q, other = torch.randn(2, 1, 2, 9, 4)
    k, besides = torch.randn(2, 1, 2, 9, 4)
    besides = k if same else besides  # then only the order of the calls tells
    with it.watch(model := TwoCaches()) as seen:
        for start, end in ((0, 3), *((n, n + 1) for n in range(3, 9))):
            model(*((x[:, :, start:end], y[:, :, :end]) for x, y in ((q, k), (other, besides))))
    assert [entry.steps for entry in seen.calls] == [7, 7]
    for n, (x, y) in enumerate(((q, k), (other, besides))):
        expected = it.attend(x, y, mask=it.causal()).dense()
        assert torch.allclose(seen["attend", n].dense(), expected, atol=1e-6)


def test_a_cache_is_found_in_another_place_of_the_forward() -> None:
    q, other = torch.randn(2, 1, 2, 9, 4)
    k, besides = torch.randn(2, 1, 2, 9, 4)
    with it.watch(model := TwoCaches()) as seen:
        model((q[:, :, :1], k[:, :, :1]), (other[:, :, :1], besides[:, :, :1]))
        for n in range(1, 9):
            model((other[:, :, n : n + 1], besides[:, :, : n + 1]))
        model(*((q[:, :, n : n + 1], k[:, :, : n + 1]) for n in range(1, 9)))  # a loop in one
    assert [entry.shape for entry in seen.calls] == [(1, 2, 9, 9)] * 2
    expected = it.attend(q, k, mask=it.causal()).dense()
    assert torch.allclose(seen["attend", 0].dense(), expected, atol=1e-6)


def test_a_cache_that_may_be_one_of_two_begins_anew() -> None:
    q, k, other = torch.randn(3, 1, 2, 4, 4)
    with it.watch(model := TwoCaches()) as seen:
        prompt = q[:, :, :3], k[:, :, :3]
        model((other, other), prompt, prompt)
        model((q[:, :, 3:], k))
    assert [entry.steps for entry in seen.calls] == [1] * 4
    assert "overwritten), or those of several: what follows" in str(seen.coverage())
