"""How well every kind of attention aligns words, without ever being shown an alignment.

The built-in language has gold alignments. One model of each kind is trained on its sentences; the
best-aligning head is chosen on some pairs and measured on others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intently.corpora import SHOWN, Corpus, Pair, sample
from intently.errors import ArgumentError, build
from intently.experiments.comparison import (
    System,
    described,
    ratio_interval,
    share_interval,
    train_all,
    write_result,
)
from intently.models.kinds import cross_heads
from intently.recipes import recipe
from intently.show.figures.alignment import alignment
from intently.show.figures.bars import bars
from intently.show.figures.by_length import Interval
from intently.training.writer import sole_writer
from intently.translation.evaluation import (
    best_alignment_head,
    evaluate,
    forced,
    links,
    without_stop,
)
from intently.translation.runs import WRITES, Run
from intently.translation.translator import AlignmentHead, Translator

if TYPE_CHECKING:
    from rich.console import Console

LUONG = ("dot", "general", "concat")
WIDE = "The animal didn't cross the road because it was too wide."

PAIRS = 500
"""Pairs on which a head is chosen, and others on which it is measured."""


def systems() -> list[System]:
    """Return one system for each kind of attention; those of Luong differ only in the score.

    >>> [system.recipe.name for system in systems()][:3]
    ['language-bahdanau', 'language-dot', 'language-general']
    """
    luong = recipe("language-luong")
    return [
        System("additive (Bahdanau)", recipe("language-bahdanau")),
        *(
            System(f"{kind} (Luong)", replace(luong, name=f"language-{kind}")).with_flags(
                attention=kind
            )
            for kind in LUONG
        ),
        System("Transformer, best head", recipe("language-transformer")),
    ]


def error_rate(translator: Translator, head: AlignmentHead, pairs: Sequence[Pair]) -> Interval:
    """Return the alignment error rate of one head, with the ends of its 95 % bootstrap interval.

    The rate is that of `evaluation.alignment_errors`, under forced decoding of each reference.
    Raises `ArgumentError` for a head of cross-attention that the model does not have.
    """
    heads = cross_heads(translator.model.options)
    if head.head not in range(heads.get(head.layer, 0)):
        known = " or ".join(f"{name} (0 to {n - 1})" for name, n in heads.items())
        got = f"{head.head} of {head.layer}"
        raise build(ArgumentError, "head", f"one of {known or 'a model with attention'}", got)
    agreed, counted = [], []
    sides = [(pair.source, pair.target) for pair in pairs]
    for pair, matrices in zip(pairs, forced(translator, sides)):
        found = links(matrices[head.layer].dense()[head.head], pair.source_words, pair.target_words)
        gold = without_stop(pair)
        agreed.append(len(found & gold.sure) + len(found & gold.possible))
        counted.append(len(found) + len(gold.sure))
    return ratio_interval([n - right for n, right in zip(counted, agreed)], counted)


def measure(system: System, run: Run, pairs: int = PAIRS) -> dict[str, Any]:
    """Return the entry of a system in the result: its head, alignment error, exact match and BLEU.

    The head is chosen on validation pairs and measured on test pairs; it becomes the translator's.
    """
    translator = run.translator
    head, chosen_by = best_alignment_head(translator, sample("validation", pairs))
    translator.alignment_head = head
    tests = sample("test", pairs)
    scores, texts = evaluate(translator, [p.source for p in tests], [p.target for p in tests])
    right = sum(text == pair.target for text, pair in zip(texts, tests))
    return {
        **described(system, run),
        "head": list(head),
        "alignment_error_on_validation": chosen_by,
        "alignment_error": list(error_rate(translator, head, tests)),
        "exact_match": list(share_interval(right, len(tests))),
        "bleu": scores.bleu.value,
        "bleu_signature": scores.bleu.signature,
    }


def compare(
    compared: Sequence[System], corpus: Corpus, out: Path, console: Console, *, pairs: int = PAIRS
) -> dict[str, Any] | None:
    """Train the systems, measure how they align, and return the content of ``alignments.json``.

    ``out`` gets a folder for each run with the alignment of one sentence, ``alignments.json`` and
    ``alignments.png``; the translator of each run keeps its measured head. Returns None if the
    training was interrupted; the same call resumes it.
    """
    names = ("alignments.json", "alignments.png", *(f"{e.recipe.name}.png" for e in compared))
    with sole_writer(out, names):
        runs = train_all(compared, corpus, out, console)
        if runs is None:
            return None
        models = []
        for system, run in zip(compared, runs):
            said = f"{system.label}: aligning {pairs:,} pairs"
            console.print(said, markup=False, highlight=False)
            models.append(measure(system, run, pairs))
            with sole_writer(run.folder, WRITES):
                run.translator.save(run.folder / "model")
            picture(system, run, out / f"{system.recipe.name}.png")
        result = {
            "experiment": "alignments",
            "corpus": corpus.name,
            "pairs": pairs,
            "chosen_on": "validation",
            "measured_on": "test",
            "intervals": "95 %: bootstrap of the alignment error, Wilson of the exact match",
            "models": models,
        }
        write_result(out / "alignments.json", result)
        draw(result, out / "alignments.png")
        return result


def picture(system: System, run: Run, save: Path) -> None:
    """Draw the measured head's attention under forced decoding of one translation."""
    pair = next(pair for pair in SHOWN if pair.source == WIDE)
    [matrices] = forced(run.translator, [(pair.source, pair.target)])
    head = run.translator.alignment_head
    assert head is not None
    alignment(
        matrices[head.layer][head.head],
        gold=pair.alignment,
        beside="reference",
        title=system.label,
        save=save,
    )


def draw(result: dict[str, Any], save: Path) -> None:
    """Draw the figure of a result."""
    panels = {"alignment error rate": "alignment_error", "exact match": "exact_match"}
    bars(
        {
            panel: {model["label"]: tuple(model[key]) for model in result["models"]}
            for panel, key in panels.items()
        },
        title=f"Attention as word alignment: {result['pairs']:,} test pairs of the built-in "
        "language",
        save=save,
    )


def table(result: dict[str, Any], console: Console) -> None:
    """Print a result: a row for each kind of attention."""
    from rich.table import Table

    shown = Table(
        title="Alignment error rate with its 95 % interval in brackets, exact match, BLEU, and the "
        "head (layer, number)",
        title_justify="left",
    )
    shown.add_column("")
    # narrow enough for a terminal of 80 columns
    for name in ("error", "exact", "BLEU", "head", "parameters", "time"):
        shown.add_column(name, justify="right")
    for model in result["models"]:
        error, low, high = model["alignment_error"]
        layer, head = model["head"]
        number = "".join(filter(str.isdigit, layer)) or "0"  # a recurrent decoder has one
        shown.add_row(
            model["label"],
            f"{error:.3f} ({low:.3f}–{high:.3f})",
            f"{model['exact_match'][0]:.1%}",
            f"{model['bleu']:.1f}",
            f"{number}, {head}",
            f"{model['parameters']:,}",
            f"{model['training_seconds']:,.0f} s",
        )
    console.print(shown)
