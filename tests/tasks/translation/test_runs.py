"""From pairs to a translator: tokenizers, resuming, and what is exported."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from intently.errors import ArgumentError, DataError
from intently.tasks.corpora.files import ParallelText
from intently.tasks.text import Tokenizer
from intently.tasks.training import Checkpoints, Event, Stepped, TrainingOptions
from intently.tasks.training.folder_lock import ABOUT, sole_writer
from intently.tasks.training.progress import Listener
from intently.tasks.translation.runs import WRITES, fit
from intently.tasks.translation.translator import Translator

from ...samples import parallel

OPTIONS = TrainingOptions().with_flags(
    **{"width": 16, "heads": 2, "inner": 16, "encoder_layers": 1, "decoder_layers": 1},
    **{"source_tokenizer": "word", "target_tokenizer": "word", "max_length": 12, "threads": 1},
    **{"steps": 6, "warmup": 2, "batch_tokens": 200, "save_every": 2, "evaluate_every": 3},
)


SCORED = "intently.tasks.training.DevSet.__call__"
NAMES = ["step-000004", "step-000006"]


@pytest.fixture(scope="module")
def text() -> ParallelText:
    return parallel("train", 60)


@pytest.fixture(scope="module")
def dev() -> ParallelText:
    return parallel("validation", 4)


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pairs have more than:UserWarning"),
    pytest.mark.filterwarnings("ignore::intently.tasks.translation.translator.TranslationWarning"),
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
    assert TrainingOptions.from_json(tmp_path / "options.json") == OPTIONS.with_flags(
        best_by="bleu"
    )
    assert isinstance(Translator.load(tmp_path).translate(["He."])[0].text, str)


def test_the_best_checkpoint_is_exported(
    text: ParallelText, dev: ParallelText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([9.0, 1.0])
    monkeypatch.setattr(SCORED, lambda self, model: {"bleu": next(scores)})
    run = fit(text, OPTIONS, tmp_path, dev=dev)
    assert run.history.best is not None and run.history.best.stem == "step-000003"
    best = Checkpoints(tmp_path / "checkpoints").load("step-000003").model
    assert same(best, weights(tmp_path))


JAPANESE = ParallelText(
    ["I drink milk.", "How are you?", "I drink tea."] * 8,
    ["牛乳を飲みます。", "お元気ですか。", "お茶を飲みます。"] * 8,
)


def test_where_bleu_sees_no_words_chrf_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        {"bleu": 0.0, "chrf": 50.0, "loss": 2.0},
        {"bleu": 0.0, "chrf": 100.0, "loss": 1.0},
        {"bleu": 0.0, "chrf": 100.0, "loss": 1.0},
    ]
    scores = iter(found)
    monkeypatch.setattr(SCORED, lambda self, model: next(scores))
    options = OPTIONS.with_flags(evaluate_every=2, keep=9)
    run = fit(JAPANESE, options, tmp_path / "run", dev=JAPANESE)
    assert run.history.kept() == "step 4, the best on dev by chrf (100.00)"
    best = Checkpoints(tmp_path / "run/checkpoints").load("step-000004").model
    assert same(best, weights(tmp_path / "run"))
    assert TrainingOptions.from_json(tmp_path / "run/options.json").run.best_by == "chrf"

    scores = iter(found)
    with pytest.warns(UserWarning, match="best_by='bleu' cannot see words in the dev references"):
        run = fit(JAPANESE, options.with_flags(best_by="bleu"), tmp_path / "bleu", dev=JAPANESE)
    assert run.history.kept() == "step 4, the best on dev by bleu (0.00)"  # by the loss


def test_without_a_dev_set_the_last_weights_are_exported(
    text: ParallelText, tmp_path: Path
) -> None:
    run = fit(text, OPTIONS, tmp_path)
    assert run.history.evaluations == []
    assert same(Checkpoints(tmp_path / "checkpoints").load().model, weights(tmp_path))


def test_an_interrupted_run_is_usable_and_goes_on(text: ParallelText, tmp_path: Path) -> None:
    whole = fit(text, OPTIONS, tmp_path / "whole")

    folder = tmp_path / "cut"
    cut = fit(text, OPTIONS, folder, progress=interrupting(3))
    assert cut.history.stopped == "interrupted"
    assert Translator.load(folder).translate(["He."])
    saved = (folder / "source.json").read_bytes()
    other = Tokenizer.train(["another vocabulary"], "word")
    fit(text, OPTIONS, folder, resume=True, tokenizers=(other, other))  # those of the run are kept
    assert (folder / "source.json").read_bytes() == saved
    assert same(whole.translator.model.state_dict(), weights(folder))


def test_a_run_is_not_overwritten(text: ParallelText, tmp_path: Path) -> None:
    fit(text, OPTIONS, tmp_path)

    def contents() -> dict[Path, bytes]:
        files = (p for p in tmp_path.rglob("*") if p.is_file() and p.name != ABOUT)
        return {p: p.read_bytes() for p in files}

    before = contents()
    with pytest.raises(ArgumentError) as error:
        fit(ParallelText(["other words"] * 9, ["autres mots"] * 9), OPTIONS, tmp_path)
    assert str(error.value) == (
        f"out: expected a folder without a run; got {tmp_path} with step-000006. "
        "Resume it (--resume, in Python resume=True), or choose another folder."
    )
    assert {
        p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != ABOUT
    } == before


def test_resuming_where_nothing_was_saved_begins_anew(text: ParallelText, tmp_path: Path) -> None:
    with sole_writer(tmp_path, WRITES):
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


def test_a_joint_tokenizer_has_separate_embeddings(text: ParallelText, tmp_path: Path) -> None:
    kinds = {"source_tokenizer": "subword", "target_tokenizer": "subword", "max_length": 60}
    sizes = {"source_size": 400, "target_size": 400, "batch_tokens": 2000, "steps": 1}
    run = fit(text, OPTIONS.with_flags(joint=True, **kinds, **sizes), tmp_path)
    loaded = Translator.load(tmp_path)
    assert run.translator.source_tokenizer is run.translator.target_tokenizer
    assert loaded.source_tokenizer.kind == loaded.target_tokenizer.kind == "subword"
    assert loaded.model.source_embedding is not loaded.model.target_embedding
    both = [*text.sources, *text.targets]
    expected = Tokenizer.train(both, "subword", 400)
    assert loaded.source_tokenizer.encode_batch(both) == expected.encode_batch(both)
    assert isinstance(loaded.translate(["He sees 日本."])[0].text, str)


def interrupting(step: int) -> Listener:
    """Return a listener that interrupts the run at a step."""

    def interrupt(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == step:
            signal.raise_signal(signal.SIGINT)

    return interrupt


def test_another_dev_set_is_refused_where_a_run_goes_on(
    text: ParallelText, dev: ParallelText, tmp_path: Path
) -> None:
    fit(text, OPTIONS, tmp_path, dev=dev)
    longer = OPTIONS.with_flags(steps=8)
    other = ParallelText(dev.sources[:2], dev.targets[:2])
    with pytest.raises(ArgumentError, match="dev: expected the dev set the run began with"):
        fit(text, longer, tmp_path, dev=other, resume=True)
    assert fit(text, longer, tmp_path, dev=dev, resume=True).history.stopped == "finished"
    assert fit(text, longer.with_flags(steps=9), tmp_path, resume=True).history.best


def test_empty_sides_are_told(text: ParallelText, tmp_path: Path) -> None:
    more = ParallelText([*text.sources, "", "a b"], [*text.targets, "a", " "])
    with pytest.warns(UserWarning, match="2 of 62 pairs have an empty side and are skipped"):
        assert fit(more, OPTIONS.with_flags(max_length=30), tmp_path).pairs == 60
    with pytest.raises(ArgumentError, match="dev: expected at least one pair, or None"):
        fit(text, OPTIONS, tmp_path / "other", dev=ParallelText([], []))
    assert not (tmp_path / "other").exists()


def test_patience_needs_a_dev_set_and_ends_a_run(
    text: ParallelText, dev: ParallelText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = OPTIONS.with_flags(patience=2, evaluate_every=1)
    with pytest.raises(ArgumentError, match="patience: expected 0 without a dev set; got 2"):
        fit(text, options, tmp_path)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(SCORED, lambda self, model: {"bleu": 1.0})
    run = fit(text, options, tmp_path, dev=dev)
    assert (run.history.stopped, len(run.history.evaluations)) == ("no better", 3)
    assert run.history.best is not None and run.history.best.stem == "step-000001"


@pytest.mark.parametrize("name", ["", "checkpoints", "model"])
def test_a_file_where_a_folder_must_be_is_told_first(
    text: ParallelText, tmp_path: Path, name: str
) -> None:
    run = tmp_path / "run"
    run.mkdir() if name else run.touch()
    (run / name).touch()
    for out in (run, run / "below") if not name else (run,):
        with pytest.raises(ArgumentError) as error:
            fit(text, OPTIONS, out)
        assert str(error.value) == (
            f"out: expected a folder, new or of a run; got the file {run / name}. "
            "Choose another folder."
        )
    assert not name or [path.name for path in run.iterdir()] == [name]


def test_a_folder_where_a_file_must_be_is_told_first(text: ParallelText, tmp_path: Path) -> None:
    (tmp_path / "training.png").mkdir()
    with pytest.raises(
        ArgumentError, match=r"^out: expected a folder in which training\.png can be"
    ):
        fit(text, OPTIONS, tmp_path)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            {"share": "all", "target_tokenizer": "character"},
            'expected "output" where .*; got "all" with word of 8000 and character of 8000',
        ),
        (
            {"share": "all", "target_size": 50},
            'expected "output" where .*; got "all" with word of 8000 and word of 50',
        ),
        (
            {"joint": True, "target_tokenizer": "character"},
            "joint: expected false where .* differ in kind or size; got true with word of 8000 a",
        ),
        (
            {"best_by": "blue"},
            r"^best_by: expected one of 'bleu', 'chrf', 'exact', 'loss'; got 'blue'\.$",
        ),
        (
            {"target_tokenizer": "subword", "target_size": 100},
            r"^target_size: expected at least 261 for target_tokenizer='subword'; got 100\.$",
        ),
    ],
)
def test_options_that_do_not_fit_are_told_before_the_first_step(
    text: ParallelText, dev: ParallelText, tmp_path: Path, flags: dict[str, Any], said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        fit(text, OPTIONS.with_flags(**flags), tmp_path / "run", dev=dev)
    assert not (tmp_path / "run" / "checkpoints").exists()


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
