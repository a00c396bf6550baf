"""Guided attention: links between words teach one head, beside the loss of the translation.

The loss of a guided query is the cross entropy of its weights W under its guide G: −Σ_s G log W.
Source: Chen et al. 2016, "Guided Alignment Training for Topic-Aware Neural Machine Translation",
section 3; Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer Models",
section 3.2, who guide one head of the last decoder layer but one with a weight of 0.05.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from intently.errors import ArgumentError, build
from intently.models.kinds import (
    EncoderDecoder,
    EncoderDecoderOptions,
    cross_heads,
    path_of,
    source_heads,
)
from intently.training.batches import Batch
from intently.training.loss import BatchLoss, smoothed_cross_entropy


def guided_loss(head: str, weight: float) -> BatchLoss:
    """Return the loss of a batch whose ``guide`` teaches a head.

    A head is a layer and a number, such as "decoder.0.cross_attention.0".

    To the summed loss of the target tokens it adds ``weight`` times the cross entropy, in nats, of
    each guided query.

    >>> from intently.models.transformer import Transformer, TransformerOptions
    >>> model = Transformer(TransformerOptions(8, 8, width=16))
    >>> ids = torch.tensor([[4, 5, 2]])
    >>> guide = torch.zeros(1, 3, 3).index_fill(2, torch.tensor([1]), 1.0)
    >>> batch = Batch(ids, None, ids, ids, guide)
    >>> free, _ = guided_loss("decoder.0.cross_attention.0", 0.0)(model.eval(), batch, 0.0)
    >>> loss, _ = guided_loss("decoder.0.cross_attention.0", 1.0)(model, batch, 0.0)
    >>> 0 < (loss - free).item() < 10
    True
    """
    layer, _, number = head.rpartition(".")

    def loss(model: EncoderDecoder, batch: Batch, smoothing: float) -> tuple[Tensor, int]:
        def run() -> Tensor:
            assert batch.source is not None
            memory: Any = model.encode(batch.source, batch.source_lengths)
            return model.hidden(batch.target_in, memory)

        hidden, found = _watched(dict(model.attention_blocks())[layer], run)
        total = smoothed_cross_entropy(hidden, model.output_weight, batch.target_out, smoothing)
        if batch.guide is None or not found:
            return total
        logs = torch.cat([_log_weights(matrix, int(number)) for matrix in found], -2)
        guide = batch.guide[:, : logs.shape[-2]]
        # where no weight is asked for, the logarithm may be −∞
        cost = torch.where(guide > 0, guide * logs, 0.0).sum()
        return total[0] - weight * cost, total[1]

    return loss


def guided_head(options: EncoderDecoderOptions, head: str | None) -> str:
    """Return the head that links guide, by default head 0 of the last cross-attention but one.

    Raises `ArgumentError` where a model of these options has no such head over the source.

    >>> from intently.models.transformer import TransformerOptions
    >>> guided_head(TransformerOptions(8, 8, decoder_layers=4), None)
    'decoder.2.cross_attention.0'
    """
    cross = list(cross_heads(options))
    found = f"{cross[max(0, len(cross) - 2)]}.0" if cross else ""
    if head is not None:
        layer, _, number = head.rpartition(".")
        found = f"{path_of(layer, options)}.{number}"
    known = [f"{name}.{n}" for name, heads in source_heads(options).items() for n in range(heads)]
    if found not in known:
        expected = f"one of {', '.join(known)}" if known else "a model with attention"
        raise build(ArgumentError, "guided", expected, repr(head))
    return found


def _watched(block: nn.Module, run: Callable[[], Tensor]) -> tuple[Tensor, list[Any]]:
    """Return what ``run`` returns, and the matrix of every call of ``block`` in it."""
    found: list[Any] = []

    def ask(block: Any, given: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        found.append(block.attend(*given, **options))

    handle = block.register_forward_pre_hook(ask, with_kwargs=True)
    try:
        return run(), found
    finally:
        handle.remove()


def _log_weights(matrix: Any, head: int) -> Tensor:
    """Return log W (b, t, s) of one head; a recurrent model's attention has no axis of heads."""
    one = matrix[:, head] if matrix.ndim > 3 else matrix
    return one.scores[...] - one.lse[..., None]
