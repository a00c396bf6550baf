"""Measure training and translating against other libraries' translators of the same weights.

    python -m benchmarks.translation [--data-dir DIR] [--quick] [--only NAME …] [--out FILE.md]

Both sides must first agree: in the losses of some steps without dropout, and in every token they
write. Then they run in turn in one process, in an order shuffled by a fixed seed; ratios are taken
round by round. A library that is not installed is named and passed over.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import measure
from benchmarks.report import (
    NONE,
    READING,
    Goals,
    Section,
    Settings,
    arguments,
    run,
    table,
    versions,
)
from benchmarks.translation import models
from benchmarks.translation.models import Rates, Shape, Side, Writers
from intently.tasks.training.batches import Batch

SMALL = Shape(64, 16, 2, 1, 32, 64, 40)
AGREED = 4
"""Steps whose losses must agree."""


class Case(NamedTuple):
    """How many sources at a time, and how many tokens each has and gets, about."""

    sources: int
    tokens: int
    beam: int

    def text(self) -> str:
        how = "greedy" if self.beam == 1 else f"beam {self.beam}"
        return f"{how}, {self.sources} × {self.tokens} tokens"

    def draw(self, vocabulary: int) -> list[list[int]]:
        """Sources of a quarter more or less than so many tokens, each ended by EOS."""
        drawn, spare = random.Random(measure.SEED), self.tokens // 4
        return [
            [*(drawn.randrange(models.SPECIALS, vocabulary) for _ in range(length - 1)), models.EOS]
            for length in (
                drawn.randint(self.tokens - spare, self.tokens + spare) for _ in range(self.sources)
            )
        ]


CASES = [Case(n, t, beam) for beam in (1, 5) for n in (32, 1) for t in (12, 25)]
TRIAL = [Case(2, 4, 1), Case(2, 4, 2)]


class Setting(NamedTuple):
    """What is run: ``shape``, and the two files of a corpus or none."""

    effort: Settings
    shape: Shape
    files: tuple[Path, ...]


# --- training -----------------------------------------------------------------------------------


def against_torch(setting: Setting) -> list[Section]:
    """`nn.Transformer`: the same dropout, none, and its own everywhere."""
    rows = [
        ("dropout 0.1", Rates(), False),
        ("no dropout", Rates(0.0), False),
        ("dropout 0.1, theirs also on weights and inside", Rates(), True),
    ]

    def sides(rates: Rates, everywhere: bool = False) -> tuple[Side, Side]:
        own = models.ours(setting.shape, rates)
        theirs = models.plain(setting.shape, rates, own.model, everywhere=everywhere)
        return theirs, own

    batches = models.batches(setting.shape, setting.files)
    _check_losses("nn.Transformer", *sides(Rates(0.0)), batches)
    raced = [(name, 1.2, *sides(*how)) for name, *how in rows]
    return [_training("`nn.Transformer`", raced, batches, setting)]


def against_joey(setting: Setting) -> list[Section]:
    """JoeyNMT: training, and beam search."""
    from benchmarks.translation import joey

    def sides(rates: Rates) -> tuple[Side, Side]:
        own = models.ours(setting.shape, rates)
        assert isinstance(own.model, models.Transformer)
        return joey.side(setting.shape, rates, own.model), own

    batches = models.batches(setting.shape, setting.files)
    _check_losses("JoeyNMT", *sides(Rates(0.0, 0.0)), batches)
    training = _training("JoeyNMT", [("dropout 0.1", 1.5, *sides(Rates()))], batches, setting)
    writers = joey.writers(setting.shape, models.transformer(setting.shape))
    cases = [x for x in _cases(setting) if x.beam > 1]
    return [training, _writing("JoeyNMT's beam search", 3.0, writers, cases, setting)]


def _training(
    title: str,
    raced: Sequence[tuple[str, float, Side, Side]],
    batches: list[Batch],
    setting: Setting,
) -> Section:
    lines, goals, found = [], Goals(), []
    tokens = sum(int((x.target_out != models.PAD).sum()) for x in batches) / len(batches)
    for name, goal, theirs, own in raced:
        sides = {"theirs": theirs, "ours": own, "again": theirs}
        calls = {
            key: _steps(side, models.own_optimiser if side is own else models.fused_adamw, batches)
            for key, side in sides.items()
        }
        seconds = measure.rounds(calls, setting.effort.effort(25, 12, 60))
        ratio = measure.ratio(seconds["theirs"], seconds["ours"])
        noise = measure.ratio(seconds["theirs"], seconds["again"])
        verdict = goals.at_least(ratio.median, goal, name)
        found.append(ratio.median)
        rates = [f"{tokens * ratio.n / sum(seconds[key]):,.0f}" for key in ("theirs", "ours")]
        lines.append([name, *rates, ratio.text(), noise.text(), str(ratio.n), f"{goal}×", verdict])
    head = ["", "theirs, tokens/s", "ours, tokens/s", "theirs / ours", "A/A"]
    head += ["rounds", "goal", "reached"]
    shape, parameters = setting.shape, sum(p.numel() for p in raced[0][3].model.parameters())
    corpus = "Multi30k" if setting.files else "the built-in language"
    body = (
        f"{parameters:,} parameters: {shape.layers} + {shape.layers} layers, width {shape.width}, "
        f"{shape.heads} heads, {shape.inner} inside, pre-norm, one vocabulary of "
        f"{shape.vocabulary:,}. A round is one step on one batch, the same on all sides: forward, "
        "smoothed loss (0.1), backward, clipping, fused AdamW. Batches of at most "
        f"{shape.batch_tokens:,} target tokens with the lengths of {corpus}, {tokens:,.0f} of them "
        f"on average no padding. Without dropout the losses of {AGREED} steps agree. {READING} of "
        f"the ratios.\n\n{table(head, lines)}"
    )
    goal = min(x[1] for x in raced)
    measured = f"{min(found):.2f}×" if len(found) == 1 else f"{min(found):.2f} to {max(found):.2f}×"
    return Section(f"Training step against {title}", f"≥ {goal}×", measured, goals.verdict, body)


def _steps(
    side: Side, optimiser: Callable[[Any], Callable[[float], None]], batches: Iterable[Batch]
) -> measure.Call:
    """A call that takes the next step, on the next batch."""
    update = optimiser(side.model)
    turn = cycle([side.ready(batch) for batch in batches])
    return lambda: models.step(side, update, next(turn))


def _check_losses(name: str, theirs: Side, own: Side, batches: list[Batch]) -> None:
    first, second = (
        torch.tensor([call() for _ in range(AGREED)], dtype=torch.float64)
        for call in (
            _steps(theirs, models.fused_adamw, batches),
            _steps(own, models.own_optimiser, batches),
        )
    )
    measure.check_agree(f"loss against {name}", [first], [second])


# --- writing ------------------------------------------------------------------------------------


def against_marian(setting: Setting) -> list[Section]:
    """MarianMT of transformers."""
    writers = models.marian(setting.shape)
    return [_writing("MarianMT's `generate`", 2.0, writers, _cases(setting), setting)]


def _cases(setting: Setting) -> list[Case]:
    return TRIAL if setting.effort.quick else CASES


def _writing(
    title: str, goal: float, writers: Writers, cases: list[Case], setting: Setting
) -> Section:
    lines, goals, found, noise = [], Goals(), [], []
    for case in cases:
        given = case.draw(setting.shape.vocabulary), case.beam, case.tokens
        theirs = partial(writers.theirs, *given)
        calls = {"theirs": theirs, "ours": partial(writers.ours, *given), "again": theirs}
        _check_tokens(f"{title}, {case.text()}", calls["theirs"](), calls["ours"](), case)
        seconds = measure.rounds(calls, setting.effort.effort(10, 5, 41))
        ratio = measure.ratio(seconds["theirs"], seconds["ours"])
        same = measure.ratio(seconds["theirs"], seconds["again"])
        verdict = goals.at_least(ratio.median, goal, case.text())
        found.append(ratio.median)
        noise.append(same.median)
        milliseconds = [f"{1e3 * measure.spread(seconds[x]).median:.3g}" for x in list(calls)[:2]]
        lines.append([case.text(), *milliseconds, ratio.text(), same.text(), str(ratio.n), verdict])
    head = ["", "theirs, ms", "ours, ms", "theirs / ours", "A/A", "rounds", "reached"]
    body = (
        "The same random weights, and every output of the same length; the sources' lengths differ "
        "by up to a quarter from the one named. Both sides write the same tokens. Time of the "
        f"whole call, encoder included; {READING} of the ratios.\n\n{table(head, lines)}"
    )
    measured = f"{min(found):.2f} to {max(found):.2f}× (A/A {min(noise):.2f} to {max(noise):.2f})"
    return Section(f"Translating against {title}", f"≥ {goal}×", measured, goals.verdict, body)


def _check_tokens(name: str, theirs: list[list[int]], ours: list[list[int]], case: Case) -> None:
    """Raise unless outputs have the length asked for and, but for near ties, the same tokens."""
    lengths = {len(ids) for ids in (*theirs, *ours)}
    same = sum(a == b for a, b in zip(theirs, ours, strict=True))
    if lengths != {case.tokens} or same < 0.9 * len(ours):
        raise AssertionError(f"{name}: {same} of {len(ours)} alike, lengths {sorted(lengths)}")


# --- the command --------------------------------------------------------------------------------

PARTS: dict[str, tuple[str, Callable[[Setting], list[Section]]]] = {
    "torch": ("torch", against_torch),
    "marian": ("transformers", against_marian),
    "joey": ("joeynmt", against_joey),
}
"""The package each part needs, and the part."""


def main() -> None:
    """Run what is asked for."""
    parser = arguments("Measure translators against other libraries'.", PARTS)
    said = "folder with train.en and train.de, whose lengths are taken (the built-in language)"
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help=said)
    given = parser.parse_args()
    folder = given.data_dir
    files = () if folder is None else (folder / "train.en", folder / "train.de")

    def part(name: str, settings: Settings) -> list[Section]:
        package, measured = PARTS[name]
        if importlib.util.find_spec(package) is None:
            missing = f"`{package}` is not installed: passed over."
            return [Section(package, NONE, "not installed", NONE, missing)]
        return measured(Setting(settings, SMALL if given.quick else Shape(), files))

    packages = {PARTS[name][0] for name in given.only} - {"torch"}
    about = f" float32, nothing compiled.{versions(packages)}"
    run(given, {name: partial(part, name) for name in PARTS}, about)


if __name__ == "__main__":
    main()
