"""Answers to a page's questions, from lazy matrices: numbers within fixed bounds only."""

from __future__ import annotations

import json
import math
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from intently.attention_matrix import Attention
from intently.errors import IntentlyError
from intently.foundation.arrays import Numbers
from intently.matrix import LazyMatrix
from intently.matrix.lazy import Derived
from intently.matrix.patterns import STATISTICS, measure
from intently.show.page.contents import FORMAT, described
from intently.show.page.items import Item, Layer
from intently.show.page.numbers.measured import CELLS
from intently.show.page.numbers.packing import shuffled, text
from intently.show.page.serving.background import Background
from intently.show.page.serving.cells import How
from intently.show.page.serving.zooming import ZoomedHead

LARGEST = 2**20
"""Most numbers of one answer."""

AT_ONCE = 2**22
"""Heads of up to so many weights are read completely when they are opened."""

MEMORY = 2**30
"""Most bytes of cached heads; the least recently used are evicted."""

PATIENCE = 20.0
"""Seconds that a question about progress waits for news at most."""


class Refused(Exception):  # noqa: N818 - it is a refusal
    """A refused question: its HTTP status and a message."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Answer(NamedTuple):
    """Bytes, their content type, and their precision."""

    body: bytes
    kind: str = "application/octet-stream"
    nearness: str = ""


class Served:
    """The items of a page and their heads, addressed by index."""

    def __init__(self, items: Sequence[Item], title: str | None = None) -> None:
        self.items = items
        self.background = Background()
        self._layers = [layer for item in items for layer in item.layers]
        self._heads: OrderedDict[tuple[int, ...], ZoomedHead] = OrderedDict()
        self._opening = threading.Lock()
        self._blocks = [_overview(layer) for layer in self._layers]
        self._statistics: list[dict[str, list[float | None]] | None] = [None for _ in self._layers]
        self.meta = self._described(title or items[0].name)
        for number in reversed(range(len(self._layers))):
            self.background.add(_statistics(number), self._measure(number), rank=0)

    def answer(self, name: str, given: Mapping[str, str]) -> Answer:
        """Answer one question; raise `Refused` for anything else.

        ``name`` is one of `QUESTIONS`, ``given`` its numbers as words of the address.
        """
        question = QUESTIONS.get(name)
        if question is None:
            raise Refused(404, "no such question")
        if set(given) != set(question.takes):
            raise Refused(400, f"{name} takes {', '.join(question.takes) or 'nothing'}")
        try:
            with nullcontext() if question.waits else self.background.answering():
                return question.answer(self, _Given(given))
        except IntentlyError as error:
            raise Refused(409, str(error)) from None

    def close(self, seconds: float | None = None) -> None:
        """End the work in the background; wait at most so many seconds for its step."""
        self.background.close(seconds)

    # --- questions ------------------------------------------------------------------------------

    def block(self, given: _Given) -> Answer:
        """The overview of one layer: bytes (h, n, m), each head on its own scale."""
        number = given.number("n", len(self._layers))
        layer = self._layers[number]
        h, n, m = self._blocks[number]["shape"]
        found = np.zeros((h, n, m), np.uint8)
        for head in range(h):
            part = ZoomedHead(_chosen(layer.matrix, [head]))
            picture = part.pooled(0, part.t, 0, part.s, n, m, at_once=h).picture.nan_to_num(0)
            largest = float(picture.max()) or 1.0
            found[head] = (255 * (picture / largest).clamp(0, 1).sqrt()).round().numpy()
        return Answer(text(zlib.compress(shuffled(found), 1)).encode(), "text/plain")

    def open(self, given: _Given) -> Answer:
        """Open a head: wait for progress of its pass, and return how far it has come."""
        head, name = self._head(given)
        before = given.number("done", head.t + 1)
        if not head.settled:
            wanted = head.t if before else 1
            failed = self.background.failures
            self.background.wait(lambda: head.done >= wanted or name in failed, PATIENCE)
            if name in failed:
                raise Refused(409, failed[name])
        return _told({"done": head.done, "t": head.t})

    def tile(self, given: _Given) -> Answer:
        """Exact weights of a window."""
        head, _ = self._head(given)
        r0, r1, c0, c1 = given.window(head)
        _bounded((r1 - r0) * (c1 - c0))
        if r1 > head.done and (r1 - r0) * head.s > LARGEST * 16:
            raise Refused(409, "the head is still being read; ask open first")
        return Answer(_bytes(head.tile(r0, r1, c0, c1)))

    def pooled(self, given: _Given) -> Answer:
        """The mean or the largest weight of each cell of a window."""
        head, _ = self._head(given)
        h, w = given.cells()
        found = head.pooled(*given.window(head), h, w, given.how())
        return Answer(_bytes(found.picture), nearness=found.nearness)

    def masked(self, given: _Given) -> Answer:
        """Which cells of a window are masked completely."""
        head, _ = self._head(given)
        found = head.masked(*given.window(head), *given.cells())
        return Answer(found.to(torch.uint8).numpy().tobytes())

    def entropy(self, given: _Given) -> Answer:
        """The entropy of every query."""
        return Answer(_bytes(self._settled(given).kept.entropy))

    def received(self, given: _Given) -> Answer:
        """The attention that every key receives."""
        return Answer(_bytes(self._settled(given).kept.received))

    def statistics(self, given: _Given) -> Answer:
        """The statistics of all layers measured so far; waits for news.

        A layer whose statistics fail counts as measured, with none.
        """
        before = given.number("known", len(self._layers) + 1)
        failed = self.background.failures

        def known() -> int:
            return sum(
                found is not None or _statistics(number) in failed
                for number, found in enumerate(self._statistics)
            )

        self.background.wait(lambda: known() > before or known() == len(self._layers), PATIENCE)
        entries = [found or {} for found in self._statistics]
        return _told({"known": known(), "of": len(self._layers), "entries": entries})

    # --- how ------------------------------------------------------------------------------------

    def _head(self, given: _Given) -> tuple[ZoomedHead, str]:
        """Return the requested head, or mean of heads, with its pass begun, and the pass's name."""
        item = given.number("item", len(self.items))
        entry = given.number("entry", len(self.items[item].layers))
        matrix = self.items[item].layers[entry].matrix
        heads = given.heads(matrix.shape[-3] if matrix.ndim > 2 else 1)
        key = (item, entry, *heads)
        with self._opening:
            found = self._heads.pop(key, None)
            if found is None:
                found = ZoomedHead(_chosen(matrix, heads))
                if found.n * found.t * found.s <= AT_ONCE:
                    for _ in found.steps():
                        pass
            self._heads[key] = found
            while len(self._heads) > 1 and sum(x.bytes for x in self._heads.values()) > MEMORY:
                self.background.drop(_pass(*self._heads.popitem(last=False)))
        name = _pass(key, found)
        if not found.settled:
            self.background.add(name, found.steps())
        return found, name

    def _settled(self, given: _Given) -> ZoomedHead:
        head, _ = self._head(given)
        if not head.settled:
            raise Refused(409, "the head is still being read; ask open first")
        return head

    def _measure(self, number: int) -> Iterator[None]:
        """Measure the statistics of a layer, as a job."""
        layer = self._layers[number]
        found = measure(_Patient(layer.matrix, self.background), layer.tokens)
        self._statistics[number] = {
            name: [x if math.isfinite(x) else None for x in average.value().reshape(-1).tolist()]
            for name, average in found.items()
        }
        return
        yield

    def _described(self, title: str) -> dict[str, Any]:
        """Return META of a page that asks a server for its numbers."""
        entries = iter(range(len(self._layers)))
        return {
            "format": FORMAT,
            "title": title,
            "precision": "full",
            "source": "server",
            "bound": None,
            "blocks": self._blocks,
            "items": [
                {
                    "name": item.name,
                    "note": item.note,
                    "sides": [side.described() for side in item.sides],
                    "entries": [_entry(layer, next(entries)) for layer in item.layers],
                }
                for item in self.items
            ],
            "statistics": list(STATISTICS),
            "state": {},
            "highlights": [],
        }


class _Given:
    """The arguments of a question, as untrusted words."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self.words = words

    def number(self, name: str, stop: int) -> int:
        """Return a whole number from 0 to ``stop`` − 1."""
        word = self.words[name]
        if not (word.isascii() and word.isdigit() and len(word) <= 9 and int(word) < stop):
            raise Refused(400, f"{name}: expected a number from 0 to {stop - 1}")
        return int(word)

    def heads(self, count: int) -> list[int]:
        """Return indices of heads, each once."""
        words = self.words["heads"].split(",")
        found = [_Given({"heads": word}).number("heads", count) for word in words[: count + 1]]
        if len(set(found)) != len(words):
            raise Refused(400, "heads: expected each head once")
        return found

    def window(self, head: ZoomedHead) -> tuple[int, int, int, int]:
        """Return rows r0 … r1 − 1 and columns c0 … c1 − 1, at least one of each."""
        r0, c0 = self.number("r0", head.t), self.number("c0", head.s)
        r1, c1 = self.number("r1", head.t + 1), self.number("c1", head.s + 1)
        if r1 <= r0 or c1 <= c0:
            raise Refused(400, "window: expected r0 < r1 and c0 < c1")
        return r0, r1, c0, c1

    def cells(self) -> tuple[int, int]:
        """Return the number of cells, h × w."""
        h, w = self.number("h", LARGEST + 1), self.number("w", LARGEST + 1)
        if not h * w:
            raise Refused(400, "h and w: expected at least 1")
        _bounded(h * w)
        return h, w

    def how(self) -> How:
        """Return what a cell shows of its weights."""
        if self.words["how"] not in ("mean", "max"):
            raise Refused(400, "how: expected mean or max")
        return "max" if self.words["how"] == "max" else "mean"


class _Patient(Derived):
    """A matrix whose tiles wait for more urgent work."""

    def __init__(self, matrix: LazyMatrix, background: Background) -> None:
        super().__init__(matrix)
        self._background = background

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        self._background.yielding()
        return self.matrix.tile(rows, cols)

    def matmul(self, v: Tensor | Numbers) -> Tensor:
        return self.matrix.matmul(v)

    def _viewers(self) -> Tensor:
        return self.matrix._viewers()


class _Question(NamedTuple):
    """Who answers a question, the arguments it takes, and whether it waits for jobs."""

    answer: Any
    takes: tuple[str, ...]
    waits: bool = False


_HEAD = ("item", "entry", "heads")
_WINDOW = (*_HEAD, "r0", "r1", "c0", "c1")
QUESTIONS = {
    "block": _Question(Served.block, ("n",)),
    "open": _Question(Served.open, (*_HEAD, "done"), waits=True),
    "tile": _Question(Served.tile, _WINDOW),
    "pooled": _Question(Served.pooled, (*_WINDOW, "h", "w", "how")),
    "masked": _Question(Served.masked, (*_WINDOW, "h", "w")),
    "entropy": _Question(Served.entropy, _HEAD),
    "received": _Question(Served.received, _HEAD),
    "statistics": _Question(Served.statistics, ("known",), waits=True),
}
"""All questions by their name in an address."""


def _statistics(number: int) -> str:
    """The name of the job that measures a layer."""
    return f"statistics {number}"


def _pass(key: tuple[int, ...], head: ZoomedHead) -> str:
    """The name of the job that passes over a head."""
    return f"head {'.'.join(map(str, key))} {id(head)}"


def _overview(layer: Layer) -> dict[str, Any]:
    t, s = layer.matrix.shape[-2:]
    return {"dtype": "uint8", "shape": [layer.heads, min(CELLS, t), min(CELLS, s)]}


def _entry(layer: Layer, block: int) -> dict[str, Any]:
    """Return a layer as META describes it, without numbers."""
    return {
        **described(layer),
        "lse": [],
        "entropy": [],
        "received": [],
        "overview": block,
        "overview_max": None,
        "statistics": {name: [None] * layer.heads for name in STATISTICS},
    }


def _chosen(matrix: LazyMatrix, heads: Sequence[int]) -> Attention:
    """Return some heads of one item as (n, t, s), or (t, s) where there is no axis of heads."""
    if matrix.ndim > 3:
        matrix = matrix[0]
    if matrix.ndim > 2:
        matrix = matrix[heads[0]] if len(heads) == 1 else matrix[torch.tensor(heads)]
    assert isinstance(matrix, Attention)
    return matrix


def _bounded(count: int) -> None:
    if count > LARGEST:
        raise Refused(413, f"an answer has at most {LARGEST:,} numbers")


def _bytes(numbers: Tensor) -> bytes:
    return np.ascontiguousarray(numbers.detach().float().numpy(), "<f4").tobytes()


def _told(values: dict[str, Any]) -> Answer:
    return Answer(json.dumps(values, allow_nan=False).encode(), "application/json")
