"""Generations that crop and reorder their caches, against one pass of the plain formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import intently as it
from intently.tasks.decoding import SearchOptions
from intently.tasks.translation.translator import Translator

from ..combinations import pairs
from .attending import Attend, Decoder, close, seen_by
from .decoders import continued, drawn, plain, plain_decoder, prompts


@pytest.mark.parametrize("name", ["llama", "mistral, wide", "qwen 2", "gemma 2", "gemma 3"])
def test_a_static_cache_with_padding_on_the_left(name: str) -> None:
    """Queries of padding see, in the plain formula, the places that are not written, too."""
    model, (ids, given) = drawn(name, "eager"), prompts()
    given |= {"max_new_tokens": 7, "cache_implementation": "static"}
    expected = model.generate(ids, **given)
    with it.watch(model) as seen:
        found = model.generate(ids, **given)
    assert torch.equal(found, expected)
    assert [(entry.steps, entry.verified) for entry in seen.calls] == [(7, True)] * 2
    expected = plain(model, found[:, :-1], given["attention_mask"])
    rows = continued(found[:, :-1], given["attention_mask"])["attention_mask"]
    for layer, weights in zip(seen.layers, expected):
        close(seen[layer], weights, rows)
        sums = seen[layer].dense().sum(-1)
        assert torch.allclose(sums, torch.ones(()), atol=1e-5)  # of padding, too


@pairs(
    {
        "store": ["copy", "disk"],
        "how": ["lookup", "assistant"],
        "implementation": ["eager", "sdpa"],
        "name": ["llama", "mistral", "mistral, wide"],
    }
)
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
    close(entry, it.attend(q, keys, mask=it.causal()).dense())
    (entry,) = run(6, crop=2).calls
    assert entry.shape == (1, 2, 5, 5)
    seen = run(5, 2, 1, crop=2)
    assert [entry.shape[-2:] for entry in seen.calls] == [(8, 8), (1, 7)]
    assert "Attend: a cache showed other keys than those that were kept" in str(seen.coverage())


def test_calls_that_are_no_crop_begin_anew() -> None:
    """Rows that stay saw the keys that went; the same keys again; a window that fits twice."""
    block, k, other = Attend(), torch.randn(1, 2, 6, 4), torch.randn(1, 2, 1, 4)
    same = torch.cat([k, k[..., -1:, :].expand(1, 2, 5, 4)], -2)
    for first, causal, q, after in (
        (k, False, other, torch.cat([k[..., :4, :], other], -2)),
        (k, True, k[..., 4:, :], k),
        (same, True, other, torch.cat([same[..., -3:, :], other], -2)),
    ):
        with it.watch(block) as seen:
            block(first, first, is_causal=causal)
            block(q, after)
        shapes = [(x.shape[-2], y.shape[-2]) for x, y in ((first, first), (q, after))]
        assert [entry.shape[-2:] for entry in seen.calls] == shapes


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_beams_carry_cross_attention_where_self_attention_is_left_out(name: str) -> None:
    model, (ids, given) = drawn(name), prompts()
    layers = {"marian": "*.encoder_attn", "t5": "*.EncDecAttention"}[name]
    given |= {"max_new_tokens": 9, "num_beams": 3}
    with it.watch(model) as whole:
        expected = model.generate(ids, **given)
    with it.watch(model, layers=layers) as seen:
        found = model.generate(ids, **given)
    assert torch.equal(found, expected)
    assert [(entry.steps, entry.verified) for entry in seen.calls] == [(9, True)] * 2
    told = plain_decoder(model, ids, given["attention_mask"], found)
    for layer, weights in zip(seen.layers, told.cross_attentions):
        assert torch.equal(seen[layer].dense(), whole[layer].dense())
        rows = seen[layer].dense().unflatten(0, (2, 3))
        gaps = (rows[..., :-1, :] - weights[:, None, :, :-1]).abs().amax((2, 3, 4))
        assert (gaps.amin(1) <= 1e-5).all()  # the best of the beams of each text


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
    longest = max(made, key=lambda x: x.attention["decoder.1.cross_attention"].shape[-2])
    for n in range(2):
        weights = longest.attention[f"decoder.{n}.cross_attention"].dense()
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
    x = torch.randn(1, 2, 6, 4)
    seen = seen_by(InChunks(), x, x, 2)
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
    assert all(torch.equal(x.rows.operands()[1], k) for x, k in zip(seen.calls, (one, two)))


class Loop(nn.Module):
    """A decoder that asks its attention step by step in one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attend()

    def forward(self, q: Tensor, k: Tensor) -> None:
        for n in range(q.shape[-2]):
            self.attention(q[..., n : n + 1, :], k)


def test_steps_of_a_recurrent_decoder_are_joined() -> None:
    seen = seen_by(Loop(), torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4))
    assert [(entry.shape, entry.steps) for entry in seen.calls] == [((1, 2, 3, 5), 3)]


def test_drafts_that_ask_an_encoder_are_said_to_stay_apart() -> None:
    own, states = torch.randn(1, 2, 6, 4), torch.randn(1, 2, 7, 4)
    other = torch.randn(1, 2, 6, 4)
    with it.watch(model := Decoder()) as seen:
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
    for entry, (x, y) in zip(seen.calls, ((q, k), (other, besides))):
        close(entry, it.attend(x, y, mask=it.causal()).dense())


def test_a_cache_is_found_in_another_place_of_the_forward() -> None:
    q, other = torch.randn(2, 1, 2, 9, 4)
    k, besides = torch.randn(2, 1, 2, 9, 4)
    with it.watch(model := TwoCaches()) as seen:
        model((q[:, :, :1], k[:, :, :1]), (other[:, :, :1], besides[:, :, :1]))
        for n in range(1, 9):
            model((other[:, :, n : n + 1], besides[:, :, : n + 1]))
        model(*((q[:, :, n : n + 1], k[:, :, : n + 1]) for n in range(1, 9)))  # a loop in one
    assert [entry.shape for entry in seen.calls] == [(1, 2, 9, 9)] * 2
    close(seen.calls[0], it.attend(q, k, mask=it.causal()).dense())


def test_a_cache_that_may_be_one_of_two_begins_anew() -> None:
    q, k, other = torch.randn(3, 1, 2, 4, 4)
    with it.watch(model := TwoCaches()) as seen:
        prompt = q[:, :, :3], k[:, :, :3]
        model((other, other), prompt, prompt)
        model((q[:, :, 3:], k))
    assert [entry.steps for entry in seen.calls] == [1] * 4
    assert "overwritten), or those of several: what follows" in str(seen.coverage())
