"""Chosen combinations leave no pair, and no value, out."""

from __future__ import annotations

from itertools import combinations, product

from .combinations import each, pairs

FACTORS = {"a": "uvwx", "b, c": [(1, 2), (3, 4), (5, 6)], "d": [True, False]}


def test_any_two_values_meet_in_pairs() -> None:
    rows = pairs(FACTORS).args[1]
    assert pairs(FACTORS).args[0] == ["a", "b", "c", "d"] and len(rows) == 4 * 3
    whole = [(a, bc, d) for a, *bc, d in rows]
    values = [list("uvwx"), [[1, 2], [3, 4], [5, 6]], [True, False]]
    for i, j in combinations(range(3), 2):
        met = [(row[i], row[j]) for row in whole]
        assert all(pair in met for pair in product(values[i], values[j]))


def test_every_value_comes_in_each() -> None:
    rows = each({"a": "uvwx", "b": [1, 2]}, times=2).args[1]
    assert [row[0] for row in rows] == [*"uvwxuvwx"]
    assert all({row[1] for row in rows if row[0] == a} == {1, 2} for a in "uvwx")
