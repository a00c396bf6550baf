"""Beam search as one would explain it: one sentence, whole forwards, lists, no early stop."""

from __future__ import annotations

import torch

from intently.decoding import SearchOptions
from intently.models import Transformer, TransformerOptions

PAD, SOS, EOS = 0, 1, 2


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
def next_log_probabilities(
    model: Transformer, source: list[int], written: list[int]
) -> list[float]:
    logits = model(torch.tensor([[*source, EOS]]), torch.tensor([[SOS, *written]]))
    return torch.log_softmax(logits[0, -1], -1).tolist()


def slow_beam(
    model: Transformer, source: list[int], options: SearchOptions
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
