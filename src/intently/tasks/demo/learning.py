"""The demo: an attention model learns to translate, and shows its attention.

The corpus comes from the built-in grammar, the model from training, the pictures from the attention
of the trained model. One encoder head is guided: of *it*, the grammar knows the noun (see
`intently.tasks.training.loss`). All other attention, and all cross-attention, is learned unguided.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from intently.errors import ArgumentError, build
from intently.foundation import process
from intently.foundation.files import replace_file
from intently.tasks.corpora import SHOWN, Pair, language, sample
from intently.tasks.corpora.files import ParallelText
from intently.tasks.corpora.named import text_of
from intently.tasks.decoding import SearchOptions
from intently.tasks.demo import report
from intently.tasks.recipes import Origin
from intently.tasks.text import Tokenizer
from intently.tasks.training import Checkpoints, TrainingOptions, display
from intently.tasks.training.checkpoint import versions
from intently.tasks.training.folder_lock import check_held, sole_writer
from intently.tasks.training.optimiser import warmup_of
from intently.tasks.training.progress import Event, Listener, Stepped, clock
from intently.tasks.translation import runs
from intently.tasks.translation.evaluation import (
    alignment_errors,
    best_alignment_head,
    evaluate_pairs,
    flips,
    forced,
    noun_choices,
    telling_choices,
)
from intently.tasks.translation.runs import TranslationRun, fit
from intently.tasks.translation.translator import AlignmentHead, Translator

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Size:
    """The size of a demo: sentence pairs, steps, and sentences evaluated per split.

    With dropout, fewer runs find *il* and *elle* without the guided head; few steps learn more
    without it.
    """

    name: str
    pairs: int
    steps: int
    sentences: int
    batch_tokens: int = 1000
    learning_rate: float = 0.004
    dropout: float = 0.1


QUICK = Size("quick", pairs=24_000, steps=240, sentences=200, dropout=0.0)
USUAL = Size("usual", pairs=100_000, steps=1_000, sentences=1_000, batch_tokens=850)
THOROUGH = Size("thorough", pairs=100_000, steps=1_000, sentences=2_000)

GUIDED = AlignmentHead("encoder.1.self_attention", 0)
"""The head that looks from *it* at its noun."""

RIGHT, WRONG = 0.9, 0.1
"""The weights it is taught, of the noun that *it* stands for and of the other one."""

RARE_NAMES = 0.1
"""Share of the sentences with a man's name in which an invented name replaces it."""

WRITES = (*runs.WRITES, "pictures/", "first.html", "it.html", "index.html", "result.json")
"""The files and folders of a demo."""

ESTIMATED = 20
"""Steps after which the time of the training is told."""

MEN = ("Paul", "Lucas", "Thomas")


def options(size: Size) -> TrainingOptions:
    """Return the training options of the demo in one of its sizes."""
    return TrainingOptions().with_flags(
        steps=size.steps,
        learning_rate=size.learning_rate,
        warmup=warmup_of(size.steps, 100),
        schedule="constant",
        cooldown=0.5,
        optimiser="muon",
        batch_tokens=size.batch_tokens,
        label_smoothing=0.0,
        norm="post",
        positions="rotary",
        dropout=size.dropout,
        guided=f"{GUIDED.layer}.{GUIDED.head}",
        guide_weight=1.0,
        weight_decay=0.0,
        source_tokenizer="word",
        target_tokenizer="word",
        device="cpu",  # where the promised times were measured
        save_every=max(100, size.steps // 5),
        evaluate_every=max(25, size.steps // 6),
        max_length=48,
    )


def corpus(size: Size, seed: int = 0) -> tuple[ParallelText, tuple[Tokenizer, Tokenizer]]:
    """Return the demo's training text and its word tokenizers.

    In a few sentences an invented name, outside the vocabulary, teaches the model to copy unknown
    words. A guide teaches `GUIDED` what each *it* stands for.
    """
    chance = random.Random(seed)
    plain: list[tuple[str, str]] = []
    sides: list[tuple[str, str]] = []
    guides: list[dict[tuple[int, int], float]] = []
    for pair in itertools.islice(language("train"), size.pairs):
        plain.append((pair.source, pair.target))
        names = [name for name in MEN if name in pair.source_words and name in pair.target_words]
        if names and chance.random() < RARE_NAMES:
            strange = _strange_name(chance)
            source, target = (side.replace(names[0], strange) for side in plain[-1])
            sides.append((source, target))
        else:
            sides.append(plain[-1])
        it = pair.pronoun
        guides.append({(it.source, it.right): RIGHT, (it.source, it.wrong): WRONG} if it else {})
    one, other = (Tokenizer.train(texts, "word", 5000) for texts in zip(*plain))
    sources, targets = map(list, zip(*sides))
    text = ParallelText(sources, targets, report="the built-in language", guides=guides)
    return text, (one, other)


def _strange_name(chance: random.Random) -> str:
    """Return a name of three syllables."""
    syllables = (chance.choice("bdfgklmnprstvz") + chance.choice("aeiou") for _ in range(3))
    return "".join(syllables).capitalize()


def _estimating(console: Console, tell: Listener) -> Listener:
    """Return a listener that also says, after a few steps, how long the training will take."""
    steps = itertools.count(1)

    def listen(event: Event) -> None:
        tell(event)
        if isinstance(event, Stepped) and next(steps) == ESTIMATED:
            left = clock(event.seconds_left)
            console.print(f"  on this machine, about {left} of training are left")

    return listen


def run(size: Size, out: Path, console: Console, *, resume: bool = False) -> dict[str, Any] | None:
    """Run the demo and return the content of ``result.json``, None where it was interrupted.

    ``out`` gets the model, ``result.json``, pictures, pages, and ``index.html``, which shows them
    all. ``resume`` continues an interrupted demo; a finished one, which has left no checkpoints, is
    replaced.

    Raises `ArgumentError` if there is nothing to resume, or an interrupted run and no ``resume``.
    """
    with sole_writer(out, WRITES):
        checkpoints, finished = Checkpoints(out / "checkpoints"), out / "result.json"
        begun = checkpoints.begun(resume)
        if resume and finished.exists() and not begun:
            fix = "leave out --resume to train it again"
            raise build(ArgumentError, "--resume", "an interrupted demo", "a finished one", fix=fix)
        finished.unlink(missing_ok=True)
        began = time.perf_counter()
        report.first_look(out, console)
        console.print(f"[bold]1[/] making {size.pairs:,} sentence pairs of the built-in language")
        text, tokenizers = corpus(size)
        console.print(
            f"[bold]2[/] training a Transformer for {size.steps:,} steps "
            f"on {torch.get_num_threads()} threads"
        )
        with display(console) as progress:
            done = fit(
                text,
                options(size),
                out,
                dev=text_of(sample("validation", 200)),  # for the learning curve
                tokenizers=tokenizers,
                progress=_estimating(console, progress),
                resume=resume,
            )
        if done.history.stopped == "interrupted":
            return None
        del text
        console.print("[bold]3[/] evaluating on sentences it has never seen")
        result = evaluate(done, size)
        console.print("[bold]4[/] translating")
        shown = done.translator.translate([pair.source for pair in SHOWN], SearchOptions(beam=4))
        result["translations"] = [
            {"source": made.source, "output": made.text, "reference": pair.target}
            for pair, made in zip(SHOWN, shown)
        ]
        check_held(out)
        console.print(f"[bold]5[/] writing pictures and a page to {out}")
        report.pictures(done, shown, result, out)
        report.page(done.translator, out / "it.html", result["it"])
        done.translator.save(out / "model")
        Origin("language", "en", "fr").save(out)
        taken = process.peak()
        result |= {
            "seconds": round(time.perf_counter() - began, 1),
            "peak_memory_mb": None if taken is None else taken // 2**20,
            "versions": versions(),
            "threads": torch.get_num_threads(),
        }
        replace_file(out / "index.html", report.index(result, out).encode())
        replace_file(finished, json.dumps(result, indent=1, ensure_ascii=False).encode())
        checkpoints.remove()
        return result


def evaluate(done: TranslationRun, size: Size) -> dict[str, Any]:
    """Score a trained translator on every split, choose its alignment head, and look at *it*."""
    translator, last = done.translator, done.history.records[-1]
    splits = {split: sample(split, size.sentences) for split in ("test", "novel", "deeper")}
    sentences = min(200, size.sentences)
    scores = {split: evaluate_pairs(translator, pairs) for split, pairs in splits.items()}
    translator.alignment_head, _ = best_alignment_head(translator, sample("validation", sentences))
    errors = alignment_errors(translator, sample("test", sentences))
    return {
        "size": asdict(size),
        "parameters": sum(p.numel() for p in translator.model.parameters()),
        "training_seconds": round(last.seconds, 1),
        "target_tokens": last.tokens,
        "learning_curve": done.history.to_dict()["evaluations"],
        "splits": {split: score.to_dict() for split, score in scores.items()},
        "alignment": {
            "head": list(translator.alignment_head),
            "error_rate": errors[translator.alignment_head],
            "all_heads": {f"{layer}·{number}": error for (layer, number), error in errors.items()},
        },
        "it": _it(translator, [pair for pair in splits["novel"] if pair.pronoun]),
    }


def _it(translator: Translator, because: Sequence[Pair]) -> dict[str, Any]:
    """Return what *it* looks at in unseen sentences, and whether that decides il or elle.

    ``right_noun`` is the share in which the guided head weighs the right noun above the wrong one,
    of the sentences whose nouns differ in gender; ``flips`` is what forbidding that cell turns. The
    unguided cross-attention head that looks most at the word that decides, as the pronoun is
    written, is chosen on validation sentences. ``looks`` says at which word *it* looks most in the
    two listed sentences, by *tired* and *wide*, and with what weight.
    """
    two_genders = [p for p in because if p.pronoun and p.pronoun.expected != p.pronoun.other]
    head = translator.guided
    assert head is not None
    telling = telling_choices(translator, [p for p in sample("validation", 600) if p.pronoun])
    teller = max(telling, key=lambda h: telling[h])
    try:
        flipped = flips(translator, two_genders, head)._asdict()
    except ArgumentError:  # nothing that it got right could flip
        flipped = None
    shown = [pair for pair in SHOWN if pair.pronoun]
    looks: dict[str, tuple[str, float]] = {}
    for pair, matrices in zip(shown, forced(translator, [pair[:2] for pair in shown])):
        assert pair.pronoun is not None
        row = matrices[head.layer][head.head][pair.pronoun.source]
        looks[pair.source_words[-2]] = pair.source_words[int(row.argmax())], float(row.max())
    return {
        "head": list(head),
        "right_noun": noun_choices(translator, two_genders)[head],
        "flips": flipped,
        "telling_head": list(teller),
        "telling_word": telling_choices(translator, because)[teller],
        "sentences": len(because),
        "two_genders": len(two_genders),
        "pronouns_right": evaluate_pairs(translator, because).pronouns,
        "looks": looks,
    }
