"""What a demo shows: its outcome in the terminal, its pictures, pages and index.html."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from intently import show
from intently.errors import DataError, build
from intently.show.page.items import Text
from intently.tasks.corpora import SHOWN, Pair
from intently.tasks.text import words
from intently.tasks.translation.evaluation import forced
from intently.tasks.translation.runs import TranslationRun
from intently.tasks.translation.translator import Translation, Translator

if TYPE_CHECKING:
    from rich.console import Console

    from intently.show.page import Item


TAUGHT = "taught: guided to look from “it” at its noun; no other head is"
"""What every picture of the guided head says."""

WIDE = "The animal didn't cross the road because it was too wide."
"""The sentence of the headline."""

CHANCE = 0.5
"""A figure up to this is no achievement: a coin would reach it."""


def first_look(out: Path, console: Console) -> None:
    """Show the embedded translator while nothing is trained yet: a sentence, a picture, a page."""
    from rich.text import Text

    translator = Translator.load()
    [made] = translator.translate([WIDE])
    colour = console.color_system is not None and not console.no_color
    drawn = show.blocks(made.alignment, width=console.width, colour=colour)
    console.print(f"{made.source}  →  {made.text}", highlight=False)
    console.print(Text.from_ansi(drawn), soft_wrap=True)
    page(translator, out / "first.html")
    console.print(
        f"That was the embedded translator, and {out}/first.html is a page of every head of it. "
        "Now one of your own.",
        highlight=False,
    )


def pictures(
    done: TranslationRun, shown: Sequence[Translation], result: dict[str, Any], out: Path
) -> None:
    """Draw the loss, the alignments, every head, and what *it* looks at."""
    folder = out / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    guided = done.translator.guided
    assert guided is not None
    show.curves(done.history.rows(), title="Learning to translate", save=folder / "loss.png")
    layer, head = result["alignment"]["head"]
    written = [(pair, made) for pair, made in zip(SHOWN, shown) if made.text]
    for pair, made in written:
        show.heatmap(
            made.alignment,
            gold=pair.alignment if made.text == pair.target else None,
            margins=False,
            title=f"{layer}, head {head}",
            save=folder / f"alignment-{SHOWN.index(pair) + 1:02d}.png",
        )
    for pair, made in [row for row in written if row[0].pronoun][:1]:
        show.heads(
            made.words,
            title=pair.source,
            highlight=(layer, head),
            caption=f"the head that aligns best; {guided.layer}, head {guided.head}, is {TAUGHT}",
            save=folder / "heads.png",
        )
    because = [pair for pair in SHOWN if pair.pronoun]
    for pair, matrices in zip(because, forced(done.translator, [pair[:2] for pair in because])):
        show.lines(
            matrices[guided.layer][guided.head],
            "it",
            title=f"{guided.layer}, head {guided.head}\n{TAUGHT}",
            save=folder / f"it-{words(pair.source)[-2]}.png",
        )


def page(translator: Translator, path: Path, it: dict[str, Any] | None = None) -> None:
    """Write a page that compares what *it* looks at in the two because-sentences.

    It opens on the guided head, at the *it* of the second sentence beside that of the first. It
    says what that head is and, once measured (``it``), how often it is right.
    """
    from intently.show.page import Highlight, items_of, save_page
    from intently.tasks.runners import translated

    head = translator.guided
    assert head is not None
    items: list[Item] = []
    for pair in SHOWN:
        if pair.pronoun:
            run = translated(translator, pair.source)
            items += items_of(run.seen, pair.source, note=run.lines[0])
    entry = [each.name for each in items[0].layers].index(head.layer)
    first, second = (_row_of("it", item, entry) for item in items)
    start = {"view": "text", "item": 1, "entry": entry, "heads": str(head.head)}
    note = "; ".join([TAUGHT, *([] if it is None else achievements(it)[:1])])
    save_page(
        items,
        path,
        title="What does it look at?",
        highlights=[Highlight(n, *head, note) for n in range(len(items))],
        start={**start, "row": second, "pin": f"0.{entry}.{head.head}.at.{first}"},
    )


def _row_of(word: str, item: Item, entry: int) -> int:
    """Return the row of a word in the self-attention of a text; raise `DataError` without one."""
    side = item.sides[item.layers[entry].rows]
    tokens = [token.removeprefix("▁") for token in side.tokens] if isinstance(side, Text) else []
    if word not in tokens:
        raise build(DataError, item.name, f"a text with the token “{word}”", " ".join(tokens))
    return tokens.index(word)


class Headline(NamedTuple):
    """A because-sentence: its translation, whether that is right, and what *it* looks at."""

    source: str
    output: str
    right: bool
    looks: str


def headlines(result: dict[str, Any]) -> list[Headline]:
    """Return the because-sentences of a result, the one of the headline first."""
    because = sorted((pair for pair in SHOWN if pair.pronoun), key=lambda p: p.source != WIDE)
    outputs = {made["source"]: made["output"] for made in result["translations"]}
    return [
        Headline(
            pair.source,
            outputs[pair.source],
            outputs[pair.source] == pair.target,
            _looks(pair, outputs[pair.source], *result["it"]["looks"][pair.source_words[-2]]),
        )
        for pair in because
    ]


def _looks(pair: Pair, output: str, word: str, weight: float) -> str:
    """Return what *it* looks at, and which pronoun is written, in a sentence."""
    assert pair.pronoun is not None
    noun, expected, other = pair.source_words[pair.pronoun.right], *pair.pronoun[-2:]
    pronoun = next((w for w in words(output) if w in (expected, other)), None)
    right = word == noun
    at_noun = "its noun" if right else f"but its noun is “{noun}”"
    if pronoun is None:
        return f"“it” looks at “{word}” ({weight:.2f}), {at_noun}; no pronoun is written"
    joint = "and" if right == (pronoun == expected) else "and yet"
    verdict = "right" if pronoun == expected else "wrong"
    return f"“it” looks at “{word}” ({weight:.2f}), {at_noun}, {joint} “{pronoun}” is {verdict}"


def achievements(it: dict[str, Any]) -> list[str]:
    """Return what was measured of *it*, in sentences, without a figure that chance would reach."""
    sentences, count = [], it["two_genders"]
    if it["right_noun"] > CHANCE:
        share = f"{it['right_noun']:.1%} of {count:,} unseen sentences with nouns of two genders"
        sentences.append(f"“it” weighs the right noun above the wrong one in {share}")
        if flips := it["flips"]:
            sentences.append(
                f"forbidding that one cell turns il into elle, or back, in {flips['noun']:.1%} of "
                f"them; forbidding another cell of the row, in {flips['others']:.1%}"
            )
    else:
        sentences.append("“it” does not find its noun yet")
    if it["telling_word"] > CHANCE:
        layer, head = it["telling_head"]
        sentences.append(
            f"to write the pronoun, head {head} of {layer} looks most at the word that tells which "
            f"in {it['telling_word']:.1%} of {it['sentences']:,} unseen sentences"
        )
    return sentences


COLUMNS = ("", "exact match", "BLEU", "il/elle right")


def _scores(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the rows of the table of scores, one for each split."""
    return [
        (
            f"{split} ({row['sentences']:,})",
            f"{row['exact']:.1%}",
            f"{row['bleu']['value']:.1f}",
            "" if row["pronouns"] is None else f"{row['pronouns']:.1%} of {row['because']}",
        )
        for split, row in result["splits"].items()
    ]


def _cost(result: dict[str, Any]) -> str:
    taken = result["peak_memory_mb"]
    memory = "" if taken is None else f"{taken:,} MB, "
    return f"{result['seconds']:.0f} s, {memory}{result['parameters']:,} parameters"


def _others(result: dict[str, Any]) -> Iterator[tuple[bool, str]]:
    """Yield the other translations of a result, and whether they are right."""
    first = {headline.source for headline in headlines(result)}
    for made in result["translations"]:
        if made["source"] not in first:
            yield made["output"] == made["reference"], f"{made['source']}  →  {made['output']}"


def table(result: dict[str, Any], console: Console) -> None:
    """Print the outcome in order: the headline, what *it* looks at, what follows, the scores."""
    from rich.padding import Padding
    from rich.table import Table

    def tell(text: str, indent: int = 0) -> None:
        padded = Padding(text, (0, 0, 0, indent), expand=False)
        console.print(padded, highlight=False, soft_wrap=False)  # wraps in files, too

    mark = {True: "[green]✓[/]", False: "[red]✗[/]"}
    layer, head = result["it"]["head"]
    tell(f"\n[bold]What “it” looks at[/] ({layer}, head {head}, guided)")
    for headline in headlines(result):
        tell(f"{mark[headline.right]} {headline.source}")
        tell(headline.output, 2)
        tell(headline.looks, 2)
    for line in achievements(result["it"]):
        tell(line)
    scores = Table(title="What it learned", title_justify="left")
    for number, name in enumerate(COLUMNS):
        scores.add_column(name, justify="right" if number else "left")
    for row in _scores(result):
        scores.add_row(*row)
    console.print(scores)
    for right, line in _others(result):
        console.print(f"{mark[right]} {line}", highlight=False)
    alignment = result["alignment"]
    console.print(
        f"\nalignment error {alignment['error_rate']:.3f} "
        f"({alignment['head'][0]}, head {alignment['head'][1]}, unguided)\n{_cost(result)}",
        highlight=False,
    )


STYLE = """
:root { color-scheme: light dark; --line: light-dark(#d8dce2, #3a4048); }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
p { margin: .4rem 0; }
h1 + p { font-size: 1.35rem; }
.right::before { content: "✓ "; color: light-dark(#18794e, #4cc38a); }
.wrong::before { content: "✗ "; color: light-dark(#c62a2f, #ff8589); }
.pictures { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); }
.pictures img { width: 100%; background: #fff; border: 1px solid var(--line); border-radius: 6px; }
.pages a { display: inline-block; padding: .5rem 1rem; margin: .25rem .5rem .25rem 0;
  border: 1px solid var(--line); border-radius: 6px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { padding: .25rem .8rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
"""


def index(result: dict[str, Any], out: Path) -> str:
    """Return the page that shows a demo: headline, what *it* looks at, pages, scores, pictures."""

    def paragraph(right: bool, text: str, more: str = "") -> str:
        return f'<p class="{"right" if right else "wrong"}"{more}>{html.escape(text)}</p>'

    def images(names: Iterable[str]) -> str:
        return "".join(
            f'<a href="pictures/{name}">'
            f'<img src="pictures/{name}" alt="{name.removesuffix(".png")}" loading="lazy"></a>'
            for name in names
        )

    first, second = headlines(result)
    layer, head = result["it"]["head"]
    drawn = sorted(path.name for path in (out / "pictures").glob("*.png"))
    of_it = [name for name in reversed(drawn) if name.startswith("it-")]
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Intently: the demo</title>
<style>{STYLE}</style>
<h1>{html.escape(first.source)}</h1>
{paragraph(first.right, first.output, ' lang="fr"')}
<p>{html.escape(first.looks)}.</p>
<p><strong>{html.escape(second.source)}</strong></p>
{paragraph(second.right, second.output, ' lang="fr"')}
<p>{html.escape(second.looks)}.</p>
<h2>What “it” looks at</h2>
<p>Head {head} of {html.escape(layer)}, {html.escape(TAUGHT)}.</p>
<ul>{"".join(f"<li>{html.escape(line)}</li>" for line in achievements(result["it"]))}</ul>
<div class="pictures">{images(of_it)}</div>
<h2>Pages</h2>
<p class="pages"><a href="it.html">Every head of this translator</a>
<a href="first.html">Every head of the translator that comes with Intently</a></p>
<h2>Scores</h2>
<div class="scroll"><table>
<tr>{"".join(f"<th>{name}</th>" for name in COLUMNS)}</tr>
{"".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in _scores(result))}
</table></div>
<p>{_cost(result)}</p>
<h2>More sentences</h2>
{"".join(paragraph(*other) for other in _others(result))}
<h2>Pictures</h2>
<div class="pictures">{images(name for name in drawn if name not in of_it)}</div>
</html>
"""
