"""Measure attention on a GPU against PyTorch's and write the table of docs/benchmarks.md.

    python -m benchmarks.core.gpu [--quick] [--out FILE.md]

Each call is timed by CUDA events; competitors take turns in one process, in shuffled order, and
the ratios are those of single rounds. FlexAttention's side is PyTorch's documented use: compiled,
its block mask made once by ``create_block_mask``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import intently as it
from benchmarks.measure import SEED, Effort, ratio, rounds, spread
from benchmarks.report import NONE, Section, Settings, arguments, run, table

Call = Callable[[], Tensor]
H, D = 16, 64
flex = torch.compile(flex_attention)


class Row(NamedTuple):
    """One line of the table: what is asked, and the mask and options of both sides."""

    title: str
    mask: it.Mask | None
    theirs: Callable[[Tensor, Tensor, Tensor], Callable[[], Tensor]]
    options: dict


def _sdpa(causal: bool) -> Callable[[Tensor, Tensor, Tensor], Call]:
    return lambda q, k, v: lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _flex(allow: Callable | None, score: Callable | None = None) -> Callable:
    def made(q: Tensor, k: Tensor, v: Tensor) -> Call:
        t = q.shape[-2]
        blocks = (
            None if allow is None else create_block_mask(allow, None, None, t, t, device="cuda")
        )
        return lambda: flex(q, k, v, score_mod=score, block_mask=blocks)

    return made


def _causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return j <= i


def rows() -> list[Row]:
    """What is measured."""
    slopes = torch.tensor([2 ** (-8 * (n + 1) / H) for n in range(H)], device="cuda")

    def window(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (i - j <= 256)

    def document(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i // 512 == j // 512) & (j <= i)

    def capped(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return 20 * torch.tanh(score / 20)

    def sloped(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score - slopes[h] * (i - j).abs()

    documents = it.segments(torch.arange(8192, device="cuda") // 512)
    return [
        Row("no mask, against SDPA", None, _sdpa(False), {}),
        Row("causal, against SDPA", it.causal(), _sdpa(True), {}),
        Row("causal window of 256, against FlexAttention", it.window(256, 0), _flex(window), {}),
        Row(
            "packed documents of 512, causal, against FlexAttention",
            documents & it.causal(),
            _flex(document),
            {},
        ),
        Row(
            "causal, softcap, against FlexAttention",
            it.causal(),
            _flex(_causal, capped),
            {"softcap": 20.0},
        ),
        Row(
            "causal, ALiBi, against FlexAttention",
            it.causal(),
            _flex(_causal, sloped),
            {"bias": it.alibi(H)},
        ),
    ]


def seconds(call: Callable[[], object], _: int) -> float:
    """Seconds on the GPU, by events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    result = call()
    end.record()
    end.synchronize()
    del result
    return start.elapsed_time(end) / 1e3


def line(row: Row, t: int, dtype: torch.dtype, backward: bool, count: int) -> list[str]:
    """Measure one cell; both sides agree first."""
    b = max(1, 16384 // t)
    q, k, v = (torch.randn(b, H, t, D, device="cuda", dtype=dtype) for _ in range(3))
    for x in (q, k, v):
        x.requires_grad_(backward)
    dy, theirs = torch.randn_like(q), row.theirs(q, k, v)

    def ours() -> Tensor:
        return it.attention(q, k, v, mask=row.mask, **row.options)

    difference = float((ours() - theirs()).abs().max())
    assert difference < (0.05 if dtype is torch.bfloat16 else 5e-3), (row.title, difference)

    def whole(forward: Call) -> Callable[[], object]:
        if not backward:
            return forward
        return lambda: torch.autograd.grad(forward(), (q, k, v), dy)

    calls = {"theirs": whole(theirs), "again": whole(theirs), "ours": whole(ours)}
    found = rounds(calls, Effort(0, count, count), timed=seconds)
    plan = it.attend(q, k, mask=row.mask, **row.options).plan(v)
    return [
        row.title,
        f"({b}, {H}, {t:,}, {D})",
        str(dtype).removeprefix("torch."),
        "with backward" if backward else "forward",
        plan.kernel,
        f"{spread(found['ours']).median * 1e3:.2f}",
        ratio(found["theirs"], found["ours"]).text(),
        ratio(found["theirs"], found["again"]).text(),
    ]


def gpu(settings: Settings) -> Section:
    """Every row in both precisions, forward and with backward."""
    torch.manual_seed(SEED)
    torch._dynamo.config.recompile_limit = 256  # past eight, PyTorch's side would not be compiled
    lines = []
    for row in rows():
        for dtype in (torch.bfloat16, torch.float32):
            for backward in (False, True):
                lines.append(line(row, 8192, dtype, backward, 3 if settings.quick else 30))
                print(*lines[-1], sep=" | ", file=sys.stderr, flush=True)
    head = ["what", "(b, h, t, d)", "dtype", "", "our kernel", "ours, ms", "theirs / ours", "A/A"]
    name = torch.cuda.get_device_name()
    return Section(f"attention on {name}", NONE, "see below", NONE, table(head, lines))


if __name__ == "__main__":
    run(arguments("Measure attention on a GPU.").parse_args(), {"gpu": gpu})
