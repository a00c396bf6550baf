"""`Recording`: what was watched, by the names of modules, as lazy matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from intently.attention import Attention, attend
from intently.errors import ArgumentError, UnverifiedError, build
from intently.matrix import LazyMatrix
from intently.observe.call import How
from intently.observe.stores import Kept


class Entry:
    """One attention of a module: a call, or all calls of a generation joined."""

    def __init__(self, name: str, index: int, source: str, q: Kept, k: Kept, how: How) -> None:
        self.name, self.index, self.source = name, index, source
        self.q, self.k, self.how = q, k, how
        self.verified: bool | None = None
        self.why: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.attention().shape

    def attention(self) -> Attention:
        h = self.how
        return attend(
            self.q.get(), self.k.get(), score=h.score, mask=h.mask, bias=h.bias, scale=h.scale,
            softcap=h.softcap, sinks=h.sinks, dropout=h.dropout,
        )  # fmt: skip

    def matrix(self) -> LazyMatrix:
        if self.verified is False:
            raise build(
                UnverifiedError, f"{self.name}, {self.index}", "weights that give what came out",
                "others", self.why,
            )  # fmt: skip
        return self.attention()


class Recording:
    """What a watch kept."""

    def __init__(self, tokens: Sequence[str] | None = None) -> None:
        self.tokens = tokens
        self.calls: list[Entry] = []
        self.compiled = 0

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(e.name for e in self.calls))

    def count(self, name: str) -> int:
        return sum(e.name == name for e in self.calls)

    def add(self, entry: Entry) -> None:
        self.calls.append(entry)

    def __getitem__(self, key: str | tuple[str, int]) -> LazyMatrix:
        name, i = key if isinstance(key, tuple) else (key, None)
        found = [e for e in self.calls if e.name == name]
        if not found:
            raise build(ArgumentError, "name", f"one of {self.layers}", repr(name))
        if i is None and len(found) > 1:
            raise build(ArgumentError, "name", f"seen[{name!r}, i], i from 0 to {len(found) - 1}", repr(name))
        return found[i or 0].matrix()
