"""The fixture ``examine`` in a pytest of its own: what passes, what fails, and what is printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"

RIGHT = """
import sys

def test_nothing_heavy_is_loaded_before_the_fixture_is_called(examine):
    assert "torch" not in sys.modules and "intently" not in sys.modules

def test_right(examine):
    from torch.nn import functional as F
    report = examine(lambda q, k, v: F.scaled_dot_product_attention(q, k, v))
    assert report.ok
"""
WRONG = """
import intently as it

def mine(q, k, v):
    return (q @ k.mT).softmax(-1) @ v

def test_wrong(examine):
    examine(mine, mask=it.causal())
"""
UNMEASURED = """
from dataclasses import replace

import pytest

import intently.checker as checker

known = checker.check

@pytest.fixture(autouse=True)
def half(monkeypatch):
    def check(subject, **intent):
        return replace(known(subject, **intent), unmeasured=("pool: no values", "late: no product"))

    monkeypatch.setattr(checker, "check", check)

def right(q, k, v):
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v

def test_unmeasured(examine):
    examine(right)

def test_allowed(examine):
    assert examine(right, allow_unmeasured=True).ok is None

def test_wrong(examine):
    examine(lambda q, k, v: (q @ k.mT).softmax(-1) @ v, allow_unmeasured=True)
"""
NOTHING = """
def test_nothing(examine):
    examine(3)
"""


def run(folder: Path, code: str) -> tuple[int, str]:
    (folder / "test_it.py").write_text(code, encoding="utf-8")
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {SOURCE}\n", encoding="utf-8")
    start = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); import pytest; "
    start += "sys.exit(pytest.main(['-q', '-p', 'intently_pytest', '-p', 'no:cacheprovider']))"
    done = subprocess.run(
        [sys.executable, "-c", start], cwd=folder, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


def test_what_is_right_passes_and_pytest_starts_without_pytorch(tmp_path: Path) -> None:
    status, said = run(tmp_path, RIGHT)
    assert status == 0, said


def test_a_mistake_fails_by_its_name_and_example(tmp_path: Path) -> None:
    status, said = run(tmp_path, WRONG)
    assert status == 1, said
    assert "mine: 2 mistakes: no-scale, mask-missing" in said
    assert "examine(mine, mask=it.causal())" in said
    assert "query 0 attends to key 1 but should not" in said and "cure:" in said
    assert "checking.py" not in said and "intently_pytest.py" not in said


def test_what_is_not_measured_fails_unless_that_is_allowed(tmp_path: Path) -> None:
    status, said = run(tmp_path, UNMEASURED)
    assert status == 1 and "2 failed, 1 passed" in said, said
    assert "right: not measured: pool: no values (and 1 more)" in said
    assert "  – late: no product" in said and "what to do: pass inputs=" in said
    assert "attention: 1 mistake: no-scale" in said


def test_what_cannot_be_examined_says_so(tmp_path: Path) -> None:
    status, said = run(tmp_path, NOTHING)
    assert status == 1
    assert "could not be examined: subject: expected a function or a module; got int" in said
    assert "errors.py" not in said


def test_our_own_pytest_loads_the_plugin_once(pytestconfig: pytest.Config) -> None:
    loaded = [name for name, _ in pytestconfig.pluginmanager.list_name_plugin()]
    assert loaded.count("intently_pytest") == 1
