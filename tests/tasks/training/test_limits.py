"""Bounds of options and searches, and the memory that a search needs: refused before it begins."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_run as tiny
import torch

from intently.errors import ArgumentError
from intently.foundation import process
from intently.tasks.decoding import SearchOptions, search

from ...messages import refused


def test_a_search_is_bounded() -> None:
    for name, value, bounds in (
        ("beam", 10_001, "1 to 10,000"),
        ("max_length", 100_001, "1 to 100,000"),
        ("min_length", 100_001, "0 to 100,000"),
    ):
        text = f"{name}: expected an int from {bounds}; got {value}."
        refused(lambda: SearchOptions(**{name: value}), ArgumentError, text, whole=True)  # noqa: B023


def test_a_beam_that_does_not_fit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "available", lambda device=None: 10**9)
    net = tiny.model()
    net.target_embedding = torch.nn.Embedding(10**5, 16, device="meta")
    refused(
        lambda: search(net, [[4, 5]], SearchOptions(beam=10_000)),
        ArgumentError,
        "beam, batch_tokens: expected what 1.0 GB of free memory hold; got 10,000 hypotheses at "
        "once over a vocabulary of 100,000, which needs at least 8.0 GB. Choose smaller ones.",
        whole=True,
    )


def test_memory_is_that_of_the_machine_or_of_its_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "CONTAINER", tmp_path)
    machine = process.available()
    assert machine is None or machine > 0
    (tmp_path / "memory.current").write_text("4000\n")
    (tmp_path / "memory.stat").write_text("anon 7\ninactive_file 1500\n\n")
    (tmp_path / "memory.max").write_text("5000\n")
    assert process.available() == 2500
    (tmp_path / "memory.max").write_text("max\n")
    other = process.available()
    assert other is None or other > 2500


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1), ("win32", None)])
def test_the_peak_is_in_bytes_on_every_system(platform: str, unit: int | None, monkeypatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=2000))
    if unit is None:
        monkeypatch.setitem(sys.modules, "resource", None)
    assert process.peak() == (None if unit is None else 2000 * unit)
