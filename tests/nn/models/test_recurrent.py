"""The recurrent encoder–decoder against the papers' formulas in NumPy, and against torch.nn."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import intently as it
from intently.errors import ArgumentError, KindError
from intently.nn.models import RecurrentOptions, RecurrentSeq2Seq, Transformer, TransformerOptions
from intently.observe import watch

from ...combinations import each, pairs
from ...messages import raises
from ...tensors import close, drawn
from .plain_transformer import LENGTHS, SOURCE, TARGET
from .slow_recurrent import SlowRecurrent

CELLS = ("rnn", "lstm", "gru")
ATTENTIONS = ("none", "additive", "dot", "general", "concat")
LOOKING = ATTENTIONS[1:]


def model(**options: Any) -> RecurrentSeq2Seq:
    """A tiny model in float64 with all parameters drawn."""
    shape: dict[str, Any] = {
        "source_vocabulary": 17,
        "target_vocabulary": 19,
        "width": 8,
        "decoder_layers": 2,
    }
    found = RecurrentSeq2Seq(RecurrentOptions(**(shape | options))).eval()
    return drawn(found, 0.4, torch.Generator().manual_seed(1))


# --- the formulas ---------------------------------------------------------------------------------


@pairs({"feeding": [True, False], "attention": ATTENTIONS, "cell": CELLS})
def test_it_is_what_the_papers_say(cell: str, attention: str, feeding: bool) -> None:
    two_ways = attention != "general"
    ours = model(
        cell=cell,
        attention=attention,
        input_feeding=feeding,
        bidirectional=two_ways,
        encoder_layers=2,
    )
    slow = SlowRecurrent(ours)
    logits = ours(SOURCE, TARGET, LENGTHS)
    matrices = ours.attentions(SOURCE, TARGET, LENGTHS)
    assert list(matrices) == ([] if attention == "none" else ["attention"])
    for i, length in enumerate(LENGTHS.tolist()):
        expected, weights = slow(SOURCE[i, :length].tolist(), TARGET[i].tolist())
        np.testing.assert_allclose(logits[i].detach().numpy(), expected, atol=1e-12)
        for matrix in matrices.values():
            assert matrix.shape == (3, 1, 4, 5)
            np.testing.assert_allclose(matrix.dense()[i, 0, :, :length], weights, atol=1e-12)
            assert not matrix.dense()[i, 0, :, length:].any()


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("cell", CELLS)
def test_the_encoder_is_torchs(cell: str, bidirectional: bool) -> None:
    ours = model(cell=cell, bidirectional=bidirectional, encoder_layers=2)
    kind = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}[cell]
    theirs = kind(8, 4 if bidirectional else 8, 2, batch_first=True, bidirectional=bidirectional)
    theirs.double().load_state_dict(ours.encoder.cell.state_dict())
    memory = ours.encode(SOURCE, LENGTHS)
    assert memory.read is not None
    for i, length in enumerate(LENGTHS.tolist()):
        x = ours.source_embedding.weight[SOURCE[i : i + 1, :length]] * math.sqrt(8)
        states, _ = theirs(x)
        close(memory.read.states[i : i + 1, :length], states)
        ends = [states[0, -1, :4], states[0, 0, 4:]] if bidirectional else [states[0, -1]]
        close(memory.summary[i], torch.cat(ends))


@pytest.mark.parametrize("cell", CELLS)
def test_the_decoder_without_attention_and_feeding_is_torchs(cell: str) -> None:
    """Sutskever's decoder: the source is in the first state, the words go through nn.LSTM."""
    ours = model(cell=cell, attention="none", input_feeding=False)
    memory = ours.encode(SOURCE, LENGTHS)
    first = torch.tanh(ours.bridge(memory.summary)).unflatten(-1, (-1, 8)).transpose(0, 1)
    state = tuple(first.split(2)) if cell == "lstm" else first
    x = ours.target_embedding.weight[TARGET] * math.sqrt(8)
    y, _ = ours.decoder.cell(x, state)
    contexts = memory.summary[:, None].expand(-1, 4, -1)
    output: Any = ours.decoder.get_submodule("output")
    close(ours.hidden(TARGET, memory), output(y, x, contexts))


def test_luong_feeds_nothing_at_first_and_the_vector_later() -> None:
    ours = model(attention="general", decoder_layers=1)
    seen: list[Tensor] = []
    ours.decoder.cell.register_forward_pre_hook(lambda _, given: seen.append(given[0][..., 8:]))
    made = ours.hidden(TARGET, ours.encode(SOURCE, LENGTHS))
    assert len(seen) == 4 and not seen[0].any()
    close(torch.cat(seen[1:], 1), made[:, :-1])


# --- steps, padding, beams ------------------------------------------------------------------------


@pairs({"feeding": [True, False], "attention": ATTENTIONS, "cell": CELLS})
def test_step_by_step_is_the_whole_pass(cell: str, attention: str, feeding: bool) -> None:
    ours = model(cell=cell, attention=attention, input_feeding=feeding).float()
    with torch.no_grad():
        memory = ours.encode(SOURCE, LENGTHS)
        whole, cache = ours.decode(TARGET, memory), ours.new_cache(keep_queries=True)
        steps = [ours.decode(part, memory, cache) for part in TARGET.split([1, 2, 1], 1)]
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=1e-5, rtol=0)
    assert cache.length == 4
    assert [q.shape[2] for q, _ in cache.history.get("attention", [])] == (
        [] if attention == "none" else [1, 2, 1]
    )


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_padding_never_matters(attention: str) -> None:
    ours = model(attention=attention)
    other = SOURCE.clone()
    other[torch.arange(5) >= LENGTHS[:, None]] = 11
    wider = torch.nn.functional.pad(SOURCE, (0, 3), value=12)
    names = [name for name, _ in ours.named_parameters()]

    def outcome(source: Tensor) -> tuple[Tensor, ...]:
        logits = ours(source, TARGET, LENGTHS)
        return logits, *torch.autograd.grad(logits.square().sum(), list(ours.parameters()))

    expected = outcome(SOURCE)
    for source in (other, wider):
        for name, a, b in zip(["logits", *names], outcome(source), expected):
            torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9, msg=name)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_source_of_no_tokens_says_nothing_and_is_finite(attention: str) -> None:
    ours = model(attention=attention)
    logits = ours(SOURCE, TARGET, torch.tensor([5, 0, 2]))
    none = ours(SOURCE[:1, :0], TARGET[1:2])
    assert bool(logits.isfinite().all())
    close(logits[1:2], none)
    close(logits[0], ours(SOURCE, TARGET, LENGTHS)[0])


def test_empty_targets_and_batches_have_no_rows() -> None:
    ours = model()
    assert ours(SOURCE, TARGET[:, :0], LENGTHS).shape == (3, 0, 19)
    assert ours(SOURCE[:0], TARGET[:0]).shape == (0, 4, 19)


@each({"rows, targets, t": [(0, 0, 4), (3, 3, 0), (3, 0, 4), (1, 3, 0)], "attention": LOOKING})
def test_attention_of_nothing_is_empty(attention: str, rows: int, targets: int, t: int) -> None:
    ours = model(attention=attention)
    for lengths in (None, LENGTHS[:rows]):
        found = ours.attentions(SOURCE[:rows], TARGET[:targets, :t], lengths)
        assert {name: A.dense().shape for name, A in found.items()} == {
            "attention": (targets, 1, t, 5)
        }


@pytest.mark.parametrize("feeding", [True, False])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_beams_share_a_row_of_the_memory(attention: str, feeding: bool) -> None:
    ours = model(attention=attention, input_feeding=feeding)
    memory, six = ours.encode(SOURCE, LENGTHS), torch.arange(24).view(6, 4) % 15 + 1
    twice = memory.expand(torch.arange(3).repeat_interleave(2))
    close(ours.decode(six, memory), ours.decode(six, twice))
    found, lengths = ours.attentions(SOURCE, six, LENGTHS), LENGTHS.repeat_interleave(2)
    alone = ours.attentions(SOURCE.repeat_interleave(2, 0), six, lengths)
    for name, matrix in found.items():
        close(matrix.dense(), alone[name].dense())


@pytest.mark.parametrize("attention", ["none", "additive", "general"])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_cache_goes_on_with_other_rows(cell: str, attention: str) -> None:
    ours = model(cell=cell, attention=attention)
    memory, cache = ours.encode(SOURCE, LENGTHS), ours.new_cache(keep_queries=True)
    ours.decode(TARGET[:, :2], memory, cache)
    index = torch.tensor([2, 0, 2, 1])
    cache.reorder(index)
    for name, keys in cache.cross_keys.items():
        assert memory.read is not None and name == "attention"
        close(keys[:, 0], memory.read.keys[index])
    after = ours.decode(TARGET[index, 2:], memory.expand(index), cache)
    close(after, ours.decode(TARGET, memory)[index, 2:])


def test_a_call_that_raises_leaves_the_cache_as_it_was() -> None:
    ours = model()
    memory, cache = ours.encode(SOURCE, LENGTHS), ours.new_cache()
    ours.decode(TARGET[:, :2], memory, cache)
    with pytest.raises(ArgumentError, match="ids from 0 to 18; got 1 to 19"):
        ours.decode(torch.tensor([[1, 19]] * 3), memory, cache)
    close(ours.decode(TARGET[:, 2:], memory, cache), ours.decode(TARGET, memory)[:, 2:])


# --- gradients, learning --------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("cell", CELLS)
def test_gradients_are_those_of_differences(cell: str, attention: str) -> None:
    ours = model(cell=cell, attention=attention, decoder_layers=1)
    names, parameters = zip(*ours.named_parameters())

    def loss(*given: Tensor) -> Tensor:
        state = dict(zip(names, given))
        return functional_call(ours, state, (SOURCE, TARGET, LENGTHS)).square().sum()

    assert torch.autograd.gradcheck(loss, parameters, fast_mode=True)
    assert all(grad.any() for grad in torch.autograd.grad(loss(*parameters), parameters)), names


# --- watching -------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", LOOKING)
def test_watching_sees_every_step_and_changes_no_bit(attention: str) -> None:
    ours = model(attention=attention).float()
    source, lengths = SOURCE[:2], LENGTHS[:2]
    with torch.no_grad():
        memory, cache = ours.encode(source, lengths), ours.new_cache()
        plain = [ours.decode(x, memory, cache) for x in TARGET[:2].split(1, 1)]
        with watch(ours) as seen:
            memory, cache = ours.encode(source, lengths), ours.new_cache()
            watched = [ours.decode(x, memory, cache) for x in TARGET[:2].split(1, 1)]
    assert all(torch.equal(a, b) for a, b in zip(plain, watched))
    assert seen.layers == ("attention",) and seen["attention"].shape == (2, 4, 5)
    forced = ours.attentions(source, TARGET[:2], lengths)["attention"].dense()[:, 0]
    torch.testing.assert_close(seen["attention"].dense(), forced, atol=1e-6, rtol=0)
    assert [call.verified for call in seen.calls] == [True]


# --- what is refused ------------------------------------------------------------------------------


OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"share": "bogus"}, ArgumentError, 'share: expected "output" or "all"; got \'bogus\'.'),
    ({"dropout": 2.0}, ArgumentError, "dropout: expected a probability in [0, 1); got 2.0."),
    ({"dropout": -0.1}, ArgumentError, "dropout: expected a probability in [0, 1); got -0.1."),
    ({"source_vocabulary": 0}, ArgumentError, "source_vocabulary: expected an int ≥ 1; got 0."),
    ({"cell": "qrnn"}, ArgumentError, 'cell: expected "rnn", "lstm" or "gru"; got \'qrnn\'.'),
    (
        {"attention": "cosine"},
        ArgumentError,
        'attention: expected one of "none", "additive", "dot"',
    ),
    (
        {"width": 9},
        ArgumentError,
        "width: expected an even number for a bidirectional encoder; got 9.",
    ),
    ({"width": 0}, ArgumentError, "width: expected an int ≥ 1; got 0."),
    ({"decoder_layers": 0}, ArgumentError, "decoder_layers: expected an int ≥ 1; got 0."),
    (
        {"share": "all"},
        ArgumentError,
        'share: expected "output" where the vocabularies differ; got "all"',
    ),
    ({"width": "8"}, KindError, "width: expected an int ≥ 1; got '8'."),
    ({"encoder_layers": "8"}, KindError, "encoder_layers: expected an int ≥ 1; got '8'."),
    ({"target_vocabulary": "8"}, KindError, "target_vocabulary: expected an int ≥ 1; got '8'."),
]
test_options_are_refused_by_name = raises(
    [(partial(model, **options), kind, text) for options, kind, text in OPTIONS]
)


def test_an_odd_width_serves_one_direction() -> None:
    assert model(width=9, bidirectional=False)(SOURCE, TARGET, LENGTHS).shape == (3, 4, 19)


def test_one_embedding_may_serve_both_sides() -> None:
    ours = model(share="all", source_vocabulary=19)
    assert ours.source_embedding is ours.target_embedding
    assert ours(SOURCE, TARGET, LENGTHS).shape == (3, 4, 19)


def encoded(**options: Any) -> Any:
    return model(**options).encode(SOURCE, LENGTHS)


def begun() -> Any:
    """A cache after one step of three rows."""
    ours = model()
    cache = ours.new_cache()
    ours.decode(TARGET[:, :1], ours.encode(SOURCE, LENGTHS), cache)
    return cache


def transformer() -> Any:
    return Transformer(TransformerOptions(17, 19, width=8))


FIRST = torch.tensor([0])
test_inputs_are_refused_by_name = raises(
    {
        ArgumentError: {
            "source: expected ids from 0 to 16; got 4 to 17": lambda: model().encode(
                torch.tensor([[4, 17]])
            ),
            "lengths: expected steps from 0 to s=5, those of the source; got 3 to 6.": lambda: (
                model().encode(SOURCE, LENGTHS + 1)
            ),
            "target: expected m rows for each of the n=3 of mem": lambda: model().decode(
                TARGET[:2], encoded()
            ),
            "target: expected m rows for each of the n=0 of memory; got shape (3, 4).": lambda: (
                model().decode(TARGET, model().encode(SOURCE[:0]))
            ),
            "index: expected rows from 0 to 2; got 0 to 3.": lambda: encoded().expand(
                torch.tensor([0, 3])
            ),
            "memory: expected the states that attention reads; got the fixed vector alone. "
            "Another model encoded the source. Use the result of this model's encode.": lambda: (
                model().decode(TARGET, encoded(attention="none"))
            ),
            "memory: expected the fixed vector alone; got the s": lambda: model(
                attention="none"
            ).decode(TARGET, encoded()),
            "memory: expected a summary (b, c=8); got c=12": lambda: model().decode(
                TARGET, encoded(width=12)
            ),
            "cache: expected states (1, 2, 1, 8): (states of a cell, layers, b,"
            " c); got (1, 2, 3, 8).": lambda: model().decode(
                TARGET[:1], encoded().expand(FIRST), begun()
            ),
            "index: expected rows from 0 to 2; got 0 to 5.": lambda: begun().reorder(
                torch.tensor([0, 5])
            ),
        },
        KindError: {
            "cache: expected a RecurrentCache; got DecoderCache.": lambda: model().decode(
                TARGET, encoded(), transformer().new_cache()
            ),
            "memory: expected a RecurrentMemory; got Memory. A decoder reads what the encoder of "
            "its model passes on. Make one: model.encode(…).": lambda: model().decode(
                TARGET, transformer().encode(SOURCE)
            ),
            "cache: expected a EncoderCache; got RecurrentCache": lambda: model().encode(
                SOURCE, LENGTHS, begun()
            ),
        },
    }
)


def test_attention_of_projected_queries_may_have_heads() -> None:
    """The score that `replays` hands out takes (1, h, t, a), as recordings of searches have it."""
    ours = model()
    q, k = torch.randn(2, 3, 4, 8).double(), torch.randn(2, 1, 5, 8).double()
    score = ours.replays()["attention"].settings["score"]
    flat = torch.stack([score(q[:, i], k[:, 0]) for i in range(3)], 1)
    close(score(q, k), flat)
    assert it.attend(q, k.expand(2, 3, 5, 8), score=score).shape == (2, 3, 4, 5)
