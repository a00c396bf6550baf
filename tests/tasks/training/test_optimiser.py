"""The learning rate; the optimiser: what decays, what Muon takes, a state that goes on exactly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import intently as it
from intently.errors import CheckpointError
from intently.nn.models.language import LanguageModel, LanguageOptions
from intently.nn.models.recurrent import ATTENTIONS, RecurrentOptions, RecurrentSeq2Seq
from intently.nn.models.recurrent_steps import CELLS
from intently.nn.models.transformer import POSITIONS, Transformer, TransformerOptions
from intently.nn.models.vision import VisionOptions, VisionTransformer
from intently.nn.options import AdditiveScore, RelativeBias, Sinks
from intently.tasks.training.optimiser import Optimiser, learning_rate
from intently.tasks.training.options import OptimiserOptions, ScheduleOptions


def model(share: str = "output") -> Transformer:
    torch.manual_seed(0)
    return Transformer(
        TransformerOptions(12, 12, width=8, heads=2, inner=16, share=share)  # pyright: ignore
    )


def steps(net: Transformer, optimiser: Optimiser, seeds: range) -> None:
    for seed in seeds:
        torch.manual_seed(seed)
        for parameter in net.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimiser.step(1e-2)


@pytest.mark.parametrize("share", ["output", "all"])
def test_only_weight_matrices_decay(share: str) -> None:
    groups = Optimiser(model(share), OptimiserOptions()).groups
    assert all(name.endswith("weight") and "norm" not in name for name in groups["matrices"])
    assert "decoder.0.cross_attention.out_weight" in groups["matrices"]
    others = [name for name in groups["others"] if "norm" not in name and "bias" not in name]
    embeddings = ["target_embedding.weight", "source_embedding.weight"]
    assert others == (embeddings if share == "output" else embeddings[:1])


LEARNED = it.nn.AttentionOptions(bias=RelativeBias(2), score=AdditiveScore(2, 4, 6), sinks=Sinks(2))

MODELS: list[Callable[[], torch.nn.Module]] = [
    *(lambda p=p: Transformer(TransformerOptions(12, 12, 8, 2, positions=p)) for p in POSITIONS),
    *(lambda c=c: RecurrentSeq2Seq(RecurrentOptions(12, 12, 8, c, "additive")) for c in CELLS),
    *(lambda a=a: RecurrentSeq2Seq(RecurrentOptions(12, 12, 8, "gru", a)) for a in ATTENTIONS),
    lambda: LanguageModel(LanguageOptions(12, 8, 2, positions=9)),
    lambda: LanguageModel(LanguageOptions(12, 8, 2, positions=None, attention=LEARNED, tied=False)),
    lambda: VisionTransformer(VisionOptions((4, 4), 2, 3, width=8, heads=2, layers=1)),
]

TABLES = ("embedding", "positions", "table", "logits", "energy", "class_token", "norm", "bias")


def test_tables_of_no_model_decay() -> None:
    for make in MODELS:
        net = make()
        groups = Optimiser(net, OptimiserOptions()).groups
        shapes = {name: parameter.ndim for name, parameter in net.named_parameters()}
        tables = {n for n in shapes if any(word in n for word in TABLES)}
        assert set(groups["matrices"]) == {n for n, axes in shapes.items() if axes == 2} - tables
        assert groups["matrices"] and tables <= set(groups["others"])


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_the_state_goes_on_to_the_last_bit(kind: str) -> None:
    options = OptimiserOptions(optimiser=kind)
    whole, begun, rest = model(), model(), model()
    steps(whole, Optimiser(whole, options), range(6))
    first, second = Optimiser(begun, options), Optimiser(rest, options)
    steps(begun, first, range(3))
    rest.load_state_dict(begun.state_dict())
    second.load({name: tensor.clone() for name, tensor in first.tensors().items()})
    steps(rest, second, range(3, 6))
    for one, other in zip(whole.parameters(), rest.parameters(), strict=True):
        assert torch.equal(one, other)
    assert all(parameter.grad is None for parameter in rest.parameters())


def test_muon_takes_the_hidden_matrices_only() -> None:
    net = model()
    optimiser = Optimiser(net, OptimiserOptions(optimiser="muon"))
    steps(net, optimiser, range(1))
    taken = {n.partition("/")[2] for n in optimiser.tensors() if n.startswith("momentum_buffer")}
    assert taken == set(optimiser.groups["matrices"])


def test_state_of_another_model_is_refused() -> None:
    net = model()
    optimiser = Optimiser(net, OptimiserOptions())
    steps(net, optimiser, range(1))
    whole = optimiser.tensors()
    norm = "exp_avg/encoder_norm.weight"
    lacking = {name: x for name, x in whole.items() if name != norm}
    for tensors, told in (
        ({**whole, "exp_avg/nobody": torch.zeros(3)}, r"exp_avg/nobody: expected no such tensor"),
        ({**whole, norm: torch.zeros(3)}, r"norm.*; got shape \(3,\)"),
        ({**whole, norm: torch.zeros(8, dtype=torch.int64)}, r"norm.*; got shape \(8,\) of torch"),
        (lacking, r"here: exp_avg/encoder_norm\.weight: expected shape \(8,\); got no such tensor"),
        ({}, "got no such tensor"),
    ):
        with pytest.raises(CheckpointError, match=told):
            optimiser.load(tensors, "here")


@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
def test_muon_in_float32_where_halves_are_slow(
    capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same update as PyTorch's but for the rounding to bfloat16."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    weight = torch.randn(24, 40)
    net, theirs = torch.nn.Linear(40, 24, bias=False), torch.nn.Parameter(weight.clone())
    net.weight.data, net.weight.grad = weight.clone(), torch.randn(24, 40)
    theirs.grad = net.weight.grad.clone()
    Optimiser(net, OptimiserOptions(optimiser="muon", weight_decay=0.1)).step(0.01)
    torch.optim.Muon([theirs], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw").step()
    same, step = torch.equal(net.weight, theirs), (theirs - weight).abs().max().item()
    assert same == (capability == "AVX512")
    assert (net.weight - theirs).abs().max().item() < 0.02 * step


# --- the learning rate ---------------------------------------------------------------------------


def test_equal_to_the_paper_up_to_scale() -> None:
    """Vaswani et al. 2017, equation 3: c^-0.5 · min(step^-0.5, step · warmup^-1.5)."""
    options = ScheduleOptions(steps=20_000, warmup=4000, learning_rate=512**-0.5 * 4000**-0.5)
    for step in (1, 100, 3999, 4000, 4001, 20_000):
        paper = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert learning_rate(step, options) == pytest.approx(paper, rel=1e-12)


def test_cooldown_falls_to_zero_and_only_at_the_end() -> None:
    options = ScheduleOptions(steps=1000, warmup=0, schedule="constant", cooldown=0.2)
    rates = [learning_rate(step, options) / options.learning_rate for step in range(1, 1001)]
    assert rates[:801] == [1.0] * 801
    assert all(a > b > 0 for a, b in itertools.pairwise(rates[800:]))
    assert rates[-1] == pytest.approx(1 / 200)


def rates(options: ScheduleOptions) -> list[float]:
    return [learning_rate(step, options) for step in range(1, options.steps + 1)]


def cosine(**options: Any) -> list[float]:
    return rates(ScheduleOptions(schedule="cosine", learning_rate=0.5, **options))


@pytest.mark.parametrize("kind", ["constant", "inverse_sqrt", "cosine"])
def test_without_warmup_the_first_step_is_the_highest(kind: str) -> None:
    options = ScheduleOptions(steps=10, warmup=0, schedule=kind)
    assert rates(options)[0] == max(rates(options)) == options.learning_rate


def test_the_cosine_of_the_paper() -> None:
    """Loshchilov and Hutter 2017, equation 5, with its least rate 0 and one cycle."""
    rates = cosine(steps=1000, warmup=100)
    assert rates[:100] == [pytest.approx(0.5 * step / 100) for step in range(1, 101)]
    for current in (0, 1, 300, 450, 899, 900):
        paper = 0 + 0.5 * (0.5 - 0) * (1 + math.cos(current / 900 * math.pi))
        assert rates[99 + current] == pytest.approx(paper, rel=1e-12, abs=1e-18)


@pytest.mark.parametrize("warmup", [20, 10, 0, 1])
def test_a_cosine_with_little_or_no_room(warmup: int) -> None:
    rates = cosine(steps=10, warmup=warmup)
    assert all(0 <= rate <= 0.5 for rate in rates)
    assert (rates[-1] == 0) == (warmup < 10)
    assert cosine(steps=1, warmup=warmup)[0] > 0


def test_a_cooldown_multiplies_the_cosine() -> None:
    plain, cooled = cosine(steps=100, warmup=10), cosine(steps=100, warmup=10, cooldown=0.2)
    assert cooled[:81] == plain[:81]
    for step in range(81, 101):
        assert cooled[step - 1] == pytest.approx(plain[step - 1] * min(1, (101 - step) / 20))


@pytest.mark.parametrize("steps", [1, 5, 2499, 10_000])
@pytest.mark.parametrize("kind", ["constant", "inverse_sqrt", "cosine"])
def test_a_short_run_rises_in_a_share_of_its_steps(steps: int, kind: str) -> None:
    options = ScheduleOptions(steps=steps, schedule=kind)
    found = rates(options)
    assert found.index(max(found)) + 1 == max(1, min(500, steps // 5))
    assert max(found) == pytest.approx(options.learning_rate) or (kind, steps) == ("cosine", 1)
