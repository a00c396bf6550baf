"""Caches lose nothing: calls that raise, gradients, inference mode, copies, bad arguments."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intently as it
from intently.errors import ArgumentError, KernelError, KindError
from intently.nn import (
    AttentionHead,
    AttentionOptions,
    DecoderLayer,
    FixedCache,
    KeyValueCache,
    MultiHeadAttention,
    WindowCache,
)
from intently.nn.caches.key_value import AsBefore
from intently.nn.models.language import LanguageModel, LanguageOptions

from ..combinations import each, pairs
from ..messages import refused
from ..tensors import close
from .test_cache_kinds import C, H, layer, stepped, x

MAKES: dict[str, Callable[[], Any]] = {
    "growing": lambda: KeyValueCache(keep_queries=True),
    "sized": lambda: KeyValueCache(40, keep_queries=True),
    "window": lambda: WindowCache(4, keep_queries=True),
    "sinks": lambda: WindowCache(4, 2, keep_queries=True),
    "three sinks": lambda: WindowCache(3, 3, keep_queries=True),
}


def broken(block: MultiHeadAttention, how: str) -> Callable[[Tensor, Any], Any]:
    """Calls of ``block`` that raise after the cache has taken the steps."""
    if how == "kernel":

        def call(steps: Tensor, cache: Any) -> Any:
            block.attention = AttentionOptions(softcap=3.0)
            with it.kernels.use("torch_fused"):
                return block(steps, cache=cache)

        return call
    if how == "sinks":
        block.sinks = torch.zeros(5).double()
    elif how == "score":
        block.score = it.General(torch.zeros(H, 7, 7).double())
    else:
        block.out_weight = nn.Parameter(torch.zeros(3, 3))
    return lambda steps, cache: block(steps, cache=cache)


@torch.no_grad()
@pairs(
    {
        "how": ["kernel", "sinks", "score", "output"],
        "steps": [1, 3],
        "ragged": [False, True],
        "make": MAKES,
    }
)
def test_a_call_that_raises_changes_nothing(make: str, ragged: bool, steps: int, how: str) -> None:
    attend, then = layer(), x(3, 9, seed=1)
    bad = broken(copy.deepcopy(attend), how)
    cache, twin = MAKES[make](), MAKES[make]()
    lengths = torch.tensor([8, 5, 7])
    for one in (cache, twin):
        attend(x(3, 8), mask=it.causal(), cache=one)
        if ragged:
            one.crop(lengths)
    wild = x(3, steps, seed=2) * torch.tensor([1.0, torch.nan, torch.inf]).double()[:, None, None]
    for part in then.split([2, 1, 1, 5], 1):
        with pytest.raises((KernelError, ArgumentError, RuntimeError)):
            bad(wild, cache)
        assert cache.length == twin.length and len(cache.history) == len(twin.history)
        found, expected = (attend(part, mask=it.causal(), cache=c) for c in (cache, twin))
        assert torch.equal(found, expected)


@pytest.mark.usefixtures("as_users_call")
@torch.no_grad()
@pytest.mark.parametrize("make", MAKES)
def test_a_call_that_is_refused_changes_nothing(make: str) -> None:
    attend, cache = layer(), MAKES[make]()
    steps = x()
    attend(steps[:, :3], mask=it.causal(), cache=cache)
    before = attend.attend(steps[:, 3:4], mask=it.causal(), cache=cache)
    biased = copy.deepcopy(attend)
    biased.bias = it.alibi(slopes=torch.ones(H + 1).double())
    bad = [
        {"mask": torch.ones(3, 3) > 0},
        {"mask": it.padding(torch.tensor([1, 2, 3]))},
        {"mask": "causal"},
        {"context": steps},
    ]
    for options in bad:
        with pytest.raises(it.errors.IntentlyError):
            attend(steps[:, 4:5], cache=cache, **options)
        assert cache.length == 4 and len(cache.history) == 2
    with pytest.raises(ArgumentError, match="slopes"):
        biased(steps[:, 4:5], cache=cache)
    with pytest.raises(ArgumentError):
        attend(steps[:1, 4:5], cache=cache)
    assert cache.length == 4 and before.dense().shape[-2] == 1
    twin = MAKES[make]()
    expected = stepped(attend, steps[:, :5], [3, 1, 1], twin, it.causal())[:, 4:]
    close(attend(steps[:, 4:5], mask=it.causal(), cache=cache), expected)


@torch.no_grad()
def test_steps_are_taken_back_after_a_call_that_raised() -> None:
    """What the sinks of a window moved over is there again."""
    attend = layer()
    bad, near = broken(copy.deepcopy(attend), "sinks"), it.prefix(2) | it.window(3, 0)
    cache = WindowCache(4, 2)
    stepped(attend, x()[:, :11], [8, 1, 2], cache, it.causal())
    for _ in range(2):
        with pytest.raises(ArgumentError, match="sinks"):
            bad(x(t=1), cache)
    cache.crop(10)
    found = attend(x()[:, 10:], mask=it.causal(), cache=cache)
    close(found, attend(x(), mask=it.causal() & near)[:, 10:])


@torch.no_grad()
def test_the_first_call_and_a_fixed_context() -> None:
    attend = layer()
    bad = broken(copy.deepcopy(attend), "output")
    cache = KeyValueCache(keep_queries=True)
    with pytest.raises(RuntimeError):
        bad(x(), cache)
    assert cache.length == 0 and not cache.history
    block, fixed = layer(), FixedCache(keep_queries=True)
    block.out_weight = nn.Parameter(torch.zeros(3, 3))
    with pytest.raises(RuntimeError):
        block(x(), x(t=5), cache=fixed)
    assert fixed.kv is None and not fixed.history
    head, own = AttentionHead(C, 4).double(), KeyValueCache()
    head.sinks = torch.zeros(5).double()
    for call in (head, head.attend):
        with pytest.raises(ArgumentError, match="sinks"):
            call(x(), cache=own)
    assert own.length == 0


@torch.no_grad()
def test_models_leave_every_layer_as_it_was() -> None:
    model = LanguageModel(LanguageOptions(9, 8, 2, 3)).eval()
    ids, cache = torch.tensor([[3, 4, 5, 6]]), model.new_cache()
    model(ids[:, :2], cache=cache)
    last: Any = model.decoder[2]
    weight = last.feed_forward.down.weight
    last.feed_forward.down.weight = nn.Parameter(torch.zeros(3, 3))
    with pytest.raises(RuntimeError):
        model(ids[:, 2:], cache=cache)
    assert [one.length for one in cache.layers] == [2, 2, 2]
    last.feed_forward.down.weight = weight
    torch.testing.assert_close(model(ids[:, 2:], cache=cache), model(ids)[:, 2:])


@pytest.mark.parametrize("group", [tuple, list])
def test_all_caches_of_a_group_are_put_back(group: Any) -> None:
    first, last, step = KeyValueCache(), KeyValueCache(), torch.zeros(1, 1, 1, 2)
    with pytest.raises(ZeroDivisionError), AsBefore(group([first, None, last])):
        first.append(step, step), last.append(step, step)
        _ = 1 // 0
    assert first.length == last.length == 0


@each({"chunks": [[13], [3, 1, 1, 8], [1] * 13, [9, 2, 1, 1]], "make": MAKES}, times=2)
def test_gradients_pass_every_cache(make: str, chunks: list[int]) -> None:
    attend, cache, z = layer("turned"), MAKES[make](), x().requires_grad_()
    near = it.causal()
    if isinstance(cache, WindowCache):
        near = near & (it.prefix(cache.sinks) | it.window(cache.window - 1, 0))
    inputs = [z, *attend.parameters()]
    y = stepped(attend, z, chunks, cache, it.causal())
    expected = attend(z, mask=near)
    close(y, expected)
    torch.testing.assert_close(
        torch.autograd.grad(y.square().sum(), inputs),
        torch.autograd.grad(expected.square().sum(), inputs),
        atol=1e-11,
        rtol=1e-10,
    )


@pytest.mark.parametrize("size", [None, 30])
def test_gradients_pass_rows_of_different_length(size: int | None) -> None:
    attend, cache = layer(), KeyValueCache(size)
    prompts, then = x(2, 6).requires_grad_(), x(2, 3, seed=1)
    attend(prompts, mask=it.causal(), cache=cache)
    cache.crop(torch.tensor([6, 3]))
    inputs = [prompts, *attend.parameters()]
    y = stepped(attend, then, [1, 2], cache, it.causal())
    rows = [
        attend(torch.cat([prompts[i, :n], then[i]])[None], mask=it.causal())[0, n:]
        for i, n in ((0, 6), (1, 3))
    ]
    found = torch.autograd.grad(y.square().sum(), inputs)
    torch.testing.assert_close(
        found, torch.autograd.grad(torch.stack(rows).square().sum(), inputs), atol=1e-11, rtol=1e-10
    )


@pytest.mark.parametrize("crop", [False, True])
@pytest.mark.parametrize("make", MAKES)
def test_what_gradients_need_is_not_written_over_without_them(make: str, crop: bool) -> None:
    attend, cache, z = layer(), MAKES[make](), x().requires_grad_()
    y = stepped(attend, z[:, :8], [6, 2], cache, it.causal())
    with torch.no_grad():
        if crop:
            cache.crop(7)
        stepped(attend, x()[:, 8:], [1, 1, 3], cache, it.causal())
    y.sum().backward()
    assert z.grad is not None and z.grad.isfinite().all()


def test_a_full_cache_that_gradients_need_is_cropped() -> None:
    attend, cache, z = layer(), KeyValueCache(8), x().requires_grad_()
    y = attend(z[:, :8], mask=it.causal(), cache=cache)
    cache.crop(6)
    with torch.no_grad():
        attend(x()[:, 8:10], mask=it.causal(), cache=cache)
    y.sum().backward()


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("make", MAKES)
def test_inference_mode_may_be_left_and_entered(make: str, ragged: bool) -> None:
    attend = layer().requires_grad_(False)

    def run(modes: list[Any]) -> list[Tensor]:
        cache, found = MAKES[make](), []
        with modes[0]():
            attend(x(2, 8), mask=it.causal(), cache=cache)
            if ragged:
                cache.crop(torch.tensor([8, 5]))
        for i, mode in enumerate(modes):
            with mode():
                found.append(attend(x(2, 2, seed=i), mask=it.causal(), cache=cache))
        return found

    modes = [torch.inference_mode, torch.no_grad, torch.enable_grad, torch.inference_mode]
    close(run(modes), run([torch.no_grad] * 4))


@pairs({"copied": [copy.copy, copy.deepcopy], "make": [*MAKES, "fixed"], "learned": [False, True]})
def test_a_copy_goes_its_own_way(make: str, learned: bool, copied: Any) -> None:
    attend = layer()
    with torch.set_grad_enabled(learned):
        if make == "fixed":
            cache: Any = FixedCache(keep_queries=True)
            attend(x(), x(t=5), cache=cache)
            twin = copied(cache)
            twin.reorder(torch.tensor([1, 0]))
            assert cache.kv is not None and torch.equal(twin.kv[0], cache.kv[0].flip(0))
            assert len(twin.history) == 1 and twin.history is not cache.history
            return
        cache = MAKES[make]()
        stepped(attend, x()[:, :9], [6, 1, 1, 1], cache, it.causal())
        twin = copied(cache)
        found = [
            attend(x(seed=i)[:, :2], mask=it.causal(), cache=c) for i, c in ((1, twin), (2, cache))
        ]
        for i, y in zip((1, 2), found):
            again = MAKES[make]()
            stepped(attend, x()[:, :9], [6, 1, 1, 1], again, it.causal())
            close(y, attend(x(seed=i)[:, :2], mask=it.causal(), cache=again))
        assert len(twin.history) == len(cache.history) == 5


@torch.no_grad()
@pytest.mark.parametrize("make", [n for n in MAKES if n in ("growing", "sized")])
def test_history_is_cropped(make: str) -> None:
    attend, cache = layer(), MAKES[make]()
    stepped(attend, x(3, 8), [5, 2, 1], cache, it.causal())
    told = list(cache.history)
    cache.crop(6)
    assert [q.shape[-2] for q, _ in cache.history] == [5, 1]
    assert torch.equal(cache.history[1][1], told[1][1][..., :1, :])
    cache.crop(torch.tensor([2, 5, 4]))
    assert [q.shape[-2] for q, _ in cache.history] == [5]
    attend(x(3, 4), mask=it.causal(), cache=cache)
    cache.crop(torch.tensor([5, 9, 7]))
    assert [q.shape[-2] for q, _ in cache.history] == [5, 4]
    cache.crop(torch.tensor([2, 6, 4]))
    assert [(q.shape[-2], k.shape[-2]) for q, k in cache.history] == [(5, 5), (1, 1)]
    cache.crop(0)
    assert not cache.history


@torch.no_grad()
def test_history_of_a_window_is_cropped() -> None:
    attend, cache = layer(), WindowCache(4, 1, keep_queries=True)
    stepped(attend, x(t=8), [5, 2, 1], cache, it.causal())
    cache.crop(1)
    assert [tuple(k.shape) for _, k in cache.history] == [(2, H, 1, 4)]


LONG = torch.arange(2)
BAD: list[tuple[Any, type[Exception], str]] = [
    (torch.tensor([0, 2]), ArgumentError, "index: expected rows from 0 to 1; got 0 to 2."),
    (torch.tensor([-1, 0]), ArgumentError, "index: expected rows from 0 to 1; got -1 to 0."),
    (torch.zeros(1, 2).long(), ArgumentError, "index: expected row numbers (n,); got shape (1, 2)"),
    (
        torch.tensor([0.0, 1.0]),
        KindError,
        "index: expected a tensor of row numbers (n,), int64; got dtype torch.float32.",
    ),
    (
        torch.tensor([True, False]),
        KindError,
        "index: expected a tensor of row numbers (n,), int64; got dtype torch.bool.",
    ),
    ([0, 1], KindError, "index: expected a tensor of row numbers (n,), int64; got list."),
    (LONG.to("meta"), KindError, "index: expected row numbers on cpu; got meta."),
]


@pytest.mark.usefixtures("as_users_call")
class TestBadInput:
    @torch.no_grad()
    @each({"make": [*MAKES, "fixed"], "index, kind, text": BAD}, times=2)
    def test_rows(self, make: str, index: Any, kind: Any, text: str) -> None:
        attend = layer()
        cache: Any = FixedCache() if make == "fixed" else MAKES[make]()
        if not text.startswith(("index: expected rows", "index: expected row numbers on")):
            refused(lambda: cache.reorder(index), kind, text)
        attend(x(), x(t=5) if make == "fixed" else None, cache=cache)
        before = copy.deepcopy(cache)
        refused(lambda: cache.reorder(index), kind, text)
        assert torch.equal(*(attend(x(t=1), cache=each) for each in (cache, before)))

    @pytest.mark.parametrize("make", MAKES)
    def test_crops(self, make: str) -> None:
        cache = MAKES[make]()
        cache.crop(0)
        for length in (3, [2, 3], torch.tensor([2, 3])):
            text = f"length: expected 0; got {torch.as_tensor(length).tolist()}. The cache is empty"
            refused(lambda n=length: cache.crop(n), ArgumentError, text)
        layer()(x(), cache=cache)
        for length, text in ((2.0, "dtype"), (True, "dtype torch.bool"), ("a", "'a'")):
            refused(
                lambda n=length: cache.crop(n), KindError, f"length: expected integers; got {text}"
            )
        cache.crop([13, 13])
        assert cache.length == 13

    @pytest.mark.parametrize("make", MAKES)
    @pytest.mark.parametrize("begun", [False, True])
    def test_keys_and_values_that_do_not_belong_together(self, make: str, begun: bool) -> None:
        cache = MAKES[make]()
        k = torch.zeros(2, 3, 4, 5)
        cases: list[tuple[Any, Any, type[Exception], str]] = [
            (
                k,
                k[..., :2, :],
                ArgumentError,
                "v: expected values (b=2, g=3, n=4, e); got shape (2, 3, 2, 5). Each key has a "
                "value.",
            ),
            ("k", k, KindError, "k: expected keys (b, g, n, d), a floating-point tensor; got str."),
            (
                k,
                k.long(),
                KindError,
                "v: expected values (b, g, n, e), a floating-point tensor; got dtype torch.int64.",
            ),
        ]
        if begun:
            cache.append(k, k)
        else:
            cases += [
                (k[0], k[0], ArgumentError, "k: expected keys (b, g, n, d); got shape (3, 4, 5)."),
                (
                    k,
                    k[:1],
                    ArgumentError,
                    "v: expected values (b=2, g=3, n=4, e); got shape (1, 3, 4, 5). Each key has a",
                ),
            ]
        for keys, values, kind, text in cases:
            refused(lambda k=keys, v=values: cache.append(k, v), kind, text)
        assert cache.length == (4 if begun else 0)

    @torch.no_grad()
    def test_another_context(self) -> None:
        attend, cache = layer(), FixedCache()
        refused(
            lambda: attend(x(), cache=cache),
            ArgumentError,
            "context: expected shape (b=2, s, 12); got None. A FixedCache keeps the keys and "
            "values of a context, and is empty. Pass the context on the first call; x itself",
        )
        attend(x(), x(t=5), cache=cache)
        refused(
            lambda: attend(x(), x(t=6), cache=cache),
            ArgumentError,
            "context: expected 5 steps, as the FixedCache holds; got shape (2, 6, 12). It keeps "
            "the keys and values of its first context. Make a new cache for another context.",
        )
        decoder, caches = DecoderLayer(C, H, 8).double(), (KeyValueCache(), FixedCache())
        decoder(x()[:, :2], x(t=5), cache=caches)
        refused(lambda: decoder(x()[:, :2], x(t=6), cache=caches), ArgumentError, "context: expe")
        assert caches[0].length == 2
