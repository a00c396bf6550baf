"""Answers to a page's questions, from lazy matrices: numbers within fixed bounds only.

One question is computed at a time, the newest first; the statistics of all heads, which a page asks
for on its own, come last. What takes long is sampled first, and gives way between its strips.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from intently.core.attention import Attention
from intently.core.matrix import LazyMatrix
from intently.core.matrix.lazy import Derived
from intently.core.matrix.patterns import STATISTICS, measure
from intently.errors import IntentlyError
from intently.foundation.arrays import Numbers
from intently.show.page.contents import CELLS, FORMAT, described, plain, thumbnails
from intently.show.page.items import Item, Layer
from intently.show.page.packing import shuffled, text
from intently.show.reading import edges

LARGEST = 2**20
"""Most numbers of one answer."""

LONG = 2**30
"""Weights, with those that their rows are normalised by, from which an answer takes long: about
30,000 queries of as many keys. It gives way to newer questions, and is sampled first.
"""

SAMPLE = 2**24
"""Weights of a sample."""

STRIP = 2**22
"""Weights between two moments in which long work gives way."""

LOOK = 0.5
"""Seconds between two looks whether anybody still waits for an answer."""


class Refused(Exception):  # noqa: N818 - it is a refusal
    """A refused question: its HTTP status and a message."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Reply(NamedTuple):
    """Bytes, their content type, and how they were sampled, "" if they are exact."""

    body: bytes
    kind: str = "application/octet-stream"
    sampled: str = ""


class Turns:
    """Lets one question compute at a time, the newest first; long work gives way to it.

    ``asked`` holds a callable for each question, the newest last and what can wait before all
    others: whether its client is gone.
    """

    def __init__(self) -> None:
        self.asked: list[Callable[[], bool]] = []
        self._running: Callable[[], bool] | None = None
        self._news = threading.Condition()
        self._closed = False

    def ask(
        self,
        work: Callable[[], Reply],
        gone: Callable[[], bool] = lambda: False,
        can_wait: bool = False,
    ) -> Reply:
        """Do work when it is the newest; give it up once ``gone`` says that nobody waits for it.

        What can wait is done when nothing else is asked, however new it is.
        """
        mine = partial(gone)  # told from all others, even of the same client
        with self._news:
            self.asked.insert(0 if can_wait else len(self.asked), mine)
        try:
            with self._news:
                self._take(mine)
            return work()
        except (IntentlyError, Refused):
            raise
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            raise Refused(500, type(error).__name__) from None
        finally:
            with self._news:
                self.asked.remove(mine)
                self._release(mine)

    def give_way(self) -> None:
        """Inside long work: let newer questions go first, and end if nobody waits for this one."""
        with self._news:
            mine = self._running
            assert mine is not None
            self._release(mine)
            self._take(mine)

    def close(self, seconds: float | None = None) -> None:
        """End all questions; wait for the one that is computed at most so many seconds."""
        with self._news:
            self._closed = True
            self._news.notify_all()
            self._news.wait_for(lambda: not self.asked, seconds)

    def _take(self, mine: Callable[[], bool]) -> None:
        while not self._closed and not mine():
            if self._running is None and self.asked[-1] is mine:
                self._running = mine
                return
            self._news.wait(LOOK)
        raise Refused(503, "the server ends" if self._closed else "given up")

    def _release(self, mine: Callable[[], bool]) -> None:
        if self._running is mine:
            self._running = None
        self._news.notify_all()


class Served:
    """The items of a page and their heads, addressed by index."""

    def __init__(self, items: Sequence[Item], title: str | None = None) -> None:
        self.items = items
        self.turns = Turns()
        self._layers = [layer for item in items for layer in item.layers]
        self._statistics: dict[int, Reply] = {}
        self.meta = self._described(title or items[0].name)

    def answer(
        self, name: str, given: Mapping[str, str], gone: Callable[[], bool] = lambda: False
    ) -> Reply:
        """Answer one question; raise `Refused` for anything else.

        ``name`` is one of `QUESTIONS`, ``given`` its numbers as words of the address.
        """
        if name not in QUESTIONS:
            raise Refused(404, "no such question")
        question, takes = QUESTIONS[name]
        if set(given) != set(takes):
            raise Refused(400, f"{name} takes {', '.join(takes)}")
        try:
            work = partial(question, self, Given(given, self.items))
            return self.turns.ask(work, gone, can_wait=name == "statistics")
        except IntentlyError as error:
            raise Refused(409, str(error)) from None

    # --- questions ------------------------------------------------------------------------------

    def block(self, given: Given) -> Reply:
        """The overview of one layer: bytes (h, n, m), each head on its own scale."""
        layer = self._layers[given.number("n", len(self._layers))]
        t, s = layer.matrix.shape[-2:]
        n, m = min(CELLS, t), min(CELLS, s)
        if _is_long(layer.matrix, t):
            heads = [_chosen(layer.matrix, [head]) for head in range(layer.heads)]
            means = torch.stack([_sampled(head, (0, t, 0, s), n, m, "mean")[0] for head in heads])
        else:
            means = layer.matrix.pool(n, m).reshape(layer.heads, n, m)
        pixels, _ = thumbnails(means.float().nan_to_num(0))
        return Reply(text(zlib.compress(shuffled(pixels.numpy()), 1)).encode(), "text/plain")

    def tile(self, given: Given) -> Reply:
        """Exact weights of a window."""
        head = given.head()
        r0, r1, c0, c1 = given.window(head)
        _check_count((r1 - r0) * (c1 - c0))
        return _numbers(torch.cat(list(self._strips(head, (r0, r1, c0, c1)))))

    def pooled(self, given: Given) -> Reply:
        """The mean or the largest weight of each cell of a window; a sample unless ``exact``."""
        head, (h, w), reduce = given.head(), given.cells(), given.words["how"]
        if reduce not in ("mean", "max"):
            raise Refused(400, "how: expected mean or max")
        window, exact = given.window(head), given.number("exact", 2)
        r0, r1, c0, c1 = window
        if _is_long(head, r1 - r0) and not exact:
            cells, every = _sampled(head, window, h, w, reduce)
            return _numbers(cells, f"one query in {every:,}")
        if (r0, c0, r1, c1) == (0, 0, *head.shape[-2:]) and not _is_long(head, r1):
            return _numbers(head.pool(h, w, reduce))
        down, across = edges(r0, r1, h), edges(c0, c1, w)
        return _numbers(_cells(self._strips(head, window), down, across, reduce))

    def masked(self, given: Given) -> Reply:
        """Which cells of a window are masked completely.

        A long window whose mask has no closed form counts as seen.
        """
        head, (h, w) = given.head(mean=False), given.cells()
        r0, r1, c0, c1 = given.window(head)
        seen = _seen(head, edges(r0, r1, h), edges(c0, c1, w))
        return Reply((~seen).astype(np.uint8).tobytes())

    def entropy(self, given: Given) -> Reply:
        """The entropy of every query."""
        return _numbers(self._eased(given.head()).entropy())

    def received(self, given: Given) -> Reply:
        """The attention that every key receives."""
        return _numbers(self._eased(given.head()).received())

    def statistics(self, given: Given) -> Reply:
        """The statistics of the heads of one layer by name."""
        number = given.number("n", len(self._layers))
        if number not in self._statistics:
            layer = self._layers[number]
            averages = measure(self._eased(layer.matrix), layer.tokens)
            values = {name: plain(one.value().reshape(-1)) for name, one in averages.items()}
            body = json.dumps(values, allow_nan=False).encode()
            self._statistics[number] = Reply(body, "application/json")
        return self._statistics[number]

    # --- their numbers --------------------------------------------------------------------------

    def _strips(self, head: LazyMatrix, window: tuple[int, int, int, int]) -> Iterator[Tensor]:
        """Yield the weights of a window in strips of rows, and give way between them."""
        r0, r1, c0, c1 = window
        cols = torch.arange(c0, c1)
        for rows in torch.arange(r0, r1).split(max(1, STRIP // (head.shape[-1] * _heads(head)))):
            if int(rows[0]) > r0:
                self.turns.give_way()
            yield head.tile(rows, cols)

    def _eased(self, matrix: LazyMatrix) -> LazyMatrix:
        """Return a matrix that gives way between its tiles where all of them take long."""
        return _Eased(matrix, self.turns) if _is_long(matrix, matrix.shape[-2]) else matrix

    def _described(self, title: str) -> dict[str, Any]:
        """Return META of a page that asks a server for its numbers."""
        sizes = [(layer.heads, *layer.matrix.shape[-2:]) for layer in self._layers]
        blocks = iter(range(len(sizes)))
        return {
            "format": FORMAT,
            "title": title,
            "precision": "full",
            "source": "server",
            "bound": None,
            "sampled": any(_is_long(one.matrix, one.matrix.shape[-2]) for one in self._layers),
            "blocks": [
                {"dtype": "uint8", "shape": [h, min(CELLS, t), min(CELLS, s)]} for h, t, s in sizes
            ],
            "items": [item.described(lambda one: _entry(one, next(blocks))) for item in self.items],
            "statistics": list(STATISTICS),
            "state": {},
            "highlights": [],
        }


class Given:
    """The arguments of a question, as untrusted words."""

    def __init__(self, words: Mapping[str, str], items: Sequence[Item]) -> None:
        self.words, self.items = words, items

    def number(self, name: str, stop: int) -> int:
        """Return a whole number from 0 to ``stop`` − 1."""
        return _whole(name, self.words[name], stop)

    def head(self, mean: bool = True) -> LazyMatrix:
        """Return a head, or the mean of some, as (t, s); without ``mean``, some as (n, t, s)."""
        item = self.items[self.number("item", len(self.items))]
        layer = item.layers[self.number("entry", len(item.layers))]
        words = self.words["heads"].split(",")[: layer.heads + 1]
        heads = [_whole("heads", word, layer.heads) for word in words]
        if len(set(heads)) != len(words):
            raise Refused(400, "heads: expected each head once")
        chosen = _chosen(layer.matrix, heads)
        return chosen.mean_heads() if mean and len(heads) > 1 else chosen

    def window(self, head: LazyMatrix) -> tuple[int, int, int, int]:
        """Return rows r0 … r1 − 1 and columns c0 … c1 − 1, at least one of each."""
        t, s = head.shape[-2:]
        r0, c0 = self.number("r0", t), self.number("c0", s)
        r1, c1 = self.number("r1", t + 1), self.number("c1", s + 1)
        if r1 <= r0 or c1 <= c0:
            raise Refused(400, "window: expected r0 < r1 and c0 < c1")
        return r0, r1, c0, c1

    def cells(self) -> tuple[int, int]:
        """Return the number of cells, h × w."""
        h, w = self.number("h", LARGEST + 1), self.number("w", LARGEST + 1)
        if not h * w:
            raise Refused(400, "h and w: expected at least 1")
        _check_count(h * w)
        return h, w


class _Eased(Derived):
    """A matrix that gives way between its tiles."""

    def __init__(self, matrix: LazyMatrix, turns: Turns) -> None:
        super().__init__(matrix)
        self._turns = turns

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        self._turns.give_way()
        return self.matrix.tile(rows, cols)

    def matmul(self, v: Tensor | Numbers) -> Tensor:
        return self.matrix.matmul(v)

    def _viewers(self) -> Tensor:
        return self.matrix._viewers()


_HEAD = ("item", "entry", "heads")
_WINDOW = (*_HEAD, "r0", "r1", "c0", "c1")
QUESTIONS: dict[str, tuple[Callable[[Served, Given], Reply], tuple[str, ...]]] = {
    "block": (Served.block, ("n",)),
    "tile": (Served.tile, _WINDOW),
    "pooled": (Served.pooled, (*_WINDOW, "h", "w", "how", "exact")),
    "masked": (Served.masked, (*_WINDOW, "h", "w")),
    "entropy": (Served.entropy, _HEAD),
    "received": (Served.received, _HEAD),
    "statistics": (Served.statistics, ("n",)),
}
"""All questions by their name in an address, and what they take."""


def _whole(name: str, word: str, stop: int) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 9 and int(word) < stop):
        raise Refused(400, f"{name}: expected a number from 0 to {stop - 1}")
    return int(word)


def _chosen(matrix: LazyMatrix, heads: Sequence[int]) -> LazyMatrix:
    """Return some heads of one item as (n, t, s), or one as (t, s)."""
    if matrix.ndim > 3:
        matrix = matrix[0]
    if matrix.ndim > 2:
        matrix = matrix[heads[0]] if len(heads) == 1 else matrix[torch.tensor(heads)]
    return matrix


def _heads(matrix: LazyMatrix) -> int:
    """Return how many weights stand behind one: those of the heads that are averaged, say."""
    while isinstance(matrix, Derived):
        matrix = matrix.matrix
    return max(1, math.prod(matrix.shape[:-2]))


def _is_long(matrix: LazyMatrix, rows: int) -> bool:
    """Return whether so many rows of a matrix take long."""
    return rows * matrix.shape[-1] * _heads(matrix) > LONG


def _sampled(
    head: LazyMatrix, window: tuple[int, int, int, int], h: int, w: int, reduce: str
) -> tuple[Tensor, int]:
    """Return cells of one query for each row of cells, or every few, and how many it stands for."""
    r0, r1, c0, c1 = window
    down, across = edges(r0, r1, h), edges(c0, c1, w)
    count = min(len(down) - 1, max(1, SAMPLE // (head.shape[-1] * _heads(head))))
    coarse = edges(r0, r1, count)
    rows = torch.from_numpy((coarse[:-1] + coarse[1:] - 1) // 2)
    cells = _cells([head.tile(rows, torch.arange(c0, c1))], np.arange(count + 1), across, reduce)
    of = torch.from_numpy(np.searchsorted(coarse, down[:-1], "right") - 1)
    return cells[of], max(1, round((r1 - r0) / count))


def _cells(strips: Iterable[Tensor], down: np.ndarray, across: np.ndarray, reduce: str) -> Tensor:
    """Pool strips of rows, of which the first is down[0], into cells between these edges."""
    join = np.maximum if reduce == "max" else np.add
    cells = np.zeros((len(down) - 1, len(across) - 1), np.float32)
    start = down[0]
    for strip in strips:
        pooled = join.reduceat(strip.float().numpy(), across[:-1] - across[0], axis=1)
        rows = np.searchsorted(down, np.arange(start, start + len(pooled)), "right") - 1
        join.at(cells, rows, pooled)
        start += len(pooled)
    if reduce == "mean":
        cells /= np.diff(down)[:, None] * np.diff(across)
    return torch.from_numpy(cells)


def _seen(head: LazyMatrix, down: np.ndarray, across: np.ndarray) -> np.ndarray:
    """Return which cells hold a pair that some head may see."""
    every = np.ones((len(down) - 1, len(across) - 1), bool)
    mask = head.problem.mask if isinstance(head, Attention) else None
    if mask is None:
        return every
    assert isinstance(head, Attention)
    p = head.problem.ready()
    runs = mask.queries(p.geometry)
    if runs is not None and all(run.step == 1 for run in runs):
        return _seen_in_runs(runs, down, across)
    r0, r1, c0, c1 = int(down[0]), int(down[-1]), int(across[0]), int(across[-1])
    if (r1 - r0) * (c1 - c0) * _heads(head) > SAMPLE:
        return every
    allow = p.allow(slice(r0, r1), slice(c0, c1))
    assert allow is not None
    seen = allow.reshape(-1, *allow.shape[-2:]).any(0).expand(r1 - r0, c1 - c0)
    return _cells([seen], down, across, "max").numpy() > 0


def _seen_in_runs(runs: Any, down: np.ndarray, across: np.ndarray) -> np.ndarray:
    """Return which cells hold a visible pair, from the closed form of each key's queries."""
    keys = slice(int(across[0]), int(across[-1]))
    begun = np.zeros((len(down), len(across) - 1), np.int64)
    column = np.searchsorted(across, np.arange(keys.start, keys.stop), "right") - 1
    for run in runs:
        first, last = (
            x[..., keys].reshape(-1, keys.stop - keys.start).numpy()
            for x in torch.broadcast_tensors(run.first, run.last)
        )
        first, last = np.maximum(first, down[0]), np.minimum(last, down[-1] - 1)
        some = first <= last
        columns = np.broadcast_to(column, some.shape)[some]
        for rows, sign in ((first[some], 1), (last[some], -1)):
            cell = np.searchsorted(down, rows, "right") - (sign == 1)
            np.add.at(begun, (cell, columns), sign)
    return begun[:-1].cumsum(0) > 0


def _entry(layer: Layer, block: int) -> dict[str, Any]:
    """Return a layer as META describes it, without numbers."""
    unknown = {name: [None] * layer.heads for name in STATISTICS}
    measures = {"lse": [], "entropy": [], "received": [], "overview": block, "overview_max": None}
    return {**described(layer), **measures, "statistics": unknown}


def _check_count(count: int) -> None:
    if count > LARGEST:
        raise Refused(413, f"an answer has at most {LARGEST:,} numbers")


def _numbers(numbers: Tensor, sampled: str = "") -> Reply:
    body = np.ascontiguousarray(numbers.detach().float().numpy(), "<f4").tobytes()
    return Reply(body, sampled=sampled)
