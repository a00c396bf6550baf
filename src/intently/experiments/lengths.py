"""The experiment that motivated attention: long sentences without it, and with it.

Cho et al. 2014, "On the Properties of Neural Machine Translation: Encoder–Decoder Approaches"
(figure 4), found that a fixed context vector loses long sentences; Bahdanau et al. 2015, "Neural
Machine Translation by Jointly Learning to Align and Translate" (figure 2), showed that attention
does not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intently.corpora import Corpus, sample
from intently.decoding import SearchOptions
from intently.errors import ArgumentError, DataError, build
from intently.experiments.comparison import (
    System,
    described,
    share_interval,
    train_all,
    write_result,
)
from intently.foundation.checks import check_word
from intently.recipes import recipe
from intently.show.figures.by_length import Interval, by_length
from intently.show.style import LINES
from intently.training import bleu
from intently.training.metrics import RESAMPLED
from intently.training.writer import sole_writer

if TYPE_CHECKING:
    from rich.console import Console

    from intently.translation.translator import Translator

EDGES = {"language": (4, 6, 8, 10, 12, 14, 16), "multi30k": (5, 10, 15, 20, 30)}
"""The largest length of each bucket but the last; the built-in language ends at 16 words."""

PREFIXES = {"language": "language", "multi30k": "multi30k-de-en"}
LABELS = {"fixed": "fixed vector", "bahdanau": "additive attention", "transformer": "Transformer"}
LOWERCASE = {"language": False, "multi30k": True}

SENTENCES = 300
"""Sentences of the built-in language in each bucket."""
DRAWN = {"test": 5000, "deeper": 3000}
"""Sentences drawn from its splits: enough for every bucket."""

FEWEST = 10
"""Smaller buckets, in sentences, are left out: their intervals say nothing."""


@dataclass(frozen=True)
class Bucket:
    """Test sentences of similar length, and the split they are from.

    ``trained`` is the number of training sentences of that length.
    """

    name: str
    sources: Sequence[str]
    targets: Sequence[str]
    split: str
    trained: int = 0

    def __len__(self) -> int:
        return len(self.sources)


def systems(corpus: str) -> list[System]:
    """Return the systems for a corpus: without attention, with it, and a Transformer.

    Raises `ArgumentError` for a corpus without all three recipes.

    >>> [system.recipe.name for system in systems("multi30k")][:2]
    ['multi30k-de-en-fixed', 'multi30k-de-en-bahdanau']
    """
    check_word(corpus, "corpus", PREFIXES)
    return [System(label, recipe(f"{PREFIXES[corpus]}-{end}")) for end, label in LABELS.items()]


def length(sentence: str) -> int:
    """Return the number of words of a sentence, separated by white space.

    >>> length("The road was too wide.")
    5
    """
    return len(sentence.split())


def bucket_of(words: int, edges: Sequence[int]) -> str:
    """Return the name of the bucket for a number of words.

    >>> [bucket_of(words, (5, 10)) for words in (5, 6, 11)]
    ['1–5', '6–10', '>10']
    """
    return names(edges)[bisect_left(edges, words)]


def names(edges: Sequence[int]) -> list[str]:
    """Return the names of the buckets between edges, in order.

    >>> names((5, 10))
    ['1–5', '6–10', '>10']
    """
    starts = [1, *(edge + 1 for edge in edges)]
    spans = [f"{start}–{end}" if start < end else f"{end}" for start, end in zip(starts, edges)]
    return [*spans, f">{edges[-1]}"]


def grouped(
    pairs: Iterable[tuple[str, str]], edges: Sequence[int]
) -> dict[str, list[tuple[str, str]]]:
    """Return pairs by the bucket of their source's length, in ascending order.

    >>> list(grouped([("a b c", "x"), ("a", "x")], edges=(1, 2)))
    ['1', '>2']
    """
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in names(edges)}
    for source, target in pairs:
        found[bucket_of(length(source), edges)].append((source, target))
    return {name: pairs for name, pairs in found.items() if pairs}


def buckets(corpus: Corpus, edges: Sequence[int]) -> list[Bucket]:
    """Return the test sentences of a corpus by length.

    A public corpus contributes all its test sentences, the built-in language `SENTENCES` for each
    bucket, from its split "test"; where that has too few, the whole bucket is from "deeper", whose
    sentences are longer because they have a clause more than any sentence in training. Buckets of
    fewer than `FEWEST` are left out. Raises `ArgumentError` for edges that do not rise,
    `DataError` where no bucket is left.
    """
    if not edges or edges[0] < 1 or any(a >= b for a, b in pairwise(edges)):
        raise build(ArgumentError, "edges", "rising numbers of words from 1 on", edges)
    trained = Counter(bucket_of(length(source), edges) for source in corpus.train.sources)
    if corpus.name == "language":
        found = _of_the_language(edges)
    else:
        texts = [(name, text) for name, text in corpus.tests.items()]
        pairs = [pair for _, text in texts for pair in zip(text.sources, text.targets)]
        split = ", ".join(name for name, _ in texts)
        found = {name: (split, some) for name, some in grouped(pairs, edges).items()}
    enough = [
        Bucket(name, [s for s, _ in some], [t for _, t in some], split, trained[name])
        for name, (split, some) in found.items()
        if len(some) >= FEWEST
    ]
    if not enough:
        expected = f"a bucket of at least {FEWEST} sentences"
        got = f"{sum(len(some) for _, some in found.values())} in all"
        raise build(DataError, "corpus.tests", expected, got, fix="give fewer edges, or more tests")
    return enough


def _of_the_language(edges: Sequence[int]) -> dict[str, tuple[str, list[tuple[str, str]]]]:
    test, deeper = (
        grouped(((p.source, p.target) for p in sample(split, count)), edges)
        for split, count in DRAWN.items()
    )
    found = {}
    for name in names(edges):
        split, some = "test", test.get(name, [])
        if len(some) < SENTENCES and len(deeper.get(name, [])) > len(some):
            split, some = "deeper", deeper[name]
        if some:
            found[name] = split, some[:SENTENCES]
    return found


def measure(
    translator: Translator, bucket: Bucket, options: SearchOptions, lowercase: bool
) -> tuple[Interval, Interval, str]:
    """Return the exact match and the BLEU of a bucket with their intervals, and the signature."""
    texts = [translation.text for translation in translator.stream(bucket.sources, options)]
    right = sum(map(str.__eq__, texts, bucket.targets))
    score = bleu(texts, bucket.targets, lowercase=lowercase, bootstrap=RESAMPLED)
    low, high = score.interval or (score.value, score.value)
    ends = max(0.0, min(low, score.value)), min(100.0, max(high, score.value))
    return share_interval(right, len(texts)), (score.value, *ends), score.signature


def compare(
    compared: Sequence[System],
    corpus: Corpus,
    out: Path,
    console: Console,
    *,
    edges: Sequence[int],
    beam: int = 1,
) -> dict[str, Any] | None:
    """Train the systems, score them by length, and return the content of ``lengths.json``.

    ``out`` gets a folder for each run, ``lengths.json`` and ``lengths.png``. Returns None if the
    training was interrupted; the same call resumes it. Raises, before anything is trained, as
    `buckets`, `SearchOptions` and `train_all` do.
    """
    options = SearchOptions(beam=beam)  # before hours of training, as both may raise
    tests = buckets(corpus, edges)
    if not 1 <= len(compared) <= len(LINES):
        raise build(ArgumentError, "compared", f"one to {len(LINES)} models", len(compared))
    with sole_writer(out, ("lengths.json", "lengths.png")):
        runs = train_all(compared, corpus, out, console)
        if runs is None:
            return None
        lowercase = LOWERCASE.get(corpus.name, False)
        models, signature = [], ""
        for system, run in zip(compared, runs):
            console.print(f"{system.label}: translating {sum(map(len, tests)):,} sentences")
            scores = [measure(run.translator, bucket, options, lowercase) for bucket in tests]
            signature = scores[-1][-1]
            exact, bleus = [list(s[0]) for s in scores], [list(s[1]) for s in scores]
            models.append({**described(system, run), "exact_match": exact, "bleu": bleus})
        result = {
            "experiment": "lengths",
            "corpus": corpus.name,
            "direction": f"{corpus.source}-{corpus.target}",
            "beam": options.beam,
            "bleu_signature": signature,
            "intervals": "95 %: Wilson of the exact match, bootstrap of BLEU",
            "buckets": [
                {"words": b.name, "sentences": len(b), "split": b.split, "in_training": b.trained}
                for b in tests
            ],
            "models": models,
        }
        write_result(out / "lengths.json", result)
        draw(result, out / "lengths.png")
        return result


def draw(result: dict[str, Any], save: Path) -> None:
    """Draw the figure of a result; exact match only where a sentence has one right translation."""
    panels = {"BLEU": "bleu"}
    if result["corpus"] == "language":
        panels = {"exact match": "exact_match", **panels}
    longest = [not bucket["in_training"] for bucket in result["buckets"]]
    unseen = next((i for i, new in enumerate(reversed(longest)) if not new), len(longest))
    names = {"language": "the built-in language", "multi30k": "Multi30k"}
    beam = f", beam {result['beam']}" if result["beam"] > 1 else ""
    by_length(
        {
            panel: {model["label"]: [tuple(at) for at in model[key]] for model in result["models"]}
            for panel, key in panels.items()
        },
        {bucket["words"]: bucket["sentences"] for bucket in result["buckets"]},
        unseen=unseen,
        title=f"{names.get(result['corpus'], result['corpus'])}, {result['direction']}{beam}: "
        "what becomes of long sentences",
        save=save,
    )


def table(result: dict[str, Any], console: Console) -> None:
    """Print a result: a row for each bucket, exact match and BLEU of each model."""
    from rich.table import Table

    shown = Table(
        title="Exact match, then BLEU with its 95 % interval in brackets, by words of the source",
        title_justify="left",
    )
    shown.add_column("words")
    shown.add_column("sentences", justify="right")
    for model in result["models"]:
        shown.add_column(model["label"], justify="right")
    for row, bucket in enumerate(result["buckets"]):
        cells = [
            f"{model['exact_match'][row][0]:.1%}  {_of(model['bleu'][row])}"
            for model in result["models"]
        ]
        shown.add_row(bucket["words"], f"{bucket['sentences']:,}", *cells)
    shown.add_section()
    sizes = [f"{model['parameters']:,}" for model in result["models"]]
    times = [f"{model['training_seconds']:,.0f} s" for model in result["models"]]
    shown.add_row("parameters", "", *sizes)
    shown.add_row("training", "", *times)
    console.print(shown)
    console.print(f"BLEU: {result['bleu_signature']}", markup=False, highlight=False)


def _of(interval: Sequence[float]) -> str:
    value, low, high = interval
    return f"{value:.1f} ({low:.1f}–{high:.1f})"
