"""The demo, far smaller than it is: it stops, goes on, and writes all that it promises."""

from __future__ import annotations

import io
import json
import signal
from pathlib import Path

import pytest
from rich.console import Console

from intently import demo
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
    page = (tmp_path / "it.html").read_text(encoding="utf-8")
    assert page.count(f"in {result['it']['telling_word']:.0%} of ") == 2
    assert result["it"]["telling_head"][0] + "_attention" in page
    demo.table(result, told)
    assert "What it learned" in written.getvalue() and "\x1b" not in written.getvalue()

    demo.remove_finished(tmp_path)
    assert not (tmp_path / "result.json").exists()
    assert not list((tmp_path / "checkpoints").iterdir())
    assert Translator.load(tmp_path)
