"""`intently evaluate`: files, corpora by name, runs that know theirs, the built-in language."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest

from intently.cli.evaluate import described
from intently.tasks.corpora import ParallelText
from intently.tasks.recipes import Files, Origin
from intently.tasks.training.metrics import bleu, chrf, suitable
from intently.tasks.translation.evaluation import Scores
from intently.tasks.translation.translator import Translator

from ..command_line import Command, refused
from ..samples import parallel, write_pairs
from .conftest import save_recurrent


@pytest.fixture
def evaluate(intently: Command, tmp_path: Path) -> Command:
    Translator.load().save(tmp_path / "model")
    return partial(intently, "evaluate")


SCORES = [
    r"exact match \d+\.\d% \[\d+\.\d%, \d+\.\d%\]",
    r"lower-cased BLEU [\d.]+ \[[\d.]+, [\d.]+\] \(.*bs:5.*case:lc.*tok:13a.*version:.*\)",
    r"cased BLEU [\d.]+ \[[\d.]+, [\d.]+\] \(.*bs:5.*case:mixed.*tok:13a.*version:.*\)",
    r"chrF [\d.]+ \(.*version:.*\)",
]


def test_files_are_scored_with_every_signature(evaluate: Command) -> None:
    text = parallel("test", 5)
    write_pairs(ParallelText(text.sources, [target.upper() for target in text.targets]))
    outcome = evaluate("model", "s.txt", "t.txt", "--json", "all.json", "--beam", "2")
    first, _, name, *lines = outcome.out.strip().splitlines()
    assert first == "5 sentence pairs from s.txt and t.txt" and name == "s.txt: 5 sentences"
    for line, expected in zip(lines, SCORES, strict=True):
        assert re.fullmatch(expected, line), line
    found = json.loads(Path("all.json").read_text())
    assert (found["model"], found["beam"], found["length_penalty"]) == ("model", 2, 0.6)
    scores = found["tests"]["s.txt"]
    assert scores["exact"] == scores["exact_interval"][0] == 0 < scores["exact_interval"][1] < 0.5
    assert scores["lowercased"]["value"] > scores["bleu"]["value"]  # the references are in capitals
    assert len(scores["bleu"]["interval"]) == 2


def test_a_corpus_is_named(evaluate: Command, asked: list[object]) -> None:
    outcome = evaluate("model", "--corpus", "multi30k:en-de", "--data-dir", "d", "--beam", "1")
    assert outcome.status == 0, outcome.err
    assert asked == [("multi30k", "en", "de", str(Path("d").absolute()))]
    assert outcome.out.startswith("made by hand\n\ntest_one: 4 sentences\nexact match")
    assert "\n\ntest_two: 4 sentences\n" in outcome.out
    assert "alignment" not in outcome.out and "built-in" not in outcome.out


def test_a_run_knows_its_corpus(evaluate: Command, asked: list[object]) -> None:
    Origin("tatoeba", "en", "fr", "/data", "tatoeba-en-fr").save("model")
    assert "test_one: 4 sentences" in evaluate("model", "--beam", "1").out
    assert evaluate("model", "--beam", "1", "--data-dir", "/new").status == 0
    assert evaluate("model", "--beam", "1", "--corpus", "multi30k:en-fr").status == 0
    assert asked == [
        ("tatoeba", "en", "fr", "/data"),
        ("tatoeba", "en", "fr", "/new"),
        ("multi30k", "en", "fr", None),
    ]


def test_the_built_in_language_has_alignments(evaluate: Command) -> None:
    given = ("model", "--beam", "1", "--sentences", "5")
    outcome = evaluate(*given, "--corpus", "language:en-fr", "--json", "all.json")
    assert "novel: 5 sentences of the built-in language\nexact match" in outcome.out
    assert "alignment error rate of each head, on test:\n  decoder." in outcome.out
    found = json.loads(Path("all.json").read_text())
    assert list(found["tests"]) == ["test", "novel", "deeper"]
    errors = found["alignment_errors"]
    assert len(errors) == 8 and all(0 <= error <= 1 for error in errors.values())
    Origin("language", "en", "fr", recipe="language-transformer").save("model")
    assert evaluate(*given).out == outcome.out


def test_a_model_of_unknown_origin_is_not_scored_on_another_language(evaluate: Command) -> None:
    assert refused(evaluate("model")) == (
        "intently: SOURCE: expected sentences to translate, and references; got none, and model "
        "does not say what it was trained on. Give SOURCE and TARGET, a TSV, or --corpus "
        "language:en-fr for the built-in language.\n"
    )


def test_a_run_is_scored_on_its_own_dev_files(evaluate: Command) -> None:
    names = write_pairs(parallel("test", 5))
    Files(names[0], names[1], pairs=5, held_out=2).save("model")
    outcome = evaluate("model", "--beam", "1")
    assert outcome.out.splitlines()[0].startswith("the last 2 of 5 sentence pairs from ")
    assert "\ndev: 2 sentences\n" in outcome.out
    Path("d.tsv").write_text("I drink milk.\tJe bois du lait.\n", encoding="utf-8")
    Files(*names, ["d.tsv"], pairs=5).save("model")
    outcome = evaluate("model", "--beam", "1")
    assert "d.tsv: the dev set, which chose the checkpoint\n\ndev: 1 sent" in outcome.out
    Path("d.tsv").unlink()
    assert re.search(
        r"got none, and the run's own \S+/d.tsv is gone. Give SOURCE and TARGET",
        (refused(evaluate("model"))),
    )
    Files(*names, pairs=6, held_out=2).save("model")
    assert "expected the 6 pairs of which the run held out the last; got 5" in (
        refused(evaluate("model"))
    )


def test_bleu_is_no_headline_where_it_sees_no_words() -> None:
    perfect = ["私は牛乳を飲みます。", "お元気ですか。"]
    scores = Scores(
        2, 1.0, *(bleu(perfect, perfect),) * 2, chrf(perfect, perfect), suitable(perfect)
    )
    exact, first, why = described(scores).splitlines()
    assert exact.startswith("exact match 100.0%") and first.startswith("chrF 100.00 (")
    assert why.startswith("BLEU does not apply: it counts words between spaces")


def test_a_model_without_attention_has_no_alignment_to_print(evaluate: Command) -> None:
    save_recurrent("fixed", "none")
    given = ("fixed", "--corpus", "language:en-fr", "--beam", "1", "--sentences", "2")
    outcome = evaluate(*given, "--json", "all.json")
    assert outcome.status == 0, outcome.err
    assert "deeper: 2 sentences" in outcome.out and "alignment" not in outcome.out
    assert "alignment_errors" not in json.loads(Path("all.json").read_text())


FOLDER_OF_JSON = "--json: expected a file in a folder that exists; got "
NO_DATA_DIR = "--data-dir: expected a --corpus that is read from it; got "


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("s.txt", "--corpus", "multi30k:en-de"),
            "SOURCE, --corpus: expected one of them; got both.",
        ),
        (("--data-dir", "d"), f"{NO_DATA_DIR}none."),
        (("s.txt", "--json", "no/folder/s.json"), f"{FOLDER_OF_JSON}no/folder/s.json."),
        (("s.txt", "--json", "model"), f"{FOLDER_OF_JSON}model."),
        (("--corpus", "language:en-fr", "--data-dir", "d"), f"{NO_DATA_DIR}language:en-fr."),
        (("--corpus", "multi30k"), "--corpus: expected NAME:SOURCE-TARGET"),
        (("--corpus", "wmt:en-de"), "name: expected one of language, multi30k"),
        (("--corpus", "language:en-de"), "target: expected one of fr from en in language"),
    ],
)
def test_contradictions_are_refused(
    evaluate: Command, arguments: tuple[str, ...], said: str
) -> None:
    assert said in refused(evaluate("model", *arguments))
