"""In which ways sources may hold queries, keys and values: axes, heads, fusion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from intently.checker.calling.subject import Subject
from intently.checker.computing.measuring import Geometry
from intently.checker.computing.reading import Reading, View, readings
from intently.checker.computing.tracing import Core


def layouts(
    subject: Subject,
    core: Core,
    sources: Mapping[int, Tensor],
    numbers: tuple[int, int, int],
    given: bool,
) -> Iterator[tuple[Geometry, list[Reading]]]:
    """Ways in which the rows of the sources may be queries and keys, with their readings."""
    iq, ik, iv = numbers
    if given:
        yield from given_heads(sources, iq, ik, iv)
        return
    b = subject.batch
    if sources[iq].ndim == 4 and sources[ik].ndim == 4:
        yield from _heads_in_shapes(sources, numbers, b)
    for order in ("bthd", "tbhd", "bhdt") if sources[iq].ndim < 4 else ("bhdt", "bthd"):
        t, s = (_rows(sources[i], order, b) for i in (iq, ik))
        if t is None or s is None:
            continue
        shapes = {n: (i, _last(sources[i], order)) for n, i in zip("qkv", numbers)}
        heads = _heads(subject, core, b, sources[iq].numel() // (b * t))
        yield Geometry(b, t, s, order), list(readings(shapes, b, t, s, heads, order))


def _heads_in_shapes(
    sources: Mapping[int, Tensor], numbers: tuple[int, int, int], b: int
) -> Iterator[tuple[Geometry, list[Reading]]]:
    """Queries and keys with an axis of heads, as norms of each head make them."""
    iq, ik, iv = numbers
    q, k, v = (sources[i] for i in numbers)
    if iq == ik or q.shape[0] != b or q.shape[-1] != k.shape[-1]:
        return
    for order in ("bthd", "bhtd"):
        at = {c: order.index(c) for c in "ht"}
        (h, t), (g, s) = ((x.shape[at["h"]], x.shape[at["t"]]) for x in (q, k))
        if h % g or k.shape[0] != b:
            continue
        reading = [
            Reading((View(iq, order), View(ik, order), view), h, g, q.shape[-1], e)
            for view, e in _values_beside(iv, v, order, b, g, s)
        ]
        yield Geometry(b, t, s, "bthd"), reading


def _values_beside(
    i: int, v: Tensor, order: str, b: int, g: int, s: int
) -> Iterator[tuple[View, int]]:
    """Values for g heads of s keys: in the same order, as (b, s, g·e), or the last of a fusion."""
    if v.numel() % (b * s * g):
        return
    e = v.numel() // (b * s * g)
    yield View(i, order if v.ndim == 4 else "bthd"), e
    for parts in (2, 3):
        if v.ndim == 3 and e % parts == 0:
            n = v.shape[-1] // parts
            yield View(i, "bthd", n * (parts - 1), n * parts), e // parts
            yield View(i, "bthxd", part=parts - 1, parts=parts), e // parts


def _rows(x: Tensor, order: str, b: int) -> int | None:
    """The number of positions in a source, None if the order does not fit."""
    if order == "bhdt":
        return x[0, 0].numel() if x.ndim >= 3 and x.shape[0] == b else None
    rows = x.numel() // x.shape[-1]
    if rows % b:
        return None
    axis = 0 if order[0] == "b" else 1
    if x.ndim == 3 and x.shape[axis] != b:
        return None
    return rows // b


def _last(x: Tensor, order: str) -> tuple[int, ...]:
    """The shape with the width last."""
    return (
        (*x.shape[:-1], x.shape[-1])
        if order != "bhdt"
        else (x.shape[0], x[0, 0].numel(), x.shape[1])
    )


def _heads(subject: Subject, core: Core, b: int, width: int) -> list[int]:
    """Numbers of heads to try, the likeliest first."""
    seen = [core.batches // b] if core.batches and core.batches % b == 0 else []
    some = [*seen, *subject.heads] or [1, 2, 4, 8, 3, 6, 12, 16]
    return [h for h in dict.fromkeys(some) if h and h <= width]


def given_heads(
    sources: Mapping[int, Tensor], iq: int, ik: int, iv: int
) -> Iterator[tuple[Geometry, list[Reading]]]:
    """Readings of q, k and v that are passed, heads apart or not."""
    q, k, v = (sources[i] for i in (iq, ik, iv))
    if q.ndim == 4:
        for order in ("bhtd", "bthd"):
            at = {c: order.index(c) for c in "bht"}
            h, t, d = q.shape[at["h"]], q.shape[at["t"]], q.shape[-1]
            g, s = k.shape[at["h"]], k.shape[at["t"]]
            if k.shape[-1] != d or v.shape[at["t"]] != s or h % max(g, 1) or v.shape[at["h"]] != g:
                continue
            views = (View(i, order) for i in (iq, ik, iv))
            reading = Reading(tuple(views), h, g, d, v.shape[-1], "heads apart")
            yield Geometry(q.shape[0], t, s, order), [reading]
    elif q.ndim in (2, 3):
        b = q.shape[0] if q.ndim == 3 else 1
        views = (View(i, "bthd") for i in (iq, ik, iv))
        if k.shape[-1] == q.shape[-1] and k.shape[-2] == v.shape[-2]:
            reading = Reading(tuple(views), 1, 1, q.shape[-1], v.shape[-1], "heads apart")
            yield Geometry(b, q.shape[-2], k.shape[-2], "bthd"), [reading]
