"""`effects`: the numbers of one run for each edit, of runs that share what no edit changes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intently as it
from intently import edits
from intently.errors import ArgumentError, KindError
from intently.observe.measuring.effects import Deferred, Effects

from ..decoders import drawn

IDS = torch.tensor([[3, 14, 15, 9, 2, 6, 5]])
HEADS, WIDTH, LAYERS = 4, 8, 3


@contextmanager
def no_head(model: Any, layer: int, head: int) -> Any:
    """A head of GPT-2 whose output is zero, by a hook on the output projection."""

    def zero(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        mixed = given[0].clone()
        mixed[..., head * WIDTH : (head + 1) * WIDTH] = 0
        return (mixed,)

    hook = model.transformer.h[layer].attn.c_proj.register_forward_pre_hook(zero)
    try:
        yield
    finally:
        hook.remove()


def by_hooks(model: Any, scored: Callable[[], Any]) -> list[float]:
    found = []
    with torch.no_grad():
        for layer in range(LAYERS):
            for head in range(HEADS):
                with no_head(model, layer, head):
                    found.append(float(scored()))
    return found


def one_by_one(model: nn.Module, scored: Callable[[], Any], table: Effects) -> list[float]:
    """The scores of one whole run for each head that the table names."""
    found = []
    for row in table:
        off = {row["layer"]: edits.off(heads=[row["head"]])}
        with torch.no_grad(), it.edit(model, off):
            found.append(float(scored()))
    return found


def next_token(out: Any) -> Tensor:
    return out.logits[0, -1].log_softmax(-1)[7]


# --- the same numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "score",
    [
        next_token,
        lambda out: out.logits[:, -1].softmax(-1)[0, 3],
        lambda out: out[0][0, 2:4, 5].sum(),
        lambda out: -nn.functional.cross_entropy(out.logits[0, :-1], IDS[0, 1:]),
        lambda out: torch.tensor(out.logits[0, -1].tolist()).max(),
        lambda out: out.past_key_values.layers[0].keys.sum() + out.logits[0, -1, 0],
        lambda out: out.past_key_values.layers[2].values.norm(),
    ],
)
def test_the_numbers_are_those_of_hooks(gpt2: Any, score: Callable[[Any], Tensor]) -> None:
    table = it.effects(gpt2, lambda: gpt2(IDS), score, edits=edits.each_head(gpt2))
    assert table["layer"] == [
        f"transformer.h.{i}.attn" for i in range(LAYERS) for _ in range(HEADS)
    ]
    assert table["head"] == [*range(HEADS)] * LAYERS
    with torch.no_grad():
        plain = float(score(gpt2(IDS)))
    assert table["before"] == pytest.approx([plain] * len(table), abs=1e-5)
    assert table["after"] == pytest.approx(by_hooks(gpt2, lambda: score(gpt2(IDS))), abs=1e-5)
    gaps = [a - b for a, b in zip(table["after"], table["before"])]
    assert table["difference"] == pytest.approx(gaps, abs=1e-9)
    assert not any("forward" in vars(module) for module in gpt2.modules())


def test_only_rows_that_are_read_are_computed(gpt2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, rows = Deferred.whole, []

    def counted(self: Deferred) -> Tensor:
        made = whole(self)
        rows.append(made.numel() // made.shape[-1])
        return made

    monkeypatch.setattr(Deferred, "whole", counted)
    it.effects(gpt2, lambda: gpt2(IDS).logits, lambda y: y[0, -1].log_softmax(-1)[7])
    assert set(rows) == {1} and len(rows) > LAYERS * HEADS


def test_a_generation_runs_whole(gpt2: Any) -> None:
    def run() -> Tensor:
        return gpt2.generate(IDS, max_new_tokens=4, do_sample=False, pad_token_id=1)

    def score(made: Tensor) -> Tensor:
        return made.float().mean()

    table = it.effects(gpt2, run, score)
    assert table["after"] == by_hooks(gpt2, lambda: score(run()))


class Leaving(nn.Module):
    """A layer that leaves its output in a list, too."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor, left: list[Tensor]) -> Tensor:
        left.append(self.attention(x, x, x)[0])
        return x + left[-1]


class Sharing(nn.Module):
    """Layers of which the third reads what the first one left; outputs are changed in place."""

    def __init__(self, reads: int) -> None:
        super().__init__()
        self.layers, self.reads = nn.ModuleList(Leaving() for _ in range(4)), reads

    def forward(self, x: Tensor) -> Tensor:
        left: list[Tensor] = []
        for layer in self.layers:
            x = layer(x, left)
            if len(left) == 3 and self.reads:
                x = x * left[0]
            x += 0.5
        return x


@pytest.mark.parametrize("reads", [0, 1])
@pytest.mark.parametrize("training", [False, True])
def test_what_layers_leave_behind_and_change_in_place(training: bool, reads: int) -> None:
    torch.manual_seed(1)
    model = Sharing(reads).train(training)
    for layer in model.layers:
        layer.attention.dropout = 0.2 if training else 0.0  # pyright: ignore
    given = torch.randn(1, 5, 8)

    def run() -> Tensor:
        torch.manual_seed(2)
        return model(given)

    table = it.effects(model, run, lambda y: y[0, -1].sum(), edits=edits.each_key(model))
    assert len(table) == 4 * 5
    for row in table:
        with torch.no_grad(), it.edit(model, {row["layer"]: edits.forbid(keys=[row["key"]])}):
            want = float(run()[0, -1].sum())
        assert row["after"] == pytest.approx(want, rel=1e-5, abs=1e-5)


def test_random_inputs_are_not_mixed() -> None:
    model = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    outer = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    host = nn.ModuleDict({"before": outer, "attention": model})
    count = iter(range(1000))

    def run() -> Tensor:
        x = host["before"](torch.full((1, 3, 8), float(next(count))))
        return host["attention"](x, x, x)[0]

    table = it.effects(host, run, lambda y: y[0, 0, 0])
    assert len(set(table["after"])) == 2


@pytest.mark.parametrize("name", ["t5", "marian", "llama"])
def test_other_models(name: str) -> None:
    model = drawn(name)
    both = {"decoder_input_ids": IDS[:, :4]} if name != "llama" else {}

    def run() -> Any:
        return model(input_ids=IDS, **both)

    table = it.effects(model, run, next_token)
    assert len(table) == 4 * (6 if both else 2)
    expected = one_by_one(model, lambda: next_token(run()), table)
    assert table["after"] == pytest.approx(expected, abs=1e-5)
    assert max(map(abs, table["difference"])) > 1e-4


# --- edits ----------------------------------------------------------------------------------------


def test_each_layer_each_key_and_parts(gpt2: Any) -> None:
    def run() -> Any:
        return gpt2(IDS)

    layers = it.effects(gpt2, run, next_token, edits=edits.each_layer(gpt2))
    assert layers.columns == ("layer", "before", "after", "difference")
    assert len(layers) == LAYERS
    part = gpt2.transformer.h[1]
    keys = it.effects(gpt2, run, next_token, edits=edits.each_key(part))
    assert keys["key"] == [*range(IDS.shape[1])] and set(keys["layer"]) == {"transformer.h.1.attn"}
    with torch.no_grad(), it.edit(gpt2, {"transformer.h.1.attn": edits.forbid([2])}):
        assert keys["after"][2] == pytest.approx(float(next_token(run())), abs=1e-5)
    uniform = it.effects(gpt2, run, next_token, edits=edits.each_head(part, edits.uniform))
    with torch.no_grad(), it.edit(gpt2, {"transformer.h.1.attn": edits.uniform(heads=[3])}):
        assert uniform["after"][3] == pytest.approx(float(next_token(run())), abs=1e-5)


def test_edits_by_name_and_in_a_list(gpt2: Any) -> None:
    named = {
        "no first word": edits.forbid("a"),
        "both": {"transformer.h.0.attn": edits.off(), "*.2.*": edits.uniform(heads=1)},
    }
    words = list("abcdefg")
    table = it.effects(gpt2, lambda: gpt2(IDS), next_token, edits=named, tokens=words)
    assert table["edit"] == ["no first word", "both"]
    listed = it.effects(gpt2, lambda: gpt2(IDS), next_token, edits=[*named.values()], tokens=words)
    assert listed["after"] == table["after"]
    assert listed["edit"][0] == "forbid(keys='a')"
    for found, given in zip(table["after"], named.values()):
        with torch.no_grad(), it.edit(gpt2, given, tokens=words):
            assert found == pytest.approx(float(next_token(gpt2(IDS))), abs=1e-5)


def test_the_table(gpt2: Any, tmp_path: Any) -> None:
    table = it.effects(gpt2, lambda: gpt2(IDS), next_token)
    strongest = table.strongest()
    assert isinstance(strongest, Effects)
    sizes = [abs(x) for x in strongest["difference"]]
    assert sizes == sorted(sizes, reverse=True)
    assert len(table.filter(layer="*.0.*", head=1)) == 1
    table.csv(tmp_path / "t.csv")
    head, *lines = (tmp_path / "t.csv").read_text().splitlines()
    assert head == "layer,head,before,after,difference" and len(lines) == len(table)


def test_everything_is_undone(gpt2: Any) -> None:
    calls = iter(range(100))

    def score(out: Any) -> Tensor:
        if next(calls) == 6:
            raise RuntimeError("enough")
        return next_token(out)

    before = gpt2(IDS).logits
    with pytest.raises(RuntimeError, match="enough"):
        it.effects(gpt2, lambda: gpt2(IDS), score)
    assert not any("forward" in vars(module) for module in gpt2.modules())
    assert torch.equal(gpt2(IDS).logits, before)


def test_refusals(gpt2: Any) -> None:
    def run() -> Any:
        return gpt2(IDS)

    def asked(**given: Any) -> Callable[[], Any]:
        return lambda: it.effects(gpt2, given.pop("run", run), **{"score": next_token, **given})

    with pytest.raises(ArgumentError, match="score"):
        asked(score=lambda out: out.logits)()
    with pytest.raises(ArgumentError, match="score"):
        asked(score=lambda out: "high")()
    with pytest.raises(ArgumentError, match="a module in which attention is seen"):
        asked(edits=edits.each_head(gpt2.lm_head))()
    with pytest.raises(ArgumentError, match="the model, or a module of it"):
        asked(edits=edits.each_head(nn.Linear(2, 2)))()
    with pytest.raises(KindError, match="edits"):
        asked(edits="heads")()
    with pytest.raises(ArgumentError, match="act in all layers"):
        asked(edits={"transformer.h.0.attn": edits.off()})()


# --- what is not computed yet ---------------------------------------------------------------------


def test_deferred_rows_are_those_of_the_whole() -> None:
    x, weight, bias = torch.randn(2, 5, 8), torch.randn(11, 8), torch.randn(11)
    later, whole = Deferred(x, weight, bias), nn.functional.linear(x, weight, bias)
    rows = torch.tensor([0, 1]), torch.tensor([4, 2])
    for lazy, chosen in [
        (later[0, -1], whole[0, -1]),
        (later[:, 1:3], whole[:, 1:3]),
        (later[rows], whole[rows]),
        (later.select(0, 1), whole.select(0, 1)),
        (later.index_select(1, rows[1]), whole.index_select(1, rows[1])),
    ]:
        assert type(lazy) is Deferred and lazy.shape == chosen.shape
        torch.testing.assert_close(lazy.exp(), chosen.exp())
    for dense, chosen in [
        (later[..., 3], whole[..., 3]),
        (later[whole > 0], whole[whole > 0]),
        (later.float().mean(), whole.mean()),
        (torch.from_numpy(later.numpy()), whole),
    ]:
        assert type(dense) is Tensor
        torch.testing.assert_close(dense, chosen)
    assert later.shape == whole.shape and later.dtype == whole.dtype
