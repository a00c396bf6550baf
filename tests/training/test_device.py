"""Where a run trains: found, asked for, refused, changed on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_run as tiny
import torch

from intently.corpora import ParallelText
from intently.errors import ArgumentError
from intently.language.runs import fit as fit_language
from intently.training import Checkpoints, MachineOptions, TrainingOptions
from intently.training.processes import VARIABLES, Processes
from intently.translation.runs import fit

from ..messages import refused

TEXT = ParallelText(("a b",), ("b a",))


def pretend(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let PyTorch find so many GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: count - 1)


def test_cuda_is_taken_where_pytorch_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    pretend(monkeypatch, 0)
    assert Processes().device() == torch.device("cpu")
    pretend(monkeypatch, 4)
    assert Processes().device() == torch.device("cuda:3")  # the one the caller has chosen
    assert Processes().device("cpu") == torch.device("cpu")
    assert Processes(rank=2, count=4).device() == torch.device("cuda:2")
    monkeypatch.setenv("LOCAL_RANK", "1")  # the second machine of two
    assert Processes(rank=5, count=8).device("cuda") == torch.device("cuda:1")


def test_cuda_that_is_not_there_is_refused(monkeypatch, tmp_path: Path) -> None:
    pretend(monkeypatch, 0)
    monkeypatch.setattr(torch.version, "cuda", None)
    options = TrainingOptions(machine=MachineOptions(device="cuda"))
    text = (
        "device: expected 'cuda' where PyTorch finds a GPU; got 'cuda' and a build without "
        "CUDA. Use device='cpu'."
    )
    refused(lambda: fit(TEXT, options, tmp_path / "run"), ArgumentError, text, whole=True)
    refused(lambda: language(options, tmp_path / "run"), ArgumentError, text, whole=True)
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(torch.version, "cuda", "12.9")
    text = "device: expected one of 'auto', 'cpu', 'cuda'"
    refused(lambda: MachineOptions(device="gpu"), ArgumentError, text)
    with pytest.raises(ArgumentError, match="got 'cuda' and no GPU or driver"):
        Processes().device("cuda")


def language(options: TrainingOptions, out: Path) -> None:
    fit_language("a text\n" * 200, options, out)


def test_a_language_model_is_refused_to_many_processes(monkeypatch, tmp_path: Path) -> None:
    for name, value in zip(VARIABLES, ("0", "2", "first.example", "29500"), strict=True):
        monkeypatch.setenv(name, value)
    refused(
        lambda: language(TrainingOptions(), tmp_path / "run"),
        ArgumentError,
        "processes: expected one: several cannot train a language model; got 2. "
        "Start the command without torchrun.",
        whole=True,
    )


def test_a_run_that_goes_on_elsewhere_says_so(tmp_path: Path) -> None:
    options = tiny.OPTIONS.with_flags(steps=4, save_every=2)
    tiny.run(tmp_path, options)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    last = checkpoints.load()
    assert last.state["device"] == "cpu"
    last.state["device"] = "cuda"
    checkpoints.save("step-000004", last, None)
    with pytest.warns(UserWarning, match=r"conditions than it began \(device cuda → cpu\)"):
        tiny.run(tmp_path, options.with_flags(steps=5), resume=True)
