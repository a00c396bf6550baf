"""The calls of one attention in a run, such as the steps of a cache, taken together."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from intently.checker.computing.tracing import Core, Found


@dataclass(frozen=True)
class Group:
    """An attention over a whole run: the calls of one core, one for each step of a cache.

    ``q``, ``k``, ``v`` are the numbers of the sources in order, ``ends`` those at whose entries the
    output stands; none of those if it is what comes out.
    """

    where: str
    cores: tuple[Core, ...]
    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    ends: tuple[int, ...]


def groups_of(found: Found) -> list[Group]:
    """The cores of a run, those with the same parameters together."""
    by_weights: dict[tuple[frozenset[str], ...], list[Core]] = {}
    for core in found.cores:
        names = tuple(
            frozenset(found.sources[i].weight for i in x)
            for x in (core.left, core.right, core.values)
        )
        by_weights.setdefault(names, []).append(core)
    out = []
    for n, cores in enumerate(by_weights.values()):
        q, k, v = (
            tuple(sorted(frozenset().union(*(getattr(c, side) for c in cores))))
            for side in ("left", "right", "values")
        )
        ends = tuple(c.end for c in cores if c.end is not None)
        out.append(Group(_where(found, cores[0], n), tuple(cores), q, k, v, ends))
    return out


def _where(found: Found, core: Core, n: int) -> str:
    names = [found.sources[i].weight for i in sorted(core.left | core.right | core.values)]
    parts = [name.split(".") for name in dict.fromkeys(names)]
    common = [x[0] for x in itertools.takewhile(lambda x: len(set(x)) == 1, zip(*parts))]
    if len(parts) == 1:
        common = parts[0][:-2]
    return ".".join(common) if common and found.sources else f"attention {n}"


def entering(found: Found, group: Group) -> tuple[int, ...]:
    """The width of what queries are projected from."""
    entry = found.sources[group.q[0]].entry
    if entry is None or entry.ndim < 2:
        return ()
    return (entry.shape[1 if entry.ndim == 4 else -1],)


def gathered(parts: list[Tensor], b: int) -> Tensor | None:
    """The tensors of several steps as one (b, t, n); a single one stays as it is."""
    if len(parts) == 1:
        return parts[0]
    if any(x.numel() % (b * x.shape[-1]) for x in parts):
        return None
    return torch.cat([x.reshape(b, -1, x.shape[-1]) for x in parts], 1)


def scattered(x: Tensor, parts: list[Tensor], b: int) -> list[Tensor]:
    """The opposite: (b, t, n) as tensors like ``parts``."""
    if len(parts) == 1:
        return [x]
    steps = [p.numel() // (b * p.shape[-1]) for p in parts]
    return [y.reshape(p.shape) for y, p in zip(x.split(steps, 1), parts)]
