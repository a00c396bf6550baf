"""What a plain `pip install .` can do: everything but the adapters of other libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import sys
extras = "anywidget transformers diffusers keras sphinx pytest jax x_transformers onnx"
sys.modules.update(dict.fromkeys(extras.split()))
"""
"""Makes the libraries of the extras ones that cannot be imported (Pillow: matplotlib needs it)."""

SENTENCE = "The animal didn't cross the road because it was too wide."

MINE = """
import torch

class MyAttention(torch.nn.Module):
    def forward(self, q, k, v):
        hidden = torch.ones(q.shape[-2], k.shape[-2]).triu(1).bool()
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
        return scores.softmax(-1) @ v
"""


def plain(code: str, *arguments: str, at: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=at, timeout=300)


def test_every_module_but_the_adapters_is_imported(tmp_path: Path) -> None:
    done = plain(
        """
import importlib, pkgutil, intently
for found in pkgutil.walk_packages(intently.__path__, "intently.", onerror=lambda name: None):
    if found.name.split(".")[-1] == "__main__":
        continue
    try:
        importlib.import_module(found.name)
    except ImportError as error:
        print(found.name, "|", error)
""",
        at=tmp_path,
    )
    assert not done.stderr
    missing = {line.partition(" | ")[0] for line in done.stdout.splitlines()}
    assert missing == {
        f"intently.interop.{name}" for name in ("diffusers", "keras", "transformers")
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ["translate", SENTENCE, "--show"],
        ["look", SENTENCE, "--out", "look.html"],
        ["effects", "The road was too wide."],
        ["play", "--no-open", "--out", "play.html"],
        ["check", "my_module.py:MyAttention", "--causal"],
        ["about"],
        ["recipes"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_need_no_extra(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "my_module.py").write_text(MINE)
    done = plain("from intently.cli.app import main\nmain()", *arguments, at=tmp_path)
    assert done.returncode == 0 and done.stdout, done.stderr
