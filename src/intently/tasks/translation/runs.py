"""From sentence pairs to a translator: tokenizers, model, training, and the folder of the run.

A run's folder holds ``source.json`` and ``target.json`` (tokenizers), ``checkpoints/``,
``options.json`` and, at the end or when interrupted, ``model/``, the translator itself.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from intently.errors import ArgumentError, DataError, build
from intently.foundation.files import replace_file
from intently.nn.models.kinds import new_model
from intently.nn.models.shared import load_weights
from intently.tasks.corpora.files import ParallelText, TextFile, refuse_problems
from intently.tasks.text import Tokenizer, word_spans, words
from intently.tasks.text.vocabularies import SMALLEST
from intently.tasks.training import Checkpoints, DevSet, History, Pairs, TrainingOptions, train
from intently.tasks.training.batches import Guide
from intently.tasks.training.folder_lock import check_held, sole_writer
from intently.tasks.training.loss import batch_loss, guided_head, guided_loss
from intently.tasks.training.metrics import check_patience
from intently.tasks.training.progress import Listener
from intently.tasks.translation.evaluation import forced, links
from intently.tasks.translation.translator import AlignmentHead, Translator

WRITES = (
    *("checkpoints/", "model/", "source.json", "target.json", "options.json"),
    *("best.json", "run.json", "files.json", "scores.json", "training.png"),
)
"""The files and folders of a run, those of the command line included."""

DEV_SENTENCES = 500
"""Dev sentences translated at each evaluation."""


@dataclass(frozen=True)
class TranslationRun:
    """The result of `fit`: the translator, the history of its training, and pairs left out."""

    translator: Translator
    history: History
    pairs: int
    too_long: int
    folder: Path


def fit(
    text: ParallelText,
    options: TrainingOptions,
    out: Path | str,
    *,
    dev: ParallelText | None = None,
    tokenizers: tuple[Tokenizer, Tokenizer] | None = None,
    progress: Listener | None = None,
    resume: bool | str = False,
) -> TranslationRun:
    """Train a translator on ``text`` and write it to ``out``/model.

    ``dev`` chooses the best checkpoint by greedy translations of its first 500 sentences, scored by
    BLEU, or by chrF where its target side has no spaces between words, or as
    ``options.run.best_by`` says; among equals by the loss. Without ``dev``, the last checkpoint is
    used. ``tokenizers`` (source, target) are trained on the text
    unless given. ``resume`` continues the run in ``out``, from its latest checkpoint or the one
    named.

    Training runs on ``options.machine.device``; the returned translator is on the CPU.

    Warns, before training begins, of pairs that are skipped because a side is empty or longer than
    ``options.text.max_length``. Raises as `intently.tasks.training.train` does; a run already in
    ``out`` stays as it is.
    """
    check_patience(options.schedule.patience, dev is not None)
    if dev is not None and not len(dev):
        raise build(ArgumentError, "dev", "at least one pair, or None", "an empty text")
    folder = Path(out)
    with sole_writer(out, WRITES) as here:
        checkpoints = Checkpoints(folder / "checkpoints")
        device = here.device(options.machine.device)

        def both() -> tuple[Tokenizer, Tokenizer]:
            paths = folder / "source.json", folder / "target.json"
            if checkpoints.begun(resume):
                return Tokenizer.load(paths[0]), Tokenizer.load(paths[1])
            found = tokenizers or _tokenizers(text, options)
            for path, tokenizer in zip(paths, found):
                replace_file(path, tokenizer.content())
            return found

        source, target = here.from_first(both)
        shape = options.shape(source.size, target.size)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.run.seed)
            model = new_model(shape).to(device)
        sides = Encoded.by(source, text.sources), Encoded.by(target, text.targets)
        loss, guides, guided = batch_loss, None, None
        if text.guides is not None:
            head = guided_head(shape, options.text.guided)
            loss = guided_loss(head, options.optimiser.guide_weight)
            layer, _, number = head.rpartition(".")
            guided = AlignmentHead(layer, int(number))
            guides = token_guides(text.guides, head, *sides)
        elif options.text.guided is not None:
            expected = "none for a text without guides"
            raise build(ArgumentError, "guided", expected, repr(options.text.guided))
        pairs = Pairs(sides[0].ids, sides[1].ids, options.text.max_length, guides)
        skipped = {
            "an empty side": pairs.empty,
            f"more than {options.text.max_length} tokens on a side": pairs.too_long,
        }
        for why, count in skipped.items():
            if count and here.first:
                told = f"{count:,} of {len(text):,} pairs have {why} and are skipped"
                warnings.warn(told, stacklevel=2)
        translator = Translator(
            model, source, target, guided=guided, max_length=options.text.max_length
        )
        validate = None if dev is None else _dev_set(dev, translator)
        if validate is not None:
            _check_best_by(options.run.best_by, validate, here.first)
        history = train(
            model,
            pairs,
            options,
            folder,
            loss=loss,
            validate=validate,
            progress=progress,
            resume=resume,
        )
        if here.first:
            if history.best is not None:
                load_weights(model, checkpoints.load(history.best.stem).model)
            check_held(out)
            with checkpoints.surviving():
                translator.save(folder / "model")
        model.cpu()
        here.wait()
    return TranslationRun(translator, history, len(pairs), pairs.too_long, folder)


def _check_best_by(name: str | None, validate: DevSet, first: bool) -> None:
    """Raise for an unknown score; warn of one that sees no words in the target."""
    if name is not None and name not in validate.names:
        expected = "one of " + ", ".join(map(repr, validate.names))
        raise build(ArgumentError, "best_by", expected, repr(name))
    if name == "bleu" != validate.suitable and first:
        warnings.warn(
            "best_by='bleu' cannot see words in the dev references, which have hardly any spaces: "
            "a right translation may score 0. Leave it out, and chrF chooses the best checkpoint.",
            stacklevel=3,
        )


def _tokenizers(text: ParallelText, options: TrainingOptions) -> tuple[Tokenizer, Tokenizer]:
    """Return tokenizers trained on the text, a joint one twice.

    Shared source and target embeddings need a joint tokenizer, but not the other way round.
    """
    o, share = options.text, options.model.share
    sides: tuple[Sequence[str], ...] = text.sources, text.targets
    kinds, sizes = (o.source_tokenizer, o.target_tokenizer), (o.source_size, o.target_size)
    if o.joint or share == "all":
        if kinds[0] != kinds[1] or sizes[0] != sizes[1]:
            name, other, given = (
                ("share", '"output"', '"all"') if share == "all" else ("joint", "false", "true")
            )
            expected = f"{other} where the tokenizers differ in kind or size"
            got = f"{given} with {kinds[0]} of {sizes[0]} and {kinds[1]} of {sizes[1]}"
            raise build(ArgumentError, name, expected, got)
        sides = ([*sides[0], *sides[1]],)
    for side, kind, size in zip(("source", "target"), kinds, sizes):
        if size < SMALLEST[kind]:  # named after the given option
            expected = f"at least {SMALLEST[kind]} for {side}_tokenizer={kind!r}"
            raise build(ArgumentError, f"{side}_size", expected, size)
    made = [Tokenizer.train(*each, o.min_frequency) for each in zip(sides, kinds, sizes)]
    return made[0], made[-1]


def _dev_set(dev: ParallelText, translator: Translator) -> DevSet:
    """Return the first sentences of ``dev``, long ones cut; the loss uses only the rest."""
    source, target, most = (
        translator.source_tokenizer,
        translator.target_tokenizer,
        translator.max_length,
    )
    references = dev.targets[:DEV_SENTENCES]
    ids = source.encode_batch(dev.sources[:DEV_SENTENCES])
    written = target.encode_batch(references)
    fitting = any(0 < len(a) <= most and 0 < len(b) <= most for a, b in zip(ids, written))
    return DevSet(
        [sentence[:most] for sentence in ids],
        references,
        target.decode,
        Pairs(ids, written, most) if fitting else None,
    )


PHARAOH = re.compile(r"(\d{1,9})-(\d{1,9})")


class Encoded(NamedTuple):
    """The sentences of one side, their tokenizer and their ids."""

    tokenizer: Tokenizer
    sentences: Sequence[str]
    ids: Sequence[Sequence[int]]

    @classmethod
    def by(cls, tokenizer: Tokenizer, sentences: Sequence[str]) -> Encoded:
        """Return the sentences, encoded."""
        return cls(tokenizer, sentences, tokenizer.encode_batch(sentences))

    def groups(self, row: int) -> list[list[int]]:
        """Return the positions of each word's tokens."""
        return self.tokenizer.word_groups(self.sentences[row], self.ids[row])


def read_links(path: Path | str, text: ParallelText) -> list[dict[tuple[int, int], float]]:
    """Return the links (target word, source word) of each pair from a Pharaoh file, each worth 1.

    It is what fast_align, eflomal and awesome-align write: a line for each pair, ``0-0 1-2 2-1``,
    with source and target positions of words between white space. Where `intently.tasks.text.words`
    divides such a word, each of its parts is linked. An empty line has no links.

    Raises `DataError` that lists the lines which are not of this format or name words that the
    sentences lack, or says that no line has links or that there are not as many lines as pairs.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "links.txt")
    >>> _ = file.write_text("0-0 1-1\\n")
    >>> [sorted(row) for row in read_links(file, ParallelText(["I sleep."], ["Je dors."]))]
    [[(0, 0), (1, 1), (1, 2), (2, 1), (2, 2)]]
    """
    file, found = TextFile(Path(path)), []
    for number, line in file.lines():
        links: dict[tuple[int, int], float] = {}
        if line is not None and number <= len(text):
            pair = text.sources[number - 1], text.targets[number - 1]
            source, target = map(_between_spaces, pair)
            for link in line.split():
                one, other = (
                    map(int, match.groups()) if (match := PHARAOH.fullmatch(link)) else (-1, -1)
                )
                if match is None:
                    file.refuse(f"{link!r} is not a link such as 0-1", number)
                elif one >= len(source) or other >= len(target):
                    sizes = f"{len(source)} and {len(target)} words"
                    file.refuse(f"{link} is none of the pair's {sizes}, counted from 0", number)
                else:
                    links |= {(i, j): 1.0 for i in target[other] for j in source[one]}
        found.append(links)
    if file.complete and len(found) != len(text):
        file.refuse(f"{len(found):,} lines for {len(text):,} sentence pairs")
    elif file.complete and not any(found):
        file.refuse("no line has a link")
    refuse_problems(str(path), "word links such as 0-0 1-2, a line for each sentence pair", [file])
    return found


def links_of(translator: Translator, text: ParallelText) -> list[dict[tuple[int, int], float]]:
    """Return the links (target word, source word) of pairs by a translator, each worth 1.

    Each target word is linked to the source word that the translator's alignment weighs most under
    forced decoding (Garg et al. 2019, section 5.2); the final full stop has no links. Pairs too
    long for the translator have none. Raises `ArgumentError` if its model has no attention.
    """
    most, found = translator.max_length, [dict[tuple[int, int], float]() for _ in text.sources]
    read, written = translator.source_tokenizer, translator.target_tokenizer
    sizes = zip(read.encode_batch(text.sources), written.encode_batch(text.targets))
    short = [n for n, (one, other) in enumerate(sizes) if len(one) <= most and len(other) <= most]
    sides = [(text.sources[n], text.targets[n]) for n in short]
    for n, (source, target), matrices in zip(short, sides, forced(translator, sides)):
        weights = translator.align(matrices).dense()
        found[n] = {(j, i): 1.0 for i, j in links(weights, words(source), words(target))}
    return found


def token_guides(
    guides: Sequence[Guide], head: str, source: Encoded, target: Encoded
) -> list[dict[tuple[int, int], float]]:
    """Return guides between words as guides between their tokens, all of one word like it.

    The keys are source words, and so are the queries of an encoder's ``head``. Raises `DataError`
    for a word that a sentence lacks.
    """
    asking = source if head.startswith("encoder") else target
    found = [dict[tuple[int, int], float]() for _ in guides]
    for n, row in enumerate(guides):
        keys, queries = (source.groups(n), asking.groups(n)) if row else ([], [])
        for (i, j), part in row.items():
            if not (0 <= i < len(queries) and 0 <= j < len(keys)):
                expected = f"two of {len(queries)} and {len(keys)} words"
                raise build(DataError, f"guides[{n}]", expected, (i, j))
            found[n] |= {(query, key): part for query in queries[i] for key in keys[j]}
    return found


def _between_spaces(sentence: str) -> list[list[int]]:
    """Return, for each word between white space, the indices of its parts in ``words``."""
    spans = word_spans(sentence)
    return [
        [n for n, (start, end) in enumerate(spans) if start < word.end() and end > word.start()]
        for word in re.finditer(r"\S+", sentence)
    ]
