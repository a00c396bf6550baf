"""Batches of about as many tokens each, of sentences of about the same length.

Which pairs form which batch is a pure function of the seed and the epoch, so that a position in
the data is two numbers, (epoch, batch), and resuming there costs nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from intently.errors import ArgumentError, DataError, build
from intently.text import EOS, PAD, SOS


class Batch(NamedTuple):
    """Sentence pairs side by side, padded with PAD: int64 tensors.

    ``source`` (b, s) ends with EOS; ``source_lengths`` (b,), or None where no source is padded.
    ``target_in`` (b, t) begins with SOS, and ``target_out`` (b, t) is what should follow each of
    its tokens, ending with EOS.
    """

    source: Tensor
    source_lengths: Tensor | None
    target_in: Tensor
    target_out: Tensor

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on ``device``."""
        lengths = None if self.source_lengths is None else self.source_lengths.to(device)
        source, _, target_in, target_out = self
        return Batch(source.to(device), lengths, target_in.to(device), target_out.to(device))


@dataclass(frozen=True)
class Sentences:
    """Token ids of many sentences in one flat array; sentence i is ids[starts[i]:starts[i + 1]]."""

    ids: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, sentences: Iterable[Sequence[int]], before: Sequence[int] = ()) -> Sentences:
        """Return the sentences, each between the tokens ``before`` and EOS.

        >>> Sentences.of([[7, 8], [9]], before=[SOS]).ids.tolist()
        [1, 7, 8, 2, 1, 9, 2]
        """
        arrays = [np.array([*before, *sentence, EOS], np.int32) for sentence in sentences]
        starts = np.zeros(len(arrays) + 1, np.int64)
        np.cumsum([len(array) for array in arrays], out=starts[1:])
        return cls(np.concatenate([np.empty(0, np.int32), *arrays]), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each sentence."""
        return np.diff(self.starts)

    def padded(self, which: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the sentences ``which`` (b,) as (b, longest) int64, and their lengths (b,).

        >>> Sentences.of([[7, 8], [9]]).padded(np.array([1, 0]))[0].tolist()
        [[9, 2, 0], [7, 8, 2]]
        """
        starts, lengths = self.starts[which], self.lengths[which]
        steps = np.arange(lengths.max())
        inside = steps < lengths[:, None]
        tokens = self.ids[np.where(inside, starts[:, None] + steps, 0)].astype(np.int64)
        return torch.from_numpy(np.where(inside, tokens, PAD)), torch.from_numpy(lengths)


class Pairs:
    """Sentence pairs as token ids, ready to be trained on.

    ``sources`` and ``targets`` hold ids without special tokens. Pairs with more than
    ``max_length`` tokens on a side, and pairs with an empty side, are counted in ``too_long`` and
    ``empty`` and left out. Raises DataError where the two differ in number or nothing is left.

    >>> pairs = Pairs([[5, 6], [7], [4] * 200], [[8], [9, 10], [11]], max_length=100)
    >>> len(pairs), pairs.too_long
    (2, 1)
    """

    words: ClassVar[Mapping[str, str]] = {}
    """What those who train on such data call an option, where it is another word."""

    def __init__(
        self,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        max_length: int = 128,
    ) -> None:
        if len(sources) != len(targets):
            expected = f"as many as sources, {len(sources)}"
            raise build(DataError, "targets", expected, f"{len(targets)} sentences")
        kept = [
            (source, target)
            for source, target in zip(sources, targets, strict=True)
            if 0 < len(source) <= max_length and 0 < len(target) <= max_length
        ]
        self.empty = sum(not s or not t for s, t in zip(sources, targets, strict=True))
        self.too_long = len(sources) - len(kept) - self.empty
        if not kept:
            got = f"{len(sources)} pairs, {self.too_long} too long, {self.empty} with an empty side"
            expected = f"a pair of sentences of 1 to {max_length} tokens"
            raise build(DataError, "sources, targets", expected, got)
        self.sources = Sentences.of(source for source, _ in kept)
        self.targets = Sentences.of((target for _, target in kept), before=[SOS])

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def fingerprint(self) -> str:
        """A checksum of all tokens: a run is resumed on the data it began with."""
        digest = hashlib.sha256()
        for side in (self.sources, self.targets):
            digest.update(side.ids.tobytes())
            digest.update(side.starts.tobytes())
        return digest.hexdigest()[:16]

    def batch(self, which: np.ndarray) -> Batch:
        """Return the pairs ``which`` (b,) as a batch."""
        source, lengths = self.sources.padded(which)
        target, _ = self.targets.padded(which)
        full = bool((lengths == source.shape[1]).all())
        return Batch(
            source,
            None if full else lengths,
            target[:, :-1].contiguous(),
            target[:, 1:].contiguous(),
        )


class Epoch:
    """The batches of one epoch, in order: ``epoch[i]`` makes batch i when it is asked for."""

    def __init__(self, pairs: Pairs, order: np.ndarray, cuts: np.ndarray) -> None:
        self._pairs, self._order, self._cuts = pairs, order, cuts

    def __len__(self) -> int:
        return len(self._cuts)

    def __getitem__(self, index: int) -> Batch:
        start, stop = self._cuts[index]
        return self._pairs.batch(self._order[start:stop])

    def __iter__(self) -> Iterator[Batch]:
        return (self[index] for index in range(len(self)))

    @property
    def largest(self) -> int:
        """The target tokens, padding included, of the largest batch."""
        lengths = self._pairs.targets.lengths[self._order[self._cuts[:, 1] - 1]] - 1
        return int(((self._cuts[:, 1] - self._cuts[:, 0]) * lengths).max())

    def padding(self) -> tuple[float, float]:
        """Return the share of PAD among all source and among all target tokens of the epoch."""
        shares = []
        for side in (self._pairs.sources, self._pairs.targets):
            lengths = side.lengths[self._order]
            rows = self._cuts[:, 1] - self._cuts[:, 0]
            longest = np.array([lengths[start:stop].max() for start, stop in self._cuts])
            shares.append(float(1 - lengths.sum() / (rows * longest).sum()))
        return shares[0], shares[1]


def epoch(pairs: Pairs, batch_tokens: int, seed: int, number: int = 0) -> Epoch:
    """Return the batches of epoch ``number``, each of at most ``batch_tokens`` target tokens.

    Pairs are sorted by target length, then by source length, up in one bucket of equal targets
    and down in the next, so that neighbours over a border are alike too; equal pairs stand in
    random order. The sorted row is cut into batches, and these are shuffled. A pair of more than
    ``batch_tokens`` tokens is a batch of its own.

    >>> pairs = Pairs([[4], [5], [6, 7], [8, 9]], [[4], [5], [6, 7], [8, 9]])
    >>> batches = epoch(pairs, batch_tokens=6, seed=1)
    >>> sorted(batch.target_in.shape for batch in batches)
    [torch.Size([2, 2]), torch.Size([2, 3])]
    >>> batches.padding(), batches.largest
    ((0.0, 0.0), 6)
    """
    if batch_tokens < 1:
        raise build(ArgumentError, "batch_tokens", "an integer of at least 1", batch_tokens)
    random = np.random.default_rng([seed, number])
    source, target = pairs.sources.lengths, pairs.targets.lengths - 1
    turning = np.where(target % 2, source, -source)
    order = np.lexsort((random.permutation(len(pairs)), turning, target))
    cuts = _cuts(target[order], batch_tokens)
    return Epoch(pairs, order, cuts[random.permutation(len(cuts))])


def _cuts(lengths: np.ndarray, batch_tokens: int) -> np.ndarray:
    """Return (start, stop) of each batch of rising ``lengths``: rows times longest fits."""
    cuts, start = [], 0
    while start < len(lengths):
        stop = start + max(1, batch_tokens // lengths[start])
        reach = lengths[start:stop]
        fits = np.arange(1, len(reach) + 1) * reach <= batch_tokens
        stop = start + max(1, int(fits.sum()))
        cuts.append((start, stop))
        start = stop
    return np.array(cuts)
