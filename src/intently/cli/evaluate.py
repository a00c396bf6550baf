"""``intently evaluate``: scores of a translator that others can reproduce."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from intently.errors import ArgumentError, build
from intently.foundation.files import replace_file
from intently.nn.models.kinds import cross_heads
from intently.tasks.corpora import ParallelText, sample
from intently.tasks.corpora.files import read_parallel
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
    model: Annotated[Path, typer.Argument(help="folder of a model or a run")],
    source: Annotated[
        Path | None,
        typer.Argument(
            help="source sentences, or a TSV; if omitted: --corpus, then the corpus or the dev "
            "files of the run"
        ),
    ] = None,
    target: Annotated[Path | None, typer.Argument(help="their references")] = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="test sets of a corpus: multi30k:en-de, tatoeba:en-fr, language:en-fr",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="local copy of that corpus (default: download it)"),
    ] = None,
    beam: Annotated[int, typer.Option(min=1, metavar="N", help="hypotheses kept per step")] = 5,
    length_penalty: Annotated[
        float, typer.Option(min=-6, max=6, metavar="X", help="α of Wu et al. 2016, equation 14")
    ] = 0.6,
    sentences: Annotated[
        int, typer.Option(min=1, metavar="N", help="sentences of each built-in split")
    ] = 1000,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="write all scores as JSON")
    ] = None,
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
    origin = files = None
    if source is None:
        origin = Origin.load(model) if corpus is None else Origin.of(corpus)
        files = Files.load(model) if origin is None else None
    built_in = str(origin) == BUILT_IN
    if data_dir is not None and (origin is None or built_in):
        got = "none" if origin is None else str(origin)
        raise build(ArgumentError, "--data-dir", "a --corpus that is read from it", got)
    if source is None and origin is None and files is None:
        raise _nothing_to_score(f"none, and {model} does not say what it was trained on")
    if source is not None:
        text = read_parallel(source, target)
        print(text.report)
        tests: Mapping[str, ParallelText] = {source.name: text}
    elif files is not None:
        gone = [name for name in files.dev or files.sides if not Path(name).exists()]
        if gone:
            raise _nothing_to_score(f"none, and the run's own {' and '.join(gone)} is gone")
        text = files.read_dev()
        print(f"{text.report}: the dev set, which chose the checkpoint")
        tests = {"dev": text}
    elif built_in:
        tests = _built_in(sentences)
    else:
        assert origin is not None
        read = origin.read_from(data_dir).read()
        print(read.credit)
        tests = read.tests
    options = SearchOptions(beam=beam, length_penalty=length_penalty)
    found = judge(translator, tests, options, aligned=built_in)
    if json_file is not None:
        write({"model": str(model), **found}, json_file)


def _nothing_to_score(got: str) -> ArgumentError:
    fix = "give SOURCE and TARGET, a TSV, or --corpus language:en-fr for the built-in language"
    return build(ArgumentError, "SOURCE", "sentences to translate, and references", got, fix=fix)


def _built_in(sentences: int) -> dict[str, ParallelText]:
    tests = {}
    for split in ("test", "novel", "deeper"):
        pairs = sample(split, sentences)
        tests[split] = ParallelText([p.source for p in pairs], [p.target for p in pairs])
    return tests


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
    found: dict[str, Any] = {
        "beam": options.beam,
        "length_penalty": options.length_penalty,
        "tests": {},
    }
    for name, text in tests.items():
        what = " of the built-in language" if aligned else ""
        print(f"\n{name}: {len(text):,} sentences{what}")
        scores, _ = score(translator, text.sources, text.targets, options, bootstrap=RESAMPLED)
        print(described(scores))
        _, *interval = _exact(scores)
        found["tests"][name] = {**scores.to_dict(), "exact_interval": interval}
    if aligned and cross_heads(translator.model.options):
        pairs = sample("test", min(ALIGNED, *map(len, tests.values())))
        errors = alignment_errors(translator, pairs)
        print("\nalignment error rate of each head, on test:")
        for (layer, head), error in sorted(errors.items(), key=lambda item: item[1]):
            print(f"  {layer}, head {head}: {error:.3f}")
        found["alignment_errors"] = {f"{layer}·{head}": e for (layer, head), e in errors.items()}
    return found


def described(scores: Scores) -> str:
    """Return scores as lines, each with its 95 % interval and signature, if any.

    >>> from intently.tasks.translation.evaluation import Scores
    >>> from intently.tasks.training.metrics import Score
    >>> one = Score("BLEU", 30.0, "case:lc")
    >>> print(described(Scores(8, 0.25, one, one, one)).splitlines()[0])
    exact match 25.0% [7.1%, 59.1%]
    """
    share, low, high = _exact(scores)
    exact = f"exact match {share:.1%} [{low:.1%}, {high:.1%}]"
    if scores.suitable != "bleu":
        why = "BLEU does not apply: it counts words between spaces, and the references have too few"
        return f"{exact}\n{scores.chrf}\n{why}"
    return "\n".join(
        [exact, f"lower-cased {scores.lowercased}", f"cased {scores.bleu}", f"{scores.chrf}"]
    )


def _exact(scores: Scores) -> Interval:
    return share_interval(round(scores.exact * scores.sentences), scores.sentences)


def write(found: Mapping[str, Any], path: Path) -> None:
    """Write what `judge` returned to a JSON file."""
    replace_file(path, (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode())
