"""The harness: calls in turn, ratios round by round, and processes of their own for the rest."""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
import random
import re
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

Call = Callable[[], Any]
SEED = 3


class Effort(NamedTuple):
    """How long one case is measured: rounds until ``seconds`` have passed, within two bounds."""

    seconds: float
    at_least: int
    at_most: int


class Spread(NamedTuple):
    """Median and quartiles of n rounds."""

    median: float
    low: float
    high: float
    n: int

    def text(self, digits: int = 2) -> str:
        """Write ``median (low to high)``."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


class Peak(NamedTuple):
    """Bytes above the level before the call, and the bytes of the tensors it returned."""

    above: int
    results: int


# --- time ---------------------------------------------------------------------------------------


def rounds(
    calls: dict[str, Call],
    effort: Effort,
    repeat: int = 1,
    timed: Callable[[Call, int], float] | None = None,
) -> dict[str, list[float]]:
    """Seconds of each call, round by round; in a round every call runs once, in shuffled order.

    Every call runs once before, so that nothing is timed that happens only once. With ``repeat`` a
    turn is a block of that many calls, and the seconds are those of one call. ``timed`` is another
    clock, such as that of a GPU.
    """
    for call in set(calls.values()):
        call()
    order, shuffle = list(calls), random.Random(SEED).shuffle
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    start = time.perf_counter()
    for done in range(effort.at_most):
        if done >= effort.at_least and time.perf_counter() - start > effort.seconds:
            break
        shuffle(order)
        for name in order:
            seconds[name].append((timed or _time)(calls[name], repeat))
    return seconds


def _time(call: Call, repeat: int) -> float:
    if repeat == 1:
        start = time.perf_counter()
        result = call()  # held, so that freeing it is not timed
        seconds = time.perf_counter() - start
        del result
        return seconds
    turns = range(repeat)
    start = time.perf_counter()
    for _ in turns:
        call()
    return (time.perf_counter() - start) / repeat


def spread(values: Iterable[float]) -> Spread:
    """Median and quartiles."""
    found = list(values)
    if len(found) == 1:
        return Spread(found[0], found[0], found[0], 1)
    low, median, high = statistics.quantiles(found, n=4, method="inclusive")
    return Spread(median, low, high, len(found))


def ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Spread of the ratios of two calls, each ratio within one round."""
    return spread(a / b for a, b in zip(above, below, strict=True))


def difference(first: Sequence[float], second: Sequence[float]) -> Spread:
    """Spread of the differences of two calls, each difference within one round."""
    return spread(a - b for a, b in zip(first, second, strict=True))


def geometric_mean(values: Iterable[float]) -> float:
    """Exp of the mean logarithm."""
    return math.exp(statistics.fmean(map(math.log, values)))


def check_agree(name: str, first: Sequence[Tensor], second: Sequence[Tensor]) -> None:
    """Raise unless both sides computed the same: a race between different results says nothing."""
    for x, y in zip(first, second, strict=True):
        error = (x - y).abs().max() / x.abs().max()
        if not error < 1e-4:
            raise AssertionError(f"{name}: the two sides differ by {error:.1e} of the maximum")


# --- a model ------------------------------------------------------------------------------------


def gpt2(width: int, layers: int, heads: int, words: int = 64, **options: Any) -> Any:
    """A GPT-2 with random weights, in eval mode."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(SEED)
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    size = {"n_embd": width, "n_layer": layers, "n_head": heads, "vocab_size": words}
    return GPT2LMHeadModel(GPT2Config(**size, **ends, **options)).eval()


def ids(t: int) -> Tensor:
    """One text of t tokens."""
    return torch.randint(64, (1, t), generator=torch.Generator().manual_seed(SEED))


# --- memory -------------------------------------------------------------------------------------


def in_fresh_process(measured: Callable[..., Peak], *args: Any) -> Peak:
    """Run ``measured(*args)`` in a process of its own, forked from one that has only imported."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "intently"])
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        return pool.submit(measured, *args).result()


def peak(call: Call) -> Peak:
    """Peak resident memory during the call, above the level before it (Linux).

    What earlier calls freed is first given back to the system, so that it cannot hide what this
    one takes. Results count: they are memory that the call needs. Where the system does not let
    the peak start again, it is that of the whole process: too much, never too little.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    level = _resident("VmRSS")
    results = call()
    above = _resident("VmHWM") - level
    return Peak(above, sum(x.nbytes for x in results))


def _resident(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


# --- processes -----------------------------------------------------------------------------------

Tell = Callable[[dict[str, Any]], None]


def isolated(work: Callable[[Tell], None], seconds: float) -> tuple[dict[str, Any] | None, str]:
    """Run ``work`` in a forked process; return the last row that it told, and what cut it short.

    A hang, a crash or a lack of memory loses no more than what was not told yet.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "w", buffering=1) as out:
                work(lambda row: print(json.dumps(row), file=out))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    text, until, why = b"", time.perf_counter() + seconds, f"not done after {seconds:.0f} s"
    while (left := until - time.perf_counter()) > 0:
        if select.select([reading], [], [], left)[0]:
            piece = os.read(reading, 1 << 16)
            if not piece:
                why = ""
                break
            text += piece
    os.close(reading)
    if why:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    lines = [line for line in text.split(b"\n") if line.endswith(b"}")]
    ended = f"the process ended with {status}" if status else ""
    return json.loads(lines[-1]) if lines else None, why or ended


def start_python(code: str) -> Call:
    """Return the call that runs ``code`` in a new interpreter of this environment."""
    return lambda: subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL
    )
