"""Windows of a text, the loss of a batch of them, and the loss of each of their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from intently.errors import DataError, build
from intently.nn.models.language import LanguageModel
from intently.tasks.language.settings import WORDS
from intently.tasks.training.batches import Batch, Sentences, fingerprint
from intently.tasks.training.loss import smoothed_cross_entropy


class Windows:
    """Windows of a text, half overlapping, to train a language model on.

    >>> windows = Windows(list(range(4, 14)), window=4)
    >>> len(windows), windows.batch(np.array([1])).target_in.tolist()
    (3, [[6, 7, 8, 9]])
    """

    words: ClassVar[Mapping[str, str]] = {option: word for word, option in WORDS.items()}

    def __init__(self, ids: Sequence[int], window: int) -> None:
        self.tokens = cut(torch.tensor(ids, dtype=torch.int32), window, max(1, window // 2))
        self.lengths = np.full(len(self), window)
        self.sort_keys = (self.lengths,)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def fingerprint(self) -> str:
        """A checksum of all tokens, as of pairs with empty sources, for older checkpoints."""
        n, steps = self.tokens.shape
        tokens = Sentences(self.tokens.flatten().numpy(), np.arange(n + 1) * steps)
        return fingerprint(Sentences.of([[]] * n), tokens)

    def batch(self, which: np.ndarray) -> Batch:
        """Return the windows ``which`` (b,) as a batch without sources."""
        rows = self.tokens[torch.from_numpy(which)].long()
        return Batch(None, None, rows[:, :-1].contiguous(), rows[:, 1:].contiguous())


def window_loss(net: Any, batch: Batch, smoothing: float) -> tuple[Tensor, int]:
    """Return the summed loss in nats of a batch of windows, and its number of tokens.

    ``net`` is a ModuleDict that holds the model as "language".
    """
    model = net["language"]
    hidden = model.hidden(batch.target_in)
    return smoothed_cross_entropy(hidden, model.output_weight, batch.target_out, smoothing)


@torch.no_grad()
def losses_of_windows(
    model: LanguageModel, ids: Int[Tensor, " n"], window: int
) -> Float[Tensor, "windows window"]:
    """Return the cross-entropy (windows, window) in nats of each token of a text.

    The text ``ids`` is read in adjacent windows, so the token at position i is preceded by i + 1
    tokens. The mode of the model does not change. Raises `DataError` for a text without a window.

    >>> from intently.nn.models.language import LanguageOptions
    >>> model = LanguageModel(LanguageOptions(vocabulary=8, width=16))
    >>> _ = torch.nn.init.zeros_(model.embedding.weight)
    >>> losses_of_windows(model, torch.arange(5), window=2)  # log 8
    tensor([[2.0794, 2.0794],
            [2.0794, 2.0794]])
    """
    windows = cut(ids, window, window).long()
    device = next(model.parameters()).device
    found = []
    for batch in windows.split(max(1, 8192 // window)):
        batch = batch.to(device)
        logits = model(batch[:, :-1]).mT
        found.append(F.cross_entropy(logits, batch[:, 1:], reduction="none").float().cpu())
    return torch.cat(found)


def contexts(*windows: int) -> list[tuple[int, int]]:
    """Return ranges of tokens of context: 1, 2, 3–4, 5–8, 9–16, …, cut at the end of each window.

    >>> contexts(5)
    [(1, 1), (2, 2), (3, 4), (5, 5)]
    >>> contexts(5, 3)
    [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]
    """
    largest = max(windows)
    ends = sorted({*windows, *(2**n for n in range(largest.bit_length()))})
    return [(before + 1, end) for before, end in pairwise([0, *ends])]


def cut(ids: Tensor, window: int, step: int) -> Tensor:
    """Return windows (n, window + 1) of a text, one every ``step`` tokens."""
    if len(ids) <= window:
        raise build(
            DataError,
            "text",
            f"more tokens than the window of {window}",
            len(ids),
            fix="give a longer text or a smaller window",
        )
    return ids.unfold(0, window + 1, step)
