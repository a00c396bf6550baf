"""From sentence pairs to a translator: tokenizers, model, training, and the folder of the run.

A run's folder holds ``source.json`` and ``target.json`` (tokenizers), ``checkpoints/``,
``options.json`` and, at the end or when interrupted, ``model/``, the translator itself. On request,
``tensorboard/`` holds curves, and ``average.json`` the outcome of averaging the newest checkpoints.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from intently.corpora.files import ParallelText
from intently.errors import ArgumentError, build
from intently.foundation.files import plain, replace_file
from intently.models.kinds import EncoderDecoder, new_model
from intently.text import Tokenizer
from intently.text.vocabularies import SMALLEST
from intently.training import (
    Checkpoints,
    DevSet,
    History,
    Pairs,
    TensorBoard,
    TrainingOptions,
    averaged,
    load_weights,
    train,
    weights,
)
from intently.training.averaging import newest
from intently.training.checkpoint import step_of
from intently.training.events import Averaging, Listener
from intently.training.fits import check_model
from intently.training.guide import guided_head, guided_loss
from intently.training.history import Averaged
from intently.training.loss import batch_loss
from intently.training.processes import current, joined
from intently.training.randomness import isolated_state
from intently.training.tensorboard import check_installed
from intently.training.validation import best_by, check_patience
from intently.training.writer import Writer, sole_writer
from intently.translation.links import Encoded, token_guides
from intently.translation.translator import AlignmentHead, Translator

WRITES = (
    *("checkpoints/", "model/", "tensorboard/", "source.json", "target.json", "options.json"),
    *("average.json", "best.json", "run.json", "files.json", "scores.json", "training.png"),
)
"""The files and folders of a run, those of the command line included."""

DEV_SENTENCES = 500
"""Dev sentences translated at each evaluation."""


@dataclass(frozen=True)
class Run:
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
) -> Run:
    """Train a translator on ``text`` and write it to ``out``/model.

    ``dev`` chooses the best checkpoint by greedy translations of its first 500 sentences, scored by
    BLEU, or by chrF where its target side has no spaces between words, or as
    ``options.run.best_by`` says; among equals by the loss. Without ``dev``, the last checkpoint is
    used. ``tokenizers`` (source, target) are trained on the text
    unless given. ``resume`` continues the run in ``out``, from its latest checkpoint or the one
    named.

    With ``options.run.average`` the translator is the mean of the newest checkpoints if ``dev``
    scores it higher than the best one (always, without ``dev``); ``history.averaged`` says so.

    Training runs on ``options.machine.device``; the returned translator is on the CPU.

    Warns, before training begins, of pairs that are skipped because a side is empty or longer than
    ``options.text.max_length``. Raises as `intently.training.train` does; a run already in
    ``out`` stays as it is.
    """
    check_patience(options.schedule.patience, dev is not None)
    if dev is not None and not len(dev):
        raise build(ArgumentError, "dev", "at least one pair, or None", "an empty text")
    folder = Path(out)
    with joined(folder) as here, sole_writer(out, WRITES) as writer:
        checkpoints = Checkpoints(folder / "checkpoints")
        device = here.device(options.machine.device)
        if options.run.tensorboard:
            here.from_first(check_installed)

        _check_model(options, 1, 1, device)  # before the text is counted

        def both() -> tuple[Tokenizer, Tokenizer]:
            paths = folder / "source.json", folder / "target.json"
            if checkpoints.begun(resume):
                return Tokenizer.load(paths[0]), Tokenizer.load(paths[1])
            found = tokenizers or _tokenizers(text, options)
            for path, tokenizer in zip(paths, found):
                replace_file(path, tokenizer.content())
            return found

        source, target = here.from_first(both)
        _check_model(options, source.size, target.size, device)
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
        with _listening(progress, options, folder) as tell:
            history = train(
                model,
                pairs,
                options,
                folder,
                loss=loss,
                validate=validate,
                progress=tell,
                resume=resume,
            )
            if writer is not None:  # only the first process writes
                _save_best(translator, history, options, checkpoints, validate, tell, writer)
        model.cpu()
        here.wait()
    return Run(translator, history, len(pairs), pairs.too_long, folder)


@contextlib.contextmanager
def _listening(
    progress: Listener | None, options: TrainingOptions, folder: Path
) -> Iterator[Listener]:
    """Yield a function that passes an event to every listener."""
    with contextlib.ExitStack() as stack:
        listeners = [] if progress is None else [progress]
        if options.run.tensorboard and current().first:
            listeners.append(stack.enter_context(TensorBoard(folder / "tensorboard")))
        yield lambda event: [listener(event) for listener in listeners]


def _save_best(
    translator: Translator,
    history: History,
    options: TrainingOptions,
    checkpoints: Checkpoints,
    validate: DevSet | None,
    tell: Listener,
    writer: Writer,
) -> None:
    """Write the translator of the best checkpoint, or the mean of the newest if that is better."""
    folder = checkpoints.folder.parent
    if history.best is not None:
        load_weights(translator.model, checkpoints.load(history.best.name).model)
    writer.check()
    with checkpoints.surviving():
        translator.save(folder / "model")
    (folder / "average.json").unlink(missing_ok=True)
    if options.run.average > 1 and history.stopped != "interrupted":
        mean = _average(translator, history, options, checkpoints, validate)
        score = history.best_by or "bleu"
        of_mean, of_best = ((found or {}).get(score) for found in (mean.scores, mean.best))
        step, count = step_of(mean.checkpoints[-1]), len(mean.checkpoints)
        tell(Averaging(step, count, mean.taken, score, of_mean, of_best))
        writer.check()
        with checkpoints.surviving():
            if mean.taken:
                translator.save(folder / "model")
            replace_file(folder / "average.json", plain(mean._asdict()))
        history.averaged = mean


def _average(
    translator: Translator,
    history: History,
    options: TrainingOptions,
    checkpoints: Checkpoints,
    validate: DevSet | None,
) -> Averaged:
    """Load the mean of the newest checkpoints into the model, if that beats its best weights."""
    model, score = translator.model, history.best_by or "bleu"
    best = {name: tensor.clone() for name, tensor in weights(model).items()}
    upto = step_of(history.checkpoint.name) if history.checkpoint else 0
    # later ones were left by a run that this one replaced from an earlier checkpoint
    own = [name for name in checkpoints.names() if step_of(name) <= upto]
    names = newest(own, options.run.average, options.run.save_every)
    load_weights(model, averaged(checkpoints, names))
    if validate is None:
        mean = Averaged(names, taken=True)
    else:
        with isolated_state(next(model.parameters()).device), torch.no_grad():
            if options.run.threads is not None:
                torch.set_num_threads(options.run.threads)
            scores = dict(validate(model))
        of_best = max((e.scores for e in history.evaluations), key=lambda s: best_by(score, s))
        taken = best_by(score, scores) > best_by(score, of_best)
        mean = Averaged(names, taken, scores, of_best)
    if not mean.taken:
        load_weights(model, best)
    return mean


def _check_best_by(name: str | None, validate: DevSet, first: bool) -> None:
    """Raise for an unknown score; warn of one that sees no words in the target."""
    if name is not None and name not in validate.names:
        expected = "one of " + ", ".join(map(repr, validate.names))
        raise build(ArgumentError, "best_by", expected, repr(name))
    if name == "bleu" != validate.suitable and first:
        told = (
            "best_by='bleu' cannot see words in the dev references, which have hardly any spaces: "
            "a right translation may score 0. Leave it out, and chrF chooses the best checkpoint."
        )
        warnings.warn(told, stacklevel=3)


def _check_model(
    options: TrainingOptions, source_size: int, target_size: int, device: torch.device
) -> None:
    """Raise unless memory holds the model for vocabularies of these sizes."""
    shape = options.shape(source_size, target_size)

    def make(encoder: int, decoder: int) -> EncoderDecoder:
        return new_model(replace(shape, encoder_layers=encoder, decoder_layers=decoder))

    check_model(make, options, device)


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
