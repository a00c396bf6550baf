"""Measure attention against PyTorch's own and write the tables of docs/benchmarks.md.

    python -m benchmarks.core [--quick] [--only NAME …] [--out FILE.md] [--threads 2]

All competitors run in turn in one process, in an order shuffled by a fixed seed; ratios are taken
round by round. Memory is the peak of a fresh process above its level before the call (Linux).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

import intently as it
from benchmarks import measure
from benchmarks.core import native, products
from benchmarks.measure import Effort
from benchmarks.report import NONE, READING, Goals, Section, Settings, arguments, run, table

SMALL_LIMIT = 15


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
    lines, goals = [], Goals()
    for name, found in micros.items():
        line = [f"`{name}`" if "it." in name else name, measure.spread(found).text(1)]
        line.append(more[name].text(1) if name in more else NONE)
        if "attention" in name:
            verdict = goals.at_most(more[name].median, SMALL_LIMIT, f"`{name}`", " µs", 1)
            line += [f"≤ {SMALL_LIMIT}", verdict]
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
        goals.verdict,
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
    lines, goals, found = [], Goals(), []
    turns = 1 if settings.quick else 15
    for name, (code, base, limit) in pairs.items():
        ours, theirs = measure.start_python(code), measure.start_python(base)
        calls = {"theirs": theirs, "theirs again": theirs, "ours": ours}
        seconds = measure.rounds(calls, Effort(0, turns, turns))
        same = measure.ratio(seconds["theirs again"], seconds["theirs"])
        times = measure.ratio(seconds["ours"], seconds["theirs"])
        verdict = goals.at_most(times.median, limit, unit="×")
        found.append(f"{times.median:.2f}× (A/A {same.median:.2f}×)")
        cells = [measure.spread(seconds["ours"]).text(), times.text(), same.text()]
        lines.append([name, f"`{base}`", *cells, f"≤ {limit}×", verdict])
    body = f"Whole runs of a new interpreter, {turns} of each in turn; {READING}.\n\n"
    head = ["", "against", "seconds", "time / its", "A/A", "goal", "reached"]
    return Section(
        "starting, against importing what it stands on",
        ", ".join(f"≤ {limit}×" for _, _, limit in pairs.values()),
        ", ".join(found),
        goals.verdict,
        body + table(head, lines),
    )


SECTIONS: dict[str, Callable[[Settings], Section]] = {
    "fused": products.fused,
    "sparse": products.sparse,
    "small": small,
    "starting": starting,
    "long": products.long,
    **native.PARTS,
}


if __name__ == "__main__":
    run(arguments("Measure attention against PyTorch's own.", SECTIONS).parse_args(), SECTIONS)
