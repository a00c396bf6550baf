"""The site: built once from the repository, with every page of the course run, and opened."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"
COURSE = sorted((DOCS / "course").glob("*.md"))
SECTIONS = (
    "learn",
    "use",
    "look-inside",
    "reference/index",
    "gallery",
    "numbers",
    "decisions/index",
)

PAGES = ("live.html", "recording.html", "report.html")
"""Files that the gallery's lines write, beside those of the site."""

pytest.importorskip("myst_nb", reason="the site needs intently[site]")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "html"
    command = [sys.executable, "-m", "sphinx", "-q", "-E", "-d", str(folder.parent / "trees")]
    started = time.monotonic()
    done = subprocess.run(
        [*command, str(DOCS), str(folder)], capture_output=True, text=True, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    wrong = [line for line in done.stderr.splitlines() if re.search(r"\b(WARNING|ERROR): ", line)]
    assert not wrong, "\n".join(wrong)
    print(f"built in {time.monotonic() - started:.0f} s")
    return folder


def pages(site: Path) -> list[Path]:
    return [p for p in sorted(site.rglob("*.html")) if "_modules" not in p.parts]


@pytest.mark.parametrize("path", COURSE, ids=lambda p: p.stem)
def test_a_page_has_its_parts(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    titles = re.findall(r"^## (.+)$", text, re.M)
    parts = ["By hand", "With Intently", "See it move", "What usually goes wrong", "Exercises"]
    assert titles == parts
    exercises = text.split("## Exercises")[1]
    assert re.findall(r"^\*\*(\d)\.\*\*", exercises, re.M) == ["1", "2", "3"]
    solutions = re.findall(r":tags: \[hide-cell\]\n(.*?)```", exercises, re.S)
    assert len(solutions) == 3 and all("assert" in solution for solution in solutions)
    assert "**Next:**" in exercises


@pytest.mark.parametrize("path", COURSE, ids=lambda p: p.stem)
def test_a_page_runs_and_agrees_with_its_code_by_hand(path: Path, site: Path) -> None:
    notebook = json.loads((site / "notebooks" / "course" / f"{path.stem}.ipynb").read_text())
    printed = "".join(
        "".join(output.get("text", ()))
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
        if output["output_type"] == "stream"
    )
    differences = [float(x) for x in re.findall(r"^difference: (\S+)$", printed, re.M)]
    assert differences and max(differences) < 1e-5
    shown = [
        kind
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
        for kind in output.get("data", ())
    ]
    assert "text/html" in shown, "nothing moves"


def test_every_section_is_there_and_every_link_leads_somewhere(site: Path) -> None:
    for name in SECTIONS:
        assert (site / f"{name}.html").exists(), name
    text = {path: path.read_text(encoding="utf-8") for path in pages(site)}
    broken = []
    for path, page in text.items():
        if path.name in PAGES:
            continue
        body = re.sub(r"<(script|iframe)\b.*?</\1>", "", page, flags=re.S)
        for link in re.findall(r'(?:href|src)="([^"]+)"', body):
            target, anchor = urldefrag(unquote(link))
            target = target.split("?")[0]
            if re.match(r"[a-z]+:", target):
                continue
            aim = (path.parent / target).resolve() if target else path
            if not aim.exists() or (anchor and aim in text and f'id="{anchor}"' not in text[aim]):
                broken.append(f"{path.relative_to(site)} → {link}")
    assert not broken, "\n".join(broken[:20])


def test_every_mask_bias_figure_story_and_page_is_in_the_gallery(site: Path) -> None:
    import intently
    from intently import show
    from intently.core import biases, masks
    from intently.show import animate

    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    for prefix, module in (("show", show), ("animate", animate), ("it", masks), ("it", biases)):
        for name in module.__all__:
            value = getattr(module, name)
            made = callable(value) and not isinstance(value, type)
            public = prefix != "it" or name in intently.__all__
            if made and public and name != "widget":  # which needs a kernel that runs
                assert f"{prefix}.{name}(" in text, name
    for name in PAGES:
        least = 10_000 if name == "report.html" else 20_000
        assert (site / name).stat().st_size > least, name


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    import intently

    text = (site / "reference" / "intently.html").read_text(encoding="utf-8")
    missing = [name for name in intently.__all__ if f">{name}<" not in text and name not in text]
    assert not missing


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()


def test_pages_open_without_errors_or_other_hosts(site: Path, address: str, chromium: Any) -> None:
    wrong: list[str] = []
    page = chromium.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    page.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    own = (address, "data:", "blob:", "about:")
    page.on("request", lambda r: None if r.url.startswith(own) else wrong.append(r.url))
    for path in pages(site):
        name = path.relative_to(site).as_posix()
        page.goto(address + name, wait_until="load")
        wide = page.evaluate("document.documentElement.scrollWidth")
        if wide > 391:
            wrong.append(f"{wide} pixels wide")
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        if dark == "rgb(255, 255, 255)":
            wrong.append("white in dark mode")
        assert not wrong, f"{name}: {wrong}"
    page.close()


def test_search_finds_a_page_from_the_file_system(site: Path, chromium: Any) -> None:
    page = chromium.new_page()
    page.goto(f"{(site / 'search.html').as_uri()}?q=rotary")
    page.locator("#search-results li a[href*='06-positions']").first.wait_for(timeout=20_000)
    page.close()
