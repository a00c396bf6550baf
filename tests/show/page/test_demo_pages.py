"""The pages of the demo open on the head and the word that they promise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from intently.errors import DataError
from intently.tasks import demo
from intently.tasks.translation.translator import Translator


def test_it_opens_on_what_it_looks_at_in_both_sentences(
    opened: Callable[..., Any], tmp_path: Path
) -> None:
    translator = Translator.load()
    demo.page(translator, tmp_path / "first.html")
    page = opened(tmp_path / "first.html")
    assert translator.guided is not None
    said = page.locator(".apart").get_by_text("looks most at").inner_text()  # waits for it
    text = page.inner_text("body")
    assert text.count("{} · head {}".format(*translator.guided)) == 2
    assert "‘it’ looks most at ‘animal’" in said and "‘it’ looks most at ‘road’" in said
    assert text.count("taught: guided to look from “it” at its noun") == 2


def test_a_page_without_the_promised_word_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = [
        pair._replace(source=pair.source.replace(" it ", " he ")) for pair in demo.report.SHOWN
    ]
    monkeypatch.setattr(demo.report, "SHOWN", tuple(without))
    with pytest.raises(DataError, match="expected a text with the token “it”"):
        demo.page(Translator.load(), tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
