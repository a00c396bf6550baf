"""Products with the matrix: where torch fuses, where it does not, and where little is allowed."""

from __future__ import annotations

from typing import NamedTuple

import measure
from cases import DENSE, DOCUMENT, WINDOW, Product
from cases import peak as peak_of
from measure import Effort, Peak, Spread, geometric_mean
from report import (
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
            case = Product(kind, b, h, t, d, d, backward)
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


def leaves(settings: Settings) -> Section:
    """The calls for which torch silently builds the matrix."""
    t, d, h = (128, 16, 2) if settings.quick else (4096, 64, 8)
    kinds = {
        "e < d": d // 2,
        "e > d": 2 * d,
        "mask (h, t, s)": d,
        "q, k, v 3-D": d,
        "bias (t, s)": d,
        "bias (h, t, s)": d,
        "dropout 0.1": d,
    }
    products = [
        Product(kind, 1, h, t, d, e, way) for kind, e in kinds.items() for way in (False, True)
    ]
    return _products(
        f"where torch silently leaves the fused path, t = s = {t:,}, {h} heads",
        _Goal("faster, ≤ 1/10 of the memory", 1.0, 10),
        f"b = 1, h = {h}, t = s = {t:,}, d = {d}; e = d but for e < d ({d // 2}) and e > d "
        f"({2 * d}). The masks and biases are inputs of both sides and not counted; the bias "
        "needs a gradient, also where only the forward pass is timed.",
        products,
        settings.effort(10, 5, 21),
        settings,
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
        [Product(kind, 1, h, t, d, d, way) for kind in DENSE for way in (False, True)],
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
            self.case.torch_runs(),
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
    "torch runs",
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
        peak = measure.in_fresh_process(peak_of, case, side, threads)
        return _Row(case, median, speed, above, peak._replace(above=peak.above + extra))

    above = measure.in_fresh_process(peak_of, case, "torch", threads).above + mask
    return row("ours", "ours", 0), row("torch again", "torch", mask) if again else None


def long(settings: Settings) -> Section:
    """One context whose matrix fits no memory."""
    t, d, h = (4096, 16, 2) if settings.quick else (131072, 64, 8)
    case = Product("window(1023, 0)", 1, h, t, d, d)
    calls = {"ours": case.calls()["ours"]}
    seconds = measure.rounds(calls, settings.effort(20, 3, 5))["ours"]
    used = measure.in_fresh_process(peak_of, case, "ours", settings.threads)
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
    if not case.random:
        measure.check_agree(f"{case.kind}, {case.way}", first, second)
    del first, second
    return measure.rounds(calls | ({"torch again": calls["torch"]} if again else {}), effort)
