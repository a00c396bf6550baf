"""Evaluation during training: translations of a dev set, its loss, and early stopping.

Every checkpoint holds the history, which shows how long the score has not improved; so a killed and
resumed run ends at the same step.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from intently.decoding import SearchOptions, search
from intently.errors import ArgumentError, build
from intently.models.kinds import EncoderDecoder
from intently.training.batches import Pairs, epoch
from intently.training.history import Evaluation
from intently.training.loss import batch_loss
from intently.training.metrics import bleu, check_references, chrf, exact_match, suitable


@dataclass(frozen=True)
class DevSet:
    """A dev set, translated at each evaluation: pass it to ``train(validate=…)``.

    ``sources`` (token ids without specials) are translated, by default greedily; ``decode`` turns
    the ids of an output into a sentence, which is compared with its reference. The loss is measured
    on ``pairs``, where given.

    >>> from intently.models.transformer import Transformer, TransformerOptions
    >>> dev = DevSet([[4], [5]], ["Il boit.", "Elle dort."], decode=lambda ids: "Il boit.")
    >>> model = Transformer(TransformerOptions(8, 8, width=16))
    >>> sorted(dev(model)), dev(model)["exact"]
    (['bleu', 'chrf', 'exact'], 50.0)
    """

    sources: Sequence[Sequence[int]]
    references: Sequence[str]
    decode: Callable[[list[int]], str]
    pairs: Pairs | None = None
    search: SearchOptions = SearchOptions(beam=1)  # noqa: RUF009 - frozen
    batch_tokens: int = 8192

    def __post_init__(self) -> None:
        check_references("sources", self.sources, self.references)

    @property
    def fingerprint(self) -> str:
        """A checksum of sources and references: all scores of a run are on one dev set."""
        told = json.dumps([[list(ids) for ids in self.sources], list(self.references)])
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the scores."""
        return ("bleu", "chrf", "exact", *(("loss",) if self.pairs is not None else ()))

    @cached_property
    def suitable(self) -> str:
        """The score that chooses the best checkpoint by default: "bleu", or "chrf" where BLEU
        cannot see words.
        """
        return suitable(self.references)

    def __call__(self, model: EncoderDecoder) -> dict[str, float]:
        """Return "bleu", "chrf", "exact" (matches), from 0 to 100, and "loss" where known."""
        found = search(
            model, self.sources, self.search, batch_tokens=self.batch_tokens, keep_attention=False
        )
        hypotheses = [self.decode(best.ids) for best, *_ in found]
        scores = {
            "bleu": bleu(hypotheses, self.references).value,
            "chrf": chrf(hypotheses, self.references).value,
            "exact": 100 * exact_match(hypotheses, self.references),
        }
        if self.pairs is not None:
            scores["loss"] = dev_loss(model, self.pairs, self.batch_tokens)
        return scores


@torch.no_grad()
def dev_loss(model: EncoderDecoder, pairs: Pairs, batch_tokens: int = 8192) -> float:
    """Return the mean cross entropy, in nats per target token, without label smoothing.

    The model stays in its mode.

    >>> from intently.models.transformer import Transformer, TransformerOptions
    >>> model = Transformer(TransformerOptions(8, 8, width=16)).eval()
    >>> _ = torch.nn.init.zeros_(model.target_embedding.weight)
    >>> round(dev_loss(model, Pairs([[4]], [[5]])), 4)  # log 8
    2.0794
    """
    device = next(model.parameters()).device
    total, tokens = 0.0, 0
    for batch in epoch(pairs, batch_tokens, seed=0):
        loss, count = batch_loss(model, batch.to(device))
        total, tokens = total + loss.item(), tokens + count
    return total / tokens


def best_by(name: str, scores: Mapping[str, float]) -> tuple[float, float]:
    """Return what chooses the best checkpoint, higher is better: the score, then the loss.

    >>> best_by("bleu", {"bleu": 31.2, "loss": 1.5}), best_by("loss", {"loss": 1.5})
    ((31.2, -1.5), (-1.5, -1.5))
    """
    if not math.isfinite(scores.get(name, math.nan)):
        got = ", ".join(f"{key}={score}" for key, score in scores.items()) or "none"
        raise build(ArgumentError, "validate", f"a finite score {name!r} (the option best_by)", got)
    loss = scores.get("loss", math.inf)
    loss = loss if math.isfinite(loss) else math.inf
    return -loss if name == "loss" else scores[name], -loss


def without_better(name: str, evaluations: Sequence[Evaluation], every: int = 1) -> int:
    """Return the number of evaluations since the best one.

    An equal score is better only with a lower loss.

    Only steps that ``every`` divides count: other steps were evaluated only because a run ended
    there.

    >>> scores = [2.0, 1.5, 1.5, 1.7]
    >>> without_better("loss", [Evaluation(i, {"loss": x}, 0.0) for i, x in enumerate(scores)])
    2
    """
    scores = [best_by(name, at.scores) for at in evaluations if at.step % every == 0]
    return len(scores) - 1 - scores.index(max(scores)) if scores else 0


def check_patience(patience: int, validated: bool) -> None:
    """Raise ArgumentError for a patience without a dev set.

    >>> check_patience(3, validated=True)
    """
    if patience and not validated:
        fix = "give a dev set (in Python dev=… or validate=…), or patience=0"
        raise build(ArgumentError, "patience", "0 without a dev set", patience, fix=fix)
