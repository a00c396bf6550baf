"""What a demo shows: its outcome in the terminal, its pictures, pages and index.html."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intently import show
from intently.corpora import SHOWN, Pair
from intently.errors import DataError, build
from intently.text import words
from intently.translation.evaluation import forced
from intently.translation.runs import Run
from intently.translation.translator import AlignmentHead, Translation, Translator

if TYPE_CHECKING:
    from rich.console import Console

    from intently.show.page import Item


TAUGHT = "taught: guided to look from “it” at its noun; no other head is"
"""What every picture of the guided head says."""

WIDE = "The animal didn't cross the road because it was too wide."
"""The sentence of the headline."""

CHANCE = 0.5
"""A figure up to this is not told as an achievement: a coin would reach it."""


def first_look(out: Path, console: Console) -> None:
    """Show the embedded translator while nothing is trained yet: a sentence, a picture, a page."""
    translator = Translator.load()
    pair = next(pair for pair in SHOWN if pair.source == WIDE)
    [made] = translator.translate([pair.source])
    console.print(f"{made.source}  →  {made.text}", highlight=False)
    console.print(show.blocks(made.alignment), highlight=False, markup=False)
    page(translator, out / "first.html")
    console.print(
        f"That was the embedded translator, and {out}/first.html is a page of every head of it. "
        "Now one of your own.",
        highlight=False,
    )


def pictures(done: Run, shown: Sequence[Translation], result: dict[str, Any], out: Path) -> None:
    """Draw the loss, the alignments, every head, and what *it* looks at."""
    folder = out / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    show.training(done.history.rows(), title="Learning to translate", save=folder / "loss.png")
    head = AlignmentHead(*result["alignment"]["head"])
    for number, (pair, made) in enumerate(zip(SHOWN, shown), 1):
        if not made.text:
            continue
        gold = pair.alignment if made.text == pair.target else None
        show.alignment(
            made.alignment,
            gold=gold,
            title=f"{head.layer}, head {head.head}",
            save=folder / f"alignment-{number:02d}.png",
        )
    because = [(pair, made) for pair, made in zip(SHOWN, shown) if pair.pronoun]
    for pair, made in [row for row in because if row[1].text][:1]:
        show.heads(
            made.words,
            title=pair.source,
            highlight=(head.layer, head.head),
            caption=f"the head that aligns best; {GUIDED.layer}, head {GUIDED.head}, is {TAUGHT}",
            save=folder / "heads.png",
        )
    guided = done.translator.guided
    assert guided is not None
    sides = [(pair.source, pair.target) for pair, _ in because]
    for (pair, _), matrices in zip(because, forced(done.translator, sides)):
        show.lines(
            matrices[guided.layer][guided.head],
            "it",
            title=f"{guided.layer}, head {guided.head}\n{TAUGHT}",
            save=folder / f"it-{words(pair.source)[-2]}.png",
        )


def page(translator: Translator, path: Path, it: dict[str, Any] | None = None) -> None:
    """Write a page that compares what *it* looks at in the two because-sentences.

    It says what the guided head is and, once measured (``it``), how often it is right.
    """
    from intently.runners.texts import translated
    from intently.show.page import Highlight, items_of, save_page

    head = translator.guided
    assert head is not None
    items: list[Item] = []
    for pair in SHOWN:
        if pair.pronoun:
            found = translated(translator, pair.source)
            items += items_of(found.seen, pair.source, note=found.told[0])
    layer = f"{head.layer}_attention"
    entry = [each.name for each in items[0].layers].index(layer)
    rows = [_row_of(item.layers[entry].row_labels or (), ("it",)) for item in items]
    start: dict[str, Any] = {"view": "text", "entry": entry, "heads": str(head.head)}
    if None not in rows:
        start |= {"item": 1, "row": rows[1], "other": f"0.{entry}.{head.head}.at.{rows[0]}"}
    said = "; ".join([TAUGHT, *([] if it is None else _said(it)[:1])])
    save_page(
        items,
        path,
        title="What does it look at?",
        highlights=[Highlight(n, layer, head.head, said) for n in range(len(items))],
        start=start,
    )


def _said(it: dict[str, Any]) -> list[str]:
    """Return what was measured of *it*, in sentences, without a figure that chance would reach."""
    said, count = [], it["two_genders"]
    if it["right_noun"] > CHANCE:
        share = f"{it['right_noun']:.1%} of {count:,} unseen sentences with nouns of two genders"
        said.append(f"“it” weighs the right noun above the wrong one in {share}")
        if found := it["flips"]:
            said.append(
                f"forbidding that one cell turns il into elle, or back, in {found['noun']:.1%} of "
                f"them; forbidding another cell of the row, in {found['others']:.1%}"
            )
    else:
        said.append("“it” does not find its noun yet")
    if it["telling_word"] > CHANCE:
        layer, head = it["telling_head"]
        said.append(
            f"to write the pronoun, head {head} of {layer} looks most at the word that tells which "
            f"in {it['telling_word']:.1%} of {it['sentences']:,} unseen sentences"
        )
    return said


def _row_of(written: Sequence[str], wanted: Sequence[str]) -> int | None:
    """Return the first row that writes one of these words, None if there is none."""
    found = (n for n, token in enumerate(written) if token.removeprefix("▁") in wanted)
    return next(found, None)


def table(result: dict[str, Any], console: Console) -> None:
    """Print the result as a short table."""
    from rich.table import Table

    scores = Table(title="What it learned", title_justify="left")
    scores.add_column("")
    for name in ("exact match", "BLEU", "il/elle right"):
        scores.add_column(name, justify="right")
    for split, row in result["splits"].items():
        pronouns = "" if row["pronouns"] is None else f"{row['pronouns']:.1%} of {row['because']}"
        scores.add_row(
            f"{split} ({row['sentences']:,})",
            f"{row['exact']:.1%}",
            f"{row['bleu']['value']:.1f}",
            pronouns,
        )
    console.print(scores)
    for made in result["translations"]:
        mark = "[green]✓[/]" if made["output"] == made["reference"] else "[red]✗[/]"
        console.print(f"{mark} {made['source']}  →  {made['output']}", highlight=False)
    it, align = result["it"], result["alignment"]
    console.print(
        f"\nalignment error {align['error_rate']:.3f} "
        f"({align['head'][0]}, head {align['head'][1]}, unguided)\n"
        + "; ".join(f"{why}: “it” looks at “{word}”" for why, (word, _) in it["looks"].items())
        + f" ({it['head'][0]}, head {it['head'][1]}, guided)",
        highlight=False,
    )
    for line in _said(it):
        console.print(line, highlight=False)
    taken = result["peak_memory_mb"]
    console.print(
        f"{result['seconds']:.0f} s, "
        + ("" if taken is None else f"{taken:,} MB, ")
        + f"{result['parameters']:,} parameters",
        highlight=False,
    )
