"""Programs recorded by torch.jit.trace, torch.export and ONNX run with the lengths of each call."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intently as it

from .formula import random as drawn

pytestmark = [
    pytest.mark.skipif("INTENTLY_ANNOTATIONS" in os.environ, reason="checks cannot be traced"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def random(*shape: int, seed: int = 0) -> Tensor:
    return drawn(*shape, dtype=torch.float32, seed=seed)


T, LENGTHS = 40, (17, 90)
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": it.causal()},
    "window": {"mask": it.window(3, 0)},
    "a window wider than the example": {"mask": it.window(50, 50)},
    "a prefix longer than the example": {"mask": it.prefix(60)},
    "an offset beyond the example": {"mask": it.causal(60)},
    "padding": {"mask": it.padding([3, 60])},
    "joined": {"mask": (it.causal() & it.dilated(2)) | ~it.window(9, 9)},
    "alibi": {"bias": it.alibi()},
    "buckets": {"bias": it.relative_buckets(random(32, 4, seed=7))},
    "softcap": {"softcap": 2.0, "sinks": random(4, seed=8)},
}


def inputs(t: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (random(2, 4, t, 8, seed=seed + n) for n in range(3))
    return q, k, v


class Call(nn.Module):
    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.call(q, k, v)


def product(rule: str) -> Call:
    return Call(lambda q, k, v: it.attention(q, k, v, **RULES[rule]))


@pytest.mark.parametrize("rule", RULES)
def test_a_trace_follows_the_lengths(rule: str) -> None:
    call = product(rule)
    traced = torch.jit.trace(call, inputs(T), check_trace=False)
    for t in LENGTHS:
        torch.testing.assert_close(traced(*inputs(t)), call(*inputs(t)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("rule", RULES)
def test_an_export_follows_the_lengths(rule: str) -> None:
    call, steps = product(rule), torch.export.Dim("steps", min=2, max=5000)
    shapes = {name: {2: steps} for name in "qkv"}
    program = torch.export.export(call, inputs(T), dynamic_shapes=shapes).module()
    for t in LENGTHS:
        torch.testing.assert_close(program(*inputs(t)), call(*inputs(t)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_an_onnx_file_follows_the_lengths(rule: str, dynamo: bool) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    call, file = product(rule), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            shapes = {name: {2: torch.export.Dim("steps")} for name in "qkv"}
            made = torch.onnx.export(
                call, inputs(T), dynamo=True, verbose=False, dynamic_shapes=shapes
            )
            assert made is not None
            made.save(file)
        else:
            axes = {name: {2: "steps"} for name in "qkv"}
            torch.onnx.export(
                call, inputs(T), file, dynamo=False, input_names=list("qkv"), dynamic_axes=axes
            )
    session = runtime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]
    for t in LENGTHS:
        given = inputs(t)
        (got,) = session.run(None, dict(zip(names, (x.numpy() for x in given))))
        torch.testing.assert_close(torch.from_numpy(got), call(*given), atol=1e-5, rtol=1e-4)


def test_a_recorded_top_left_mask_stays_top_left() -> None:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return it.scaled_dot_product_attention(q, k, v, is_causal=True)

    traced = torch.jit.trace(call, inputs(T), check_trace=False)
    q, (_, k, v) = inputs(9)[0], inputs(30)
    torch.testing.assert_close(traced(q, k, v), call(q, k, v))


def test_a_mask_is_an_input() -> None:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return it.attention(q, k, v, mask=k[0, 0, :, :1] < v[0, 0, :, 0])

    file = io.BytesIO()
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Call(call), inputs(T), file, dynamo=False, input_names=list("qkv"))
    session = runtime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    given = inputs(T, seed=5)
    (got,) = session.run(None, dict(zip("qkv", (x.numpy() for x in given))))
    torch.testing.assert_close(torch.from_numpy(got), call(*given), atol=1e-5, rtol=1e-4)


STATISTICS: dict[str, Callable[[Any], Tensor]] = {
    "dense": lambda a: a.dense(),
    "lse": lambda a: a.lse,
    "entropy": lambda a: a.entropy(),
    "received": lambda a: a.received(),
    "distance": lambda a: a.distance(),
    "argmax": lambda a: a.argmax(),
    "mass": lambda a: a.mass([0, 3]),
    "top": lambda a: a.top(3)[0],
    "pool": lambda a: a.pool(4, 4),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_a_trace_of_a_statistic(name: str) -> None:
    def statistic(q: Tensor, k: Tensor) -> Tensor:
        return STATISTICS[name](it.attend(q, k, mask=it.causal()))

    traced = torch.jit.trace(statistic, inputs(T)[:2], check_trace=False)
    given = inputs(T, seed=5)[:2]
    torch.testing.assert_close(traced(*given), statistic(*given), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("t", [12, 300])
def test_statistics_of_many(name: str, t: int) -> None:
    def statistic(q: Tensor, k: Tensor) -> Tensor:
        return STATISTICS[name](it.attend(q, k, mask=it.causal()))

    q, k, _ = inputs(t)
    torch.testing.assert_close(torch.func.vmap(statistic)(q, k), statistic(q, k))
