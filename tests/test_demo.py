"""The demo, far smaller than it is: all that it writes, and that it goes on."""

from __future__ import annotations

import io
import json
import signal
from pathlib import Path

import pytest
from rich.console import Console

from intently import demo
from intently.training.events import Event, Stepped
from intently.translator import Translator

SIZE = demo.Size("quick", pairs=300, steps=12, sentences=60, batch_tokens=300)

pytestmark = pytest.mark.filterwarnings("ignore::intently.translator.TranslationWarning")


def console() -> Console:
    return Console(file=io.StringIO(), width=100)


def test_a_tiny_demo(tmp_path: Path) -> None:
    told = console()
    result = demo.run(SIZE, tmp_path, told)
    assert result is not None
    assert json.loads((tmp_path / "result.json").read_text()) == json.loads(json.dumps(result))
    assert set(result["splits"]) == {"test", "novel", "deeper"}
    assert len(result["translations"]) == len(demo.SHOWN)
    assert {"torch", "intently"} <= set(result["versions"])
    pictures = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert {"loss.png", "heads.png", "alignment-01.png"} <= pictures
    assert len(pictures) >= len(demo.SHOWN) + 3
    loaded = Translator.load(tmp_path)
    assert list(loaded.alignment_head or ()) == result["alignment"]["head"]
    demo.table(result, told)
    assert "\x1b" not in told.file.getvalue()  # type: ignore[attr-defined]


def test_an_interrupted_demo_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from intently.training import progress

    show = progress.Lines.__call__

    def interrupt(self: progress.Lines, event: Event) -> None:
        show(self, event)
        if isinstance(event, Stepped) and event.step == 4:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(progress.Lines, "__call__", interrupt)
        assert demo.run(SIZE, tmp_path, console()) is None
    assert Translator.load(tmp_path).translate(["I drink milk."])
    assert not (tmp_path / "result.json").exists()
    result = demo.run(SIZE, tmp_path, console(), resume=True)
    assert result is not None
