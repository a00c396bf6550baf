"""The mean of checkpoints: its values, what is refused, and which checkpoints are meant."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_run as tiny
import torch
from torch import Tensor

from intently.errors import ArgumentError, CheckpointError
from intently.training import Checkpoint, Checkpoints, TrainingOptions, averaged, load_weights
from intently.training.averaging import newest
from intently.training.checkpoint import name_of


def saved(folder: Path, *models: dict[str, Tensor]) -> Checkpoints:
    checkpoints = Checkpoints(folder)
    for step, model in enumerate(models, 1):
        checkpoints.save(name_of(step), Checkpoint(model, {}, {}))
    return checkpoints


def test_it_is_the_mean_of_each_weight(tmp_path: Path) -> None:
    models = [{"a": torch.randn(3, 4), "b": torch.randn(2)} for _ in range(5)]
    checkpoints = saved(tmp_path, *models)
    mean = averaged(checkpoints, checkpoints.names()[1:])
    for name in ("a", "b"):
        expected = torch.stack([model[name].double() for model in models[1:]]).mean(0).float()
        torch.testing.assert_close(mean[name], expected, rtol=2e-7, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_it_is_summed_in_float64(tmp_path: Path, dtype: torch.dtype) -> None:
    """In the weights' own precision the small ones would be lost beside the large one."""
    big, small = 1.0, torch.finfo(dtype).eps / 4
    models = [{"a": torch.tensor([x], dtype=dtype)} for x in (big, *[small] * 7, -big)]
    mean = averaged(saved(tmp_path, *models), Checkpoints(tmp_path).names())["a"]
    assert mean.dtype is dtype
    if dtype is not torch.float64:
        assert mean.item() == pytest.approx(7 * small / 9, rel=0.01)


def test_equal_checkpoints_have_themselves_as_mean(tmp_path: Path) -> None:
    model = {"a": torch.randn(100)}
    checkpoints = saved(tmp_path, model, model, model)
    assert torch.equal(averaged(checkpoints, checkpoints.names())["a"], model["a"])


def test_what_is_no_floating_point_number_is_that_of_the_last(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, {"n": torch.tensor([1])}, {"n": torch.tensor([4])})
    assert averaged(checkpoints, checkpoints.names())["n"].tolist() == [4]


def test_a_model_takes_it(tmp_path: Path) -> None:
    tiny.run(tmp_path, tiny.OPTIONS.with_flags(steps=9, keep=3))
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    net = tiny.model()
    load_weights(net, averaged(checkpoints, checkpoints.names()[-2:]))
    assert all(parameter.isfinite().all() for parameter in net.parameters())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"a": torch.ones(3)},
            r"step-000002: a: expected shape \(2,\); got shape \(3,\)\. They and "
            "those of step-000001 are of different models",
        ),
        ({"b": torch.ones(2)}, r"step-000002: a: expected shape \(2,\); got no such tensor"),
        (
            {"a": torch.ones(2), "b": torch.ones(2)},
            r"step-000002: b: expected no such tensor; got shape \(2,\)\. They and "
            "those of step-000001 are of different models",
        ),
    ],
)
def test_other_names_and_shapes_are_refused(
    tmp_path: Path, other: dict[str, Tensor], message: str
) -> None:
    checkpoints = saved(tmp_path, {"a": torch.ones(2)}, other)
    with pytest.raises(CheckpointError, match=message):
        averaged(checkpoints, checkpoints.names())


def test_nothing_and_damage_are_refused(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, {"a": torch.ones(2)}, {"a": torch.ones(2)})
    file = tmp_path / "step-000002" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    for names, kind, told in (
        ([], ArgumentError, "names: expected at least one checkpoint to average"),
        (["step-000001", "step-000007"], CheckpointError, "step-000007"),
        (["step-000001", "step-000002"], CheckpointError, "another checksum"),
    ):
        with pytest.raises(kind, match=told):
            averaged(checkpoints, names)


def test_the_newest_steps_each_once() -> None:
    names = ["step-000003", "step-000006", "step-000006-2", "step-000009"]
    assert newest(names, 2) == ["step-000006-2", "step-000009"]
    assert newest(names, 9) == ["step-000003", "step-000006-2", "step-000009"]


def test_as_many_must_be_kept() -> None:
    assert TrainingOptions().with_flags(average=3, keep=3).run.average == 3
