"""From pairs to a translator: tokenizers, resuming, and what is exported."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from intently.corpora import sample
from intently.corpora.files import ParallelText
from intently.errors import ArgumentError, DataError
from intently.runs import fit
from intently.text import Tokenizer
from intently.training import Checkpoints, Stepped, TrainingOptions
from intently.translator import Translator

OPTIONS = TrainingOptions().with_flags(
    width=16, heads=2, encoder_layers=1, decoder_layers=1, inner=16, steps=6, warmup=2,
    batch_tokens=200, save_every=2, evaluate_every=3, threads=1, source_tokenizer="word",
    target_tokenizer="word", max_length=12,
)  # fmt: skip


@pytest.fixture(scope="module")
def text() -> ParallelText:
    pairs = sample("train", 60)
    return ParallelText([p.source for p in pairs], [p.target for p in pairs])


@pytest.fixture(scope="module")
def dev() -> ParallelText:
    pairs = sample("validation", 4)
    return ParallelText([p.source for p in pairs], [p.target for p in pairs])


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pairs have more than:UserWarning"),
    pytest.mark.filterwarnings("ignore::intently.translator.TranslationWarning"),
]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return Translator.load(folder).model.state_dict()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(x, other[name]) for name, x in one.items())


def test_a_run_writes_a_translator(text: ParallelText, dev: ParallelText, tmp_path: Path) -> None:
    run = fit(text, OPTIONS, tmp_path, dev=dev)
    assert run.history.stopped == "finished"
    assert [e.step for e in run.history.evaluations] == [3, 6]
    assert run.pairs + run.too_long == len(text)
    assert same(weights(tmp_path), run.translator.model.state_dict())
    assert TrainingOptions.from_json(tmp_path / "options.json") == OPTIONS
    assert isinstance(Translator.load(tmp_path).translate(["He."])[0].text, str)


def test_the_best_checkpoint_is_exported(
    text: ParallelText, dev: ParallelText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([9.0, 1.0])

    def scored(self: Any, model: Any) -> dict[str, float]:
        return {"bleu": next(scores)}

    monkeypatch.setattr("intently.training.DevSet.__call__", scored)
    run = fit(text, OPTIONS, tmp_path, dev=dev)
    assert run.history.best is not None and run.history.best.name == "step-000003"
    best = Checkpoints(tmp_path / "checkpoints").load("step-000003").model
    assert same(best, weights(tmp_path))


def test_without_a_dev_set_the_last_weights_are_exported(
    text: ParallelText, tmp_path: Path
) -> None:
    run = fit(text, OPTIONS, tmp_path)
    assert run.history.evaluations == []
    assert same(Checkpoints(tmp_path / "checkpoints").load().model, weights(tmp_path))


def test_an_interrupted_run_is_usable_and_goes_on(text: ParallelText, tmp_path: Path) -> None:
    whole = fit(text, OPTIONS, tmp_path / "whole")

    def interrupt(event: object) -> None:
        if isinstance(event, Stepped) and event.step == 3:
            signal.raise_signal(signal.SIGINT)

    folder = tmp_path / "cut"
    cut = fit(text, OPTIONS, folder, progress=interrupt)
    assert cut.history.stopped == "interrupted"
    assert Translator.load(folder).translate(["He."])
    saved = (folder / "source.json").read_bytes()
    other = Tokenizer.train(["another vocabulary"], "word")
    fit(text, OPTIONS, folder, resume=True, tokenizers=(other, other))  # those of the run are kept
    assert (folder / "source.json").read_bytes() == saved
    assert same(whole.translator.model.state_dict(), weights(folder))


def test_a_run_is_not_overwritten(text: ParallelText, tmp_path: Path) -> None:
    fit(text, OPTIONS, tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(ArgumentError) as error:
        fit(ParallelText(["other words"] * 9, ["autres mots"] * 9), OPTIONS, tmp_path)
    assert str(error.value) == (
        f"out: expected a folder without a run; got {tmp_path} with step-000006. "
        "Go on with it (--resume, in Python resume=True), or choose another folder."
    )
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_resuming_where_nothing_was_saved_begins_anew(text: ParallelText, tmp_path: Path) -> None:
    (tmp_path / "source.json").write_text("half a tokeni")
    run = fit(text, OPTIONS, tmp_path, resume=True)
    assert run.history.stopped == "finished"
    assert Tokenizer.load(tmp_path / "source.json").size == run.translator.source_tokenizer.size


def test_shared_embeddings_have_one_vocabulary(text: ParallelText, tmp_path: Path) -> None:
    run = fit(text, OPTIONS.with_flags(share="all"), tmp_path)
    source, target = (run.translator.source_tokenizer, run.translator.target_tokenizer)
    assert source is target
    assert source.unknown(text.sources[0]) == source.unknown(text.targets[0]) == []
    loaded = Translator.load(tmp_path)
    assert loaded.model.source_embedding is loaded.model.target_embedding


@pytest.mark.parametrize(
    ("flags", "got"),
    [
        ({"target_tokenizer": "character"}, '"all" with word of 8000 and character of 8000'),
        ({"target_size": 50}, '"all" with word of 8000 and word of 50'),
    ],
)
def test_shared_embeddings_need_one_kind_of_tokenizer(
    text: ParallelText, tmp_path: Path, flags: dict[str, Any], got: str
) -> None:
    with pytest.raises(ArgumentError, match=f'expected "output" where .*; got {got}'):
        fit(text, OPTIONS.with_flags(share="all", **flags), tmp_path)


@pytest.mark.filterwarnings("default:.*pairs have more than:UserWarning")
def test_long_pairs_are_counted_before_training(text: ParallelText, tmp_path: Path) -> None:
    told: list[object] = []
    few = OPTIONS.with_flags(max_length=6)
    with pytest.warns(UserWarning, match=r"of 60 pairs have more than 6 tokens on a side and are"):
        run = fit(text, few, tmp_path, progress=told.append)
    assert 0 < run.too_long < 60
    with pytest.raises(DataError, match="expected a pair of sentences of 1 to 1 tokens"):
        fit(text, OPTIONS.with_flags(max_length=1), tmp_path / "none")


def test_a_long_dev_sentence_is_cut(text: ParallelText, tmp_path: Path) -> None:
    dev = ParallelText(["I drink milk. " * 3000], ["Je bois."])
    run = fit(text, OPTIONS.with_flags(steps=1), tmp_path, dev=dev)
    assert run.history.evaluations[-1].scores["exact"] == 0
