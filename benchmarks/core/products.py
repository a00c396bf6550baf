"""Products with the matrix: where torch fuses, with a dense mask, and one long context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import intently as it
from benchmarks import measure
from benchmarks.measure import Effort, Peak, Spread, geometric_mean
from benchmarks.report import (
    NONE,
    READING,
    Section,
    Settings,
    against_noise,
    megabytes,
    reached,
    table,
    worst_noise,
)

DOCUMENT = 512
WINDOW = 256


@dataclass(frozen=True)
class Product:
    """y = A @ v, forward or forward and backward, against scaled_dot_product_attention.

    ``kind`` says what is passed beside q, k and v (b, h, t, d): see `_extras`.
    """

    kind: str
    b: int
    h: int
    t: int
    d: int
    backward: bool = False

    def warm(self) -> Product:
        """Return the same at a size that costs little, yet runs the same code on every core."""
        return replace(self, t=min(self.t, 1024))

    def calls(self) -> dict[str, measure.Call]:
        """Build the inputs; "torch" and "ours" return y, and with ``backward`` the gradients.

        torch has no call where the dense mask it needs would be too large to build.
        """
        torch.manual_seed(measure.SEED)
        shape = (self.b, self.h, self.t, self.d)
        q, k, v = (torch.randn(shape, requires_grad=self.backward) for _ in range(3))
        for_torch, for_us = _extras(self.kind, self.t)
        inputs = [q, k, v] if self.backward else []
        dy = torch.randn_like(v) if self.backward else None

        def whole(forward: Callable[[], Tensor]) -> measure.Call:
            def call() -> tuple[Tensor, ...]:
                y = forward()
                return (y, *torch.autograd.grad(y, inputs, dy)) if inputs else (y,)

            return call

        calls = {"ours": whole(lambda: it.attention(q, k, v, **for_us()))}
        if for_torch is not None:
            calls["torch"] = whole(lambda: F.scaled_dot_product_attention(q, k, v, **for_torch))
        return calls

    @property
    def way(self) -> str:
        """The way in words."""
        return "with backward" if self.backward else "forward"

    def mask_bytes(self) -> int:
        """Bytes of the dense mask that torch needs and we do not."""
        return self.t**2 if self.kind in DENSE else 0


def peak(case: Product, side: str, threads: int) -> measure.Peak:
    """Peak memory of one side of a case; to be run in a fresh process."""
    torch.set_num_threads(threads)
    case.warm().calls()[side]()
    return measure.peak(case.calls()[side])


def dense_mask(kind: str, t: int) -> Tensor:
    """Build the boolean (t, t) that torch needs, True means attend."""
    i, j = torch.arange(t)[:, None], torch.arange(t)
    if kind == "window(255, 0)":
        return (j <= i) & (j > i - WINDOW)
    same = i // DOCUMENT == j // DOCUMENT
    return same if kind == "segments(ids)" else same & (j <= i)


DENSE: dict[str, Callable[[int], it.Mask]] = {
    "window(255, 0)": lambda t: it.window(WINDOW - 1, 0),
    "segments(ids) & causal()": lambda t: it.segments(torch.arange(t) // DOCUMENT) & it.causal(),
    "segments(ids)": lambda t: it.segments(torch.arange(t) // DOCUMENT),
}


def _extras(kind: str, t: int) -> tuple[dict[str, Any] | None, Callable[[], dict[str, Any]]]:
    """Further arguments for torch, and for us, whose masks are made anew in every call."""
    if kind in DENSE:
        return {"attn_mask": dense_mask(kind, t)}, lambda: {"mask": DENSE[kind](t)}
    return {
        "plain": ({}, dict),
        "causal": ({"is_causal": True}, lambda: {"mask": it.causal()}),
        "window(1023, 0)": (None, lambda: {"mask": it.window(1023, 0)}),
    }[kind]


FUSED = (
    (64, 4, 256, 16),
    (32, 8, 256, 32),
    (16, 8, 256, 64),
    (8, 12, 256, 64),
    (16, 4, 512, 32),
    (8, 8, 512, 64),
    (4, 12, 512, 64),
    (4, 8, 512, 128),
    (4, 8, 1024, 32),
    (2, 8, 1024, 64),
    (2, 8, 2048, 32),
    (1, 8, 2048, 64),
    (1, 4, 2048, 128),
    (1, 8, 4096, 64),
)
WAYS = {
    "forward": ("plain", False),
    "forward, causal": ("causal", False),
    "with backward": ("plain", True),
    "with backward, causal": ("causal", True),
}


MEAN = 0.97
"""Goal of the geometric mean where torch fuses as well."""


def fused(settings: Settings) -> Section:
    """`A @ v` where torch fuses as well."""
    shapes = ((2, 2, 64, 16), (1, 2, 128, 64)) if settings.quick else FUSED
    ours: dict[str, list[float]] = {way: [] for way in WAYS}
    noise: dict[str, list[float]] = {way: [] for way in WAYS}
    lines = []
    for b, h, t, d in shapes:
        line = [f"({b}, {h}, {t:,}, {d})"]
        for way, (kind, backward) in WAYS.items():
            case = Product(kind, b, h, t, d, backward)
            seconds = _race(case, settings.effort(2.5, 7, 101))
            found = measure.ratio(seconds["torch"], seconds["ours"])
            same = measure.ratio(seconds["torch"], seconds["torch again"])
            ours[way].append(found.median)
            noise[way].append(same.median)
            line += [found.text(), f"{same.median:.2f}"]
        lines.append(line)
    for name, ours_summed, noise_summed in (
        ("geometric mean", geometric_mean, geometric_mean),
        ("worst", min, worst_noise),
    ):
        sums = [x for way in WAYS for x in (ours_summed(ours[way]), noise_summed(noise[way]))]
        lines.append([f"**{name}**", *(f"**{x:.3f}**" for x in sums)])
    every, quiet = ([x for way in WAYS for x in found[way]] for found in (ours, noise))
    measured, misses = against_noise(every, quiet, MEAN)
    head = ["(b, h, t, d)", *(x for way in WAYS for x in (way, "A/A"))]
    body = (
        f"torch's time / our time, {READING}; above 1 we are faster. A/A is torch against torch, "
        "its worst the smallest of all ratios and their inverses, for either may stand above.\n\n"
        + table(head, lines)
    )
    return Section(
        f"`A @ v` where torch fuses, {len(shapes)} shapes, causal and not, forward and backward",
        f"geometric mean ≥ {MEAN}; none below the worst A/A",
        measured,
        reached(misses),
        body,
    )


def sparse(settings: Settings) -> Section:
    """Windows and packed documents against torch with the dense mask."""
    t, d, h = (1024, 16, 2) if settings.quick else (16384, 64, 8)
    return _products(
        f"window of {WINDOW} and packed documents of {DOCUMENT}, t = s = {t:,}, {h} heads",
        _Goal("≥ 8× faster, ≤ 1/20 of the memory", 8.0, 20),
        f"b = 1, h = {h}, t = s = {t:,}, d = {d}; documents of {DOCUMENT}. torch gets the "
        f"boolean mask (t, s) built beforehand: its {megabytes(t * t)} MB count as "
        "memory, the time to build it does not count. Our masks are made in the timed call.",
        [Product(kind, 1, h, t, d, way) for kind in DENSE for way in (False, True)],
        settings.effort(30, 3, 11),
        settings,
    )


class _Goal(NamedTuple):
    """At least so many times faster, with at most one part in ``smaller`` of the memory."""

    text: str
    faster: float
    smaller: int


class _Row(NamedTuple):
    """One case measured: torch's seconds, how much faster the other side is, both peaks."""

    case: Product
    seconds: float
    speed: Spread
    torch: int
    other: Peak

    @property
    def saving(self) -> float:
        """Torch's memory over the other side's."""
        return self.torch / self.other.above

    def misses(self, goal: _Goal) -> list[str]:
        """Return by which factors the goal is missed."""
        speed, saving = goal.faster / self.speed.median, goal.smaller / self.saving
        slow = [f"{speed:.2f}× too slow"] if speed >= 1 else []
        if saving <= 1:
            return slow
        alone = goal.smaller * self.other.results / self.torch
        why = f", {alone:.1f}× by the results alone" if alone > 1 else ""
        return [*slow, f"{saving:.1f}× the memory allowed{why}"]

    def line(self, prefix: str, verdict: str) -> list[str]:
        """Return the cells of the table."""
        return [
            prefix + self.case.kind,
            self.case.way,
            f"{self.seconds:.3g}",
            self.speed.text(),
            str(self.speed.n),
            megabytes(self.torch),
            megabytes(self.other.above),
            megabytes(self.other.results),
            f"{self.saving:.1f}",
            verdict,
        ]


HEAD = [
    "",
    "",
    "torch, s",
    "torch's time / ours",
    "rounds",
    "torch, MB",
    "ours, MB",
    "results, MB",
    "torch's MB / ours",
    "reached",
]


def _products(
    title: str, goal: _Goal, note: str, cases: list[Product], effort: Effort, settings: Settings
) -> Section:
    """Measure the cases against a goal."""
    lines, found, missed = [], [], 0
    for case in cases:
        row, again = _rows(case, effort, settings.threads, again=not found)
        misses = row.misses(goal)
        lines += [again.line("A/A: ", NONE)] if again else []
        lines.append(row.line("", reached(misses)))
        found.append(row)
        missed += bool(misses)
    speeds, savings = [x.speed.median for x in found], [x.saving for x in found]
    measured = (
        f"{min(speeds):.2g} to {max(speeds):.3g}× as fast, 1/{min(savings):.1f} to "
        f"1/{max(savings):.0f} of the memory"
    )
    verdict = reached([f"{missed} of {len(found)} rows miss, see below"] if missed else [])
    body = (
        f"{note}\n\nTime: {READING}; memory: the peak above the inputs, results (y and gradients) "
        "included.\n\n" + table(HEAD, lines)
    )
    return Section(title, goal.text, measured, verdict, body)


def _rows(case: Product, effort: Effort, threads: int, again: bool) -> tuple[_Row, _Row | None]:
    """Return ours against torch and, where ``again``, torch against torch in the same rounds."""
    seconds = _race(case, effort, again)
    median = measure.spread(seconds["torch"]).median
    mask = case.mask_bytes()

    def row(other: str, side: str, extra: int) -> _Row:
        speed = measure.ratio(seconds["torch"], seconds[other])
        used = measure.in_fresh_process(peak, case, side, threads)
        return _Row(case, median, speed, above, used._replace(above=used.above + extra))

    above = measure.in_fresh_process(peak, case, "torch", threads).above + mask
    return row("ours", "ours", 0), row("torch again", "torch", mask) if again else None


def long(settings: Settings) -> Section:
    """One context whose matrix fits no memory."""
    t, d, h = (4096, 16, 2) if settings.quick else (131072, 64, 8)
    case = Product("window(1023, 0)", 1, h, t, d)
    calls = {"ours": case.calls()["ours"]}
    seconds = measure.rounds(calls, settings.effort(20, 3, 5))["ours"]
    used = measure.in_fresh_process(peak, case, "ours", settings.threads)
    found = measure.spread(seconds)
    line = [
        f"t = s = {t:,}, {h} heads, d = {d}",
        found.text(2 if found.median > 1 else 4),
        megabytes(used.above),
        megabytes(used.results),
        megabytes(4 * h * t * t),
        megabytes(t * t),
    ]
    head = ["", "seconds", "MB above the inputs", "of them y"]
    head += ["dense weights, MB", "dense mask, MB"]
    return Section(
        f"`it.attention` with `window(1023, 0)` at t = s = {t:,}, {h} heads, forward",
        "none: no other side can run",
        f"{found.median:.3g} s, {megabytes(used.above)} MB",
        NONE,
        table(head, [line]),
    )


def _race(case: Product, effort: Effort, again: bool = True) -> dict[str, list[float]]:
    """Let both sides agree, then run them in turn, torch once more where ``again``."""
    calls = case.calls()
    first, second = calls["torch"](), calls["ours"]()
    measure.check_agree(f"{case.kind}, {case.way}", first, second)
    del first, second
    return measure.rounds(calls | ({"torch again": calls["torch"]} if again else {}), effort)
