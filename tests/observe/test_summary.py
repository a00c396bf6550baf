"""The table of heads: its numbers, its order, its files."""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import intently as it
from intently.core.matrix import patterns
from intently.core.matrix.alignment import Alignment, alignment_error_rate, alignment_errors
from intently.errors import ArgumentError, KindError, MissingLibraryError
from intently.observe.recording.summary import SHOWN, Summary

from ..messages import Refusals, raises

IDS = torch.tensor([[3, 4, 3, 5, 4, 9], [7, 7, 7, 1, 0, 0]])


def layer(seed: int, heads: int = 2, t: int = 6, **options: Any) -> it.Attention:
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(2, heads, n, 4, generator=generator) for n in (t, 6))
    return it.attend(q, k, scale=1.0, **options)


def table() -> Summary:
    padded = it.causal() & it.padding(torch.tensor([6, 4]))
    return Summary.of(
        [
            ("h.2", layer(1, mask=padded), IDS),
            ("h.10", layer(2, heads=3, mask=padded), IDS),
            ("cross", layer(3, t=4), None),
        ]
    )


def test_one_row_for_each_head() -> None:
    found = table()
    assert found.columns == (
        *("layer", "head", "queries", "entropy", "confidence", "sink", "self", "previous"),
        *("duplicate", "induction", "distance", "divergence"),
    )
    assert found["layer"] == ["h.2"] * 2 + ["h.10"] * 3 + ["cross"] * 2
    assert found["head"] == [0, 1, 0, 1, 2, 0, 1]
    assert found["queries"] == [10] * 5 + [8] * 2
    assert len(found) == 7 and [row["head"] for row in found] == found["head"]
    assert all(math.isnan(x) for x in found["induction"][5:])
    assert all(0 <= x <= 1 for x in found["induction"][:5])


def test_numbers_are_means_over_the_queries_of_all_items() -> None:
    A = layer(1, mask=it.causal() & it.padding(torch.tensor([6, 4])))
    entropy, previous = A.entropy(), patterns.mass_on(A, patterns.previous())
    confidence = A.top(1)[0][..., 0]
    for n, x in (("entropy", entropy), ("confidence", confidence), ("previous", previous)):
        first = int(n == "previous")
        kept = torch.cat([x[0, :, first:], x[1, :, first:4]], -1)
        torch.testing.assert_close(torch.tensor(table()[n][:2]), kept.mean(-1))


def test_matrices_without_items_or_heads() -> None:
    A = layer(1)
    found = Summary.of([("layer", A[0], None), ("head", A[0, 1], None)])
    assert found["layer"] == ["layer", "layer", "head"] and found["head"] == [0, 1, 0]
    assert found["entropy"][1] == pytest.approx(found["entropy"][2])
    assert math.isnan(found["divergence"][2])


def test_a_head_that_attends_to_nothing_has_no_numbers() -> None:
    found = Summary.of([("blind", layer(1, mask=it.causal(-9)), None)])
    assert found["queries"] == [0, 0] and all(math.isnan(x) for x in found["entropy"])
    assert str(found).split() == [
        *["layer", "head", "queries", "blind", "0", "0", "blind", "1", "0"]
    ]
    assert len(Summary.of([])) == 0 and str(Summary.of([])) == "layer  head  queries"


def test_sorted() -> None:
    found = table()
    for reverse in (False, True):
        values = found.sort("entropy", reverse=reverse)["entropy"]
        assert values == sorted(found["entropy"], reverse=reverse)
        assert all(math.isnan(x) for x in found.sort("induction", reverse=reverse)["induction"][5:])
    assert found.sort("layer")["layer"] == ["cross"] * 2 + ["h.2"] * 2 + ["h.10"] * 3
    assert found["layer"][0] == "h.2"


def test_filtered() -> None:
    found = table()
    assert len(found.filter(layer="h.*")) == 5 and len(found.filter(layer="h.*", head=2)) == 1
    most = max(found["induction"][:5])
    assert found.filter(lambda row: row["induction"] >= most)["induction"] == [most]
    assert len(found.filter(lambda row: row["induction"] >= 0, head=0)) == 2
    assert found.filter(layer="nothing").columns == found.columns
    assert len(Summary.of([("a[0]", layer(1), None)]).filter(layer="a[0]")) == 2


def test_printed() -> None:
    blocks = [block.split("\n") for block in str(table()).split("\n\n")]
    names = [lines[0].split() for lines in blocks]
    assert [*names[0], *names[1][2:]] == list(table().columns)
    assert names[1][:2] == ["layer", "head"]
    for lines in blocks:
        assert len({len(line) for line in lines}) == 1 and lines[-1].startswith("cross")
    assert repr(table()) == str(table())
    many = Summary.of([(f"h.{n}", layer(n), None) for n in range(30)])
    assert len(str(many).split("\n")) == 2 * 61 + 1
    assert repr(many).split("\n")[2 * SHOWN + 3] == f"… {60 - SHOWN} rows more: print(table)"
    raw = Summary.of([("a\x1b[31m\nb", layer(1), None)])
    assert "a\\x1b[31m\\nb" in str(raw) and "\x1b" not in str(raw)


def test_what_is_printed_fits_a_terminal() -> None:
    """Columns without a number are left out; rows are named in each block."""
    A = layer(1, mask=it.causal())
    found = Summary.of([("decoder.10.cross_attention", A, torch.arange(6))])
    assert math.isnan(found["induction"][0]) and "induction" not in str(found)
    assert max(map(len, str(found).split("\n"))) <= 80
    long = Summary.of([("x" * 60, layer(1), None)])
    blocks = [block.split("\n") for block in str(long).split("\n\n")]
    assert len(blocks) == 2 and all(lines[1][:60] == "x" * 60 for lines in blocks)
    assert all(lines[0].split()[:2] == ["layer", "head"] for lines in blocks)


def test_rows_are_copies() -> None:
    found = table()
    next(iter(found))["entropy"] = -1.0
    assert min(found["entropy"]) >= 0


def test_csv(tmp_path: Path) -> None:
    found = table()
    found.csv(tmp_path / "heads.csv")
    with open(tmp_path / "heads.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == found.columns
    assert [float(row["entropy"]) for row in rows] == found["entropy"]
    assert [row["layer"] for row in rows] == found["layer"]
    assert rows[-1]["induction"] == "" and int(rows[-1]["queries"]) == 8


def test_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = SimpleNamespace(DataFrame=lambda rows, columns: (rows, columns))
    monkeypatch.setitem(sys.modules, "pandas", stand_in)
    rows, columns = table().pandas()
    assert columns == list(table().columns) and rows[0].keys() == set(columns) and len(rows) == 7


def test_real_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = table().pandas()
    assert isinstance(frame, pandas.DataFrame) and frame.induction.isna().sum() == 2


def test_pandas_is_asked_for_only_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    expected = "pandas: expected pandas, which makes data frames; got an environment without it."
    with pytest.raises(MissingLibraryError, match=expected) as caught:
        table().pandas()
    assert isinstance(caught.value, ImportError)


# --- alignment error ----------------------------------------------------------------------------


def test_alignment_errors_of_a_corpus() -> None:
    """Two heads, two sentences of different lengths: each head is scored over both."""
    gold = [Alignment.of([(0, 0), (1, 1)]), Alignment.of([(0, 0), (2, 1)], [(1, 1)])]
    right = [torch.eye(2), torch.tensor([[1.0, 0, 0], [0, 0.25, 0.75]])]
    matrices = [it.Dense(torch.stack([w, w.flip(0)])) for w in right]
    found = alignment_errors(matrices, gold)
    for head in range(2):
        best = [m.dense()[head].argmax(-1).tolist() for m in matrices]
        links = [{(s, t) for t, s in enumerate(row)} for row in best]
        assert found[head] == alignment_error_rate(links, gold)
    assert found[0] == 0 and found[1] > 0.5


GOLD = [Alignment.of([(0, 0)])]
CASES: Refusals = {
    ArgumentError: {
        "column: expected one of layer, head, queries, entropy, confidence, sink, self, previous, "
        "duplicate, induction, distance, divergence; got 'heads'.": lambda: table().sort("heads"),
        "column: expected one of layer, head, queries, entropy, confidence, sink, self, previous, "
        "distance, divergence; got 'induction'.": lambda: Summary.of(
            [("cross", layer(1, t=4), None)]
        ).filter(induction=1),
        "ids: expected shape (s,) = (6,) or (2, 6); got shape (2, 4).": lambda: Summary.of(
            [("x", layer(1), IDS[:, :4])]
        ),
        "matrices: expected one for each of 1 gold alignments, and at least one; got 0.": lambda: (
            alignment_errors([], GOLD)
        ),
        "matrices: expected (h, t, s) each, the same h in all; got shape (2, 2, 6, 6). Pass "
        "one sentence pair at a time: A[0] of a batch (b, h, t, s).": lambda: alignment_errors(
            [layer(1)], GOLD
        ),
    },
    KindError: {
        "matrix: expected a lazy matrix; got Tensor. Wrap dense weights: "
        "it.Dense(weights).": lambda: Summary.of([("x", torch.eye(3), None)])
    },
}


test_messages = raises(CASES, whole=True)
