"""The demo, far smaller than it is: it stops, goes on, and writes all that it promises."""

from __future__ import annotations

import io
import itertools
import json
import signal
from pathlib import Path

import pytest
from rich.console import Console

from intently import demo
from intently.corpora import language
from intently.training import progress
from intently.training.events import Event, Stepped
from intently.translation.translator import Translator

SIZE = demo.Size("quick", pairs=600, steps=40, sentences=25, batch_tokens=300)

pytestmark = pytest.mark.filterwarnings(
    "ignore::intently.translation.translator.TranslationWarning"
)


def test_a_tiny_demo_stops_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    told = Console(file=written, width=100)
    show = progress.Lines.__call__

    def interrupt(self: progress.Lines, event: Event) -> None:
        show(self, event)
        if isinstance(event, Stepped) and event.step == 20:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(progress.Lines, "__call__", interrupt)
        assert demo.run(SIZE, tmp_path, told) is None
    assert Translator.load(tmp_path).translate(["I drink milk."])
    assert not (tmp_path / "result.json").exists()

    result = demo.run(SIZE, tmp_path, told, resume=True)
    assert result is not None
    assert json.loads((tmp_path / "result.json").read_text()) == json.loads(json.dumps(result))
    assert set(result["splits"]) == {"test", "novel", "deeper"}
    assert len(result["translations"]) == len(demo.SHOWN)
    assert {"torch", "intently"} <= set(result["versions"])
    pictures = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert {"loss.png", "heads.png", "alignment-01.png"} <= pictures
    assert len(pictures) >= len(demo.SHOWN) + 3
    assert list(Translator.load(tmp_path).alignment_head or ()) == result["alignment"]["head"]
    for name in ("first.html", "it.html"):
        page = (tmp_path / name).read_text(encoding="utf-8")
        assert page.count("taught: guided to look from") == 2
    assert Translator.load(tmp_path).guided == demo.GUIDED
    assert set(result["it"]["looks"]) == {"tired", "wide"}
    demo.table(result, told)
    said = written.getvalue()
    assert "What it learned" in said and "\x1b" not in said
    assert said.index("embedded translator") < said.index("step 1/40")
    assert said.count("of training are left") == 2  # of the first half, and of the second

    demo.remove_finished(tmp_path)
    assert not (tmp_path / "result.json").exists()
    assert not list((tmp_path / "checkpoints").iterdir())
    assert Translator.load(tmp_path)


def test_a_figure_that_chance_reaches_is_no_achievement() -> None:
    it = {
        **{"right_noun": 0.5, "two_genders": 80, "flips": {"noun": 0.9, "others": 0.0}},
        **{"telling_word": 0.42, "telling_head": ["decoder.1.cross", 1], "sentences": 100},
    }
    assert demo._said(it) == ["“it” does not find its noun yet"]
    better = demo._said({**it, "right_noun": 0.97, "telling_word": 0.8})
    assert len(better) == 3
    assert "97.0% of 80 unseen sentences" in better[0] and "90.0%" in better[1]
    assert "80.0% of 100" in better[2]


def test_the_grammar_teaches_what_it_stands_for() -> None:
    size = demo.Size("quick", pairs=400, steps=1, sentences=1)
    text, _ = demo.corpus(size)
    pairs = list(itertools.islice(language("train", 0), 400))
    assert text.guides is not None and len(text.guides) == 400
    taught = [(pair.pronoun, guide) for pair, guide in zip(pairs, text.guides) if guide]
    assert len(taught) == sum(pair.pronoun is not None for pair in pairs) > 10
    for p, guide in taught:
        assert p is not None
        assert guide == {(p.source, p.right): demo.RIGHT, (p.source, p.wrong): demo.WRONG}
