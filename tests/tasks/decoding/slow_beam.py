"""Beam search as one would explain it: one sentence, whole forwards, lists, no early stop.

And the two checks of a search: of what it finds, and of what its hypotheses attended.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from intently.core.matrix import LazyMatrix
from intently.nn.models import Transformer, TransformerOptions
from intently.tasks.decoding import SearchOptions, search

PAD, SOS, EOS = 0, 1, 2
SOURCES = [[5, 6, 7], [], [4, 9, 9, 12, 3, 8, 5], [8], [10, 4, 11, 6, 7, 3], [7, 7, 5]]


def tiny_model(seed: int, vocabulary: int = 11, sharpness: float = 3.0) -> Transformer:
    """A random model whose next-token distributions are far from even."""
    torch.manual_seed(seed)
    options = TransformerOptions(13, vocabulary, width=16, heads=2, inner=24, dropout=0.3)
    model = Transformer(options).eval()
    with torch.no_grad():
        model.get_parameter("decoder_norm.weight").mul_(sharpness)
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    return model


@torch.no_grad()
def next_log_probabilities(model: Any, source: list[int], written: list[int]) -> list[float]:
    logits = model(torch.tensor([[*source, EOS]]), torch.tensor([[SOS, *written]]))
    return torch.log_softmax(logits[0, -1], -1).tolist()


def slow_beam(
    model: Any, source: list[int], options: SearchOptions
) -> list[tuple[list[int], float, float, bool]]:
    """The n best as (ids, log-probability, score, ended)."""
    limit = options.max_length or 2 * len(source) + 10
    live: list[tuple[list[int], float]] = [([], 0.0)]
    ended: list[tuple[list[int], float, float, bool]] = []
    cut: list[tuple[list[int], float, float, bool]] = []
    for step in range(1, limit + 1):
        continued = []
        for written, total in live:
            for token, p in enumerate(next_log_probabilities(model, source, written)):
                forbidden = token in (PAD, SOS, *options.forbid)
                if forbidden or (token == EOS and step <= options.min_length):
                    continue
                continued.append(([*written, token], total + p))
        continued.sort(key=lambda candidate: -candidate[1])
        live = []
        for written, total in continued[: options.beam - len(ended)]:
            score = total / ((5 + step) / 6) ** options.length_penalty
            if written[-1] == EOS:
                ended.append((written[:-1], total, score, True))
            elif step == limit:
                cut.append((written, total, score, False))
            else:
                live.append((written, total))
    ended.sort(key=lambda hypothesis: -hypothesis[2])
    cut.sort(key=lambda hypothesis: -hypothesis[2])
    return (ended + cut)[: options.n_best]


def check_found(
    model: Any, options: SearchOptions, atol: float = 1e-4, sources: list[list[int]] = SOURCES
) -> None:
    """Compare the hypotheses of a search with those of the slow search."""
    for source, found in zip(sources, search(model, sources, options), strict=True):
        slow = slow_beam(model, source, options)
        assert [(h.ids, h.ended) for h in found] == [(ids, ended) for ids, _, _, ended in slow]
        for h, (_, total, score, _) in zip(found, slow):
            assert (h.log_probability, h.score) == pytest.approx((total, score), abs=atol)


def check_forced(
    model: Any, options: SearchOptions, atol: float = 1e-5, sources: list[list[int]] = SOURCES
) -> None:
    """Compare the attention of every hypothesis with that of forced decoding of its output."""
    for source, hypotheses in zip(sources, search(model, sources, options), strict=True):
        for h in hypotheses:
            read = [SOS, *h.ids] if h.ended else [SOS, *h.ids[:-1]]
            forced = model.attentions(torch.tensor([[*source, EOS]]), torch.tensor([read]))
            assert list(h.attention) == list(forced)
            for name, expected in forced.items():
                matrix = h.attention[name]
                assert isinstance(matrix, LazyMatrix) and matrix.shape == expected.shape[1:]
                torch.testing.assert_close(
                    matrix.dense(), expected.dense()[0], atol=atol, rtol=0, msg=name
                )
