"""Batches with similar numbers of tokens, of rows with similar lengths.

The batches are a pure function of the seed and the epoch, so a position in the data is two numbers,
(epoch, batch), and resuming there costs nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from intently.errors import ArgumentError, DataError, build
from intently.tasks.text import EOS, PAD, SOS


class Batch(NamedTuple):
    """Rows padded with PAD to one length: int64 tensors.

    ``source`` (b, s) ends with EOS, and is None for a model without a source; ``source_lengths``
    (b,) is None where no source is padded. ``target_out`` (b, t) holds the token that follows each
    of ``target_in`` (b, t): for a pair, they end with EOS and begin with SOS. ``guide`` are the
    weights (b, max(t, s), s), float32, that a guided head should have; a row of zeros is free.
    """

    source: Tensor | None
    source_lengths: Tensor | None
    target_in: Tensor
    target_out: Tensor
    guide: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with every tensor changed."""
        return self._replace(**{n: change(x) for n, x in self._asdict().items() if x is not None})

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on ``device``."""
        return self.map(lambda tensor: tensor.to(device))


class Data(Protocol):
    """The data of a run: rows, which `epoch` groups into batches.

    ``words`` are options that these data call by another name. Each row is trained to write
    ``lengths`` (n,) target tokens. ``sort_keys`` (n,), the most important last, group rows of
    similar length. ``fingerprint`` is a checksum of all: a run must resume on the same data.
    """

    words: ClassVar[Mapping[str, str]]
    lengths: np.ndarray
    sort_keys: tuple[np.ndarray, ...]
    fingerprint: str

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def batch(self, which: np.ndarray) -> Batch:
        """Return the rows ``which`` (b,) as a batch."""
        ...


@dataclass(frozen=True)
class Sentences:
    """Token ids of many sentences in one flat array; sentence i is ids[starts[i]:starts[i + 1]]."""

    ids: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, sentences: Iterable[Sequence[int]], before: Sequence[int] = ()) -> Sentences:
        """Return the sentences, each between the tokens ``before`` and EOS."""
        arrays = [np.array([*before, *sentence, EOS], np.int32) for sentence in sentences]
        return cls(np.concatenate([np.empty(0, np.int32), *arrays]), _starts(arrays))

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


Guide = Mapping[tuple[int, int], float]
"""What teaches one row: by the positions of a query and a key, the part of its weight that is due.

The parts of a query are divided by their sum.
"""


@dataclass(frozen=True)
class Guides:
    """The guides of many rows in flat arrays; row i has those from starts[i] to starts[i + 1]."""

    places: np.ndarray
    parts: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, rows: Iterable[Guide]) -> Guides:
        """Return the guides of rows; raises `ArgumentError` for positions or parts below 0."""
        lists = [sorted(row.items()) for row in rows]
        flat = [(n, place, part) for n, row in enumerate(lists) for place, part in row]
        for n, place, part in flat:
            if min(place) < 0 or not 0 < part < np.inf:
                expected = "positions from 0, and parts that are numbers above 0"
                raise build(ArgumentError, f"guides[{n}]", expected, f"{place}: {part}")
        places = np.array([place for _, place, _ in flat], np.int32).reshape(-1, 2)
        return cls(places, np.array([part for *_, part in flat], np.float32), _starts(lists))

    def weights(self, which: np.ndarray, queries: int, keys: int) -> Tensor:
        """Return the weights (b, queries, keys) that are due in the rows ``which`` (b,).

        >>> Guides.of([{(1, 0): 3.0, (1, 1): 1.0}]).weights(np.array([0]), queries=2, keys=2)
        tensor([[[0.0000, 0.0000],
                 [0.7500, 0.2500]]])
        """
        weights = np.zeros((len(which), queries, keys), np.float32)
        for row, index in enumerate(which):
            some = slice(self.starts[index], self.starts[index + 1])
            query, key = self.places[some].T
            weights[row, query, key] = self.parts[some]
        total = weights.sum(-1, keepdims=True)
        return torch.from_numpy(weights / np.where(total > 0, total, 1.0))


def _starts(rows: Sequence[Sized]) -> np.ndarray:
    """Return where each row begins in a flat array of all, and the end of the last."""
    return np.cumsum([0, *map(len, rows)], dtype=np.int64)


class Pairs:
    """Sentence pairs as token ids, ready to be trained on.

    ``sources`` and ``targets`` hold ids without special tokens. Pairs with more than ``max_length``
    tokens on a side, and pairs with an empty side, are left out and counted in ``too_long`` and
    ``empty``. ``guides`` teach a head, see `intently.tasks.training.loss`; query i of a decoder
    writes target i. Raises DataError if the sides differ in number or no pair is left,
    ArgumentError for guides that differ in number, at a position below 0, or with a part that is no
    number above 0.

    >>> pairs = Pairs([[5, 6], [7], [4] * 200], [[8], [9, 10], [11]], max_length=100)
    >>> len(pairs), pairs.too_long
    (2, 1)
    """

    words: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        max_length: int = 128,
        guides: Sequence[Guide] | None = None,
    ) -> None:
        if len(sources) != len(targets):
            expected = f"as many as sources, {len(sources)}"
            raise build(DataError, "targets", expected, f"{len(targets)} sentences")
        if guides is not None and len(guides) != len(sources):
            expected = f"one for each of {len(sources)} pairs"
            raise build(ArgumentError, "guides", expected, len(guides))
        pairs = list(zip(sources, targets, strict=True))
        kept = [n for n, (s, t) in enumerate(pairs) if min(len(s), len(t)) > 0]
        self.empty = len(pairs) - len(kept)
        kept = [n for n in kept if max(map(len, pairs[n])) <= max_length]
        self.too_long = len(pairs) - len(kept) - self.empty
        if not kept:
            got = f"{len(pairs)} pairs, {self.too_long} too long, {self.empty} with an empty side"
            expected = f"a pair of sentences of 1 to {max_length} tokens"
            raise build(DataError, "sources, targets", expected, got)
        self.sources = Sentences.of(sources[row] for row in kept)
        self.targets = Sentences.of((targets[row] for row in kept), before=[SOS])
        self.guides = None if guides is None else Guides.of(guides[row] for row in kept)
        self.lengths = self.targets.lengths - 1  # EOS included
        # the source's ascending and descending in turn: neighbours across a border are similar
        source = self.sources.lengths
        self.sort_keys = (np.where(self.lengths % 2, source, -source), self.lengths)
        g = self.guides
        more = () if g is None else (g.places, g.parts, g.starts)
        self.fingerprint = fingerprint(self.sources, self.targets, more=more)

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, which: np.ndarray) -> Batch:
        """Return the pairs ``which`` (b,) as a batch."""
        source, lengths = self.sources.padded(which)
        target, _ = self.targets.padded(which)
        guide, s, t = None, source.shape[1], target.shape[1] - 1
        if self.guides is not None:  # of queries on either side
            guide = self.guides.weights(which, max(s, t), s)
        sides = target[:, :-1].contiguous(), target[:, 1:].contiguous()
        return Batch(source, None if bool((lengths == s).all()) else lengths, *sides, guide)


def fingerprint(*sides: Sentences, more: Iterable[np.ndarray] = ()) -> str:
    """Return a checksum of the tokens of many sentences, and of ``more`` numbers."""
    digest = hashlib.sha256()
    for array in (*chain.from_iterable((side.ids, side.starts) for side in sides), *more):
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Epoch:
    """The batches of one epoch, in order: ``epoch[i]`` makes batch i on demand."""

    data: Data
    order: np.ndarray
    cuts: np.ndarray

    def __len__(self) -> int:
        return len(self.cuts)

    def __getitem__(self, index: int) -> Batch:
        start, stop = self.cuts[index]
        return self.data.batch(self.order[start:stop])

    def __iter__(self) -> Iterator[Batch]:
        return map(self.__getitem__, range(len(self)))


def epoch(data: Data, batch_tokens: int, seed: int, number: int = 0) -> Epoch:
    """Return the batches of epoch ``number``, each of at most ``batch_tokens`` target tokens.

    Rows are sorted by length, pairs by that of the target, then of the source; equal rows are in
    random order. The rows are cut into batches, and the batches are shuffled. A row of more than
    ``batch_tokens`` tokens is a batch of its own.

    >>> pairs = Pairs([[4], [5], [6, 7], [8, 9]], [[4], [5], [6, 7], [8, 9]])
    >>> batches = epoch(pairs, batch_tokens=6, seed=1)
    >>> sorted(batch.target_in.shape for batch in batches)
    [torch.Size([2, 2]), torch.Size([2, 3])]
    """
    if batch_tokens < 1:
        raise build(ArgumentError, "batch_tokens", "an integer of at least 1", batch_tokens)
    random = np.random.default_rng([seed, number])
    order = np.lexsort((random.permutation(len(data)), *data.sort_keys))
    lengths, cuts, start = data.lengths[order], [], 0  # ascending: rows × longest must fit
    while start < len(lengths):
        reach = lengths[start : start + max(1, batch_tokens // lengths[start])]
        fits = np.arange(1, len(reach) + 1) * reach <= batch_tokens
        stop = start + max(1, int(fits.sum()))
        cuts.append((start, stop))
        start = stop
    return Epoch(data, order, np.array(cuts)[random.permutation(len(cuts))])
