"""`intently effects`: what is forbidden, what comes of it, tables and pictures."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path

import pytest
import torch

import intently as it
from intently import edits
from intently.tasks.decoding import SearchOptions
from intently.tasks.runners import output
from intently.tasks.translation.translator import Translator

from ..command_line import Command, refused
from .conftest import save_language_model

ROAD = "The road was too wide."
GREEDY = SearchOptions(beam=1)


@pytest.fixture
def asked(intently: Command) -> Command:
    return partial(intently, "effects")


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def fell(out: str) -> tuple[float, float]:
    """The log-probability before and after."""
    line = next(x for x in out.splitlines() if x.startswith("log-probability"))
    before, after = line.partition(": ")[2].partition(",")[0].split(" → ")
    return float(before), float(after)


def test_words_of_the_output_in_the_embedded_translator(asked: Command, tmp_path: Path) -> None:
    table, picture = tmp_path / "t.csv", tmp_path / "t.png"
    text = "How are you?"
    outcome = asked(text, "--forbid", "allez-vous", "--csv", table, "--out", picture)
    assert outcome.status == 0
    was, becomes, *_ = outcome.out.splitlines()
    assert was == "Comment allez-vous ?"
    translator = Translator.load()
    forbidden = {f"decoder.{n}.self_attention": edits.forbid([2]) for n in (0, 1)}
    with it.edit(translator.model, forbidden):
        (made,) = translator.translate([text], GREEDY)
    assert becomes == f"becomes: {made.text}" and made.text != was
    before, after = fell(outcome.out)
    (whole,) = translator.translate([text], GREEDY)
    assert before == pytest.approx(whole.hypothesis.log_probability, abs=1e-4)
    assert after < before - 1
    found = rows(table)
    assert {row["layer"] for row in found} == set(forbidden) and len(found) == 8
    sizes = [abs(float(row["difference"])) for row in found]
    assert sizes == sorted(sizes, reverse=True)
    assert picture.stat().st_size > 1000


def test_one_word_that_may_not_look_at_another(asked: Command, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    assert asked(ROAD, "--forbid", "route -> road", "--csv", table).status == 0
    layers = [f"decoder.{n}.cross_attention" for n in (0, 1)]
    assert {row["layer"] for row in rows(table)} == set(layers)
    made = output(None, ROAD)
    with torch.no_grad(), it.edit(made.model, {layers[0]: edits.forbid([1], rows=[1], heads=[2])}):
        want = float(made.log_probability(made.logits()))
    [row] = [row for row in rows(table) if (row["layer"], row["head"]) == (layers[0], "2")]
    assert float(row["after"]) == pytest.approx(want, abs=1e-5)
    assert asked(ROAD, "--forbid", "wide → road", "--csv", table).status == 0
    assert {row["layer"] for row in rows(table)} == {f"encoder.{n}.self_attention" for n in (0, 1)}


def test_heads_off_of_another_output(asked: Command, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    given = ("--layer", "decoder.*.cross_attention", "--head", "1", "--head", "3")
    outcome = asked(ROAD, *given, "--score", "La route était trop étroite.", "--csv", table)
    assert outcome.out.startswith("La route était trop étroite.\nbecomes: ")
    assert sorted(row["head"] for row in rows(table)) == ["1", "1", "3", "3"]
    before, _ = fell(outcome.out)
    assert before < -1


def test_nothing_asked_for_is_every_head_off(asked: Command, tmp_path: Path) -> None:
    folder = Translator.load().save(tmp_path / "run" / "model").parent
    outcome = asked(folder, ROAD, "--csv", "t.csv")
    assert outcome.status == 0 and "becomes" not in outcome.out
    assert len(rows(Path("t.csv"))) == 24


@pytest.mark.parametrize("kind", ["gpt2", "llama", "t5"])
def test_transformers_folders(asked: Command, folders: Path, kind: str) -> None:
    outcome = asked(folders / kind, "The cat sat on", "--layer", "*", "--csv", "t.csv")
    assert outcome.status == 0, outcome.err
    found = rows(Path("t.csv"))
    made = output(folders / kind, "The cat sat on")
    assert outcome.out.startswith(made.text or "∅")
    for row in found:
        off = {row["layer"]: edits.off(heads=[int(row["head"])])}
        with torch.no_grad(), it.edit(made.model, off):
            want = float(made.log_probability(made.logits()))
        assert float(row["after"]) == pytest.approx(want, abs=1e-5)


def test_words_of_a_language_model(asked: Command, folders: Path) -> None:
    given = (folders / "gpt2", "The cat sat on", "--forbid", "on → cat", "--score", "the mat")
    outcome = asked(*given, "--csv", "t.csv")
    assert outcome.out.startswith("the mat\nbecomes: ")
    made = output(folders / "gpt2", "The cat sat on", "the mat")
    assert made.ids.shape == (2,) and [*made.source] == ["The", "cat", "sat", "on", "the"]
    off = {"transformer.h.1.attn": edits.forbid([1], rows=[3], heads=[0])}
    with torch.no_grad(), it.edit(made.model, off):
        want = float(made.log_probability(made.logits()))
    [row] = [r for r in rows(Path("t.csv")) if (r["layer"], r["head"]) == (*off, "0")]
    assert float(row["after"]) == pytest.approx(want, abs=1e-5)


def test_the_logit_difference_to_another_output(asked: Command, folders: Path) -> None:
    given = (folders / "gpt2", "The cat sat on", "--score", "the mat")
    assert asked(*given, "--against", "the cat", "--csv", "t.csv").status == 0
    made = output(folders / "gpt2", "The cat sat on", "the mat")
    with torch.no_grad():
        step = made.logits()[1]  # both begin with "the"
    want = float(step[made.ids[1]] - step[made.encode("the cat")[1]])
    assert all(float(row["before"]) == pytest.approx(want, abs=1e-5) for row in rows(Path("t.csv")))
    assert "--against: expected an output that parts from" in asked(*given, "--against", "the").err


def test_our_language_model(asked: Command, tmp_path: Path) -> None:
    text = "The cat sat on"
    made = save_language_model(tmp_path / "lm", text)
    tokenizer = made.tokenizer
    outcome = asked(tmp_path / "lm", text, "--forbid", "cat", "--csv", "t.csv")
    assert outcome.status == 0, outcome.err
    assert len(rows(Path("t.csv"))) == 4
    with torch.no_grad():
        logits = made.model(torch.tensor([tokenizer.encode(text)]))[0, -1]
    assert outcome.out.startswith(tokenizer.decode([int(logits.argmax())]).strip() or "∅")
    before, _ = fell(outcome.out)
    assert before == pytest.approx(float(logits.log_softmax(-1).max()), abs=1e-4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--forbid", "river"), "--forbid: expected words that a layer reads; got 'river'"),
        (("--forbid", "a → b → c"), "--forbid: expected 'WORD → WORD' or 'WORD'"),
        (("--head", "9"), "--head: expected heads from 0 to 3; got 9"),
        (("--layer", "nowhere"), "layers: expected names of modules"),
    ],
)
def test_refusals(asked: Command, given: tuple[str, ...], said: str) -> None:
    assert said in refused(asked(ROAD, *given))


def test_a_model_that_writes_nothing(asked: Command, folders: Path) -> None:
    assert "a model that writes text" in refused(asked(folders / "bert", "The cat sat"))
