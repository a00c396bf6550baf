"""What a demo shows: its outcome in the terminal, its pictures, pages and index.html."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from intently import show
from intently.errors import DataError, build
from intently.show.page.items import Text
from intently.tasks.corpora import SHOWN, Pair
from intently.tasks.text import words
from intently.tasks.translation.evaluation import forced
from intently.tasks.translation.runs import Run
from intently.tasks.translation.translator import AlignmentHead, Translation, Translator

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


def pictures(done: Run, shown: Sequence[Translation], result: dict[str, Any], out: Path) -> None:
    """Draw the loss, the alignments, every head, and what *it* looks at."""
    folder = out / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    guided = done.translator.guided
    assert guided is not None
    show.curves(done.history.rows(), title="Learning to translate", save=folder / "loss.png")
    head = AlignmentHead(*result["alignment"]["head"])
    for number, (pair, made) in enumerate(zip(SHOWN, shown), 1):
        if not made.text:
            continue
        gold = pair.alignment if made.text == pair.target else None
        show.heatmap(
            made.alignment,
            gold=gold,
            margins=False,
            title=f"{head.layer}, head {head.head}",
            save=folder / f"alignment-{number:02d}.png",
        )
    because = [(pair, made) for pair, made in zip(SHOWN, shown) if pair.pronoun]
    for pair, made in [row for row in because if row[1].text][:1]:
        show.heads(
            made.words,
            title=pair.source,
            highlight=(head.layer, head.head),
            caption=f"the head that aligns best; {guided.layer}, head {guided.head}, is {TAUGHT}",
            save=folder / "heads.png",
        )
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

    It opens on the guided head, at the *it* of the second sentence beside that of the first. It
    says what that head is and, once measured (``it``), how often it is right.
    """
    from intently.show.page import Highlight, items_of, save_page
    from intently.tasks.runners.watched import translated

    head = translator.guided
    assert head is not None
    items: list[Item] = []
    for pair in SHOWN:
        if pair.pronoun:
            found = translated(translator, pair.source)
            items += items_of(found.seen, pair.source, note=found.told[0])
    entry = [each.name for each in items[0].layers].index(head.layer)
    first, second = (_row_of("it", item, entry) for item in items)
    pin = f"0.{entry}.{head.head}.at.{first}"
    where = {"view": "text", "item": 1, "entry": entry, "heads": str(head.head)}
    said = "; ".join([TAUGHT, *([] if it is None else achievements(it)[:1])])
    save_page(
        items,
        path,
        title="What does it look at?",
        highlights=[Highlight(n, *head, said) for n in range(len(items))],
        start={**where, "row": second, "pin": pin},
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
    noun, written = pair.source_words[pair.pronoun.right], words(output)
    expected, other = pair.pronoun.expected, pair.pronoun.other
    pronoun = next((w for w in written if w in (expected, other)), None)
    found = word == noun
    noun_said = "its noun" if found else f"but its noun is “{noun}”"
    if pronoun is None:
        return f"“it” looks at “{word}” ({weight:.2f}), {noun_said}; no pronoun is written"
    joint = "and" if found == (pronoun == expected) else "and yet"
    verdict = "right" if pronoun == expected else "wrong"
    return f"“it” looks at “{word}” ({weight:.2f}), {noun_said}, {joint} “{pronoun}” is {verdict}"


def achievements(it: dict[str, Any]) -> list[str]:
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


def _others(result: dict[str, Any]) -> list[dict[str, str]]:
    """Return the other translations of a result."""
    told = {headline.source for headline in headlines(result)}
    return [made for made in result["translations"] if made["source"] not in told]


def table(result: dict[str, Any], console: Console) -> None:
    """Print the outcome in order: the headline, what *it* looks at, what follows, the scores."""
    from rich.padding import Padding
    from rich.table import Table

    def tell(text: str, indent: int = 2) -> None:
        console.print(Padding(text, (0, 0, 0, indent)), highlight=False)

    layer, head = result["it"]["head"]
    tell(f"\n[bold]What “it” looks at[/] ({layer}, head {head}, guided)", 0)
    for made in headlines(result):
        tell(f"{_mark(made.right)} {made.source}", 0)
        tell(made.output)
        tell(made.looks)
    for line in achievements(result["it"]):
        tell(line, 0)
    scores = Table(title="What it learned", title_justify="left")
    for number, name in enumerate(COLUMNS):
        scores.add_column(name, justify="right" if number else "left")
    for row in _scores(result):
        scores.add_row(*row)
    console.print(scores)
    for made in _others(result):
        right = made["output"] == made["reference"]
        console.print(f"{_mark(right)} {made['source']}  →  {made['output']}", highlight=False)
    align = result["alignment"]
    console.print(
        f"\nalignment error {align['error_rate']:.3f} "
        f"({align['head'][0]}, head {align['head'][1]}, unguided)\n{_cost(result)}",
        highlight=False,
    )


def _mark(right: bool) -> str:
    return "[green]✓[/]" if right else "[red]✗[/]"


STYLE = """
:root { color-scheme: light dark; --line: light-dark(#d8dce2, #3a4048); }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
p { margin: .4rem 0; }
.output { font-size: 1.35rem; }
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
    headline, second = headlines(result)
    layer, head = result["it"]["head"]
    drawn = sorted(path.name for path in (out / "pictures").glob("*.png"))
    of_it = [name for name in reversed(drawn) if name.startswith("it-")]
    rest = [name for name in drawn if name not in of_it]
    others = [
        f'<p class="{_verdict(made["output"] == made["reference"])}">{html.escape(made["source"])} '
        f"→ {html.escape(made['output'])}</p>"
        for made in _others(result)
    ]
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Intently: the demo</title>
<style>{STYLE}</style>
<h1>{html.escape(headline.source)}</h1>
<p class="output {_verdict(headline.right)}" lang="fr">{html.escape(headline.output)}</p>
<p>{html.escape(headline.looks)}.</p>
<p><strong>{html.escape(second.source)}</strong></p>
<p class="{_verdict(second.right)}" lang="fr">{html.escape(second.output)}</p>
<p>{html.escape(second.looks)}.</p>
<h2>What “it” looks at</h2>
<p>Head {head} of {html.escape(layer)}, {html.escape(TAUGHT)}.</p>
<ul>{"".join(f"<li>{html.escape(line)}</li>" for line in achievements(result["it"]))}</ul>
<div class="pictures">{_images(of_it)}</div>
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
{"".join(others)}
<h2>Pictures</h2>
<div class="pictures">{_images(rest)}</div>
</html>
"""


def _verdict(right: bool) -> str:
    return "right" if right else "wrong"


def _images(names: Sequence[str]) -> str:
    return "".join(
        f'<a href="pictures/{name}">'
        f'<img src="pictures/{name}" alt="{name.removesuffix(".png")}" loading="lazy"></a>'
        for name in names
    )
