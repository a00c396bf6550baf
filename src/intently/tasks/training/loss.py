"""Label-smoothed cross entropy, fused with the output projection chunk by chunk.

The logits of a batch, (n, V), are by far the largest tensor in a step of a small translator. With
the gradient computed along with the loss, a few rows of them are needed at a time, once.

Links between words can guide one head beside it: the loss of a guided query is the cross entropy of
its weights W under its guide G, −Σ_s G log W. Source: Chen et al. 2016, "Guided Alignment Training
for Topic-Aware Neural Machine Translation", section 3; Garg et al. 2019, "Jointly Learning to Align
and Translate with Transformer Models", section 3.2, who guide one head of the last decoder layer
but one with a weight of 0.05.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from intently.errors import ArgumentError, build, shape_of
from intently.nn.models.kinds import (
    EncoderDecoder,
    EncoderDecoderOptions,
    cross_heads,
    path_of,
    source_heads,
)
from intently.nn.replay import asked
from intently.tasks.text import PAD
from intently.tasks.training.batches import Batch

CHUNK = 2**20  # logits at a time: 4 MB in float32

BatchLoss = Callable[[Any, Batch, float], tuple[Tensor, int]]
"""The summed loss of a batch in nats, and its number of target tokens, from model and smoothing."""


def smoothed_cross_entropy(
    hidden: Float[Tensor, "*n c"],
    weight: Float[Tensor, "v c"],
    targets: Int[Tensor, "*m"],
    smoothing: float = 0.0,
) -> tuple[Tensor, int]:
    """Return the summed loss in nats, and the number of tokens it is summed over.

    ``hidden`` (…, c) times ``weight`` (V, c) gives the logits z; ``targets`` (…) int64 are the
    correct tokens y; PAD does not count. The loss of a token is log Σ_j exp
    z_j − (1 − ε) z_y − (ε / V) Σ_j z_j with ε = ``smoothing`` (Szegedy et al. 2016, "Rethinking the
    Inception Architecture", section 7), as in ``torch.nn.functional.cross_entropy(...,
    label_smoothing=ε, reduction="sum")``. First derivatives only; half-precision logits, as within
    ``torch.autocast``, are summed in float32.

    >>> hidden, weight = torch.zeros(2, 3, 8), torch.ones(16, 8)
    >>> loss, tokens = smoothed_cross_entropy(hidden, weight, torch.tensor([[1, 2, 0], [3, 0, 0]]))
    >>> round(loss.item() / tokens, 4), tokens  # log 16
    (2.7726, 3)
    """
    if hidden.shape[:-1] != targets.shape:
        expected = f"shape {tuple(hidden.shape[:-1])}, as hidden (…, c)"
        raise build(ArgumentError, "targets", expected, shape_of(targets))
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):  # the norm before the projection may be in float32
        hidden = hidden.to(torch.get_autocast_dtype(kind))
    rows, flat = hidden.flatten(0, -2), targets.flatten()
    weight = weight.to(hidden.dtype)
    kept = (flat != PAD).nonzero()[:, 0]
    if kept.shape[0] < flat.shape[0]:
        rows, flat = rows.index_select(0, kept), flat.index_select(0, kept)
    wanted = torch.is_grad_enabled() and (rows.requires_grad or weight.requires_grad)
    loss: Any = _FusedLoss.apply(rows, weight, flat, smoothing, wanted)
    return loss, kept.shape[0]


def batch_loss(model: Any, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, int]:
    """Return the summed loss of a batch in nats, and its number of target tokens.

    ``model`` is an encoder-decoder, or for a batch without sources a language model.
    """
    memory = (model.encode(batch.source, batch.source_lengths),) if batch.source is not None else ()
    hidden = model.hidden(batch.target_in, *memory)
    return smoothed_cross_entropy(hidden, model.output_weight, batch.target_out, smoothing)


class _FusedLoss(torch.autograd.Function):
    """The loss, and gradients if ``wanted``, in one pass over chunks of rows.

    With p = softmax z, the gradient with respect to z is p − (1 − ε) onehot(y) − ε/V. The last term
    is the same for all logits, so it is added to the two gradients as a vector.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float, wanted: bool
    ) -> Tensor:
        n, vocabulary = hidden.shape[0], weight.shape[0]
        exact = torch.float32 if hidden.dtype in (torch.float16, torch.bfloat16) else hidden.dtype
        loss = torch.zeros((), dtype=exact, device=hidden.device)
        grad_hidden = torch.empty_like(hidden) if wanted else None
        grad_weight = torch.zeros_like(weight, dtype=exact) if wanted else None
        for start in range(0, n, max(1, CHUNK // vocabulary)):
            chunk = slice(start, start + max(1, CHUNK // vocabulary))
            rows, right = hidden[chunk], targets[chunk, None]
            logits = (rows @ weight.mT).to(exact)
            true = logits.gather(1, right)
            largest = logits.amax(1)
            probabilities = torch.softmax(logits, 1, out=logits)
            # the largest probability is exp(largest − lse), and at least 1/V: its log is exact
            lse = largest - probabilities.amax(1).log()
            loss += lse.sum() - (1 - smoothing) * true.sum()
            if grad_hidden is not None and grad_weight is not None:
                gradient = probabilities.scatter_add_(1, right, true.fill_(smoothing - 1))
                torch.mm(gradient.to(hidden.dtype), weight, out=grad_hidden[chunk])
                grad_weight.addmm_(gradient.mT, rows.to(exact))
        if smoothing:
            share, total = smoothing / vocabulary, hidden.sum(0, dtype=exact)
            loss -= share * (total @ weight.sum(0, dtype=exact))
            if grad_hidden is not None and grad_weight is not None:
                grad_hidden -= share * weight.sum(0)
                grad_weight -= share * total
        if grad_hidden is not None and grad_weight is not None:
            ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        return loss

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        (grad_loss,) = grad_outputs
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_loss * grad_hidden, grad_loss * grad_weight, None, None, None


def guided_loss(head: str, weight: float) -> BatchLoss:
    """Return the loss of a batch whose ``guide`` teaches a head.

    A head is a layer and a number, such as "decoder.0.cross_attention.0". To the summed loss of the
    target tokens it adds ``weight`` times the cross entropy, in nats, of each guided query.

    """
    layer, _, number = head.rpartition(".")

    def loss(model: EncoderDecoder, batch: Batch, smoothing: float) -> tuple[Tensor, int]:
        block = dict(model.attention_blocks())[layer]
        (total, tokens), matrices = asked([block], lambda: batch_loss(model, batch, smoothing))
        if batch.guide is not None and matrices:
            # a recurrent model's attention, called for each step, has no axis of heads
            heads = [m[:, int(number)] if m.ndim > 3 else m for _, m in matrices]
            logs = torch.cat([w.scores[...] - w.lse[..., None] for w in heads], -2)  # log W
            guide = batch.guide[:, : logs.shape[-2]]
            # where no weight is asked for, the logarithm may be −∞
            total = total - weight * torch.where(guide > 0, guide * logs, 0.0).sum()
        return total, tokens

    return loss


def guided_head(options: EncoderDecoderOptions, head: str | None) -> str:
    """Return the head that links guide, by default head 0 of the last cross-attention but one.

    Raises `ArgumentError` where a model of these options has no such head over the source.

    >>> from intently.nn.models.transformer import TransformerOptions
    >>> guided_head(TransformerOptions(8, 8, decoder_layers=4), None)
    'decoder.2.cross_attention.0'
    """
    cross = list(cross_heads(options))
    layer, number = cross[max(0, len(cross) - 2)] if cross else "", "0"
    if head is not None:
        layer, _, number = head.rpartition(".")
    guided = f"{path_of(layer, options)}.{number}"
    known = [f"{name}.{n}" for name, heads in source_heads(options).items() for n in range(heads)]
    if guided not in known:
        expected = f"one of {', '.join(known)}" if known else "a model with attention"
        raise build(ArgumentError, "guided", expected, repr(head))
    return guided
