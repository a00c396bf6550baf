"""Bad input loses nothing: a cache is as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import intently as it
from intently.errors import ArgumentError, KindError
from intently.modules import FixedCache, KeyValueCache, WindowCache

from ..messages import refused
from .test_cache_kinds import D, T, close, layer, stepped, x


def unchanged(cache: Any, call: Callable[[], object], kind: type[Exception], text: str) -> None:
    names = ("length", "lengths", "_first", "_last", "_held")
    before = {name: getattr(cache, name, None) for name in names}
    k, v, history = cache._k.clone(), cache._v.clone(), len(cache.history)
    refused(call, kind, text)
    assert {name: getattr(cache, name, None) for name in names} == before
    assert torch.equal(cache._k, k) and torch.equal(cache._v, v) and len(cache.history) == history


@pytest.mark.usefixtures("as_users_call")
class TestBadInputLosesNothing:
    @torch.no_grad()
    @pytest.mark.parametrize("make", [KeyValueCache, WindowCache])
    def test_another_batch_dtype_or_device(self, make: Any) -> None:
        cache = make(30, keep_queries=True)
        attend = layer()
        attend(x(), mask=it.causal(), cache=cache)
        unchanged(
            cache,
            lambda: attend(x(3, 1), mask=it.causal(), cache=cache),
            ArgumentError,
            "k: expected keys (b, g, n, d) that continue (2, 3, ",
        )
        unchanged(
            cache,
            lambda: layer().float()(x(2, 1).float(), mask=it.causal(), cache=cache),
            KindError,
            "k: expected torch.float64 on cpu, as the cache holds; got torch.float32 on "
            "cpu. Make a new cache after .to(…).",
        )
        unchanged(
            cache,
            lambda: layer().to("meta")(x(2, 1).to("meta"), mask=it.causal(), cache=cache),
            KindError,
            "k: expected torch.float64 on cpu, as the cache holds; got torch.float64 on",
        )
        unchanged(
            cache,
            lambda: layer(head_widths=(D, 2))(x(2, 1), mask=it.causal(), cache=cache),
            ArgumentError,
            "v: expected values (b, g, n, e) that continue (2, 3, ",
        )

    @torch.no_grad()
    def test_a_context_of_another_batch_or_dtype(self) -> None:
        attend, cache = layer(), FixedCache(keep_queries=True)
        attend(x(), x(t=5), cache=cache)
        kept = cache.kv
        for call, kind, text in (
            (
                lambda: attend(x(1), cache=cache),
                ArgumentError,
                "cache: expected keys (b=1, g=3, s, d=4) and values of e=4; got shape (2, 3, 5, 4) "
                "and shape (2, 3, 5, 4). It belongs to another batch or module.",
            ),
            (
                lambda: layer().float()(x().float(), cache=cache),
                KindError,
                "cache: expected torch.float32 on cpu, as the layer's weights; got torch.float64",
            ),
            (
                lambda: layer("turned")(x(), cache=cache),
                ArgumentError,
                "cache: expected a KeyValueCache or WindowCache; got a FixedCache. Positions turn",
            ),
        ):
            refused(call, kind, text)
            assert cache.kv is kept and len(cache.history) == 1

    @torch.no_grad()
    def test_more_than_fits(self) -> None:
        attend, cache = layer(), KeyValueCache(T)
        attend(x(), mask=it.causal(), cache=cache)
        unchanged(
            cache,
            lambda: attend(x(2, 1), mask=it.causal(), cache=cache),
            ArgumentError,
            "cache: expected at most size=13 steps; got 14. Make it larger, or leave size out",
        )

    @torch.no_grad()
    def test_cropping_to_what_there_is_not(self) -> None:
        attend, cache = layer(), KeyValueCache()
        attend(x(), mask=it.causal(), cache=cache)
        for length, text in (
            (14, "length: expected at most the steps there are, [13, 13]; got [14, 14]."),
            (-1, "length: expected at most the steps there are, [13, 13]; got [-1, -1]."),
            (torch.tensor([3]), "length: expected an int, or shape (b=2,); got shape (1,)."),
            (torch.tensor([3, 14]), "length: expected at most the steps there are, [13, 13]; got"),
        ):
            unchanged(cache, lambda n=length: cache.crop(n), ArgumentError, text)
        with pytest.raises(KindError, match="length: expected integers; got dtype"):
            cache.crop(torch.ones(2))

    @torch.no_grad()
    def test_cropping_a_window_to_what_it_has_forgotten(self) -> None:
        attend, cache = layer(), WindowCache(4, 1)
        stepped(attend, x(), [8, 5], cache, it.causal())
        unchanged(
            cache,
            lambda: cache.crop(torch.tensor([13, 7])),
            ArgumentError,
            "length: expected at least [8, 8] steps, or at most sinks=1; got [13, 7]. The keys of "
            "the window before them are forgotten. Crop before the text goes on, or make",
        )
        unchanged(
            cache,
            lambda: cache.crop(14),
            ArgumentError,
            "length: expected at most the steps there are, [13, 13]; got [14, 14].",
        )
        cache.crop(torch.tensor([8, 1]))
        for row, whole in ((0, x()[:1, :8]), (1, x()[1:, :1])):
            again = WindowCache(4, 1)
            attend(whole, mask=it.causal(), cache=again)
            twin = WindowCache(4, 1)
            stepped(attend, x(), [8, 5], twin, it.causal())
            twin.crop(torch.tensor([8, 1]))
            found = attend(x(2, 1, 1), mask=it.causal(), cache=twin)[row]
            close(found, attend(x(2, 1, 1)[row : row + 1], mask=it.causal(), cache=again)[0])

    def test_sizes(self) -> None:
        with pytest.raises(ArgumentError, match="size: expected an int ≥ 1; got 0"):
            KeyValueCache(0)
        with pytest.raises(ArgumentError, match="window: expected an int ≥ 1; got 0"):
            WindowCache(0)
        with pytest.raises(ArgumentError, match="sinks: expected an int ≥ 0; got -1"):
            WindowCache(3, -1)

    @torch.no_grad()
    def test_a_mask_that_does_not_fit_the_window(self) -> None:
        attend, cache = layer(), WindowCache(4, 1)
        attend(x(), mask=it.causal(), cache=cache)
        unchanged(
            cache,
            lambda: attend(x(2, 1), mask=torch.ones(1, 5) > 0, cache=cache),
            ArgumentError,
            "mask: expected a shape that broadcasts to (…, t, s) = (2, 3, 1, 14); got shape (1, 5)",
        )
