"""The report of an examination as one static page, without a script."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from intently.checker.report.finding import MORE, Example, Finding, alike, places
from intently.foundation import files
from intently.show.page.script import source
from intently.show.page.writing import destination, head

if TYPE_CHECKING:
    from intently.checker.report.report import Report

CLASSES = {True: ("holds", "✓"), False: ("broken", "✗"), None: ("idle", "–")}
LOOKS = {True: "verdict", False: "verdict wrong", None: "verdict unmeasured"}


def write(report: Report, path: str | os.PathLike[str]) -> Path:
    """Write the page of a report; raises as `destination` does for a wrong path."""
    final = destination(path)
    files.make_folder(final.parent)
    with files.replacing(final) as file:
        file.writelines(part.encode() for part in parts(report))
    return final


def parts(report: Report) -> Iterator[str]:
    """The parts of the page in order; equal reports give equal bytes."""
    mark = source("body.html").split("<svg", 1)[1].split("</svg>", 1)[0]
    title = f"{report.name}, examined"
    yield head(title, _style(), "")
    yield '<body>\n<div class="intently">\n<header class="bar">\n'
    yield f"<h1><svg{mark}</svg><span>{escape(title)}</span></h1>\n</header>\n"
    yield '<main><div class="examined">\n<section>\n'
    yield f'<p class="{LOOKS[report.ok]}">{escape(_first_up(report.verdict))}</p>\n'
    yield f'<p class="understood">{_marked(_first_up(report.understood))}</p>\n</section>\n'
    for first, *others in alike(report.findings):
        yield from _finding(replace(first, where=places((first, *others))))
    if report.reasons:
        yield '<section class="reasons"><h3>What was not measured</h3>\n<ol class="tried">\n'
        yield from (f"<li><i>–</i><span>{_marked(x)}</span></li>\n" for x in report.reasons)
        yield f'</ol>\n<p class="cure"><b>What to do</b>{escape(_first_up(MORE))}</p>\n</section>\n'
    if report.computes:
        yield '<section><h3>What it computes</h3>\n<ol class="computed">\n'
        yield from (f"<li>{_marked(x)}</li>\n" for x in report.computes)
        yield "</ol>\n</section>\n"
    yield '<section><h3>What was tried</h3>\n<ol class="tried">\n'
    for p in report.properties:
        name, mark = CLASSES[p.holds]
        said = f": {_marked(p.said)}" if p.said else ""
        yield f'<li class="{name}"><i>{mark}</i><span>{escape(p.name)}{said}</span></li>\n'
    yield "</ol>\n</section>\n</div></main>\n</div>\n</body>\n</html>\n"


def _style() -> str:
    """The style sheet: that of the recordings' page, dark where the system is."""
    css = source("colours.css")
    dark = re.findall(r'\[data-theme="dark"\]\)? (\{.*?\n\})', css, re.DOTALL)
    rules = "".join(f"{name} {rule}\n" for name, rule in zip(("html", ".intently"), dark))
    night = f"@media screen and (prefers-color-scheme: dark) {{\n{rules}}}\n"
    return css + night + "".join(map(source, ("style.css", "narrow.css", "examined.css")))


def _finding(x: Finding) -> Iterator[str]:
    yield f'<article class="finding {x.kind.replace(" ", "-")}">\n'
    at = "".join(f" · {escape(y)}" for y in (x.where, x.line and f"at {x.line}") if y)
    yield f'<p class="kind"><b>{x.kind}</b>{at} · <code>{escape(x.name)}</code></p>\n'
    yield f'<h2>{escape(x.title)}</h2>\n<p class="said">{_marked(x.said)}</p>\n'
    if x.example is not None:
        yield from _example(x.example, x)
    if x.cure and x.kind in ("mistake", "hazard"):
        yield f'<p class="cure"><b>Cure</b>{_marked(x.cure)}</p>\n'
    yield "</article>\n"


def _example(x: Example, finding: Finding) -> Iterator[str]:
    """Both matrices as tables, shaded on one scale, with the cell that tells in a frame."""
    top = max(w for row in (*x.expected, *x.found) for w in row if w < float("inf")) or 1.0
    yield '<figure>\n<div class="sides">\n'
    for name, rows in (("expected", x.expected), ("found", x.found)):
        yield f'<table><caption>{name}</caption><tr><th aria-label="query, key"></th>'
        yield "".join(f'<th scope="col">{j}</th>' for j in x.keys) + "</tr>\n"
        for i, row in zip(x.queries, rows):
            cells = (_cell(w, top, (i, j) == x.cell) for j, w in zip(x.keys, row))
            yield f'<tr><th scope="row">{i}</th>{"".join(cells)}</tr>\n'
        yield "</table>\n"
    at = f"batch row {finding.cell[0]}, head {finding.cell[1]}: " if len(finding.cell) == 4 else ""
    yield f'</div>\n<p class="reading">{escape(_first_up(f"{at}{x}"))}</p>\n</figure>\n'


def _cell(weight: float, top: float, tells: bool) -> str:
    """A weight in one of the eight shades of the page; ``top`` has the darkest."""
    shade = round(7 * min(max(weight / top, 0.0), 1.0))
    return f'<td class="w{shade}{" tells" * tells}">{weight + 0.0:.3f}</td>'


def _first_up(text: str) -> str:
    """A sentence with a capital letter."""
    return text[:1].upper() + text[1:]


def _marked(text: str) -> str:
    """A text escaped, and what stands between backquotes as code."""
    return re.sub("`([^`]*)`?", r"<code>\1</code>", escape(text))
