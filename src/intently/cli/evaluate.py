"""``intently evaluate``: scores of a translator that others can reproduce."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from intently.cli.arguments import LengthPenalty, option
from intently.errors import ArgumentError, build
from intently.foundation.files import replace_file
from intently.nn.models.kinds import cross_heads
from intently.tasks.corpora import ParallelText, sample
from intently.tasks.corpora.files import read_parallel
from intently.tasks.corpora.named import text_of
from intently.tasks.decoding import SearchOptions
from intently.tasks.recipes import Files, Origin
from intently.tasks.training.metrics import RESAMPLED, Interval, share_interval
from intently.tasks.translation.evaluation import Scores, alignment_errors
from intently.tasks.translation.evaluation import evaluate as score
from intently.tasks.translation.translator import Translator

BUILT_IN = "language:en-fr"
"""The corpus with gold alignments."""

ALIGNED = 300
"""Test sentences of the built-in language for the alignment error of heads."""


def evaluate(
    model: Annotated[Path, Argument(help="folder of a model or a run")],
    source: Annotated[
        Path | None,
        Argument(
            help="source sentences, or a TSV; if omitted: --corpus, then the corpus or the dev "
            "files of the run"
        ),
    ] = None,
    target: Annotated[Path | None, Argument(help="their references")] = None,
    corpus: Annotated[
        str | None,
        option("NAME", "test sets of a corpus: multi30k:en-de, tatoeba:en-fr, language:en-fr"),
    ] = None,
    data_dir: Annotated[
        Path | None, option("FOLDER", "local copy of that corpus (default: download it)")
    ] = None,
    beam: Annotated[int, option("N", "hypotheses kept per step", min=1)] = 5,
    length_penalty: LengthPenalty = 0.6,
    sentences: Annotated[int, option("N", "sentences of each built-in split", min=1)] = 1000,
    json_file: Annotated[Path | None, option("FILE", "write all scores as JSON", "--json")] = None,
) -> None:
    """Score a translator: BLEU, chrF, exact match, alignment error.

    BLEU and exact match come with 95 % intervals, alignment error where gold alignments exist.
    BLEU and chrF are printed with the signatures that reproduce them. Where the references have no
    spaces between words, as in Japanese or Thai, BLEU cannot see words, and chrF applies.
    """
    if source is not None and corpus is not None:
        raise build(ArgumentError, "SOURCE, --corpus", "one of them", "both")
    if json_file is not None and (json_file.is_dir() or not json_file.parent.is_dir()):
        raise build(ArgumentError, "--json", "a file in a folder that exists", str(json_file))
    translator = Translator.load(model)
    tests, built_in = _tests(model, source, target, corpus, data_dir, sentences)
    options = SearchOptions(beam=beam, length_penalty=length_penalty)
    scores = judge(translator, tests, options, aligned=built_in)
    if json_file is not None:
        write({"model": str(model), **scores}, json_file)


def _tests(
    model: Path,
    source: Path | None,
    target: Path | None,
    corpus: str | None,
    data_dir: Path | None,
    sentences: int,
) -> tuple[Mapping[str, ParallelText], bool]:
    """Return the test sets by name, and whether they are those of the built-in language."""
    origin = files = None
    if source is None:
        origin = Origin.load(model) if corpus is None else Origin.of(corpus)
        files = Files.load(model) if origin is None else None
    built_in = str(origin) == BUILT_IN
    if data_dir is not None and (origin is None or built_in):
        got = "none" if origin is None else str(origin)
        raise build(ArgumentError, "--data-dir", "a --corpus that is read from it", got)
    if source is not None:
        text = read_parallel(source, target)
        print(text.report)
        return {source.name: text}, False
    if built_in:
        splits = ("test", "novel", "deeper")
        return {split: text_of(sample(split, sentences)) for split in splits}, True
    if origin is not None:
        read = origin.read_from(data_dir).read()
        print(read.credit)
        return read.tests, False
    if files is None:
        raise _nothing_to_score(f"none, and {model} does not say what it was trained on")
    read = files.dev or [name for name in (files.source, files.target) if name]
    gone = [name for name in read if not Path(name).exists()]
    if gone:
        raise _nothing_to_score(f"none, and the run's own {' and '.join(gone)} is gone")
    text = files.read_dev()
    print(f"{text.report}: the dev set, which chose the checkpoint")
    return {"dev": text}, False


def _nothing_to_score(got: str) -> ArgumentError:
    fix = "give SOURCE and TARGET, a TSV, or --corpus language:en-fr for the built-in language"
    return build(ArgumentError, "SOURCE", "sentences to translate, and references", got, fix=fix)


def judge(
    translator: Translator,
    tests: Mapping[str, ParallelText],
    options: SearchOptions | None = None,
    *,
    aligned: bool = False,
) -> dict[str, Any]:
    """Print every score of a translator on ``tests``, and return them as plain values.

    The search has a beam of 5 unless ``options`` are given. With ``aligned`` the tests are those of
    the built-in language, and each head is compared with its gold alignments.
    """
    options = options or SearchOptions()
    result: dict[str, Any] = {"beam": options.beam, "length_penalty": options.length_penalty}
    result["tests"] = {}
    for name, text in tests.items():
        what = " of the built-in language" if aligned else ""
        print(f"\n{name}: {len(text):,} sentences{what}")
        scores, _ = score(translator, text.sources, text.targets, options, bootstrap=RESAMPLED)
        print(described(scores))
        _, *interval = _exact(scores)
        result["tests"][name] = {**scores.to_dict(), "exact_interval": interval}
    if aligned and cross_heads(translator.model.options):
        pairs = sample("test", min(ALIGNED, *map(len, tests.values())))
        errors = alignment_errors(translator, pairs)
        print("\nalignment error rate of each head, on test:")
        for (layer, head), error in sorted(errors.items(), key=lambda item: item[1]):
            print(f"  {layer}, head {head}: {error:.3f}")
        result["alignment_errors"] = {f"{layer}·{head}": e for (layer, head), e in errors.items()}
    return result


def described(scores: Scores) -> str:
    """Return scores as lines, each with its 95 % interval and signature, if any.

    >>> from intently.tasks.translation.evaluation import Scores
    >>> from intently.tasks.training.metrics import Metric
    >>> one = Metric("BLEU", 30.0, "case:lc")
    >>> print(described(Scores(8, 0.25, one, one, one)).splitlines()[0])
    exact match 25.0% [7.1%, 59.1%]
    """
    share, low, high = _exact(scores)
    exact = f"exact match {share:.1%} [{low:.1%}, {high:.1%}]"
    if scores.suitable != "bleu":
        why = "BLEU does not apply: it counts words between spaces, and the references have too few"
        return f"{exact}\n{scores.chrf}\n{why}"
    return f"{exact}\nlower-cased {scores.lowercased}\ncased {scores.bleu}\n{scores.chrf}"


def _exact(scores: Scores) -> Interval:
    return share_interval(round(scores.exact * scores.sentences), scores.sentences)


def write(scores: Mapping[str, Any], path: Path) -> None:
    """Write what `judge` returned to a JSON file."""
    replace_file(path, (json.dumps(scores, indent=1, ensure_ascii=False) + "\n").encode())
