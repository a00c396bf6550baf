"""What statistics, small calls and what starting costs beside torch's own."""

from __future__ import annotations

import cases
import measure
import torch
import torch.nn.functional as F
from cases import Statistic
from measure import Effort
from report import NONE, READING, Section, Settings, megabytes, reached, table

import intently as it

LIMITS = {"entropy()": 1.8, "received()": 1.8, "pool(256, 256)": 1.8, "top(8)": 2.5}
MEMORY_LIMIT = 200e6
SMALL_LIMIT = 15


def statistics(settings: Settings) -> Section:
    """Each statistic from a fresh matrix, against one fused forward."""
    t, d = (1024, 16) if settings.quick else (32768, 64)
    found = {name: Statistic(name, t, d) for name in cases.STATISTICS}
    fused = found["entropy()"].calls()["torch"]
    calls = {name: case.calls()["ours"] for name, case in found.items()}
    calls |= {"torch": fused, "torch again": fused}
    seconds = measure.rounds(calls, settings.effort(60, 5, 15))
    baseline = measure.in_fresh_process(cases.peak, found["entropy()"], "torch", settings.threads)
    same = measure.ratio(seconds["torch again"], seconds["torch"])
    first = ["A/A: the forward again", same.text(), str(same.n)]
    lines = [[*first, NONE, megabytes(baseline.above), NONE, NONE]]
    misses = []
    for name, case in found.items():
        times = measure.ratio(seconds[name], seconds["torch"])
        above = measure.in_fresh_process(cases.peak, case, "ours", settings.threads).above
        limit, short = LIMITS.get(name), []
        if limit and times.median > limit:
            short.append(f"{times.median - limit:.2f}× over")
        if limit and above > MEMORY_LIMIT:
            short.append(f"{megabytes(above - MEMORY_LIMIT)} MB over")
        misses += [f"`{name}` {', '.join(short)}"] if short else []
        lines.append(
            [
                f"`{name}`",
                times.text(),
                str(times.n),
                f"≤ {limit}×" if limit else NONE,
                megabytes(above),
                "≤ 200" if limit else NONE,
                reached(short) if limit else NONE,
            ]
        )
    head = ["", "time / forward", "rounds", "goal", "MB above the inputs", "goal", "reached"]
    forward = measure.spread(seconds["torch"]).median
    body = (
        f"One head, causal, t = s = {t:,}, d = {d}; the matrix is made, and its lse computed, in "
        f"the timed call. One fused forward takes {forward:.3g} s. Time: {READING}.\n\n"
    )
    ratios = (measure.ratio(seconds[name], seconds["torch"]).median for name in LIMITS)
    return Section(
        f"statistics from a fresh matrix, t = s = {t:,}, one head, causal, against one forward",
        "`entropy`, `received`, `pool` ≤ 1.8×, `top(8)` ≤ 2.5×, ≤ 200 MB above the inputs",
        ", ".join(f"`{name}` {x:.2f}×" for name, x in zip(LIMITS, ratios, strict=True)),
        reached(misses),
        body + table(head, lines),
    )


def small(settings: Settings) -> Section:
    """What one small call costs beside torch's."""
    q = k = v = torch.randn(1, 1, 8, 8)

    calls: dict[str, measure.Call] = {
        "torch": lambda: F.scaled_dot_product_attention(q, k, v),
        "torch, causal": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "torch again": lambda: F.scaled_dot_product_attention(q, k, v),
        "it.attention(q, k, v)": lambda: it.attention(q, k, v),
        "it.attention(q, k, v, mask=it.causal())": lambda: it.attention(q, k, v, mask=it.causal()),
        "it.attend(q, k)": lambda: it.attend(q, k),
    }
    against = {
        "torch again": "torch",
        "it.attention(q, k, v)": "torch",
        "it.attention(q, k, v, mask=it.causal())": "torch, causal",
    }
    repeat = 20 if settings.quick else 500
    measure.rounds(calls, Effort(0, 2, 2), repeat)
    measured = measure.rounds(calls, settings.effort(20, 41, 201), repeat)
    micros = {name: [1e6 * x for x in found] for name, found in measured.items()}
    more = {
        name: measure.difference(micros[name], micros[other]) for name, other in against.items()
    }
    lines, misses = [], []
    for name, found in micros.items():
        line = [f"`{name}`" if "it." in name else name, measure.spread(found).text(1)]
        line.append(more[name].text(1) if name in more else NONE)
        if "attention" in name:
            over = more[name].median - SMALL_LIMIT
            short = [f"{over:.1f} µs over"] if over > 0 else []
            misses += [f"`{name}` {x}" for x in short]
            line += [f"≤ {SMALL_LIMIT}", reached(short)]
        lines.append([*line, NONE, NONE][:5])
    plain, causal = (x.median for name, x in more.items() if "attention" in name)
    body = (
        f"Microseconds, {READING} of {len(micros['torch'])} blocks of {repeat} calls each; "
        "`it.causal()` is made in the timed call.\n\n"
    )
    return Section(
        "the small call (1, 1, 8, 8): `it.attention` above scaled_dot_product_attention",
        f"≤ {SMALL_LIMIT} µs more",
        f"{plain:.1f} µs, causal {causal:.1f} µs (A/A {more['torch again'].median:.1f})",
        reached(misses),
        body + table(["", "µs", "more than torch", "goal", "reached"], lines),
    )


def starting(settings: Settings) -> Section:
    """What it costs to start: the import, ``--help``, and all that precedes reading a model."""
    before_the_model = (
        "import os, sys; sys.argv = ['intently', 'translate', 'The road.']\n"
        "import intently_command\n"
        "sys.addaudithook(lambda event, given: event == 'open' and "
        "str(given[0]).endswith('translator.json') and os._exit(0))\n"
        "intently_command.main()\n"
        "raise SystemExit('no model was read')"
    )
    help_alone = (
        "import sys; sys.argv = ['intently', '--help']\n"
        "import intently_command\n"
        "intently_command.main()"
    )
    pairs = {
        "`import intently` and `attend`": ("import intently; intently.attend", "import torch", 1.1),
        "`intently translate`, until it reads its model": (before_the_model, "import torch", 1.15),
        "`intently --help`": (help_alone, "import typer, rich", 2),
    }
    lines, misses, found = [], [], []
    turns = 1 if settings.quick else 15
    for name, (code, base, limit) in pairs.items():
        ours, theirs = measure.start_python(code), measure.start_python(base)
        calls = {"theirs": theirs, "theirs again": theirs, "ours": ours}
        seconds = measure.rounds(calls, Effort(0, turns, turns))
        same = measure.ratio(seconds["theirs again"], seconds["theirs"])
        times = measure.ratio(seconds["ours"], seconds["theirs"])
        short = [f"{times.median - limit:.2f}× over"] if times.median > limit else []
        misses += short
        found.append(f"{times.median:.2f}× (A/A {same.median:.2f}×)")
        lines.append(
            [
                name,
                f"`{base}`",
                measure.spread(seconds["ours"]).text(),
                times.text(),
                same.text(),
                f"≤ {limit}×",
                reached(short),
            ]
        )
    body = f"Whole runs of a new interpreter, {turns} of each in turn; {READING}.\n\n"
    head = ["", "against", "seconds", "time / its", "A/A", "goal", "reached"]
    return Section(
        "starting, against importing what it stands on",
        ", ".join(f"≤ {limit}×" for _, _, limit in pairs.values()),
        ", ".join(found),
        reached(misses),
        body + table(head, lines),
    )
