"""Which combinations of factors a test runs: all pairs of values, or each value.

Most faults show under one value or under one pair of values; larger combinations repeat them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest
import torch

Factors = Mapping[str, Iterable[Any]]
"""The name of an argument, or of several (``"t, s"``), and its values."""


def pairs(factors: Factors, indirect: Sequence[str] = ()) -> Any:
    """Parametrise a test so that any two values of two factors meet in one of its items."""
    values = [list(x) for x in factors.values()]
    left = {
        ((one, i), (other, j))
        for one, other in combinations(range(len(values)), 2)
        for i, j in product(range(len(values[one])), range(len(values[other])))
    }
    rows = []
    while left:
        row = dict(min(left))
        for factor in range(len(values)):
            if factor not in row:
                row[factor] = max(
                    range(len(values[factor])), key=lambda i: len(left & _pairs({**row, factor: i}))
                )
        left -= _pairs(row)
        rows.append([values[factor][row[factor]] for factor in range(len(values))])
    return _marked(factors, rows, indirect)


def each(factors: Factors, times: int = 1, indirect: Sequence[str] = ()) -> Any:
    """Parametrise a test with every value of every factor, for factors that hardly interact.

    Each value of the longest factor comes ``times`` times, beside another value of the others. Of
    three factors, the lengths share no divisor, or the shorter two go in step.
    """
    values = [list(x) for x in factors.values()]
    most = max(map(len, values))
    rows = [
        [x[(n + turn * (len(x) < most)) % len(x)] for x in values]
        for turn in range(times)
        for n in range(most)
    ]
    return _marked(factors, rows, indirect)


def _pairs(row: Mapping[int, int]) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    places = sorted(row.items())
    return set(combinations(places, 2))


def _marked(factors: Factors, rows: list[list[Any]], indirect: Sequence[str]) -> Any:
    names = [key.split(", ") for key in factors]
    flat = [
        [x for key, value in zip(names, row) for x in (several(value) if len(key) > 1 else [value])]
        for row in rows
    ]
    every = [name for key in names for name in key]
    return pytest.mark.parametrize(every, flat, ids=_named, indirect=list(indirect))


def several(value: Any) -> Sequence[Any]:
    """The values of several arguments, also of a ``pytest.param``."""
    return value.values if isinstance(value, type(pytest.param())) else value


def _named(value: Any) -> str | None:
    return str(value) if isinstance(value, torch.dtype | tuple | list | dict) else None
