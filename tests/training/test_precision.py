"""bfloat16 where the hardware has it: close losses, float32 weights, and a refusal elsewhere."""

from __future__ import annotations

import pytest
import tiny_run as tiny
import torch

from intently.errors import ArgumentError
from intently.models.kinds import new_model
from intently.models.recurrent import ATTENTIONS, RecurrentOptions
from intently.training import Checkpoints, train
from intently.training import workers as module
from intently.training.batches import epoch
from intently.training.processes import Processes
from intently.training.workers import Worker, check_bfloat16

from ..messages import refused

OPTIONS = tiny.OPTIONS.with_flags(steps=12, dropout=0.0)
NARROW = OPTIONS.with_flags(precision="bfloat16")


@pytest.fixture
def able(monkeypatch) -> None:
    """PyTorch computes in bfloat16 on any processor; that it is slow there is not tested."""
    monkeypatch.setattr(module, "check_bfloat16", lambda device: None)
    monkeypatch.setattr("intently.training.trainer.check_bfloat16", lambda device: None)


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
        worker = Worker(net, options, Processes())
        net.zero_grad()
        worker.gradients([batch])
        found.append(torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]))
    assert found[1].dtype == torch.float32
    assert (found[1] - found[0]).norm() < 0.05 * found[0].norm()
    assert not torch.equal(*found)


@pytest.mark.parametrize("name", ["_is_avx512_bf16_supported", "_is_amx_tile_supported"])
def test_a_processor_that_has_it_may(monkeypatch, name: str) -> None:
    for each in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, each, lambda each=each: each == name, raising=False)
    check_bfloat16(torch.device("cpu"))


def test_a_machine_without_it_says_what_it_lacks(monkeypatch, tmp_path) -> None:
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False, raising=False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    refused(
        lambda: train(tiny.model(), tiny.pairs(), NARROW, tmp_path / "run"),
        ArgumentError,
        "precision: expected 'float32' on this machine; got 'bfloat16'. "
        "This processor has neither AVX512_BF16 nor AMX.",
        whole=True,
    )
    assert not (tmp_path / "run").exists()
    for device, text in (
        ("cuda", "This GPU does not multiply in bfloat16"),
        ("mps", "A device of the kind mps does not multiply in bf"),
    ):
        with pytest.raises(ArgumentError, match=text):
            check_bfloat16(torch.device(device))
