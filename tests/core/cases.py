"""Matrices of every kind, drawn by hypothesis, each beside its weights in NumPy and float64.

`cases` draws what attention is made of (shapes, shared heads, masks of all families and of one row,
biases, scales, softcap, sinks), poisons queries with NaN and unseen keys with NaN and ∞, and
takes indices and views of views. Beside each lazy matrix goes the same in NumPy: from
`intently.reference` and masks written out by hand, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

import intently as it
from intently import reference
from intently.core.matrix.weighted import by_value_norm

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rule = tuple[it.Mask, Bools]
"""A mask, and the same written out, broadcastable to (…, t, s)."""
Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass
class Case:
    """A lazy matrix, its weights (…, t, s), and which entries its mask allows."""

    matrix: it.LazyMatrix
    weights: Floats
    allow: Bools
    unknown: Bools
    """Rows (…, t) whose product a query of NaN may reach."""


@st.composite
def cases(draw: Draw) -> Case:
    """Draw a matrix: attention, then indices and views, up to two of each."""
    lead = draw(st.sampled_from([(), (1,), (3,), (2, 4), (1, 2), (3, 1), (2, 1, 2)]))
    case = draw(attentions(lead))
    for _ in range(draw(st.integers(0, 2))):
        case = draw(indexed(case))
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        case = draw(views(case, lead))
    return draw(indexed(case)) if draw(st.booleans()) else case


@st.composite
def attentions(draw: Draw, lead: tuple[int, ...]) -> Case:
    """Draw ``attend(q, k, …)`` with leading axes ``lead``."""
    t, s, d = (draw(st.integers(1, n)) for n in (6, 7, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    h = lead[-1] if lead else 1
    shared = draw(st.sampled_from([g for g in (1, 2, h) if h % g == 0])) if len(lead) > 1 else h
    q = rng.normal(size=(*lead, t, d)) * 2
    k = rng.normal(size=(*lead[:-1], *([shared] if lead else []), s, d))
    rule = draw(st.none() | rules(lead, t, s))
    allow = (
        np.ones((*lead, t, s), bool) if rule is None else np.broadcast_to(rule[1], (*lead, t, s))
    )
    if draw(st.booleans()):
        q[..., draw(st.integers(0, t - 1)), 0] = np.nan
    if draw(st.booleans()):
        seen = allow.any(-2).reshape(*lead[:-1], shared, -1, s).any(-2) if lead else allow.any(-2)
        k[~seen] = draw(st.sampled_from([np.nan, np.inf]))
    options = draw(extras(lead, t, s))
    as_numpy = {
        name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in options.items()
    }
    weights = reference.weights(q, k, mask=allow, **as_numpy)
    mask = None if rule is None else rule[0]
    A = it.attend(torch.tensor(q), torch.tensor(k), mask=mask, **options)
    weights = np.where(allow, weights, 0)
    return Case(A, weights, allow, np.isnan(weights).any(-1))


@st.composite
def rules(draw: Draw, lead: tuple[int, ...], t: int, s: int, deep: bool = True) -> Rule:
    """Draw a mask for a matrix (*lead, t, s), alone or joined with another."""
    if deep and draw(st.booleans()):
        one, other = (draw(rules(lead, t, s, False)) for _ in range(2))
        join = draw(st.sampled_from(["&", "|", "~", "& ~"]))
        if join == "~":
            return ~one[0], ~one[1]
        if join == "|":
            return one[0] | other[0], one[1] | other[1]
        return (
            (one[0] & other[0], one[1] & other[1])
            if join == "&"
            else (one[0] & ~other[0], one[1] & ~other[1])
        )
    i, j = np.arange(t)[:, None], np.arange(s)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def number(least: int, most: int) -> tuple[Any, Any]:
        """One int, or one for each index of the first leading axis."""
        if lead and draw(st.booleans()):
            each = rng.integers(least, most + 1, lead[0])
            return torch.tensor(each), each.reshape(-1, *(1,) * (len(lead) + 1))
        n = draw(st.integers(least, most))
        return n, n

    kind = draw(st.sampled_from(KINDS))
    if kind in ("causal", "window", "dilated"):
        offset, at = number(-2, s) if draw(st.booleans()) else (None, s - t)
        apart = j - i - at
        if kind == "causal":
            return it.causal(offset), apart <= 0
        before, after = draw(st.integers(0, 3)), draw(st.integers(0, 2))
        if kind == "window":
            return it.window(before, after, offset), (apart >= -before) & (apart <= after)
        return it.dilated(before + 1, offset), apart % (before + 1) == 0
    if kind == "prefix":
        n, each = number(0, s + 1)
        return it.prefix(n), j[None] < each
    if kind == "padding":
        lengths = rng.integers(0, s + 1, lead[:1])
        return it.padding(torch.tensor(lengths)), j[None] < lengths.reshape(
            *lead[:1], *(1,) * (max(1, len(lead)) + 1)
        )
    if kind == "segments":
        ids = rng.integers(0, 3, t), rng.integers(0, 3, s)
        return it.segments(*map(torch.tensor, ids)), ids[0][:, None] == ids[1]
    shape = draw(st.sampled_from([(t, s), (1, s), (t, 1), (*lead, t, s), (*lead, 1, s)]))
    free = rng.random(shape) < 0.6
    return it.allowed(torch.tensor(free)), free


KINDS = ("causal", "window", "dilated", "prefix", "padding", "segments", "allowed", "allowed")


@st.composite
def extras(draw: Draw, lead: tuple[int, ...], t: int, s: int) -> dict[str, Any]:
    """Draw bias, scale, softcap and sinks, each of them or none."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    h = lead[-1:]

    def tensor(*shapes: tuple[int, ...]) -> torch.Tensor:
        return torch.tensor(rng.normal(size=draw(st.sampled_from(shapes))))

    found: dict[str, Any] = {}
    if draw(st.booleans()):
        found["sinks"] = tensor((), h)
    if draw(st.booleans()):
        found["softcap"] = 2.0
    if draw(st.booleans()):
        found["scale"] = draw(st.sampled_from([0.7, tensor((), (*h, 1, 1))]))
    if draw(st.booleans()):
        found["bias"] = draw(
            st.sampled_from([tensor((t, s), (s,), (*h, 1, s), (*lead, t, s)), it.alibi()])
        )
    return found


@st.composite
def indexed(draw: Draw, case: Case) -> Case:
    """Draw an index of the leading axes: ints, slices (empty ones too) and lists."""
    lead = case.weights.shape[:-2]
    index: list[Any] = []
    for size in lead[: draw(st.integers(0, len(lead)))]:
        kinds: list[Any] = [
            slice(None),
            slice(0, 0),
            slice(size, None),
            slice(None, None, 2),
            slice(1, None),
            slice(-1, None),
        ]
        if size:
            kinds += [draw(st.integers(-size, size - 1)), [size - 1, 0]]
        index.append(draw(st.sampled_from(kinds)))
    if not index:
        return case
    if sum(isinstance(i, list) for i in index) == 1 and any(isinstance(i, int) for i in index):
        index = [slice(i, i + 1 or None) if isinstance(i, int) else i for i in index]
    at = (*index, ...)
    parts = (x[at] for x in (case.weights, case.allow, case.unknown[..., None]))
    weights, allow, unknown = parts
    return Case(case.matrix[at], weights, allow, unknown[..., 0])


@st.composite
def views(draw: Draw, case: Case, lead: tuple[int, ...]) -> Case:
    """Draw a view of a matrix."""
    A, w, allow, unknown = case.matrix, case.weights, case.allow, case.unknown
    t, s = w.shape[-2:]
    kinds = ["transposed", "merged", "dense", "by value norm", "label"]
    kinds += ["mean"] * (w.ndim > 2) + ["stacked"] * (w.shape[:-2] == lead)
    kind = draw(st.sampled_from(kinds))
    if kind == "transposed":
        some = np.full((*w.shape[:-2], s), unknown.any())
        return Case(A.mT, w.swapaxes(-1, -2), allow.swapaxes(-1, -2), some)
    if kind == "mean":
        some = w.shape[-3]
        mean = w.sum(-3) / some if some else w.sum(-3) * np.nan
        return Case(A.mean_heads(), mean, allow.any(-3), unknown.any(-2))
    if kind == "dense":
        return Case(it.Dense(A.dense()), w, np.ones_like(allow), unknown)
    if kind == "label":
        labels = [f"q{i}" for i in range(t)], [f"k{j}" for j in range(s)]
        return Case(A.label(*labels), w, allow, unknown)
    if kind == "by value norm":
        v = np.random.default_rng(s).normal(size=(s, 2))
        norms = np.linalg.norm(v, axis=-1)
        return Case(by_value_norm(A, torch.tensor(v)), w * norms, allow, unknown)
    if kind == "stacked":
        other = draw(attentions(lead))
        both = [case, other][:: draw(st.sampled_from([1, -1]))]
        wide = max(c.weights.shape[-1] for c in both)
        pads = [[(0, 0)] * (len(lead) + 1) + [(0, wide - c.weights.shape[-1])] for c in both]
        return Case(
            it.stack_rows([c.matrix for c in both]),
            np.concatenate([np.pad(c.weights, p) for c, p in zip(both, pads)], -2),
            np.concatenate([np.pad(c.allow, p) for c, p in zip(both, pads)], -2),
            np.concatenate([c.unknown for c in both], -1),
        )
    words = [
        draw(st.lists(st.lists(st.integers(0, n - 1), max_size=3, unique=True), max_size=4))
        if n
        else [[]]
        for n in (t, s)
    ]
    shape = (*w.shape[:-2], *map(len, words))
    merged, seen = np.zeros(shape), np.zeros(shape, bool)
    for r, rows in enumerate(words[0]):
        for c, cols in enumerate(words[1]):
            part = w[..., rows, :][..., cols].sum(-1)
            merged[..., r, c] = part.mean(-1) if rows else 0
            seen[..., r, c] = allow[..., rows, :][..., cols].any((-1, -2))
    some = [unknown[..., rows].any(-1) for rows in words[0]] or [unknown[..., :0].any(-1)]
    joined = np.stack(some, -1)[..., : len(words[0])]
    return Case(it.Merged(A, *words), merged, seen, joined)
