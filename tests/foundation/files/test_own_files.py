"""What a person keeps in a folder is neither deleted nor written over, whichever command runs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from intently.errors import ArgumentError
from intently.tasks import demo
from intently.tasks.language.runs import WRITES as LANGUAGE
from intently.tasks.training import Checkpoint, Checkpoints
from intently.tasks.training.folder_lock import sole_writer
from intently.tasks.translation.runs import WRITES

from ...command_line import Command, refused

COMMANDS = {
    "train": (("train", "pairs.tsv"), WRITES),
    "train-lm": (("train-lm", "pairs.tsv"), LANGUAGE),
    "demo": (("demo", "--quick"), demo.WRITES),
}


def state(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() if p.is_file() else b"" for p in sorted(folder.rglob("*"))}


@pytest.mark.parametrize(
    ("command", "name"),
    [(command, name) for command, (_, names) in COMMANDS.items() for name in (names[0], names[-1])],
)
def test_of_every_command(intently: Command, tmp_path: Path, command: str, name: str) -> None:
    (tmp_path / "pairs.tsv").write_text("a\tb\nc\td\n")
    mine = tmp_path / "mine" / name
    mine.mkdir(parents=True) if name.endswith("/") else mine.parent.mkdir(parents=True)
    (mine / "thesis.txt" if name.endswith("/") else mine).write_text('{"my": "own"}')
    before = state(tmp_path / "mine")
    outcome = intently(*COMMANDS[command][0], "--out", "mine")
    assert refused(outcome, silent=command != "train-lm") == (
        f"intently: out: expected a folder without {name}, or one that Intently wrote; got mine "
        f"with {name}. It would be overwritten. Choose another folder.\n"
    )
    assert state(tmp_path / "mine") == before


def test_a_result_beside_a_run_is_not_taken_for_a_demo(tmp_path: Path) -> None:
    with sole_writer(tmp_path, WRITES):
        checkpoints = Checkpoints(tmp_path / "checkpoints")
        checkpoints.save("step-000001", Checkpoint({"a": torch.zeros(1)}, {}, {}))
    (tmp_path / "result.json").write_text("mine")
    before = state(tmp_path)
    with pytest.raises(ArgumentError, match=r"without result\.json"):
        demo.run(demo.QUICK, tmp_path, Console(file=io.StringIO()))
    assert state(tmp_path) == before
