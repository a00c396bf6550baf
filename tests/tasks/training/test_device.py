"""Where a run trains and in which precision: found, asked for, refused, changed on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_run as tiny
import torch

from intently.errors import ArgumentError
from intently.nn.models.kinds import new_model
from intently.nn.models.recurrent import ATTENTIONS, RecurrentOptions
from intently.tasks.corpora import ParallelText
from intently.tasks.language.runs import fit as fit_language
from intently.tasks.training import Checkpoints, TrainingOptions, epoch, train
from intently.tasks.training.optimiser import TrainedModel, check_bfloat16
from intently.tasks.training.options import MachineOptions
from intently.tasks.training.processes import VARIABLES, Processes
from intently.tasks.translation.runs import fit

from ...messages import refused

TEXT, BOOK = ParallelText(("a b",), ("b a",)), "a text\n" * 200
OPTIONS = tiny.OPTIONS.with_flags(steps=12, dropout=0.0)
NARROW = OPTIONS.with_flags(precision="bfloat16")


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
    refused(lambda: fit_language(BOOK, options, tmp_path / "run"), ArgumentError, text, whole=True)
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(torch.version, "cuda", "12.9")
    text = "device: expected one of 'auto', 'cpu', 'cuda'"
    refused(lambda: MachineOptions(device="gpu"), ArgumentError, text)
    with pytest.raises(ArgumentError, match="got 'cuda' and no GPU or driver"):
        Processes().device("cuda")


def test_a_language_model_is_refused_to_many_processes(monkeypatch, tmp_path: Path) -> None:
    for name, value in zip(VARIABLES, ("0", "2", "first.example", "29500"), strict=True):
        monkeypatch.setenv(name, value)
    refused(
        lambda: fit_language(BOOK, TrainingOptions(), tmp_path / "run"),
        ArgumentError,
        "processes: expected one: several cannot train a language model; got 2. "
        "Start the command without torchrun.",
        whole=True,
    )


@pytest.fixture
def able(monkeypatch) -> None:
    """PyTorch computes in bfloat16 on any processor; that it is slow there is not tested."""
    monkeypatch.setattr("intently.tasks.training.trainer.check_bfloat16", lambda device: None)


def losses(out, options) -> list[float]:
    found = []
    tiny.run(out, options, tiny.losses(found), net=tiny.model(options=options))
    return found


@pytest.mark.usefixtures("able")
def test_the_losses_are_close_and_the_weights_are_float32(tmp_path) -> None:
    wide, narrow = losses(tmp_path / "wide", OPTIONS), losses(tmp_path / "narrow", NARROW)
    assert narrow == pytest.approx(wide, rel=0.02)
    assert narrow != wide
    checkpoint = Checkpoints(tmp_path / "narrow" / "checkpoints").load()
    tensors = [*checkpoint.model.values(), *checkpoint.training.values()]
    assert {t.dtype for t in tensors} == {torch.float32, torch.uint8}


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize(
    "kind",
    [
        OPTIONS.shape(16, 16),
        *(RecurrentOptions(16, 16, 16, attention=x, dropout=0.0) for x in ATTENTIONS),
    ],
    ids=["transformer", *ATTENTIONS],
)
def test_the_gradients_of_every_model_are_close(kind) -> None:
    net = new_model(kind)
    [batch, *_] = epoch(tiny.pairs(), 200, seed=1)
    found = []
    for options in (OPTIONS, NARROW):
        worker = TrainedModel(net, options, Processes())
        net.zero_grad()
        worker.gradients([batch])
        found.append(torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]))
    assert found[1].dtype == torch.float32
    assert (found[1] - found[0]).norm() < 0.05 * found[0].norm()
    assert not torch.equal(*found)


def test_a_machine_without_it_says_what_it_lacks(monkeypatch, tmp_path) -> None:
    names = "_is_avx512_bf16_supported", "_is_amx_tile_supported"
    for able in (*names, None):
        for name in names:
            has = name == able
            monkeypatch.setattr(torch.cpu, name, lambda has=has: has, raising=False)
        if able:
            check_bfloat16(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    refused(
        lambda: train(tiny.model(), tiny.pairs(), NARROW, tmp_path / "run"),
        ArgumentError,
        "precision: expected 'float32' on this machine; got 'bfloat16'. "
        "This processor has neither AVX512_BF16 nor AMX.",
        whole=True,
    )
    assert not (tmp_path / "run").exists()
    for device, text in (("cuda", "This GPU"), ("mps", "A device of the kind mps")):
        with pytest.raises(ArgumentError, match=f"{text} does not multiply in bfloat16"):
            check_bfloat16(torch.device(device))
