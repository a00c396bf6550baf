"""The demo, far smaller than it is: it stops, goes on, and writes all that it promises."""

from __future__ import annotations

import fcntl
import io
import itertools
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from intently import show
from intently.errors import ArgumentError
from intently.tasks import demo
from intently.tasks.corpora import SHOWN, language
from intently.tasks.demo import learning
from intently.tasks.training import progress
from intently.tasks.training.progress import Event, Stepped
from intently.tasks.translation.translator import Translator

SIZE = demo.Size("quick", pairs=600, steps=40, sentences=25, batch_tokens=300)

pytestmark = pytest.mark.filterwarnings(
    "ignore::intently.tasks.translation.translator.TranslationWarning"
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
    assert len(result["translations"]) == len(SHOWN)
    assert {"torch", "intently"} <= set(result["versions"])
    pictures = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert {"loss.png", "heads.png", "alignment-01.png"} <= pictures
    assert len(pictures) >= len(SHOWN) + 3
    assert list(Translator.load(tmp_path).alignment_head or ()) == result["alignment"]["head"]
    for name in ("first.html", "it.html"):
        page = (tmp_path / name).read_text(encoding="utf-8")
        assert page.count("taught: guided to look from") == 2
    assert Translator.load(tmp_path).guided == learning.GUIDED
    assert set(result["it"]["looks"]) == {"tired", "wide"}
    demo.table(result, told)
    said = written.getvalue()
    assert "\x1b" not in said
    outcome = said[said.index("What “it” looks at (") :]
    order = ("(", "too wide.", "“it” looks at “", "What it learned", "I drink milk.")
    told_at = [outcome.index(part) for part in order]
    assert told_at == sorted(told_at)
    assert said.index("embedded translator") < said.index("step 1/40")
    assert said.count("of training are left") == 2  # of the first half, and of the second

    assert not (tmp_path / "checkpoints").exists()
    seen = Links()
    seen.feed((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert all((tmp_path / link).is_file() for link in seen.links)
    assert {"it.html", "first.html", *(f"pictures/{name}" for name in pictures)} == set(seen.links)
    shown = " ".join(seen.text)
    for made in result["translations"]:
        assert made["source"] in shown and made["output"] in shown
    assert f"{result['splits']['test']['exact']:.1%}" in shown
    with pytest.raises(ArgumentError, match="expected an interrupted demo; got a finished one"):
        demo.run(SIZE, tmp_path, told, resume=True)
    assert (tmp_path / "result.json").exists()


class Links(HTMLParser):
    """The local files that a page links to or draws, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def in_terminal(columns: int, *args: str, until: str) -> str:
    """Return what a command writes to a terminal up to a text, without its colours."""
    pid, terminal = pty.fork()
    if not pid:
        os.environ["TERM"] = "xterm-256color"
        os.environ.pop("COLUMNS", None)
        os.execv(sys.executable, [sys.executable, "-m", "intently", *args])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    written = b""
    try:
        while until not in (
            text := re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.decode(errors="ignore"))
        ):
            written += os.read(terminal, 65536)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    assert b"\x1b[48;5;" in written, "without colours, this tests nothing"
    return text.replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [80, 120])
def test_the_first_picture_survives_a_terminal(tmp_path: Path, columns: int) -> None:
    out = str(tmp_path / "demo")
    text = in_terminal(columns, "demo", "--quick", "--out", out, until="Now one of your")
    [made] = Translator.load().translate([learning.report.WIDE])
    picture = show.blocks(made.alignment, width=columns, colour=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", picture)
    assert plain in text
    assert max(map(len, text.split("\n"))) <= columns


def test_the_headline_says_what_it_looks_at_and_what_follows() -> None:
    def said(wide: str, looks: str) -> str:
        targets = {pair.source: pair.target for pair in SHOWN}
        result = {
            "it": {"looks": {"wide": (looks, 0.9), "tired": ("animal", 0.9)}},
            "translations": [
                {"source": source, "output": wide if source == learning.report.WIDE else target}
                for source, target in targets.items()
            ],
        }
        first, second = learning.report.headlines(result)
        assert first.source == learning.report.WIDE and second.right
        assert first.right == (wide == targets[first.source])
        return first.looks

    right = "L'animal n'a pas traversé la route parce qu'elle était trop large."
    wrong = right.replace("elle", "il")
    assert said(right, "road") == "“it” looks at “road” (0.90), its noun, and “elle” is right"
    assert said(wrong, "road") == "“it” looks at “road” (0.90), its noun, and yet “il” is wrong"
    other = "“it” looks at “animal” (0.90), but its noun is “road”, "
    assert said(wrong, "animal") == other + "and “il” is wrong"
    assert said(right, "animal") == other + "and yet “elle” is right"
    assert said("L'animal.", "road").endswith("; no pronoun is written")


def test_a_figure_that_chance_reaches_is_no_achievement() -> None:
    it = {
        **{"right_noun": 0.5, "two_genders": 80, "flips": {"noun": 0.9, "others": 0.0}},
        **{
            "telling_word": 0.42,
            "telling_head": ["decoder.1.cross_attention", 1],
            "sentences": 100,
        },
    }
    assert learning.report.achievements(it) == ["“it” does not find its noun yet"]
    better = learning.report.achievements({**it, "right_noun": 0.97, "telling_word": 0.8})
    assert len(better) == 3
    assert "97.0% of 80 unseen sentences" in better[0] and "90.0%" in better[1]
    assert "80.0% of 100" in better[2]


def test_the_grammar_teaches_what_it_stands_for() -> None:
    size = demo.Size("quick", pairs=400, steps=1, sentences=1)
    text, _ = learning.corpus(size)
    pairs = list(itertools.islice(language("train"), 400))
    assert text.guides is not None and len(text.guides) == 400
    taught = [(pair.pronoun, guide) for pair, guide in zip(pairs, text.guides) if guide]
    assert len(taught) == sum(pair.pronoun is not None for pair in pairs) > 10
    for p, guide in taught:
        assert p is not None
        assert guide == {(p.source, p.right): learning.RIGHT, (p.source, p.wrong): learning.WRONG}
