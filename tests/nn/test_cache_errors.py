"""Bad input loses nothing: a cache is as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import intently as it
from intently.errors import ArgumentError, KindError
from intently.nn import FixedCache, KeyValueCache, WindowCache

from ..messages import raises, refused
from ..tensors import close
from .test_cache_kinds import D, T, layer, stepped, x


def attend(
    cache: Any, steps: Tensor, block: MultiHeadAttention | None = None, **options: Any
) -> Any:
    return (block or layer())(steps, **{"mask": it.causal(), "cache": cache, **options})


CROPPED = "length: expected at most the steps there are, [13, 13]; got"
Case = tuple[Callable[[], Any], Callable[[Any], object], type[Exception], str]
CASES: list[Case] = [
    *(
        (partial(kind_of_cache, 30, keep_queries=True), call, kind, text)
        for kind_of_cache in (KeyValueCache, WindowCache)
        for call, kind, text in (
            (
                lambda cache: attend(cache, x(3, 1)),
                ArgumentError,
                "k: expected keys (b, g, n, d) that continue (2, 3, ",
            ),
            (
                lambda cache: attend(cache, x(2, 1).float(), layer().float()),
                KindError,
                "k: expected torch.float64 on cpu, as the cache holds; got torch.float32 on cpu. "
                "Make a new cache after .to(…).",
            ),
            (
                lambda cache: attend(cache, x(2, 1).to("meta"), layer().to("meta")),
                KindError,
                "k: expected torch.float64 on cpu, as the cache holds; got torch.float64 on",
            ),
            (
                lambda cache: attend(cache, x(2, 1), layer(head_widths=(D, 2))),
                ArgumentError,
                "v: expected values (b, g, n, e) that continue (2, 3, ",
            ),
        )
    ),
    (
        lambda: KeyValueCache(T),
        lambda cache: attend(cache, x(3, 1)),
        ArgumentError,
        "k: expected keys (b, g, n, d) that continue (2, 3, 13, 4); got shape (3, 3, 1, 4). The "
        "cache belongs to another batch or module. Make a new cache, or reorder(…) it to the rows "
        "you continue.",
    ),
    (
        lambda: KeyValueCache(T),
        lambda cache: attend(cache, x(2, 1)),
        ArgumentError,
        "cache: expected at most size=13 steps; got 14. Make it larger, or leave size out",
    ),
    *(
        (KeyValueCache, lambda cache, n=n: cache.crop(n), kind, text)
        for n, kind, text in (
            (14, ArgumentError, f"{CROPPED} [14, 14]."),
            (-1, ArgumentError, f"{CROPPED} [-1, -1]."),
            (
                torch.tensor([3]),
                ArgumentError,
                "length: expected an int, or shape (b=2,); got shape (1,).",
            ),
            (torch.tensor([3, 14]), ArgumentError, CROPPED),
            (torch.ones(2), KindError, "length: expected integers; got dtype"),
        )
    ),
    (
        lambda: WindowCache(4, 1),
        lambda cache: cache.crop(torch.tensor([13, 7])),
        ArgumentError,
        "length: expected at least [8, 8] steps, or at most sinks=1; got [13, 7]. The keys of the "
        "window before them are forgotten. Crop before the text continues, or make",
    ),
    (
        lambda: WindowCache(4, 1),
        lambda cache: cache.crop(14),
        ArgumentError,
        f"{CROPPED} [14, 14].",
    ),
    (
        lambda: WindowCache(4, 1),
        lambda cache: attend(cache, x(2, 1), mask=torch.ones(1, 5) > 0),
        ArgumentError,
        "mask: expected a shape that broadcasts to (…, t, s) = (2, 3, 1, 14); got shape (1, 5)",
    ),
]


@torch.no_grad()
@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(("make", "call", "kind", "text"), CASES, ids=[c[3][:40] for c in CASES])
def test_a_refused_call_changes_nothing(make: Any, call: Any, kind: Any, text: str) -> None:
    block, cache = layer(), make()
    stepped(block, x(), [8, 5], cache, it.causal())
    before = copy.deepcopy(cache)
    refused(lambda: call(cache), kind, text)
    assert cache.length == before.length == T and len(cache.history) == len(before.history)
    for each in (cache, before):
        each.crop(T - 1)
    assert torch.equal(*(attend(each, x(2, 1), block) for each in (cache, before)))


@torch.no_grad()
@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("steps", "block", "kind", "text"),
    [
        (
            x(1),
            layer(),
            ArgumentError,
            "cache: expected keys (b=1, g=3, s, d=4) and values of e=4; got shape (2, 3, 5, 4) "
            "and shape (2, 3, 5, 4). It belongs to another batch or module.",
        ),
        (
            x().float(),
            layer().float(),
            KindError,
            "cache: expected torch.float32 on cpu, as the layer's weights; got torch.float64",
        ),
        (
            x(),
            layer("turned"),
            ArgumentError,
            "cache: expected a KeyValueCache or WindowCache; got a FixedCache. Positions rotate",
        ),
    ],
    ids=["another batch", "another dtype", "positions"],
)
def test_a_context_of_another_kind(steps: Tensor, block: Any, kind: Any, text: str) -> None:
    cache = FixedCache(keep_queries=True)
    layer()(x(), x(t=5), cache=cache)
    kept = cache.kv
    refused(lambda: block(steps, cache=cache), kind, text)
    assert cache.kv is kept and len(cache.history) == 1


@torch.no_grad()
def test_a_window_is_cropped_to_what_it_holds() -> None:
    block, cache = layer(), WindowCache(4, 1)
    stepped(block, x(), [8, 5], cache, it.causal())
    cache.crop(torch.tensor([8, 1]))
    found = attend(cache, x(2, 1, 1), block)
    for row, n in enumerate((8, 1)):
        again = WindowCache(4, 1)
        attend(again, x()[row : row + 1, :n], block)
        close(found[row : row + 1], attend(again, x(2, 1, 1)[row : row + 1], block))


test_sizes = raises(
    {
        ArgumentError: {
            "size: expected an int ≥ 1; got 0": lambda: KeyValueCache(0),
            "window: expected an int ≥ 1; got 0": lambda: WindowCache(0),
            "sinks: expected an int ≥ 0; got -1": lambda: WindowCache(3, -1),
        }
    }
)
