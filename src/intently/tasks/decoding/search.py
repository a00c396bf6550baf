"""`search`: the best outputs of a model for source sentences.

Sentences of similar length share a batch, so padding is small; results keep the order given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import index

import torch
from torch import Tensor

from intently.errors import KindError, build
from intently.foundation.checks import whole_number
from intently.foundation.process import check_fits
from intently.show.inputs import evaluating
from intently.tasks.decoding.beams import SearchModel, decode_batch
from intently.tasks.decoding.hypothesis import Hypothesis
from intently.tasks.decoding.options import EOS, PAD, SearchOptions, checked

SHORT = 16
"""A shorter sentence counts as this many tokens: its output takes memory, too."""


@torch.no_grad()
def search(
    model: SearchModel,
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
    sentence. The model is in evaluation mode meanwhile.

    Raises `ArgumentError` if free memory cannot hold the logits of a step.

    Outputs that ended come before those cut at their limit, each group by score, equal scores by
    the step they ended at, then by the rank of their beam. Fewer than ``n_best`` come back only
    where the vocabulary and the limits allow no more. Batching does not change results.

    With ``keep_attention`` the queries and keys of a batch stay in memory as long as one of its
    hypotheses does (see `SearchTrace`). For a large file, pass few sentences at a time or disable
    ``keep_attention``.

    Source: the beam of Sutskever et al. 2014, section 3.2; length penalty of Wu et al. 2016,
    section 7. `intently.tasks.decoding.beams` says when a search may stop.

    >>> import torch
    >>> from intently.nn.models import Transformer, TransformerOptions
    >>> model = Transformer(TransformerOptions(source_vocabulary=20, target_vocabulary=30))
    >>> [[best], [other]] = search(model, [[5, 6, 7], []], SearchOptions(beam=3, max_length=4))
    >>> best.attention["decoder.0.cross_attention"].shape[-1]
    4
    >>> other.attention["encoder.1.self_attention"].shape
    (4, 1, 1)
    """
    options = checked(options)
    whole_number(batch_tokens, "batch_tokens", 1)
    cause = "search takes one list of ids for each sentence"
    sentences = [token_ids(ids, f"sources[{i}]", cause) for i, ids in enumerate(sources)]
    sentences = [ids if ids[-1:] == [EOS] else [*ids, EOS] for ids in sentences]
    found: list[list[Hypothesis]] = [[] for _ in sentences]
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with evaluating(model):
        for batch in _batches(sentences, batch_tokens // options.beam):
            _check_fits(model, len(batch) * options.beam)
            lengths = [len(sentences[i]) for i in batch]
            rows = padded([sentences[i] for i in batch]).to(device)
            results = decode_batch(model, rows, lengths, options, keep_attention)
            for i, hypotheses in zip(batch, results):
                found[i] = hypotheses
    return found


def _check_fits(model: SearchModel, rows: int) -> None:
    """Raise unless the logits of this many hypotheses, and their order, fit into memory."""
    weight = getattr(model, "output_weight", None)
    if isinstance(weight, Tensor):
        needs = 2 * rows * len(weight) * weight.element_size()
        got = f"{rows:,} hypotheses at once over a vocabulary of {len(weight):,}"
        check_fits("beam, batch_tokens", needs, got, "choose smaller ones", weight.device)


def token_ids(given: Sequence[int], name: str, cause: str) -> list[int]:
    """Return token ids as ints; raise `KindError` for anything else, such as text."""
    try:
        return [index(token) for token in given]
    except TypeError:
        got, fix = repr(given)[:60], "encode text with a tokenizer"
        raise build(KindError, name, "a list of token ids", got, cause, fix) from None


def _batches(sentences: list[list[int]], tokens: int) -> Iterator[list[int]]:
    """Yield indices of sentences of similar length, the longest first."""
    order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
    start = 0
    while start < len(order):
        size = max(1, tokens // max(SHORT, len(sentences[order[start]])))
        yield order[start : start + size]
        start += size


def padded(sentences: Sequence[list[int]]) -> Tensor:
    """Return lists of ids as one tensor (n, longest), filled up with PAD.

    >>> padded([[5, 6], [7]]).tolist()
    [[5, 6], [7, 0]]
    """
    longest = max(map(len, sentences))
    rows = chain.from_iterable(ids + [PAD] * (longest - len(ids)) for ids in sentences)
    return torch.tensor(list(rows), dtype=torch.long).view(len(sentences), longest)
