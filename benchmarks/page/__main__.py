"""Measure the page in Chromium: its size, its first paint, opening a head, frames, and explore.

    python -m benchmarks.page [--quick] [--only NAME …] [--out FILE.md] [--threads 2]

Queries and keys are drawn at random, which no deflation makes smaller. Chromium runs headless and
without a GPU; a time is that of the page's own clock.
"""

from __future__ import annotations

import math
import shutil
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

import intently as it
from benchmarks import measure
from benchmarks.report import (
    NONE,
    READING,
    Goals,
    Section,
    Settings,
    arguments,
    megabytes,
    run,
    table,
)
from intently.show.page import save_page
from intently.show.page.items import items_of
from intently.show.page.server import Server, explorer

LAYERS, HEADS, WIDTH = 12, 12, 64
SIZES = {(512, LAYERS): (30e6, 60e6), (4096, 1): (18e6, 36e6)}
"""Bytes of a page of (tokens, layers) at most, in half and in full precision."""

PAINT, OPEN, FRAME, ZOOM, DRAWN = 2.0, 0.2, 0.05, 0.1, 2.0
"""Seconds at most: first paint, opening a head, a frame, a zoom of a served head, a heatmap."""

MOVES = 60
LONG, T = 32768, 16384
SWITCHES = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def matrices(t: int, layers: int) -> dict[str, it.LazyMatrix]:
    """Causal self-attention of a text of t tokens in several layers."""
    generator = torch.Generator().manual_seed(measure.SEED)
    words = [f"word{n % 1000}" for n in range(t)]
    found = {}
    for layer in range(layers):
        q, k = (torch.randn(1, HEADS, t, WIDTH, generator=generator) for _ in range(2))
        matrix = it.attend(1.5 * q, k, mask=it.causal())
        found[f"layer.{layer}"] = matrix.label(words, words)
    return found


# --- the file -----------------------------------------------------------------------------------


def sizes(settings: Settings) -> Section:
    """Bytes of the pages, and the time to write them."""
    lines, goals, said = [], Goals(), []
    for (t, layers), most in SIZES.items():
        t = t // 8 if settings.quick else t
        shown = matrices(t, layers)
        for precision, goal in zip(("half", "full"), most):
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                path = save_page(shown, Path(folder) / "page.html", precision)  # type: ignore[arg-type]
                took, size = time.perf_counter() - start, path.stat().st_size
            name = f"{t:,} tokens, {layers * HEADS} heads, {precision}"
            verdict = goals.at_most(size / 1e6, goal / 1e6, name, " MB", 1)
            said.append(megabytes(size))
            lines.append([name, megabytes(size), megabytes(goal), f"{took:.1f}", verdict])
    head = ["", "MB", "goal, MB", "seconds to write", "reached"]
    return Section(
        "size of a page: 512 tokens × 144 heads in half and full, 4,096 × 12 heads alike",
        "≤ 30, 60, 18, 36 MB",
        ", ".join(said) + " MB",
        goals.verdict,
        table(head, lines),
    )


# --- in the browser -------------------------------------------------------------------------------


def browser(settings: Settings) -> Section:
    """First paint, opening heads, and frames while the pointer moves, of the 144-head page."""
    t, layers = (64, 2) if settings.quick else (512, LAYERS)
    runs = 2 if settings.quick else 7
    with tempfile.TemporaryDirectory() as folder, chromium() as started:
        path = save_page(matrices(t, layers), Path(folder) / "page.html")
        found = [_visit(started, path, layers) for _ in range(runs)]
    painted, drawn, opened, slowest, late = (
        [one[name] for one in found] for name in ("painted", "drawn", "opened", "slowest", "late")
    )
    opening = [seconds for one in opened for seconds in one]
    first, head = measure.spread(drawn), measure.spread(opening)
    frames = measure.spread(slowest)
    goals = Goals()
    goals.at_most(first.median, PAINT, "first paint", " s")
    goals.at_most(1e3 * head.median, 1e3 * OPEN, "a head", " ms", 0)
    goals.misses += (
        [f"{sum(late)} frames over 50 ms in {runs} runs"] if statistics.median(late) else []
    )
    lines = [
        ["first paint (the browser's mark)", measure.spread(painted).text(), str(runs)],
        ["all heads in sight are drawn", first.text(), str(runs)],
        ["a head is open, exact, margins too", head.text(3), str(len(opening))],
        [f"longest frame in {MOVES} pointer moves", frames.text(3), str(runs)],
    ]
    body = f"{t} tokens, {layers * HEADS} heads, half precision; seconds, {READING}.\n\n"
    return Section(
        f"the page of {t} tokens and {layers * HEADS} heads in Chromium",
        "first paint ≤ 2 s, opening a head ≤ 200 ms, no frame over 50 ms in 60 pointer moves",
        f"{first.median:.2f} s, {1e3 * head.median:.0f} ms, longest frame "
        f"{1e3 * frames.median:.0f} ms",
        goals.verdict,
        body + table(["", "s", "n"], lines),
    )


def _visit(started: Any, path: Path, layers: int) -> dict[str, Any]:
    """Open the page anew: all heads, then eight single ones, then the pointer."""
    context = started.new_context(viewport={"width": 1280, "height": 800})
    context.add_init_script(CLOCK)
    page = context.new_page()
    page.goto(path.as_uri(), wait_until="commit")
    drawn = _quiet(page, 0)
    painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    opened = []
    for layer in range(0, layers, max(1, layers // 8)):
        page.keyboard.press("o")
        page.wait_for_selector("section[data-view=overview]", state="visible")
        tile = page.locator(".overview-tile").nth(layer * HEADS + layer % HEADS)
        tile.scroll_into_view_if_needed()
        page.wait_for_timeout(300)
        since = tile.evaluate("one => { const now = performance.now(); one.click(); return now; }")
        opened.append((_quiet(page, since) - since) / 1e3)
    box = page.locator(".matrix-canvas").bounding_box()
    page.wait_for_timeout(500)
    page.evaluate("watchFrames()")
    for step in range(MOVES):
        x = box["x"] + box["width"] * (0.25 + 0.5 * step / MOVES)
        y = box["y"] + box["height"] * (0.3 + 0.5 * ((7 * step) % MOVES) / MOVES)
        page.mouse.move(x, y)
        page.wait_for_timeout(16)
    frames = page.evaluate("frames")
    context.close()
    return {
        "painted": painted / 1e3,
        "drawn": drawn / 1e3,
        "opened": opened,
        "slowest": max(frames) / 1e3,
        "late": sum(frame > 1e3 * FRAME for frame in frames),
    }


CLOCK = """
    window.lastDrawn = 0;
    for (const name of ["drawImage", "putImageData", "fillRect", "fillText"]) {
        const draw = CanvasRenderingContext2D.prototype[name];
        CanvasRenderingContext2D.prototype[name] = function (...given) {
            window.lastDrawn = performance.now();
            return draw.apply(this, given);
        };
    }
    window.watchFrames = () => {
        window.frames_ = window.frames = [];
        let before = performance.now();
        requestAnimationFrame(function next() {
            const now = performance.now();
            window.frames.push(now - before);
            before = now;
            requestAnimationFrame(next);
        });
    };
"""
"""Notes when something was drawn last, and how long frames take."""


def _quiet(page: Any, since: float, still: float = 700.0) -> float:
    """When the page had drawn all it had to: nothing follows for a while."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        last, now = page.evaluate("[window.lastDrawn, performance.now()]")
        if last > since and now - last > still:
            return last
        page.wait_for_timeout(50)
    raise AssertionError("the page never came to rest")


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser of this machine."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(SWITCHES)
        )
        try:
            yield found
        finally:
            found.close()


# --- explore --------------------------------------------------------------------------------------


def zooms(settings: Settings) -> Section:
    """Windows of every size of one long head of a recording, over HTTP: sampled, and exact."""
    t = 1024 if settings.quick else LONG
    generator = torch.Generator().manual_seed(measure.SEED)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.safetensors"
        with torch.no_grad(), it.watch() as seen:
            it.attention(*torch.randn(3, 1, 1, t, WIDTH, generator=generator), mask=it.causal())
        seen.save(path)
        server = explorer(items_of(it.load_recording(path)))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            early = [_zoom(server, t, t, 0, 0) for _ in range(5)]
            took, _ = _zoom(server, t, t, 0, 0, exact=True)
            found = {}
            size = t
            while size >= 32:
                places = {(0, 0), (t - size, 0), (t - size, t - size), ((t - size) // 2 + 1, 3)}
                found[size] = [
                    _zoom(server, t, size, min(r, t - size), min(c, t - size))
                    for r, c in sorted(places)
                    for _ in range(3)
                ]
                size //= 2
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
    lines = [["whole", _milliseconds([s for s, _ in early]), early[0][1]]]
    for size, answers in found.items():
        told = sorted({nearness or "exact" for _, nearness in answers})
        seconds = [s for s, _ in answers]
        lines.append([f"{size:,} × {size:,}", _milliseconds(seconds), "; ".join(told)])
    medians = {size: statistics.median(s for s, _ in answers) for size, answers in found.items()}
    medians[0] = statistics.median(s for s, _ in early)
    worst = max(medians.values())
    body = (
        f"A causal head of {t:,} tokens, d = {WIDTH}, from the mapped file; 512 × 512 cells, asked "
        f"over HTTP. All of it, exact, took {took:.1f} s. Milliseconds, {READING}.\n\n"
    )
    return Section(
        f"any zoom of a served head of {t:,} tokens",
        f"≤ {1e3 * ZOOM:.0f} ms",
        f"{1e3 * min(medians.values()):.0f} to {1e3 * worst:.0f} ms (medians by size)",
        Goals().at_most(1e3 * worst, 1e3 * ZOOM, unit=" ms", digits=0),
        body + table(["window", "ms", "cells are"], lines),
    )


def _milliseconds(seconds: list[float]) -> str:
    return measure.spread(1e3 * s for s in seconds).text(0)


def _zoom(
    server: Server, t: int, size: int, row: int, column: int, exact: bool = False
) -> tuple[float, str]:
    """Seconds of one answer, and how near it is."""
    window = f"r0={row}&r1={row + size}&c0={column}&c1={column + size}"
    cells = f"h=512&w=512&how=mean&exact={exact:d}"
    address = f"{server.address}pooled?item=0&entry=0&heads=0&{window}&{cells}"
    start = time.perf_counter()
    with urllib.request.urlopen(address) as answer:
        answer.read()
        nearness = answer.headers.get("Intently-Sampled", "")
    return time.perf_counter() - start, nearness


# --- figures -------------------------------------------------------------------------------------


def drawn(settings: Settings) -> Section:
    """Heatmaps of one long head under several masks, written as PNG."""
    t = 512 if settings.quick else T
    generator = torch.Generator().manual_seed(measure.SEED)
    q, k = (torch.randn(t, WIDTH, generator=generator) for _ in range(2))
    causal = it.causal()
    cases: dict[str, it.LazyMatrix] = {
        "causal": it.attend(q, k, mask=causal),
        "everything": it.attend(q, k),
        "window of 1,024": it.attend(q, k, mask=causal & it.window(1023, 0)),
        "causal, ALiBi": it.attend(q[None], k[None], mask=causal, bias=it.alibi(1))[0],
    }
    lines, goals, medians = [], Goals(), []
    with tempfile.TemporaryDirectory() as folder:
        for name, matrix in cases.items():
            calls = {name: partial(it.show.heatmap, matrix, save=Path(folder) / "head.png")}
            found = measure.spread(measure.rounds(calls, settings.effort(20, 3, 9))[name])
            goal = DRAWN if name == "causal" else math.inf
            verdict = goals.at_most(found.median, goal, unit=" s")
            medians.append(found.median)
            told = f"≤ {DRAWN:.0f}" if name == "causal" else NONE
            lines.append([name, found.text(), told, str(found.n), verdict])
    body = f"{t:,} tokens, d = {WIDTH}, one head, margins and PNG included; seconds, {READING}.\n\n"
    return Section(
        f"`show.heatmap` of a head of {t:,} tokens",
        f"≤ {DRAWN:.0f} s",
        f"causal {medians[0]:.2f} s, without a mask {medians[1]:.2f} s",
        goals.verdict,
        body + table(["mask", "s", "goal", "rounds", "reached"], lines),
    )


PARTS = {"sizes": sizes, "browser": browser, "zooms": zooms, "figures": drawn}


if __name__ == "__main__":
    run(arguments("Measure the page.", PARTS).parse_args(), PARTS)
