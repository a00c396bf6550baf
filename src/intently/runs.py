"""From sentence pairs to a translator: tokenizers, model, training, and the folder of the run.

A run's folder holds ``source.json`` and ``target.json`` (tokenizers), ``checkpoints/``,
``options.json`` and, at the end or when interrupted, ``model/``: the translator itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from intently.corpora.files import ParallelText
from intently.errors import ArgumentError, build
from intently.models.kinds import new_model
from intently.text import Tokenizer
from intently.training import (
    Checkpoints,
    DevSet,
    History,
    Pairs,
    TrainingOptions,
    load_weights,
    train,
)
from intently.training.checkpoint import replace_file
from intently.training.events import Listener
from intently.translator import Translator

DEV_SENTENCES = 500
"""Dev sentences that are translated at each evaluation while training."""


@dataclass(frozen=True)
class Run:
    """What `fit` made: the translator, the history of its training, and what was left out."""

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

    ``dev`` chooses the best checkpoint by BLEU of greedy translations; without it the last one is
    taken. ``tokenizers`` (source, target) are trained on the text unless given. ``resume`` goes on
    with the run in ``out``, from its latest checkpoint or the one named.

    Warns, before training begins, of pairs that are skipped because they are longer than
    ``options.text.max_length``. Raises what `intently.training.train` raises; a run already in
    ``out`` stays as it is.
    """
    folder = Path(out)
    checkpoints = Checkpoints(folder / "checkpoints")
    begun = checkpoints.begun(resume)
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "source.json", folder / "target.json"
    if begun:
        source, target = map(Tokenizer.load, paths)
    else:
        source, target = tokenizers or _tokenizers(text, options)
        for path, tokenizer in zip(paths, (source, target)):
            replace_file(path, tokenizer.backend.to_str().encode())
    pairs = Pairs(
        source.encode_batch(text.sources),
        target.encode_batch(text.targets),
        options.text.max_length,
    )
    if pairs.too_long:
        warnings.warn(
            f"{pairs.too_long:,} of {len(text):,} pairs have more than {options.text.max_length} "
            "tokens on a side and are skipped",
            stacklevel=2,
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.run.seed)
        model = new_model(options.shape(source.size, target.size))
    translator = Translator(model, source, target, max_length=options.text.max_length)
    validate = None if dev is None else _dev_set(dev, translator)
    history = train(
        model, pairs, options, folder, validate=validate, progress=progress, resume=resume
    )
    if history.best is not None:
        load_weights(model, checkpoints.load(history.best.name).model)
    translator.save(folder / "model")
    return Run(translator, history, len(pairs), pairs.too_long, folder)


def _tokenizers(text: ParallelText, options: TrainingOptions) -> tuple[Tokenizer, Tokenizer]:
    """Return tokenizers trained on the text: the same one twice where all embeddings are shared."""
    o, share = options.text, options.model.share
    sides: tuple[Sequence[str], Sequence[str]] = text.sources, text.targets
    if share == "all":
        kinds, sizes = (o.source_tokenizer, o.target_tokenizer), (o.source_size, o.target_size)
        if kinds[0] != kinds[1] or sizes[0] != sizes[1]:
            raise build(
                ArgumentError, "share", '"output" where the tokenizers differ in kind or size',
                f'"all" with {kinds[0]} of {sizes[0]} and {kinds[1]} of {sizes[1]}',
            )  # fmt: skip
        joint = Tokenizer.train([*sides[0], *sides[1]], kinds[0], sizes[0], o.min_frequency)
        return joint, joint
    return (
        Tokenizer.train(sides[0], o.source_tokenizer, o.source_size, o.min_frequency),
        Tokenizer.train(sides[1], o.target_tokenizer, o.target_size, o.min_frequency),
    )


def _dev_set(dev: ParallelText, translator: Translator) -> DevSet:
    """Return the first sentences of ``dev`` as `train` translates them, over-long ones cut."""
    ids = translator.source_tokenizer.encode_batch(dev.sources[:DEV_SENTENCES])
    return DevSet(
        [sentence[: translator.max_length] for sentence in ids],
        dev.targets[:DEV_SENTENCES],
        translator.target_tokenizer.decode,
    )
