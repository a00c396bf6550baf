"""The page of an examination: one file in the look of the recordings' page, and with its code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from intently.checker.report.finding import Example, Finding, alike, places
from intently.foundation import files
from intently.show.page.script import joined, source
from intently.show.page.writing import described, destination, head, style

if TYPE_CHECKING:
    from intently.checker.properties.every import Property
    from intently.checker.report.report import Report

SCRIPT = (
    *("colours", "words", "scales", "painter", "frame", "shading", "crosshair"),
    *("examined", "examination"),
)
CLASSES = {True: ("holds", "✓"), False: ("broken", "✗"), None: ("idle", "–")}


def write(report: Report, path: str | os.PathLike[str]) -> Path:
    """Write the page of a report; raises as `destination` does for a wrong path."""
    final = destination(path)
    files.make_folder(final.parent)
    with files.replacing(final) as file:
        file.writelines(part.encode() for part in parts(report))
    return final


def parts(report: Report) -> Iterator[str]:
    """The parts of the page in order; equal reports give equal bytes."""
    code = f'\n(() => {{\n"use strict";\n\n{joined(SCRIPT)}\n}})();\n'
    groups = alike(report.findings)
    examples = [None if x[0].example is None else asdict(x[0].example) for x in groups]
    mark = source("body.html").split("<svg", 1)[1].split("</svg>", 1)[0]
    title = f"{report.name}, examined"
    yield head(title, style() + source("examined.css"), code)
    yield '<body>\n<div class="intently" data-theme="auto">\n<header class="bar">\n'
    yield f"<h1><svg{mark}</svg><span>{escape(title)}</span></h1>\n"
    yield '<div class="tools"><button type="button" data-do="theme">◐ Auto</button></div>\n'
    yield '</header>\n<main><div class="examined">\n<section>\n'
    look = "verdict" if report.ok else "verdict wrong"
    yield f'<p class="{look}">{escape(_first_up(report.verdict))}</p>\n'
    understood = _marked(escape(_first_up(report.understood)))
    yield f'<p class="understood">{understood}</p>\n</section>\n'
    for number, (first, *others) in enumerate(groups):
        yield from _finding(replace(first, where=places((first, *others))), number)
    if report.computes:
        yield '<section><h3>What it computes</h3>\n<ol class="computed">\n'
        yield from (f"<li>{_marked(escape(x))}</li>\n" for x in report.computes)
        yield "</ol>\n</section>\n"
    yield '<section><h3>What was tried</h3>\n<ol class="tried">\n'
    yield from map(_property, report.properties)
    yield "</ol>\n</section>\n</div></main>\n"
    yield '<p class="unseen" data-status role="status" aria-live="polite"></p>\n</div>\n'
    meta = described({"examples": examples})
    yield f'<script type="application/json" id="intently-page">{meta}</script>\n'
    yield f"<script>{code}</script>\n</body>\n</html>\n"


def _finding(x: Finding, number: int) -> Iterator[str]:
    yield f'<article class="finding {x.kind.replace(" ", "-")}">\n'
    at = f" · {escape(x.where)}" if x.where else ""
    yield f'<p class="kind"><b>{x.kind}</b>{at} · <code>{escape(x.name)}</code></p>\n'
    yield f'<h2>{escape(x.title)}</h2>\n<p class="said">{_marked(escape(x.said))}</p>\n'
    if x.example is not None:
        yield from _example(x.example, x, number)
    if x.cure and x.kind in ("mistake", "hazard"):
        yield f'<p class="cure"><b>Cure</b>{_marked(escape(x.cure))}</p>\n'
    yield "</article>\n"


def _example(x: Example, finding: Finding, number: int) -> Iterator[str]:
    """Both matrices, to be drawn by the script, and their numbers for those who read them."""
    yield f'<figure data-example="{number}">\n<div class="sides">\n'
    for name, rows in (("expected", x.expected), ("found", x.found)):
        label = f"Weights {name}, {len(rows)} queries by {len(x.keys)} keys: {x}. Arrow keys move."
        yield f"<div><h3>{name}</h3>"
        yield f'<canvas tabindex="0" role="img" aria-label="{escape(label)}"></canvas></div>\n'
    at = f"batch row {finding.cell[0]}, head {finding.cell[1]}: " if len(finding.cell) == 4 else ""
    yield f'</div>\n<p class="reading" data-reading>{escape(_first_up(f"{at}{x}"))}</p>\n'
    yield '</figure>\n<details><summary>The numbers</summary><div class="scrolled">\n'
    for name, rows in (("expected", x.expected), ("found", x.found)):
        yield f"<table><caption>{name}</caption><tr><th></th>"
        yield "".join(f'<th scope="col">{j}</th>' for j in x.keys) + "</tr>\n"
        for i, row in zip(x.queries, rows):
            cells = "".join(f"<td>{w:.3f}</td>" for w in row)
            yield f'<tr><th scope="row">{i}</th>{cells}</tr>\n'
        yield "</table>\n"
    yield "</div></details>\n"


def _property(p: Property) -> str:
    name, mark = CLASSES[p.holds]
    said = f": {_marked(escape(p.said))}" if p.said else ""
    return f'<li class="{name}"><i>{mark}</i><span>{escape(p.name)}{said}</span></li>\n'


def _first_up(text: str) -> str:
    """A sentence with a capital letter."""
    return text[:1].upper() + text[1:]


def _marked(text: str) -> str:
    """Text between backquotes, as code."""
    pieces = text.split("`")
    return "".join(f"<code>{x}</code>" if n % 2 else x for n, x in enumerate(pieces))
