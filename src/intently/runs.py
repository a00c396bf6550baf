"""From sentence pairs to a translator: tokenizers, model, training, and the folder of the run.

A run's folder holds ``source.json`` and ``target.json`` (tokenizers), ``checkpoints/``,
``options.json`` and, at the end or when interrupted, ``model/``: the translator itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from intently.corpora.files import ParallelText
from intently.decoding import SearchOptions, search
from intently.errors import ArgumentError, build
from intently.models.transformer import Transformer
from intently.text import Tokenizer
from intently.training import (
    Checkpoints,
    History,
    Pairs,
    TrainingOptions,
    load_weights,
    train,
)
from intently.training.events import Listener
from intently.training.metrics import bleu
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

    Raises what `intently.training.train` raises.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    source, target = _tokenizers(text, options, folder, tokenizers, bool(resume))
    pairs = Pairs(
        source.encode_batch(text.sources),
        target.encode_batch(text.targets),
        options.text.max_length,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.run.seed)
        model = Transformer(options.model.transformer(source.size, target.size))
    translator = Translator(model, source, target, max_length=options.text.max_length)
    validate = None if dev is None else _Validation(translator, dev)
    history = train(
        model, pairs, options, folder, validate=validate, progress=progress, resume=resume
    )
    if history.best is not None:
        best = Checkpoints(folder / "checkpoints").load(history.best.name)
        load_weights(model, best.model)
    translator.save(folder / "model")
    return Run(translator, history, len(pairs), pairs.too_long, folder)


def _tokenizers(
    text: ParallelText,
    options: TrainingOptions,
    folder: Path,
    given: tuple[Tokenizer, Tokenizer] | None,
    resume: bool,
) -> tuple[Tokenizer, Tokenizer]:
    paths = folder / "source.json", folder / "target.json"
    if resume and all(path.is_file() for path in paths):
        source, target = map(Tokenizer.load, paths)
        return source, target
    if given is None:
        o = options.text
        joint = options.model.share == "all"
        if joint and o.source_tokenizer != o.target_tokenizer:
            raise build(
                ArgumentError, "share", '"output" where the tokenizers differ in kind',
                f'"all" with {o.source_tokenizer} and {o.target_tokenizer}',
            )  # fmt: skip
        sides: tuple[Sequence[str], Sequence[str]] = text.sources, text.targets
        if joint:
            sides = ([*text.sources, *text.targets],) * 2
        source = Tokenizer.train(sides[0], o.source_tokenizer, o.source_size, o.min_frequency)
        target = source if joint else Tokenizer.train(
            sides[1], o.target_tokenizer, o.target_size, o.min_frequency
        )
    else:
        source, target = given
    source.save(paths[0])
    target.save(paths[1])
    return source, target


class _Validation:
    """Dev BLEU of greedy translations, and the share of exact matches."""

    def __init__(self, translator: Translator, dev: ParallelText) -> None:
        self.translator = translator
        self.sources = translator.source_tokenizer.encode_batch(dev.sources[:DEV_SENTENCES])
        self.references = dev.targets[:DEV_SENTENCES]

    def __call__(self, model: Transformer) -> Mapping[str, float]:
        found = search(model, self.sources, SearchOptions(beam=1), keep_attention=False)
        texts = [self.translator.target_tokenizer.decode(best.ids) for best, *_ in found]
        same = sum(map(str.__eq__, texts, self.references)) / len(texts)
        return {"bleu": bleu(texts, self.references).value, "exact": 100 * same}
