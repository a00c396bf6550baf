"""`intently explore` in a browser: the same page, its numbers from the server; and its end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import intently as it
from intently.show.page import answers
from intently.show.page.answers import Turns
from intently.show.page.items import items_of
from intently.show.page.server import Server

from .driving import asked, status, until
from .pages import made, translation
from .serving import running

Opened = Callable[..., Any]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: Any) -> Path:
    path = tmp_path_factory.mktemp("served") / "run.safetensors"
    translation().save(path)
    return path


@pytest.fixture(scope="module")
def story(recorded: Path) -> Iterator[Server]:
    with running(items_of(it.load_recording(recorded))) as server:
        yield server


def test_every_view_of_a_served_page(story: Server, opened: Opened) -> None:
    page = opened(story.address)
    assert page.locator(".overview-tile").count() == 24
    until(page, "document.querySelector('.overview-tile').ariaLabel.includes('entropy')")
    page.locator(".overview-sort").select_option("entropy")
    until(page, "document.querySelectorAll('.overview-value').length === 24")
    page.locator(".overview-tile").nth(3).click()
    page.wait_for_selector("section[data-view=head]", state="visible")
    box = page.locator(".matrix-canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.5)
    status(page, "query ‘", "→ key ‘")
    page.keyboard.press("t")
    page.locator("section[data-view=text] .word").nth(2).click()
    status(page, "query ‘")
    assert "computed by the server" in page.text_content("[data-bound]")


def test_a_long_head_is_sampled_first(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until all is read, a long head is drawn from some queries, and the page says so."""
    monkeypatch.setattr(answers, "LONG", 2**16)
    monkeypatch.setattr(answers, "SAMPLE", 2**16)
    gate, give_way = threading.Event(), Turns.give_way

    def waiting(turns: Turns) -> None:
        while not gate.is_set():
            give_way(turns)
            time.sleep(0.01)
        give_way(turns)

    monkeypatch.setattr(answers, "STRIP", 2**16)
    monkeypatch.setattr(Turns, "give_way", waiting)
    x = made(2048, 16)
    matrix = it.attend(x, x, mask=it.causal())
    with running(items_of({"long": matrix})) as server:
        page = opened(server.address, "#view=head")
        until(page, "document.querySelector('.matrix-note').textContent.startsWith('Sampled')")
        gate.set()
        until(page, "document.querySelector('.matrix-note').textContent === ''")
        found = asked(
            page, "return Array.from(await (await servedHeads(stored).open(0, 0, '0')).column(5));"
        )
        np.testing.assert_allclose(found, matrix.tile(None, torch.tensor([5]))[:, 0], 0, 1e-5)


def test_the_server_is_gone(recorded: Path, opened: Opened, chromium: Any) -> None:
    context = chromium.new_context()
    page = context.new_page()
    with running(items_of(it.load_recording(recorded))) as server:
        page.goto(server.address + "#view=head")
        page.wait_for_selector("[data-wait]", state="detached")
    page.keyboard.press("}")
    until(page, "document.body.textContent.includes('is `intently explore` still running?')")
    context.close()


def hears_ctrl_c() -> None:
    """A process that is started in the background of a shell would ignore ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_the_command_ends_with_ctrl_c(recorded: Path) -> None:
    command = [sys.executable, "-m", "intently", "explore", str(recorded)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hears_ctrl_c,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/\n", line)
        assert process.stderr is not None
        assert process.stderr.readline() == "ctrl-C ends it\n"  # it can from here on
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0
    assert out == ""
    assert error.strip() == ""


PATIENCE = 300
"""Seconds after which a busy machine is thought to hang."""

BUSY = """
import os, signal, sys, threading, time, urllib.request
from contextlib import suppress
from pathlib import Path
import torch
from intently.cli import serving as serving_cli
from intently.show.page import answers

begun = threading.Semaphore(0)

def busy(served, given):
    begun.release()
    x = torch.randn(3, requires_grad=True)
    x.register_hook(lambda gradient: time.sleep(0.01))
    while True:
        (x * 2).exp().sum().backward()

def asking(address):
    def question():
        with suppress(Exception):  # the server ends, and its answers with it
            urllib.request.urlopen(address + "open")

    for _ in range(2):
        threading.Thread(target=question, daemon=True).start()
    begun.acquire()
    os.kill(os.getpid(), signal.SIGINT)

def printed(line="", **_):
    if line.startswith("http"):
        threading.Thread(target=asking, args=(line,), daemon=True).start()

answers.QUESTIONS["open"], serving_cli.print = (busy, ()), printed
serving_cli.explore(Path(sys.argv[1]))
"""
"""Ctrl-C while an answer is within PyTorch and stays there, and another waits."""


def test_ctrl_c_ends_whatever_is_under_way(recorded: Path) -> None:
    command = [sys.executable, "-c", BUSY, str(recorded)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        preexec_fn=hears_ctrl_c,
    )
    assert done.returncode == 0
    assert done.stderr == ""


def test_what_is_no_recording(tmp_path: Path) -> None:
    for name, told in (("missing", "no such file"), ("empty", "an empty one")):
        path = tmp_path / f"{name}.safetensors"
        if name == "empty":
            from intently.observe import Recording

            Recording().save(path)
        command = [sys.executable, "-m", "intently", "explore", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert told in done.stderr
        assert "Traceback" not in done.stderr


def test_a_served_page_has_rollout_differences_find_and_tables(
    story: Server, opened: Opened
) -> None:
    page = opened(story.address, "#view=head&entry=1&heads=rollout&pin=0.1.0&row=2&column=1")
    until(
        page, "() => /A [^,]+, B/.test(document.querySelector('.difference-reading').textContent)"
    )
    assert page.input_value("[data-pick=heads]") == "rollout"
    page.fill("[data-find]", "road")
    until(page, "() => document.querySelector('[data-found]').textContent === '1 of 1'")
    page.click("[data-do=save]")
    with page.expect_download() as waiting:
        page.click("[data-do=json]")
    saved = json.loads(Path(waiting.value.path()).read_text(encoding="utf-8"))
    layers = [translation()[f"encoder.{n}.self_attention"][0] for n in range(2)]
    wanted = it.core.matrix.rollout(layers).numpy()
    assert np.abs(np.array(saved["weights"]) - wanted).max() < 1e-4
