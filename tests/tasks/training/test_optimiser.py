"""The optimiser: what decays, what Muon takes, and a state that goes on to the last bit."""

from __future__ import annotations

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
from intently.tasks.training.optimiser import Optimiser
from intently.tasks.training.options import OptimiserOptions


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

MODELS = {
    **{
        f"{positions}, {share}": lambda positions=positions, share=share: Transformer(
            TransformerOptions(12, 12, 8, 2, inner=16, share=share, positions=positions)
        )
        for positions in POSITIONS
        for share in ("output", "all")
    },
    **{
        f"{cell}, {attention}": lambda cell=cell, attention=attention: RecurrentSeq2Seq(
            RecurrentOptions(12, 12, 8, cell, attention, encoder_layers=2)
        )
        for cell in CELLS
        for attention in ATTENTIONS
    },
    "language, learned positions": lambda: LanguageModel(LanguageOptions(12, 8, 2, positions=9)),
    "language, learned scores": lambda: LanguageModel(
        LanguageOptions(12, 8, 2, positions=None, attention=LEARNED, tied=False)
    ),
    "vision": lambda: VisionTransformer(VisionOptions((4, 4), 2, 3, width=8, heads=2, layers=1)),
}

TABLES = ("embedding", "positions", "table", "logits", "energy", "class_token", "norm", "bias")


@pytest.mark.parametrize("name", MODELS)
def test_tables_of_no_model_decay(name: str) -> None:
    net = MODELS[name]()
    groups = Optimiser(net, OptimiserOptions()).groups
    shapes = {name: parameter.ndim for name, parameter in net.named_parameters()}
    tables = [n for n in shapes if any(word in n for word in TABLES)]
    assert set(groups["matrices"]) == {n for n, axes in shapes.items() if axes == 2} - set(tables)
    assert groups["matrices"] and set(tables) <= set(groups["others"])


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
