"""`search`: source sentences in, the best outputs of a model out.

Sentences of like length share a batch, so that little is padded; results come in the order given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import index

import torch
from torch import Tensor

from intently.decoding.beams import Model, decode_batch
from intently.decoding.hypothesis import Hypothesis
from intently.decoding.options import EOS, PAD, SearchOptions, checked
from intently.errors import KindError, build
from intently.foundation.checks import whole_number
from intently.foundation.memory import check_fits

SHORT = 16
"""Tokens that a shorter sentence counts as: its output takes memory too."""


@torch.no_grad()
def search(
    model: Model,
    sources: Sequence[Sequence[int]],
    options: SearchOptions | None = None,
    *,
    batch_tokens: int = 8192,
    keep_attention: bool = True,
) -> list[list[Hypothesis]]:
    """Return for each source the ``n_best`` outputs found, best first.

    ``sources`` are token ids without specials, as tokenizers give them; EOS is added where it is
    missing, so an empty source is EOS alone. A batch holds at most ``batch_tokens`` source tokens,
    padding included and counted once for each beam (a short sentence counts as 16), or one
    sentence. The model is put into evaluation mode, and back.

    Raises `ArgumentError` where the memory that is free does not hold the logits of a step.

    Outputs that ended stand before those that were cut at their limit, each by score; equal scores
    by the step they ended at, then by the rank of their beam. Fewer than ``n_best`` come back only
    where the vocabulary and the limits admit no more. How sentences are batched does not matter.

    With ``keep_attention`` the queries and keys of a batch stay in memory as long as one of its
    hypotheses does (see `Trace`). For a large file hand in few sentences at a time, or switch it
    off.

    Source: the beam of Sutskever et al. 2014, section 3.2; length penalty of Wu et al. 2016,
    section 7. `intently.decoding.beams` says when a search may stop.

    >>> import torch
    >>> from intently.models import Transformer, TransformerOptions
    >>> model = Transformer(TransformerOptions(source_vocabulary=20, target_vocabulary=30))
    >>> [[best], [other]] = search(model, [[5, 6, 7], []], SearchOptions(beam=3, max_length=4))
    >>> best.attention["decoder.0.cross"].shape[-1], other.attention["encoder.1.self"].shape
    (4, (4, 1, 1))
    """
    options = checked(options)
    whole_number(batch_tokens, "batch_tokens", 1)
    sentences = [_with_eos(source, i) for i, source in enumerate(sources)]
    found: list[list[Hypothesis]] = [[] for _ in sentences]
    with _evaluating(model):
        for batch in _batches(sentences, batch_tokens // options.beam):
            _check_fits(model, len(batch) * options.beam)
            lengths = [len(sentences[i]) for i in batch]
            padded = _padded([sentences[i] for i in batch], lengths).to(_device(model))
            results = decode_batch(model, padded, lengths, options, keep_attention)
            for i, hypotheses in zip(batch, results):
                found[i] = hypotheses
    return found


def _check_fits(model: Model, rows: int) -> None:
    """Raise where memory does not hold the logits of so many hypotheses, and their order."""
    weight = getattr(model, "output_weight", None)
    if isinstance(weight, Tensor):
        needs = 2 * rows * len(weight) * weight.element_size()
        got = f"{rows:,} hypotheses at once over a vocabulary of {len(weight):,}"
        check_fits("beam, batch_tokens", needs, got, "choose smaller ones", weight.device)


def _with_eos(source: Sequence[int], i: int) -> list[int]:
    try:
        ids = [index(token) for token in source]
    except TypeError:
        raise build(
            KindError,
            f"sources[{i}]",
            "a list of token ids",
            repr(source)[:60],
            "search takes one list of ids for each sentence",
            "encode text with a tokenizer",
        ) from None
    return ids if ids and ids[-1] == EOS else [*ids, EOS]


def _batches(sentences: list[list[int]], tokens: int) -> Iterator[list[int]]:
    """Yield the positions of sentences of like length, those that need most memory first."""
    order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
    start = 0
    while start < len(order):
        size = max(1, tokens // max(SHORT, len(sentences[order[start]])))
        yield order[start : start + size]
        start += size


def _padded(sentences: list[list[int]], lengths: list[int]) -> Tensor:
    longest = max(lengths)
    rows = chain.from_iterable(ids + [PAD] * (longest - len(ids)) for ids in sentences)
    return torch.tensor(list(rows), dtype=torch.long).view(len(sentences), longest)


def _device(model: Model) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


@contextmanager
def _evaluating(model: Model) -> Iterator[None]:
    """Evaluation mode, undone module by module: some may have been frozen by the caller."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
