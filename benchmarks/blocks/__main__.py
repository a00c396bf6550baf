"""Measure attention blocks against those of other libraries, with the same weights.

    python -m benchmarks.blocks [--quick] [--only NAME …] [--out FILE.md] [--threads 2]

Both sides must first agree in y and in the gradients. Then they run in turn in one process, in an
order shuffled by a fixed seed; ratios are taken round by round. A library that is not installed is
named and passed over.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch

from benchmarks import measure
from benchmarks.blocks import cases
from benchmarks.blocks.cases import LIBRARIES, Decoder, Shape
from benchmarks.measure import geometric_mean
from benchmarks.report import (
    NONE,
    READING,
    Goals,
    Section,
    Settings,
    against_noise,
    arguments,
    reached,
    run,
    table,
    versions,
    worst_noise,
)

SHAPES = (
    Shape(64, 64, 128, 4),
    Shape(32, 128, 256, 4),
    Shape(16, 256, 256, 8),
    Shape(8, 512, 512, 8),
    Shape(4, 1024, 512, 8),
    Shape(2, 2048, 512, 8),
)
TRIAL = (Shape(2, 16, 32, 4), Shape(1, 32, 64, 4))
DECODERS = (
    Decoder("GPT-2", 50_257),
    Decoder("GPT-2", 8_192),
    Decoder("Llama", 32_000),
    Decoder("Llama", 8_192),
)
WAYS = {"forward": False, "training step": True}
MEAN, STEP = 1.1, 1.4
GOAL = f"geometric mean ≥ {MEAN}×; none below the worst A/A"


class Race(NamedTuple):
    """A library's section, and the medians of all its cases: theirs / ours, and A/A."""

    section: Section
    ours: list[float]
    noise: list[float]


def blocks(name: str, settings: Settings) -> Race:
    """One library's block against ours, forward and training step."""
    library = LIBRARIES[name]
    if not library.installed():
        missing = f"`{library.package}` is not installed: passed over."
        return Race(Section(library.title, GOAL, "not installed", NONE, missing), [], [])
    ours: dict[str, list[float]] = {way: [] for way in WAYS}
    noise: dict[str, list[float]] = {way: [] for way in WAYS}
    lines, again = [], []
    for shape in TRIAL if settings.quick else SHAPES:
        pair = library.pair(shape)
        line, same = [_written(shape)], [f"A/A {_written(shape)}"]
        for way, train in WAYS.items():
            seconds = _race(f"{name}, {way}, {shape}", pair, shape, train, settings)
            found = measure.ratio(seconds["theirs"], seconds["ours"])
            noisy = measure.ratio(seconds["theirs"], seconds["theirs again"])
            milliseconds = f"{1e3 * measure.spread(seconds['theirs']).median:.3g}"
            line += [milliseconds, found.text(), str(found.n)]
            same += [milliseconds, noisy.text(), str(noisy.n)]
            ours[way].append(found.median)
            noise[way].append(noisy.median)
        lines.append(line)
        again.append(same)
    for title, sums in (
        ("geometric mean", {way: geometric_mean(x) for way, x in ours.items()}),
        ("worst", {way: min(x) for way, x in ours.items()}),
        ("A/A geometric mean", {way: geometric_mean(x) for way, x in noise.items()}),
        ("A/A worst", {way: worst_noise(x) for way, x in noise.items()}),
    ):
        cells = [x for way in WAYS for x in ("", f"**{sums[way]:.3f}**", "")]
        lines.append([f"**{title}**", *cells])
    every, quiet = ([x for way in WAYS for x in found[way]] for found in (ours, noise))
    head = ["(b, t, c), heads", *(x for way in WAYS for x in (f"{way}: theirs, ms", way, "rounds"))]
    body = (
        f"{library.title}: {library.note}.\n\nTheir time / our time, {READING}; above 1 we are "
        "faster. A/A is theirs against theirs, its worst the smallest of all medians and their "
        "inverses.\n\n" + table(head, [*lines, *again])
    )
    return Race(Section(library.title, GOAL, *_verdict(every, quiet), body), every, quiet)


def overall(races: list[Race]) -> Section:
    """All libraries together."""
    ours = [x for race in races for x in race.ours]
    noise = [x for race in races for x in race.noise]
    title = f"All {sum(bool(x.ours) for x in races)} blocks together"
    return Section(title, GOAL, *_verdict(ours, noise), "")


def decoding(settings: Settings) -> Section:
    """A cached greedy step at batch 1 against `generate`."""
    cases = list(DECODERS)
    if settings.quick:
        cases = [
            x._replace(vocabulary=64, width=32, layers=2, heads=4, prompt=4, steps=8)
            for x in (DECODERS[0], DECODERS[2])
        ]
    lines, goals, medians, noise = [], Goals(), [], []
    for case in cases:
        calls = case.calls()
        tokens = {name: call() for name, call in calls.items()}
        for name, found in tokens.items():
            if not torch.equal(found, tokens["generate"]):
                raise AssertionError(f"{case.family}: {name} chose other tokens than generate")
        calls |= {"again": calls["generate"]}
        seconds = measure.rounds(calls, settings.effort(20, 5, 21))
        ratios = {name: measure.ratio(seconds["generate"], seconds[name]) for name in calls}
        median = ratios["ours"].median
        verdict = goals.at_least(median, STEP, f"{case.family}, {case.vocabulary:,} tokens")
        medians.append(median)
        noise.append(ratios["again"].median)
        milliseconds = 1e3 * measure.spread(seconds["generate"]).median / case.steps
        cells = [ratios[name].text() for name in ("ours", "again", "loop")]
        size = f"{case.vocabulary:,}", f"{milliseconds:.3g}"
        lines.append([case.family, *size, *cells, str(ratios["ours"].n), verdict])
    head = ["", "vocabulary", "generate, ms a token", "generate / ours", "A/A"]
    head += ["generate / their loop", "rounds", "reached"]
    made = cases[0]
    size = f"{made.layers} layers, {made.width} wide, {made.heads} heads, batch 1"
    body = (
        f"{size}, random weights; greedy, {made.steps} tokens after {made.prompt}, all of which "
        "both sides choose alike. Time of the whole call, prompt included, over its tokens; "
        f"{READING} of the ratios. Ours is a loop over the loaded model with its cache; "
        "their loop is the same over their model, without what `generate` does around it "
        "(it has no goal). The output projection grows with the vocabulary, alike on both sides."
        "\n\n" + table(head, lines)
    )
    return Section(
        f"Cached greedy step, {size}, against `generate`",
        f"≥ {STEP}×",
        f"{min(medians):.2f} to {max(medians):.2f}× (A/A {min(noise):.2f} to {max(noise):.2f})",
        goals.verdict,
        body,
    )


def main() -> None:
    """Run what is asked for."""
    given = arguments(
        "Measure blocks against other libraries' own.", [*LIBRARIES, "decoding"]
    ).parse_args()
    races: list[Race] = []

    def part(name: str, settings: Settings) -> Section:
        races.append(blocks(name, settings))
        return races[-1].section

    def together() -> list[Section]:
        return [overall(races)] if sum(bool(x.ours) for x in races) > 1 else []

    packages = {LIBRARIES[name].package for name in given.only if name in LIBRARIES}
    packages |= {"transformers"} if "decoding" in given.only else set()
    about = versions(x.replace("_", "-") for x in packages - {"torch"})
    parts = {name: partial(part, name) for name in LIBRARIES} | {"decoding": decoding}
    run(given, parts, f" float32, nothing compiled.{about}", together)


# --- parts --------------------------------------------------------------------------------------


def _race(
    name: str, pair: cases.Pair, shape: Shape, train: bool, settings: Settings
) -> dict[str, list[float]]:
    """Let both sides agree, then run them in turn, theirs once more."""
    calls = cases.calls(pair, shape, train)
    first, second = (cases.comparable(calls[side]()) for side in ("theirs", "ours"))
    measure.check_agree(name, first, second)
    del first, second
    return measure.rounds(calls | {"theirs again": calls["theirs"]}, settings.effort(3, 7, 101))


def _verdict(ours: list[float], noise: list[float]) -> tuple[str, str]:
    """Say what was measured and whether the goal is reached."""
    if not ours:
        return NONE, NONE
    measured, misses = against_noise(ours, noise, MEAN)
    return measured, reached(misses)


def _written(shape: Shape) -> str:
    return f"({shape.b}, {shape.t:,}, {shape.c}), {shape.h}"


if __name__ == "__main__":
    main()
