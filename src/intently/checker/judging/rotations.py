"""Rotary positions, read from the maps that gradients show, and the ways in which they go wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from intently.checker.measuring.attention import Attention
from intently.checker.measuring.flow import Operand
from intently.checker.report.finding import Finding

CLOSE = 1e-5
BACKWARDS = "turned backwards"


@dataclass
class Turned:
    """How an operand is rotated: angles (n, d), by the row of the map, of ``width`` numbers."""

    pairs: str
    width: int
    angles: Tensor
    places: list[int]
    whole: bool
    """Whether both numbers of a pair have the same angle."""

    @property
    def steps(self) -> Tensor:
        """The angle (d,) between one position and the next."""
        n = self.places[1] - self.places[0]
        return _wrapped(self.angles[1] - self.angles[0]) / n

    @property
    def base(self) -> float | None:
        """The base of the rates, None if they are no powers of one."""
        rates = self.steps.abs()
        half = self.width // 2
        own = rates[:half] if self.pairs == "halves" else rates[: self.width : 2]
        if half < 2 or not float(own.min()) > 0:
            return None
        logs = own.log()
        step = float(logs[1] - logs[0])
        if float((logs.diff() - step).abs().max()) > 1e-3 * abs(step):
            return None
        return math.exp(-step * half)


def turned(x: Operand, head: int = 0) -> Turned | None:
    """How an operand is rotated; None if it is not."""
    if not x.maps or x.factor is None or not x.constant or len(x.places) < 2:
        return None
    m = x.maps[head] / x.factor
    d = m.shape[-2]
    if m.shape[-1] != d:
        return None
    off = m.abs().amax(0)
    off = off - torch.diag(torch.diagonal(off))
    partner = torch.where(off.amax(-1) > 1e-9, off.argmax(-1), torch.arange(d))
    width = int((partner != torch.arange(d)).sum())
    if width < 2 or float((m.norm(dim=-1) - 1).abs().max()) > CLOSE:
        return None
    near = torch.arange(d) ^ 1
    used = (partner != torch.arange(d)).nonzero()[:, 0]
    if bool((partner[used] == near[used]).all()):
        pairs = "pairs"
        first = used % 2 == 0
    else:
        steps = (partner[used] - used).abs()
        if not bool((steps == steps[0]).all()):
            return None
        pairs = "halves"
        first = partner[used] > used
    sign = torch.where(first, -1.0, 1.0).to(m.dtype)
    angles = torch.zeros(len(m), d, dtype=m.dtype)
    rows = m[:, used, :]
    own = rows.gather(-1, used[None, :, None].expand(len(m), -1, 1))[..., 0]
    beside = rows.gather(-1, partner[used][None, :, None].expand(len(m), -1, 1))[..., 0]
    angles[:, used] = torch.atan2(sign * beside, own)
    whole = float(_wrapped(angles[:, used] - angles[:, partner[used]]).abs().max()) < 1e-4
    return Turned(pairs, width, angles[:, used], x.places, whole)


def _wrapped(x: Tensor) -> Tensor:
    return torch.remainder(x + math.pi, 2 * math.pi) - math.pi


def rotation_findings(a: Attention) -> list[Finding]:
    """What is wrong with the rotation of queries and keys; notes it in words, too."""
    if a.q is None or a.k is None:
        return []
    found: list[Finding] = []
    q, k, v = (turned(x) or (turned(x, -1) if x.maps else None) for x in (a.q, a.k, a.v))
    if v is not None and not _turned_back(a):
        said = f"values are rotated by their positions, in {v.pairs}"
        found.append(Finding("values-rotated", said, where=a.where))
    some = q or k
    if some is None:
        return found
    d = a.width
    base = some.base
    told = f"rotary in {some.pairs}, " + (f"base {base:.6g}" if base else "by its own rates")
    a.rotation = told + (f", {some.width} of {d}" if some.width < d else "")
    if float(some.steps[0]) < 0:
        a.rotation += f", {BACKWARDS}"
    where = a.where
    still = float(some.steps.abs().max()) < 1e-9
    own = a.q if q is some else a.k
    last, first = turned(own, -1), turned(own)
    differ = last is not None and (
        first is None or float((last.angles - first.angles).abs().max()) > 1e-6
    )
    if still and differ:
        said = "rotary positions: angles grow with heads, not with positions"
        return [*found, Finding("rotary-over-heads", said, where=where)]
    if still and float(some.angles.abs().max()) < 1e-9:
        return found
    if k is not None and a.weights.shape[-2] == 1 and a.q.maps and a.q.factor:
        return [*found, *_one_query(a, k)]
    if q is None or k is None:
        t, s = a.weights.shape[-2:]
        if t != s or a.q.inputs_apart != a.k.inputs_apart or not (a.q.maps and a.k.maps):
            return found  # keys of a cache, say
        if (a.k if k is None else a.q).constant:
            said = f"rotary positions: {'keys' if k is None else 'queries'} are not rotated"
            found.append(Finding("keys-not-rotated", said, where=where))
        return found
    if not (q.whole and k.whole):
        kind = "neighbours on halves" if some.pairs == "halves" else "halves on neighbours"
        said = f"rotary positions: angles of {kind}"
        return [*found, Finding("rotary-pairs", said, where=where)]
    if q.pairs != k.pairs or q.width != k.width:
        said = f"rotary positions: queries are rotated in {q.pairs}, keys in {k.pairs}"
        return [*found, Finding("rotary-pairs", said, where=where)]
    return [*found, *_offsets(a, q, k)]


def _turned_back(a: Attention) -> bool:
    """Whether each entry that comes out undoes the rotation of its query's own value."""
    made = {} if a.after is None or not a.v.maps else a.after.made_of
    maps = dict(zip(a.v.places, a.v.maps[0])) if made else {}
    some = [(x @ maps[i]).abs() for (_, h, i, _), x in made.items() if h == 0 and i in maps]
    return bool(some) and all(float(x.sum() - x.max()) < 1e-6 * float(x.max()) for x in some)


def _one_query(a: Attention, k: Turned) -> list[Finding]:
    """Whether one query is turned as the last key, and keys by one step after the other."""
    assert a.q is not None and a.q.factor is not None
    s, steps = a.weights.shape[-1], _wrapped(k.angles.diff(dim=0))
    still = float((a.q.maps[0][0] / a.q.factor - torch.eye(a.width)).abs().max()) < 1e-6
    said, name, kind = "", "rotation-offset-lost", "mistake"
    if still and float(_wrapped(k.angles[0] + k.steps * (s - 1 - k.places[0])).abs().max()) > 1e-4:
        said = "a query beside keys before it is at position 0"
    elif k.places == list(range(s)) and len(steps) > 1 and float(steps[1:].abs().max()) < 1e-4:
        said = "keys of different positions are turned alike"
    elif k.places == list(range(s)) and float(_wrapped(steps - steps[0]).abs().max()) > 1e-4:
        said, name, kind = "positions jump from one key to the next", "rotation-other", "hazard"
    return [Finding(name, f"rotary positions: {said}", kind, a.where)] if said else []


def _offsets(a: Attention, q: Turned, k: Turned) -> list[Finding]:
    t, s = a.weights.shape[-2:]
    steps = k.steps
    if s != t and a.q is not None and a.q.name and not a.inputs["q"] <= a.inputs["k"]:
        return []  # positions in two sequences
    if float((q.steps - steps).abs().max()) > 1e-5:
        if float((q.steps + steps).abs().max()) < 1e-5:
            said = "rotary positions: queries are turned one way, keys the other"
            return [Finding("rotary-direction", said, where=a.where)]
        said = "rotary positions: the angles of queries grow otherwise than those of keys"
        return [Finding("rotation-other", said, where=a.where)]
    ahead = q.places[0] + (s - t) - k.places[0]
    off = _wrapped(q.angles[0] - k.angles[0] - ahead * steps)
    if float(off.abs().max()) < 1e-4:
        return []
    for by, word in ((1, "ahead"), (-1, "behind")):
        if float(_wrapped(off - by * steps).abs().max()) < 1e-4:
            said = f"rotary positions: queries one step {word}"
            return [Finding("rotation-off-by-one", said, where=a.where)]
    if (
        s != t
        and float(_wrapped(q.angles[0] - k.angles[0] - (ahead - (s - t)) * steps).abs().max())
        < 1e-4
    ):
        said = "rotary positions: queries begin at position 0 beside more keys"
        return [Finding("rotation-offset-lost", said, where=a.where)]
    said = "rotary positions: queries and keys of the same position are turned by other angles"
    return [Finding("rotation-other", said, where=a.where)]
