"""Every Transformer: learned and rotary positions, grouped heads, gated feed-forwards, together."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import pickle
from functools import partial
from typing import Any

import pytest
import torch

from intently.errors import ArgumentError, KindError
from intently.nn.models import Transformer, TransformerOptions
from intently.nn.models.kinds import cross_heads, options_of
from intently.nn.models.recurrent import RecurrentOptions, RecurrentSeq2Seq

from ...messages import raises, refused
from .plain_transformer import COMBINATIONS, LENGTHS, SOURCE, TARGET, VARIANTS, Plain, drawn

BEAMS = torch.tensor([[1, 4, 5], [1, 6, 7], [1, 3, 3], [1, 8, 9], [1, 4, 4], [1, 10, 3]])

each = pytest.mark.parametrize("options", VARIANTS.values(), ids=list(VARIANTS))


def close(found: Any, expected: Any, atol: float = 1e-10) -> None:
    torch.testing.assert_close(found, expected, atol=atol, rtol=0)


# --- the formulas ---------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("options", COMBINATIONS, ids=lambda o: "-".join(map(str, o.values())))
def test_it_is_the_plain_formula(options: dict[str, Any]) -> None:
    """Logits and attention, a padded batch against each of its sentences alone."""
    model = drawn(**options)
    logits = model(SOURCE, TARGET, LENGTHS)
    matrices = model.attentions(SOURCE, TARGET, LENGTHS)
    for i, n in enumerate(LENGTHS.tolist()):
        plain = Plain(model)
        close(logits[i], plain(SOURCE[i, :n], TARGET[i]))
        assert list(matrices) == list(plain.weights)
        for name, expected in plain.weights.items():
            rows = n if name.startswith("encoder") else None
            found = matrices[name].dense()[i, :, :rows]
            columns = expected.shape[-1]
            close(found[..., :columns], expected)
            assert not found[..., columns:].any(), name


@each
def test_gradients_are_those_of_the_formula_and_reach_all(options: dict[str, Any]) -> None:
    model = drawn(**options)
    names, parameters = zip(*model.named_parameters())
    found = torch.autograd.grad(model(SOURCE[:1], TARGET[:1]).square().sum(), parameters)
    expected = torch.autograd.grad(Plain(model)(SOURCE[0], TARGET[0]).square().sum(), parameters)
    assert all(grad.any() for grad in found), names
    torch.testing.assert_close(found, expected, atol=1e-8, rtol=1e-8)


def test_rotary_positions_are_relative_and_of_self_attention_alone() -> None:
    model = drawn(positions="rotary")
    for name, block in model.named_modules():
        if name.endswith("_attention"):
            positions = getattr(block, "attention").positions  # noqa: B009
            assert (positions is None) == name.endswith("cross_attention"), name
    assert not any("position" in name for name in model.state_dict())


# --- steps, beams, padding ------------------------------------------------------------------------


@torch.no_grad()
@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_step_by_step_is_the_whole_pass(options: dict[str, Any], dtype: torch.dtype) -> None:
    model = drawn(dtype, **options)
    memory = model.encode(SOURCE, LENGTHS)
    whole = model.decode(TARGET, memory)
    for sizes in ([1, 1, 1, 1], [2, 1, 1], [1, 3]):
        cache = model.new_cache()
        steps = [model.decode(part, memory, cache) for part in TARGET.split(sizes, 1)]
        close(torch.cat(steps, 1), whole, 1e-5 if dtype is torch.float32 else 1e-10)
        assert cache.length == 4


@torch.no_grad()
@each
def test_a_long_text_step_by_step(options: dict[str, Any]) -> None:
    """Past the doubling of every buffer and table."""
    model = drawn(torch.float64, **(options | {"learned_steps": 300}))
    ids = torch.randint(3, 17, (2, 270))
    memory, cache = model.encode(ids), model.new_cache()
    steps = [model.decode(part, memory, cache) for part in ids.split([250] + [1] * 20, 1)]
    close(torch.cat(steps, 1), model.decode(ids, memory), 1e-9)


@torch.no_grad()
@each
def test_beams_share_a_memory_and_change_places(options: dict[str, Any]) -> None:
    model = drawn(**options)
    memory = model.encode(SOURCE[:2], LENGTHS[:2])
    repeated = memory.expand(torch.tensor([0, 0, 0, 1, 1, 1]))
    close(model.decode(BEAMS, memory), model.decode(BEAMS, repeated))
    shared, alone = (model.new_cache(keep_queries=True) for _ in range(2))
    for part in BEAMS[:, :2].split(1, 1):
        for cache, rows in ((shared, memory), (alone, repeated)):
            model.decode(part, rows, cache)
    index = torch.tensor([2, 2, 0, 5, 3, 3])
    shared.reorder_targets(index)
    alone.reorder(index)
    whole = torch.cat([BEAMS[index, :2], BEAMS[:, 2:]], 1)
    expected = model.decode(whole, memory)[:, 2:]
    close(model.decode(BEAMS[:, 2:], memory, shared), expected)
    close(model.decode(BEAMS[:, 2:], repeated.expand(index), alone), expected)
    for name, steps in alone.history.items():
        close(shared.history[name], steps)
        assert all((k is None) == name.endswith("cross_attention") for _, k in steps), name
    # a sentence that is done leaves; the other goes on with its row of the memory
    left = torch.tensor([3, 4, 5])
    shared.reorder_targets(left)
    shared.reorder_memory(torch.tensor([1]))
    found = model.decode(BEAMS[3:, :1], memory.expand(torch.tensor([1])), shared)
    own = model.encode(SOURCE[1:2], LENGTHS[1:2])
    close(found, model.decode(torch.cat([whole[left], BEAMS[3:, :1]], 1), own)[:, 3:])


@torch.no_grad()
@each
def test_the_history_has_the_keys_of_its_heads(options: dict[str, Any]) -> None:
    model, g = drawn(**options), options.get("kv_heads") or 4
    read, cache = model.new_encoder_cache(), model.new_cache(keep_queries=True)
    memory = model.encode(SOURCE, LENGTHS, read)
    for part in TARGET.split(1, 1):
        model.decode(part, memory, cache)
    found = model.attentions(SOURCE, TARGET, LENGTHS)
    for name, (q, k) in read.history.items():
        assert q.shape == (3, 4, 5, 4) and k.shape == (3, g, 5, 4)
        close(q, found[name].q)
        close(k, found[name].k)
    for name, steps in cache.history.items():
        close(torch.cat([q for q, _ in steps], -2), found[name].q)
        keys = [k for _, k in steps if k is not None]
        k = torch.cat(keys, -2) if keys else cache.cross_keys[name]
        assert k.shape[1] == g
        close(k, found[name].k)
        replay = model.replays()[name]
        for i, n in enumerate(LENGTHS.tolist()):
            q = torch.cat([q[i] for q, _ in steps], -2)
            told = replay.steps(q, k[i]) if keys else replay.reads(q, k[i, :, :n], 5)
            close(told.dense(), found[name].dense()[i, ..., : told.shape[-1]])


@torch.no_grad()
@each
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_padding_never_matters(options: dict[str, Any], poison: float) -> None:
    model = drawn(**options)
    expected = model(SOURCE, TARGET, LENGTHS)
    other = SOURCE.masked_fill(torch.arange(5) >= LENGTHS[:, None], 16)
    model.source_embedding.weight[16] = poison
    close(model(other, TARGET, LENGTHS), expected)
    memory, cache = model.encode(other, LENGTHS), model.new_cache()
    steps = [model.decode(part, memory, cache) for part in TARGET.split(1, 1)]
    close(torch.cat(steps, 1), expected)
    for name, A in model.attentions(other, TARGET, LENGTHS).items():
        assert name.startswith("encoder") or bool(A.dense().isfinite().all()), name


# --- what is done with a model --------------------------------------------------------------------


@each
def test_copies_of_all_kinds(options: dict[str, Any]) -> None:
    model = drawn(**options)
    expected = model(SOURCE, TARGET)
    values = dataclasses.asdict(model.options)
    fresh = Transformer(TransformerOptions(**values)).double().eval()
    fresh.load_state_dict(model.state_dict())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), fresh):
        assert torch.equal(other(SOURCE, TARGET), expected)
    assert options_of("transformer", values) == model.options
    assert set(cross_heads(model.options).values()) == {4}


@each
def test_dropout_acts_while_training_alone(options: dict[str, Any]) -> None:
    model = drawn(dropout=0.5, **options)
    assert torch.equal(model(SOURCE, TARGET), model(SOURCE, TARGET))
    model.train()
    torch.manual_seed(0)
    first, second = model(SOURCE, TARGET), model(SOURCE, TARGET)
    torch.manual_seed(0)
    assert torch.equal(model(SOURCE, TARGET), first) and not torch.equal(first, second)


@pytest.mark.skipif("INTENTLY_ANNOTATIONS" in os.environ, reason="checks are not traced")
def test_it_can_be_compiled() -> None:
    model = drawn(**VARIANTS["all"], encoder_layers=1, decoder_layers=1)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    close(compiled(SOURCE, TARGET), model(SOURCE, TARGET))


def test_old_descriptions_mean_what_they_meant() -> None:
    """Those written before there were variants lack their fields."""
    new = ("kv_heads", "positions", "feed_forward", "learned_steps")
    model = drawn()
    old = {k: v for k, v in dataclasses.asdict(model.options).items() if k not in new}
    assert options_of("transformer", old) == model.options
    assert not any("position" in name for name in model.state_dict())
    names = {name.split(".", 2)[-1] for name in model.state_dict() if name[:9] == "encoder.0"}
    assert {"feed_forward.up.weight", "self_attention.qkv_weight", "self_norm.bias"} <= names


# --- learned positions end ------------------------------------------------------------------------


def test_learned_positions_end_with_their_table() -> None:
    model = drawn(positions="learned", learned_steps=4)
    assert model(SOURCE[:, :4], TARGET).shape == (3, 4, 19)
    refused(
        lambda: model.encode(SOURCE),
        ArgumentError,
        "source: expected at most learned_steps=4 tokens; got 5. The table of learned positions "
        'ends there. Shorten it, or train with more learned_steps, or positions="rotary".',
        whole=True,
    )
    memory, cache = model.encode(SOURCE[:, :3]), model.new_cache()
    model.decode(TARGET, memory, cache)
    refused(
        lambda: model.decode(TARGET[:, :1], memory, cache),
        ArgumentError,
        "target: expected at most learned_steps=4 tokens; g",
    )
    assert cache.length == 4


SIZES: dict[str, Any] = {"source_vocabulary": 9, "target_vocabulary": 9}
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"positions": "absolute"},
        ArgumentError,
        'positions: expected "sinusoidal", "learned" or "rotary"; got \'absolute\'.',
    ),
    (
        {"feed_forward": "swiglu"},
        ArgumentError,
        'feed_forward: expected "relu" or "gated"; got \'swiglu\'.',
    ),
    ({"heads": 4, "kv_heads": 3}, ArgumentError, "kv_heads: expected a divisor of heads=4; got 3."),
    ({"share": "both"}, ArgumentError, 'share: expected "output" or "all"; got \'both\'.'),
    (
        {"norm": "none", "encoder_layers": 0, "decoder_layers": 0},
        ArgumentError,
        'norm: expected "pre" or "post"; got \'none\'.',
    ),
    ({"width": 0}, ArgumentError, "width: expected"),
    ({"width": "8"}, KindError, "width: expected an int ≥ 1; got '8'."),
    ({"target_vocabulary": 0}, ArgumentError, "target_vocabulary: expected an int ≥ 1; got 0"),
    ({"dropout": 2.0}, ArgumentError, "dropout: expected a probability in [0, 1); got 2.0."),
    ({"dropout": 1}, ArgumentError, "dropout: expected a probability in [0, 1); got 1."),
    ({"encoder_layers": -1}, ArgumentError, "encoder_layers: expected"),
    ({"kv_heads": 0}, ArgumentError, "kv_heads: expected"),
    ({"kv_heads": 1.5}, KindError, "kv_heads: expected"),
    ({"learned_steps": 0}, ArgumentError, "learned_steps: expected"),
    ({"heads": 0, "positions": "rotary"}, ArgumentError, "heads: expected"),
    (
        {"width": 12, "heads": 4, "positions": "rotary"},
        ArgumentError,
        'positions: expected "sinusoidal" or "learned" for heads of an odd width; got "rotary" '
        "where width/heads=3. Rotary positions rotate pairs of numbers. Choose other heads or "
        "another width.",
    ),
]
test_options_that_do_not_fit = raises(
    [(partial(TransformerOptions, **(SIZES | given)), kind, text) for given, kind, text in WRONG]
)


@pytest.mark.parametrize("attention", ["dot", "general", "concat"])
def test_saved_models_of_luong_have_no_biases_in_their_attention(attention: Any) -> None:
    """As the paper, the recipes and the folders that were saved with them."""
    model = RecurrentSeq2Seq(RecurrentOptions(20, 30, width=8, attention=attention))
    names = {name for name in model.state_dict() if name.startswith("attention.")}
    assert not {name for name in names if "bias" in name}
    assert "decoder.vector.join.bias" not in model.state_dict()


def test_saved_gated_transformers_have_no_biases_in_their_feed_forward() -> None:
    model = Transformer(TransformerOptions(20, 30, width=8, inner=12, feed_forward="gated"))
    assert not {name for name in model.state_dict() if "feed_forward" in name and "bias" in name}
