"""The instrument of `benchmarks/breadth`: its truth, and that it notices what is wrong."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.attention import flex_attention

import intently as it

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    pytest.importorskip("einops")
    monkeypatch.syspath_prepend(str(ROOT))


class Routes(nn.Module):
    def forward(self, x):
        weights, chosen = x.softmax(-1).topk(2)
        return (weights[..., None] * x[:, :, None]).sum(-2), chosen


class RoutesLate(nn.Module):
    def forward(self, x):
        weights, chosen = x[:, 0].topk(2)
        return (weights.softmax(-1)[..., None] * x[:, :2]).sum(1), chosen


class RoutesByLogarithms(nn.Module):
    def forward(self, x):
        logits, chosen = x[:, 0].topk(2)
        logs = nn.functional.logsigmoid(torch.cat([logits, x[:, 0, :1]], -1))
        weights = (logs - logs.logsumexp(-1, keepdim=True)).exp()
        return (weights[..., None] * x[:, :3]).sum(1), chosen


class Samples(nn.Module):
    def forward(self, x):
        return x[0].softmax(-1).multinomial(1)


class Expects(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("bins", torch.arange(32.0))

    def forward(self, x):
        return x.softmax(-1) @ self.bins


class MixesLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.randn(5))

    def forward(self, x):
        return torch.einsum("blc,l->bc", x, torch.softmax(self.logits, 0))


class Windows(nn.Module):
    """Causal attention to the 9 nearest places, in blocks of 4 queries and 12 keys."""

    def forward(self, x):
        q = x.unflatten(2, (-1, 4))
        windows = nn.functional.pad(x, (0, 0, 8, 0)).unfold(2, 12, 4).mT
        row, key = torch.arange(4)[:, None], torch.arange(12)
        hidden = (key < row) | (key > row + 8)
        hidden = hidden | (key + 4 * torch.arange(q.shape[2])[:, None, None] < 8)
        return (q @ windows.mT).masked_fill(hidden, -1e9).softmax(-1) @ windows


class Flexible(nn.Module):
    def forward(self, x):
        return flex_attention.flex_attention(query=x, key=x, value=x)


def truth(model, x, mode=torch.no_grad):
    from benchmarks.breadth.truth import Truth

    found = Truth(model, len(x))
    with mode(), found.on():
        model(x)
    return found


def styles():
    sys.path.insert(0, str(ROOT))
    try:
        return [*pytest.importorskip("benchmarks.breadth.styles").STYLES]
    finally:
        sys.path.remove(str(ROOT))


UNATTENDED = {"over_queries", "Performer", "LinearAttention", "SigmoidAttention", "Router"}
"""No softmax over keys meets values."""


@pytest.mark.parametrize("style", styles())
def test_a_style_by_hand_is_seen_as_it_really_ran(style):
    from benchmarks.breadth.__main__ import run

    row = run("by hand", style)
    expected = "no attention" if style in UNATTENDED else "right"
    assert row.verdict == expected, row.reasons
    assert not row.failed


@pytest.mark.parametrize(
    ("style", "count"),
    [
        ("mingpt", 2),
        ("lucidrains", 2),
        ("keys_first", 2),
        ("concatenated", 2),
        ("sink_column", 2),
        ("exp_and_sum", 2),
        ("log_softmax_exp", 2),
        ("weighted_sum", 2),
        ("talking_heads", 2),
        ("row_by_row", 16),
        ("fused", 2),
        ("fused_operator", 2),
        ("pooling", 1),
        ("luong_recurrent", 3),
        ("cached_by_hand", 14),
    ],
)
def test_truth_finds_every_softmax_that_meets_values(style, count):
    from benchmarks.breadth import styles

    model, given = styles.build(style)
    for mode in (torch.no_grad, torch.inference_mode):
        assert len(truth(model, given["input"], mode).found) == count


@pytest.mark.parametrize(
    "kind", [Routes, RoutesLate, RoutesByLogarithms, Samples, Expects, MixesLayers]
)
def test_routers_samplers_and_expectations_are_no_attention(kind):
    found = truth(kind(), torch.randn(2, 5, 32))
    assert found.all and not found.found


def test_flex_attention_may_be_called_by_keywords():
    # the compiler lists torch's functions once, and may have done so while some were replaced
    torch._dynamo.trace_rules.get_torch_obj_rule_map.cache_clear()
    torch._dynamo.reset()
    x = torch.randn(2, 2, 5, 16)
    (found,) = truth(Flexible(), x).found
    assert torch.allclose(found.weights, it.attend(x, x).dense(), atol=1e-5)


def test_fused_weights_are_those_of_the_formula():
    from benchmarks.breadth.fused import fused_weights

    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 6, 8)
    mask = torch.rand(5, 6) > 0.3
    weights = fused_weights(q, k, mask, scale=0.5).float()
    expected = it.attend(q, k, mask=it.allowed(mask), scale=0.5).dense()
    assert torch.allclose(weights, expected, atol=1e-5)


def banded(x):
    """The weights of `Windows`, as one matrix."""
    at = torch.arange(x.shape[-2])
    distance = at[:, None] - at
    return (x @ x.mT).masked_fill((distance < 0) | (distance > 8), -1e9).softmax(-1)


@pytest.mark.parametrize("copies", [1, 2])
def test_windows_that_overlap_are_one_matrix_too(copies):
    x = torch.randn(2, 3, 12, 8).repeat(1, copies, 1, 1)  # heads may share values
    (found,) = truth(Windows(), x).found
    assert torch.allclose(found.forms()[-1].float(), banded(x).flatten(0, 2), atol=1e-6)


def test_windows_of_other_values_or_without_overlap_are_none():
    from benchmarks.breadth.marks import laid_out

    weights = torch.randn(3, 2, 4).softmax(-1)
    assert laid_out(weights, torch.randn(3, 4, 8)) is None
    assert laid_out(weights, torch.randn(12, 8).view(3, 4, 8)) is None
    assert laid_out(weights, torch.randn(7, 8).unfold(0, 4, 1)[:3].mT) is None  # moved by 1, not 2
    assert laid_out(weights, torch.randn(8, 8).unfold(0, 4, 2).mT) is not None


@pytest.mark.parametrize("length", [12, 16])
@pytest.mark.parametrize(("how", "state"), [("nothing", "right"), ("keys moved by one", "wrong")])
def test_windows_recorded_as_one_matrix_are_compared_place_by_place(
    how, state, length, monkeypatch
):
    from benchmarks.breadth import compare

    x = torch.randn(2, 3, length, 8)
    model = Windows()
    with torch.no_grad(), it.watch(model, deep=True) as seen:
        model(x)
    assert seen.calls[0].attention().dense().shape == (2, 3, length, length)
    read = compare.held
    monkeypatch.setattr(compare, "held", lambda recording: spoilt(read(recording), how))
    assert compare.judge(truth(model, x).found, [], seen).state == state


def spoilt(held, how):
    """Entries as a faulty recording would hold them."""
    if how == "one is missing":
        return held[:-1]
    if how == "half of the rows":
        return [x._replace(rows=x.rows[: len(x.rows) // 2]) for x in held]
    if how == "another scale":
        return [x._replace(rows=(x.rows.log() * 1.02).softmax(-1)) for x in held]
    if how == "keys moved by one":
        return [x._replace(rows=x.rows.roll(1, -1)) for x in held]
    return held


@pytest.mark.parametrize(
    ("how", "state"),
    [
        ("nothing", "right"),
        ("one is missing", "silent miss"),
        ("half of the rows", "silent miss"),
        ("another scale", "wrong"),
        ("keys moved by one", "wrong"),
    ],
)
def test_faults_of_a_recording_are_noticed(how, state, monkeypatch):
    from benchmarks.breadth import compare, run, styles

    model, given = styles.build("fused")
    run.stirred(model)
    with torch.no_grad(), it.watch(model) as seen:
        model(**given)
    read = compare.held
    monkeypatch.setattr(compare, "held", lambda recording: spoilt(read(recording), how))
    found = compare.judge(truth(model, given["input"]).found, [], seen)
    assert found.state == state


class Halved(nn.Module):
    """Half of the weights of a softmax meets the values, and a product of features."""

    def forward(self, x):
        half = (x @ x.mT).softmax(-1) / 2
        features = x.relu() + 1
        linear = features @ (features.mT @ x) / (features @ features.sum(-2)[..., None])
        return half @ x + linear


@pytest.mark.parametrize(
    ("factor", "state"), [("half", "right"), ("linear", "right"), ("scores", "wrong")]
)
def test_an_entry_may_hold_the_factors_of_a_product(factor, state, monkeypatch):
    from benchmarks.breadth import compare

    x, model = torch.randn(2, 6, 4), Halved()
    ran = truth(model, x)
    (whole,), features = ran.found, x.relu() + 1
    linear = features @ features.mT
    rows = {
        "half": whole.weights / 2,
        "linear": linear / linear.sum(-1, keepdim=True),
        "scores": (x @ x.mT / 3).softmax(-1),
    }
    entries = [
        compare.Held("", True, w.double().flatten(0, 1), None, 6)
        for w in (whole.weights, rows[factor])
    ]
    monkeypatch.setattr(compare, "held", lambda recording: entries)
    assert compare.judge(ran.found, [], None, ran.factors).state == state


@pytest.mark.parametrize(("join", "state"), [(False, "right"), (True, "wrong")])
def test_two_texts_in_one_matrix_are_wrong(join, state, monkeypatch):
    from benchmarks.breadth import compare
    from benchmarks.breadth.marks import Attended

    weights = torch.randn(2, 6, 6).softmax(-1)
    rows = torch.block_diag(*weights) if join else weights.flatten(0, 1)
    entry = compare.Held("", True, rows.double(), None, 12 if join else 6)
    monkeypatch.setattr(compare, "held", lambda recording: [entry])
    assert compare.judge([Attended("", "", weights, batch=2)], [], None).state == state


def test_types_that_no_auto_class_builds_are_no_families(monkeypatch):
    from benchmarks.breadth import of_transformers

    listed = {
        "MODEL": {"bert": "BertModel", "ghost": "GhostModel"},
        "MODEL_FOR_X": {"t5": ("T5Model",)},
    }
    monkeypatch.setattr(of_transformers, "_mappings", lambda: listed)
    assert of_transformers.families() == ["bert", "t5"]


def test_a_class_of_another_configuration_is_not_built():
    """AutoModel names the decoder of MusicGen for all of it."""
    from benchmarks.breadth import of_transformers

    kinds = of_transformers._classes("musicgen")
    assert {kind.__name__ for kind in kinds} == {"MusicgenForConditionalGeneration"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"num_hidden_layers": 12}, {"num_hidden_layers": 2}),
        (
            {"num_hidden_layers": 12, "out_indices": [3, 6, 9, 12]},
            {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]},
        ),
        (
            {"depths": [2, 2, 6, 2], "num_layers": 4, "out_indices": [2, 4]},
            {"depths": [1, 1, 1, 1], "num_layers": 4, "out_indices": [2, 4]},
        ),
        ({"queries": {1225: 128, "layers": 9}}, {"queries": {1225: 128, "layers": 9}}),
    ],
)
def test_small_configurations_keep_what_a_backbone_hands_out(given, expected):
    from benchmarks.breadth.shrink import shrunk

    assert shrunk(given) == expected


def test_parts_without_an_implementation_run_eagerly_beside_the_rest():
    import transformers

    from benchmarks.breadth import of_transformers
    from benchmarks.breadth.shrink import made

    config = made(transformers.DetrConfig, "detr")
    model = of_transformers._built(transformers.DetrModel, config, "sdpa")
    used = {
        type(x).__name__: x.config._attn_implementation
        for x in model.modules()
        if hasattr(x, "config")
    }
    assert used["DetrModel"] == used["DetrSelfAttention"] == "sdpa"
    assert used["ResNetBackbone"] == "eager"
