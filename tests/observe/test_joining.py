"""Calls of one generation become one matrix, against the model's own plain implementation."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import intently as it
from intently.core.masks import Geometry
from intently.observe.recording.recording import Recording
from intently.observe.storage.stores import Growing, Store, packed
from intently.observe.watching.call import AttentionSpec
from intently.observe.watching.mask_inference import simplified

from ..combinations import pairs
from .attending import Attend, Decoder, close
from .decoders import continued, drawn, plain, plain_decoder, prompts

NEW = 9
HOWS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "static": {"cache_implementation": "static"},
}


def generated(model: Any, **options: Any) -> tuple[Recording, Tensor, Tensor, Tensor]:
    """What was seen, the sequences, the prompts, and which of their tokens are real."""
    ids, given = prompts()
    expected = model.generate(ids, **given, **options, max_new_tokens=NEW)
    with it.watch(model) as seen:
        found = model.generate(ids, **given, **options, max_new_tokens=NEW)
    assert torch.equal(found, expected)
    assert all(entry.verified for entry in seen.calls), str(seen.coverage())
    return seen, found, ids, given["attention_mask"]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
def test_a_decoder_joins_prompt_and_steps(name: str, how: str) -> None:
    model = drawn(name)
    seen, sequences, _, real = generated(model, **HOWS[how])
    assert len(seen.calls) == 2 and all(entry.steps == NEW for entry in seen.calls)
    s = sequences.shape[1] - 1
    expected = plain(model, sequences[:, :-1], real)
    rows = continued(sequences[:, :-1], real)["attention_mask"]  # padded queries are nobody's
    if how == "beams":
        beams_are_right(seen, seen.layers, expected, rows)
        return
    for name, weights in zip(seen.layers, expected):
        assert seen[name].shape == (2, 4, s, s)
        close(seen[name], weights, rows)


def beams_are_right(
    seen: Recording, layers: Iterable[str], expected: Iterable[Tensor], rows: Tensor
) -> None:
    """One of the three beams of each text has the weights of what was returned, in all layers."""
    alike = torch.ones(2, 3, dtype=torch.bool)
    real = rows[:, None, None, :-1, None]
    for layer, weights in zip(layers, expected, strict=True):
        found = seen[layer].dense().unflatten(0, (2, 3))[..., :-1, :]
        alike &= ((found - weights[:, None, :, :-1]) * real).abs().amax((2, 3, 4)) <= 1e-5
    assert alike.any(1).all(), alike


@pytest.mark.parametrize("how", ["greedy", "static"])
@pytest.mark.parametrize("name", ["marian", "t5"])
def test_an_encoder_and_decoder_join_steps_that_see_the_same_keys(name: str, how: str) -> None:
    model = drawn(name)
    seen, sequences, ids, real = generated(model, **HOWS[how])
    told = plain_decoder(model, ids, real, sequences)
    assert len(seen.layers) == len(seen.calls) == 6
    t = sequences.shape[1] - 1
    inner = [n for n in seen.layers if n.startswith(("model.decoder", "decoder"))]
    inner.sort(key=lambda name: "encoder_attn" in name or "EncDec" in name)
    both = zip(inner, [*told.decoder_attentions, *told.cross_attentions], strict=True)
    for layer, weights in both:
        assert seen[layer].shape == (2, 4, t, weights.shape[-1])
        close(seen[layer], weights)


def test_beams_of_a_decoder_carry_their_cross_attention() -> None:
    model = drawn("marian")
    seen, sequences, ids, real = generated(model, num_beams=3)
    assert len(seen.layers) == len(seen.calls) == 6
    told = plain_decoder(model, ids, real, sequences)
    names = [
        f"model.decoder.layers.{layer}.{name}"
        for name in ("self_attn", "encoder_attn")
        for layer in range(2)
    ]
    expected = [*told.decoder_attentions, *told.cross_attentions]
    beams_are_right(seen, names, expected, torch.ones_like(sequences[:, :-1]))


def test_references_to_a_static_cache_are_refused() -> None:
    model, ids = drawn("llama"), torch.randint(2, 64, (1, 5))
    given: dict[str, Any] = {"max_new_tokens": 80, "do_sample": False}
    expected = model.generate(ids, **given, cache_implementation="static")
    with it.watch(model, store="reference") as seen:
        watched = model.generate(ids, **given, cache_implementation="static")
    assert torch.equal(watched, expected)
    with pytest.raises(it.errors.StaleError, match="Static caches, training"):
        seen[seen.layers[0]]
    with it.watch(model, store="reference") as seen:
        model.generate(ids, **given)
    assert seen[seen.layers[0]].shape == (1, 4, 84, 84)


def test_two_generations_are_two_entries() -> None:
    model, ids = drawn("llama"), torch.randint(2, 64, (1, 5))
    with it.watch(model) as seen:
        for _ in range(2):
            model.generate(ids, max_new_tokens=4, do_sample=False)
    assert [entry.steps for entry in seen.calls] == [4] * 4
    name = seen.layers[0]
    assert torch.equal(seen[name, 0].dense(), seen[name, 1].dense())


def test_calls_without_a_cache_stay_apart() -> None:
    model, ids = drawn("llama"), torch.randint(2, 64, (1, 5))
    with it.watch(model) as seen:
        model.generate(ids, max_new_tokens=4, do_sample=False, use_cache=False)
    assert [entry.shape[-1] for entry in seen.entries(seen.layers[0])] == [5, 6, 7, 8]


def test_only_new_keys_are_kept() -> None:
    model, ids = drawn("llama"), torch.randint(2, 64, (1, 5))
    with it.watch(model) as seen:
        model.generate(ids, max_new_tokens=200, do_sample=False)
        during = sum(_bytes(entry.rows) for entry in seen.calls)
    q, k = seen.calls[0].rows.operands()
    exact = 2 * (q.numel() + k.numel()) * 4
    assert q.shape == (1, 4, 204, 8) and k.shape == (1, 2, 204, 8)
    assert during <= 1.5 * exact  # with room for a quarter more
    assert sum(x.untyped_storage().nbytes() for x in (q, k)) == exact / 2


def _bytes(rows: object) -> int:
    """What the tensors hold that an object refers to, directly or by others."""
    known, held, left = set(), {}, [rows]
    while left:
        x = left.pop()
        if id(x) in known or isinstance(x, type | ModuleType | FunctionType):
            continue
        known.add(id(x))
        if isinstance(x, Tensor):
            held[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        else:
            left += gc.get_referents(x)
    return sum(held.values())


class Cache:
    """Keys of beams as a cache shows them, and what each row really is."""

    def __init__(self, rows: int, prompt: int) -> None:
        self.k = torch.randn(1, 2, prompt, 4).expand(rows, -1, -1, -1).clone()
        self.q = torch.randn(1, 4, prompt, 4).expand(rows, -1, -1, -1).clone()

    def step(self, parents: list[int], tokens: list[int], table: Tensor) -> Tensor:
        """Go on from ``parents``; rows with the same token get the same new key."""
        k = torch.stack([table[n] for n in tokens])[:, None, None].expand(-1, 2, 1, -1)
        q = torch.stack([table[n] + 1 for n in tokens])[:, None, None].expand(-1, 4, 1, -1)
        self.k = torch.cat([self.k[parents], k], -2)
        self.q = torch.cat([self.q[parents], q], -2)
        return q


@pytest.mark.parametrize("seed", range(8))
def test_rows_with_the_same_last_key_are_told_apart_by_their_history(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int, n: int) -> list[int]:
        return torch.randint(high, (n,), generator=generator).tolist()

    rows, table = 4, torch.randn(3, 4)
    cache = Cache(rows, 3)
    q = cache.q
    with it.watch() as seen:
        it.attention(q, cache.k, cache.k, mask=it.causal())
        for _ in range(150):  # past the point where blocks are joined
            q = cache.step(draw(rows, rows), draw(3, rows), table)
            it.attention(q, cache.k, cache.k)
    (entry,) = seen.calls
    found_q, found_k = entry.rows.operands()
    assert entry.verified and torch.equal(found_k, cache.k) and torch.equal(found_q, cache.q)
    assert repr(entry.rows.how().mask) == "causal()"
    close(entry, it.attend(cache.q, cache.k, mask=it.causal()).dense())


def test_cross_attention_moves_with_the_beams_of_self_attention() -> None:
    model, table = Decoder(), torch.randn(40, 4)
    states = torch.randn(2, 2, 7, 4).repeat_interleave(2, 0)  # two texts of two beams
    tokens = iter(range(40))
    cache = Cache(4, 0)
    with it.watch(model) as seen:
        for parents in ([0, 1, 2, 3], [1, 0, 3, 3], [1, 1, 3, 2], [1, 0, 2, 2], [0, 1, 3, 2]):
            q = cache.step(parents, [next(tokens) for _ in range(4)], table)
            model(q, cache.k, states[parents])
    own, cross = seen.calls
    assert torch.equal(own.rows.operands()[0], cache.q)
    assert torch.equal(cross.rows.operands()[0], cache.q + 1)
    assert torch.equal(cross.rows.operands()[1], states)


def test_calls_of_no_module_that_share_their_keys_stay_apart() -> None:
    k = torch.randn(1, 2, 5, 4)
    for attend, shapes in ((Attend().forward, [(1, 2, 1, 5)] * 3), (Attend(), [(1, 2, 3, 5)])):
        with it.watch() as seen:
            for _ in range(3):
                attend(torch.randn(1, 2, 1, 4), k)
        assert [entry.shape for entry in seen.calls] == shapes


def test_a_prompt_is_expanded_to_beams() -> None:
    k, q = torch.randn(2, 2, 5, 4), torch.randn(2, 4, 5, 4)
    index = torch.tensor([0, 0, 0, 1, 1, 1])
    new, own = torch.randn(6, 2, 1, 4), torch.randn(6, 4, 1, 4)
    with it.watch() as seen:
        it.attention(q, k, k, mask=it.causal())
        longer = torch.cat([k[index], new], -2)
        it.attention(own, longer, longer)
    (entry,) = seen.calls
    assert entry.shape == (6, 4, 6, 6)
    assert torch.equal(entry.rows.operands()[1], longer)
    assert torch.equal(entry.rows.operands()[0], torch.cat([q[index], own], -2))


def test_padding_follows_the_rows() -> None:
    k, q = torch.randn(2, 2, 5, 4), torch.randn(2, 4, 5, 4)
    real = torch.tensor([[True] * 5, [False, False, True, True, True]])[:, None, None]
    index = torch.tensor([1, 0])
    longer = torch.cat([k[index], torch.randn(2, 2, 1, 4)], -2)
    new = torch.cat([real[index], torch.ones(2, 1, 1, 1, dtype=torch.bool)], -1)
    with it.watch() as seen:
        it.attention(q, k, k, mask=it.causal() & real)
        it.attention(own := torch.randn(2, 4, 1, 4), longer, longer, mask=new)
    (entry,) = seen.calls
    whole = it.attend(torch.cat([q[index], own], -2), longer, mask=it.causal() & new)
    close(entry, whole.dense())


def test_a_call_with_another_mask_or_bias_is_written_out() -> None:
    k, q = torch.randn(1, 2, 5, 4), torch.randn(1, 4, 5, 4)
    longer = torch.cat([k, torch.randn(1, 2, 1, 4)], -2)
    odd = torch.tensor([True, False, True, True, False, True])
    first, second = torch.randn(4, 5, 5), torch.randn(4, 1, 6)
    with it.watch() as seen:
        a = it.attend(q, k, bias=first)
        b = it.attend(q[..., :1, :], longer, mask=odd, bias=second)
        _ = a @ k, b @ longer
    close(seen["attention"], it.stack_rows([a, b]).dense())


@pytest.mark.parametrize(("scale", "changed"), [(2.0, 0), (None, 1)])
def test_another_scale_and_overwritten_keys_begin_anew(scale: float | None, changed: int) -> None:
    k = torch.randn(1, 2, 5, 4)
    longer = torch.cat([k, torch.randn(1, 2, 1, 4)], -2)
    longer[..., 4, :] += changed
    with it.watch() as seen:
        it.attention(k, k, k)
        it.attention(k[..., :1, :], longer, longer, scale=scale)
    assert len(seen.calls) == 2


def test_our_caches_join() -> None:
    from intently.nn import AttentionOptions, KeyValueCache, MultiHeadAttention, WindowCache

    block = MultiHeadAttention(
        32, 4, kv_heads=2, attention=AttentionOptions(positions=it.Rotary(8))
    ).eval()
    x = torch.randn(2, 12, 32)
    for cache, mask in (
        (KeyValueCache(), it.causal()),
        (KeyValueCache(64), it.causal()),
        (WindowCache(4), it.causal() & it.window(3, 0)),
    ):
        with torch.no_grad(), it.watch(block) as seen:
            for part in x.split([5, *[1] * 7], 1):
                block(part, cache=cache, mask=it.causal())
            expected = block.attend(x, mask=mask).dense()
        (entry,) = seen.calls
        close(entry, expected)


def test_recurrent_attention_is_one_matrix() -> None:
    from intently.nn import AdditiveAttention

    block, states = AdditiveAttention(16, 24, 32), torch.randn(2, 7, 24)
    queries = torch.randn(2, 5, 16)
    with it.watch(block) as seen, torch.no_grad():
        memory = block.remember(states, torch.tensor([7, 4]))
        for query in queries.split(1, 1):
            block(query, memory)
        expected = block.attend(queries, memory).dense()
        block(queries[:, :1], block.remember(states))
    assert [entry.steps for entry in seen.calls] == [5, 1]
    close(seen.calls[0], expected)


MASKS = [
    it.causal(),
    it.causal(2),
    it.window(2, 0),
    it.window(2, 1),
    it.padding(torch.tensor([5, 3])),
    it.causal() & it.window(2, 0) & ~it.padding(torch.tensor([1, 2])),
    it.causal() & it.padding(torch.tensor([5, 3])),
]


def recognised(mask: Tensor, g: Geometry) -> it.Mask | None:
    """The mask that a tensor equals."""
    return simplified(AttentionSpec(mask=it.allowed(mask)), g).mask


@pairs({"mask": MASKS, "t, s": [(6, 6), (4, 9), (1, 6)], "lead": [(2, 4), (2,)]})
def test_masks_are_recognised(mask: it.Mask, t: int, s: int, lead: tuple[int, ...]) -> None:
    g = Geometry(lead, t, s, torch.device("cpu"))
    dense = mask.dense(g).expand(2, *(1,) * (len(lead) - 1), t, s)
    found = recognised(dense, g)
    assert dense.all() if found is None else torch.equal(found.dense(g).expand_as(dense), dense)
    assert found is None or max(x.numel() for x in (*found.tensors(), torch.ones(0))) <= 2 * s


def test_other_masks_are_not() -> None:
    g = Geometry((2, 4), 6, 6, torch.device("cpu"))
    causal = it.causal().dense(g)
    changed = causal.clone()
    changed[3, 1] = False
    for other in (changed, torch.stack([causal, ~causal])[:, None], causal.expand(4, 6, 6)):
        assert "tensor" in repr(recognised(other, g))
    assert repr(recognised(causal, g)) == "causal()"


def test_rows_join_what_a_store_kept() -> None:
    first, *others = parts = [torch.randn(2, 3, n, 4) for n in (2, 1, 70, 5)]
    for kind in ("copy", "reference", "disk"):
        store = Store(kind, None, 0)
        rows = Growing(store.keep(first), store)
        for part in others:
            rows.settle()
            rows.append(part)
        assert torch.equal(rows.get(), torch.cat(parts, -2))
        assert torch.equal(rows.get(), torch.cat(parts, -2))
    assert packed(first).data_ptr() != first.data_ptr()
