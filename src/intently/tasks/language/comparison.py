"""The value of context: the held-out loss of language models by tokens of context, and doubts.

Models that differ only in their window are trained on equally many tokens of one text. After as
many tokens as both windows hold, their losses agree; after more, only that of the larger one falls.
A loss is doubted if the run ended while it still fell, or if windows contradict each other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from intently.foundation.files import replace_file
from intently.show.figures.curves import curves
from intently.tasks.language.runs import LanguageRun
from intently.tasks.training.checkpoint import versions
from intently.tasks.training.folder_lock import sole_writer
from intently.tasks.training.metrics import CONFIDENT, Interval
from intently.tasks.training.options import ScheduleOptions
from intently.tasks.training.progress import History

WRITES = ("context.json", "context.png")

WORSE = 0.05
"""Nats per token by which a larger window may be worse where a smaller one sees the same: fewer of
its training tokens have so little context."""

FALLING, FEWEST = 0.05, 8
"""Nats per token by which the loss of a trained model may still fall as the steps double, and
records of a history from which that can be measured."""


def measure(runs: Sequence[LanguageRun], text: str) -> dict[str, Any]:
    """Return the content of ``context.json``: the loss of each run by context, and warnings.

    ``text`` names the text. The warnings say which runs are undertrained (`undertrained`) and which
    contradict each other (`disagreements`).
    """
    windows = [run.text_model.options.text.max_length for run in runs]
    block = max(windows)
    ranges = contexts(*windows)
    warnings, models = [], []
    for window, run in zip(windows, runs, strict=True):
        options, last = run.text_model.options, run.history.records[-1]
        doubt = undertrained(run.history, options.schedule)
        warnings += [] if doubt is None else [f"window {window} is {doubt}"]
        rows = passage(run.losses, block)
        inside = [(first, end) for first, end in ranges if end <= window]
        models.append(
            {
                "window": window,
                "parameters": sum(p.numel() for p in run.text_model.model.parameters()),
                "steps": last.step,
                "tokens": last.tokens,
                "training_seconds": round(last.seconds, 1),
                "losses": [interval(run.losses[:, first - 1 : end], rows) for first, end in inside],
                "dev": [at._asdict() for at in run.history.evaluations],
                "options": options.to_dict(),
            }
        )
    tokens = runs[0].text_model.tokenizer
    return {
        "experiment": "contexts",
        "text": text,
        "tokenizer": tokens.kind,
        "vocabulary": tokens.size,
        "intervals": f"95 %: standard error of the means of passages of {block} tokens",
        "contexts": [list(ends) for ends in ranges],
        "models": models,
        "warnings": [*warnings, *disagreements([run.losses for run in runs])],
    }


def contexts(*windows: int) -> list[tuple[int, int]]:
    """Return ranges of tokens of context: 1, 2, 3–4, 5–8, 9–16, …, cut at the end of each window.

    >>> contexts(5)
    [(1, 1), (2, 2), (3, 4), (5, 5)]
    >>> contexts(5, 3)
    [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]
    """
    ends = sorted({*windows, *(2**n for n in range(max(windows).bit_length()))})
    return [(before + 1, end) for before, end in pairwise([0, *ends])]


def passage(losses: Float[Tensor, "windows window"], block: int) -> int:
    """Return how many windows in a row have at least ``block`` tokens; at most half of them."""
    return max(1, min(-(-block // losses.shape[1]), len(losses) // 2))


def interval(losses: Float[Tensor, "windows some"], together: int) -> Interval:
    """Return the mean loss with its 95 % interval, from the means of passages.

    Tokens of one passage depend on one another, so a passage, ``together`` windows in a row, is one
    observation.
    """
    count = len(losses) // together
    means = losses[: count * together].double().reshape(count, -1).mean(1)
    half = CONFIDENT * float(means.std()) / math.sqrt(count) if count > 1 else 0.0
    mean = float(means.mean())
    return mean, max(0.0, mean - half), mean + half


def disagreements(losses: Sequence[Float[Tensor, "windows window"]]) -> list[str]:
    """Return what is impossible of trained models of one text, a line for each pair of them.

    After as many tokens as the smaller window holds, the larger one sees the same, and with all of
    its own context it sees more. So it must not be worse in either by more than `WORSE` nats and
    the 95 % interval of the difference.

    >>> small, large = torch.full((9, 2), 2.0), torch.full((9, 4), 2.5)
    >>> print(*disagreements([small, large]))  # doctest: +ELLIPSIS
    windows disagree: after 1–2 tokens window 4 has a loss of 2.500, window 2 one of 2.000. ...
    """
    warnings = []
    by_size = sorted(losses, key=lambda each: each.shape[1])
    block = by_size[-1].shape[1]
    for small, large in combinations(by_size, 2):
        few, many = small.shape[1], large.shape[1]
        if few == many:
            continue
        last = [each[:, contexts(each.shape[1])[-1][0] - 1 :] for each in (small, large)]
        both = f"after 1–{few} tokens" if few > 1 else "after 1 token"
        for where, parts in (both, (small, large[:, :few])), ("with all of its context", last):
            sizes = passage(small, block), passage(large, block)
            one, other = (interval(*each) for each in zip(parts, sizes, strict=True))
            worse = other[0] - one[0]
            if worse > WORSE and worse > math.hypot(one[2] - one[0], other[2] - other[0]):
                warnings.append(
                    f"windows disagree: {where} window {many} has a loss of {other[0]:.3f}, "
                    f"window {few} one of {one[0]:.3f}. A larger window cannot do worse once it is "
                    f"trained: train both longer, or on more text, before you compare them"
                )
                break
    return warnings


def slope(history: History, schedule: ScheduleOptions) -> float | None:
    """Return the change of the training loss per doubling of the steps, in nats per token.

    A line is fitted to the loss against log₂ of the step, over the second half of the steps before
    the cooldown, in which any loss falls. None for fewer than `FEWEST` records there.
    """
    last = history.records[-1].step if history.records else 0
    end = min(last, (1 - schedule.cooldown) * schedule.steps)
    some = [(at.step, at.loss) for at in history.records if end / 2 <= at.step <= end]
    if len(some) < FEWEST:
        return None
    steps, losses = np.array(some).T
    return float(np.polyfit(np.log2(steps), losses, 1)[0])


def undertrained(history: History, schedule: ScheduleOptions) -> str | None:
    """Return why a run is undertrained and what to do; None for one that is trained.

    It is undertrained if its loss falls by more than `FALLING` nats as the steps double, by
    `slope`, and its last evaluation was the best; or if it took too few steps to tell.

    >>> from intently.tasks.training.progress import Record
    >>> records = [Record(n, 4 - 0.1 * np.log2(n), 1e-3, 0, 0.0) for n in range(1, 101)]
    >>> print(undertrained(History(records), ScheduleOptions(steps=100)))  # doctest: +ELLIPSIS
    undertrained: its loss still falls by 0.10 nats per token as the steps double (more ...
    """
    last = history.records[-1].step if history.records else 0
    advice = f"train longer than {last:,} step{'' if last == 1 else 's'}"
    falls = slope(history, schedule)
    if falls is None:
        return f"undertrained: too few steps to see whether its loss still falls; {advice}"
    held = [at.scores["loss"] for at in history.evaluations if "loss" in at.scores]
    if falls >= -FALLING or (held and held[-1] > min(held)):
        return None
    return (
        f"undertrained: its loss still falls by {-falls:.2f} nats per token as the steps double "
        f"(more than {FALLING}); {advice}"
    )


def write(result: dict[str, Any], out: Path) -> None:
    """Write ``context.json``, with versions and threads, and ``context.png`` into a folder."""
    content = {**result, "versions": versions(), "threads": torch.get_num_threads()}
    with sole_writer(out, WRITES):
        text = json.dumps(content, indent=1, ensure_ascii=False)
        replace_file(out / "context.json", text.encode())
        draw(result, out / "context.png")


def draw(result: dict[str, Any], save: Path) -> None:
    """Draw the figure of a result: the loss by tokens of context, a line for each window."""
    losses = {f"window {m['window']}": [tuple(at) for at in m["losses"]] for m in result["models"]}
    curves(
        {"loss, nats per token": losses},
        [span(*ends) for ends in result["contexts"]],
        across="tokens of context",
        title=f"{result['text']}: what context is worth",
        save=save,
    )


def span(first: int, last: int) -> str:
    """Return a range as text: "1", "3–4"."""
    return str(first) if first == last else f"{first}–{last}"
