"""Measure edits: what one costs in a model, and the effects of all heads beside hooks one by one.

    python -m benchmarks.editing [--quick] [--only NAME …] [--out FILE.md] [--threads 2]

The model is a GPT-2 of 12 layers, 768 wide, 12 heads, with random weights. All sides take turns in
one process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import intently as it
from benchmarks import measure
from benchmarks.report import NONE, READING, Goals, Section, Settings, arguments, run, table
from intently import edits

WIDTH, LAYERS, HEADS, WORDS = 768, 12, 12, 50257
TEXT, LENGTHS = 256, (256, 1024)
FASTER, DEARER = 2.0, 1.1
SAME = 1e-4


def model(quick: bool) -> Any:
    """The GPT-2 shape; quick: tiny."""
    width, words = (48, 64) if quick else (WIDTH, WORDS)
    return measure.gpt2(width, LAYERS, HEADS, words)


def score(out: Any) -> torch.Tensor:
    """The log-probability of a word after the last one."""
    return out.logits[0, -1].log_softmax(-1)[7]


@torch.no_grad()
def hooked(gpt2: Any, text: torch.Tensor, layer: int, head: int) -> float:
    """The score without a head, by a hook before the output projection."""
    project = gpt2.transformer.h[layer].attn.c_proj
    width = project.nx // HEADS

    def off(_: Any, given: Any) -> Any:
        mixed = given[0].clone()
        mixed[..., head * width : (head + 1) * width] = 0
        return (mixed,)

    hook = project.register_forward_pre_hook(off)
    try:
        return float(score(gpt2(text)))
    finally:
        hook.remove()


def every_head(settings: Settings) -> Section:
    """`it.effects` of every head, and one run with a hook for each."""
    gpt2, text = model(settings.quick), measure.ids(16 if settings.quick else TEXT)
    places = [(layer, layer) for layer in range(LAYERS)]

    def ours() -> list[float]:
        found = it.effects(gpt2, lambda: gpt2(text), score, edits=edits.each_head(gpt2))
        return found["after"]

    def hooks() -> list[float]:
        return [hooked(gpt2, text, *place) for place in places]

    found, want = ours(), hooks()
    worst = max(abs(found[a * HEADS + b] - x) for (a, b), x in zip(places, want, strict=True))
    if worst > SAME:
        raise AssertionError(f"scores differ by {worst:.1e}")
    seconds = measure.rounds({"ours": ours, "hooks": hooks}, settings.effort(120, 3, 9))
    every = [x * HEADS for x in seconds["hooks"]]
    times = measure.ratio(every, seconds["ours"])
    rows = [
        ["hooks, one by one", measure.spread(every).text(1), NONE],
        ["`it.effects`", measure.spread(seconds["ours"]).text(1), times.text()],
    ]
    return Section(
        f"the effects of {LAYERS * HEADS} heads at {text.shape[1]} tokens",
        f"≥ {FASTER}× faster than hooks one by one",
        f"{times.median:.2f}×",
        Goals().at_least(times.median, FASTER, unit="×"),
        f"Seconds, {READING}; the log-probability of one next word. Hooks run for one head of each "
        f"layer and count {HEADS} times; the scores agree to {worst:.0e}.\n\n"
        + table(["", "seconds", "hooks / ours"], rows),
    )


def one_edit(settings: Settings) -> Section:
    """A model with an edit beside the model without."""
    gpt2 = model(settings.quick)
    name = f"transformer.h.{LAYERS // 2}.attn"
    given = {
        "one head off": {name: edits.off(heads=[3])},
        "one key forbidden in a layer": {name: edits.forbid([5])},
        "one key forbidden in all layers": {"*": edits.forbid([5])},
    }
    rows, goals, every = [], Goals(), []
    for t in (8, 16) if settings.quick else LENGTHS:
        text = measure.ids(t)

        def plain(text: Any = text) -> Any:
            with torch.no_grad():
                return gpt2(text).logits

        def edited(edit: Any, text: Any = text) -> Any:
            with torch.no_grad(), it.edit(gpt2, edit):
                return gpt2(text).logits

        calls: dict[str, Callable[[], Any]] = {"plain": plain, "plain again": plain}
        calls |= {what: lambda edit=edit: edited(edit) for what, edit in given.items()}
        seconds = measure.rounds(calls, settings.effort(60, 9, 41))
        for what in list(calls)[1:]:
            times = measure.ratio(seconds[what], seconds["plain"])
            counts = what in list(given)[:2]
            if counts:
                goals.at_most(times.median, DEARER, f"{what}, {t:,}", "×")
                every.append(times.median)
            goal = f"≤ {DEARER}×" if counts else NONE
            rows.append([f"{t:,}", what, times.text(3), str(times.n), goal])
    return Section(
        "one edit in a model, fused kernels, against none",
        f"≤ {DEARER}×",
        f"at most {max(every):.3f}×",
        goals.verdict,
        f"Whole forwards, entering and leaving the edit included; {READING}.\n\n"
        + table(["tokens", "", "time / without", "rounds", "goal"], rows),
    )


SECTIONS: dict[str, Callable[[Settings], Section | list[Section]]] = {
    "heads": every_head,
    "edit": one_edit,
}


if __name__ == "__main__":
    run(arguments("Measure edits and their effects.", SECTIONS).parse_args(), SECTIONS)
