"""What all tests share: annotations executed on request, two threads, the shared data."""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from jaxtyping import config, install_import_hook

from .command_line import Command, Outcome

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

CHECKED = ("intently.core", "intently.nn")
CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
if os.environ.get("INTENTLY_ANNOTATIONS"):
    # tenfold slower calls: .ci/run does it for tests/core and tests/nn
    install_import_hook(CHECKED, CHECKER)

SMALL_TENSORS = (
    "core",
    "editing",
    "interop",
    "language",
    "models",
    "nn",
    "observe",
    "page",
    "training",
)
"""Folders of tests whose matrices are so small that one thread is faster than two."""

# workers of pytest-xdist share the cores
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)


@pytest.fixture(autouse=True, scope="module")
def _one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    threads = torch.get_num_threads()
    if request.path.parent.name in SMALL_TENSORS:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def as_users_call() -> Iterator[None]:
    """Annotations are not executed, so that a call reaches the library's own messages."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real corpora beside the checkout, where there is one."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not (folder / "data").is_dir():
        pytest.skip(f"no {folder / 'data'}: the real corpora are not on this machine")
    return folder


@pytest.fixture
def intently(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Command:
    """The command line in a folder of its own, in a terminal of 120 columns."""
    from intently.cli import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str | Path, stdin: bytes | None = b"") -> Outcome:
        monkeypatch.setattr(sys, "argv", ["intently", *map(str, arguments)])
        closed = stdin is None
        monkeypatch.setattr(sys, "stdin", None if closed else io.TextIOWrapper(io.BytesIO(stdin)))
        capfd.readouterr()
        with warnings.catch_warnings(), pytest.raises(SystemExit) as end:
            warnings.resetwarnings()
            app.main()
        said = capfd.readouterr()
        return Outcome(int(end.value.code or 0), said.out, said.err)

    return run
