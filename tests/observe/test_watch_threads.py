"""A watch belongs to its thread or task, in any order, beside compiled code."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import intently as it
from intently.observe.watching import doors
from intently.observe.watching.scope import current

from .attending import Stack, in_a_thread, seen_by, stack

pytestmark = pytest.mark.usefixtures("undone")


class ByHand(nn.Module):
    """Three attentions, each with another softmax."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x @ x.mT, -1) @ x
        return F.softmax(y @ y.mT, dim=-1) @ y + (y @ y.mT).softmax(-1) @ x


@pytest.mark.parametrize(("deep", "count"), [(False, 1), (True, 3)])
def test_nested_watches_see_a_call_once_and_end_in_any_order(deep: bool, count: int) -> None:
    model, x = ByHand() if deep else stack(1), torch.randn(1, 5, 32)
    first, second = it.watch(model, deep=deep), it.watch(model, deep=deep)
    a, b = first.__enter__(), second.__enter__()
    model(x)
    first.__exit__(None, None, None)
    model(x)
    second.__exit__(None, None, None)
    model(x)
    assert (len(a.calls), len(b.calls)) == (count, 2 * count)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_other_threads_pass_through() -> None:
    model, x = stack(1), torch.randn(1, 5, 32)
    theirs: list[int] = []

    def other() -> None:
        theirs.append(len(seen_by(model, x).calls))
        model(x)

    with it.watch(model) as seen:
        in_a_thread(other)
        model(x)
    assert theirs == [1] and len(seen.calls) == 1


def test_another_thread_may_end_a_watch() -> None:
    model, x = stack(1), torch.randn(1, 5, 32)
    with it.watch(model) as outer:
        watch = it.watch(model)
        seen = watch.__enter__()
        in_a_thread(watch.__exit__, None, None, None)
        model(x)
        assert len(current()) == 1
    assert (len(outer.calls), len(seen.calls)) == (1, 0)


def test_another_thread_may_end_a_deep_watch() -> None:
    """In a thread of its own: the mode of the one that opened it is out of reach."""
    watch, left = it.watch(deep=True), list[int]()

    def opens() -> None:
        watch.__enter__()
        in_a_thread(watch.__exit__, None, None, None)
        left.append(len(current()) + doors.active())
        stack(1)(torch.randn(1, 5, 32))

    in_a_thread(opens)
    assert left == [0]


def test_a_generator_shares_its_watch_while_it_waits() -> None:
    """As with `contextlib.contextmanager`, whose body waits within the watch on purpose."""
    model, x = stack(1), torch.randn(1, 5, 32)

    def steps() -> Iterator[int]:
        with it.watch(model) as seen:
            model(x)
            yield len(seen.calls)
            yield len(seen.calls)

    generator = steps()
    assert next(generator) == 1
    model(x)
    assert next(generator) == 2
    generator.close()
    model(x)
    assert current() == () and doors.active() == 0


@pytest.fixture
def no_loop() -> Iterator[None]:
    """Playwright leaves its own loop running in the thread that has tests of the page."""
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(running)


@pytest.mark.usefixtures("no_loop")
def test_other_tasks_pass_through() -> None:
    model, x = stack(1), torch.randn(1, 5, 32)
    counts: list[int] = []

    async def watched() -> None:
        with it.watch(model) as seen:
            child = asyncio.create_task(unwatched())  # inherits the context, and is another task
            await asyncio.sleep(0)
            model(x)
            await asyncio.to_thread(model, x)
            await child
        counts.append(len(seen.calls))

    async def unwatched() -> None:
        model(x)
        await asyncio.sleep(0)
        model(x)

    async def both() -> None:
        await asyncio.gather(watched(), watched(), unwatched())

    asyncio.run(both())
    assert counts == [1, 1]


@pytest.mark.usefixtures("no_loop")
def test_a_loop_within_a_watch_belongs_to_it() -> None:
    model, x = stack(1), torch.randn(1, 5, 32)

    async def main() -> None:
        model(x)

    with it.watch(model) as seen:
        asyncio.run(main())
    assert len(seen.calls) == 1


def test_a_mode_of_the_user_outlives_a_deep_watch_that_began_before() -> None:
    x, mode = torch.randn(4, 4), FlopCounterMode(display=False)
    watch = it.watch(deep=True)
    watch.__enter__()
    with mode:
        watch.__exit__(None, None, None)
        _ = x @ x
    assert mode.get_total_flops() == 2 * 4**3
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


@pytest.fixture
def compiled() -> Iterator[tuple[Stack, nn.Module]]:
    model = stack(1)
    yield model, torch.compile(model, backend="aot_eager")
    torch._dynamo.reset()


def test_compiled_models_are_refused(compiled: tuple[Stack, nn.Module]) -> None:
    model, fast = compiled
    x = torch.randn(1, 5, 32)
    with pytest.raises(it.errors.KernelError, match=r"OptimizedModule, compiled by torch.compile"):
        it.watch(fast).__enter__()
    for _ in range(2):  # compiled within the block, and before it
        unseen = pytest.raises(it.errors.KernelError, match=r"none that could be seen. Code")
        with unseen, it.watch(model):
            y = fast(x)
        assert torch.equal(y, model(x))
    with torch.compiler.set_stance("force_eager"), it.watch(model) as seen:
        fast(x)
    assert seen["layers.0"].shape == (1, 4, 5, 5)
    inner = stack(2)
    inner.layers[1].compile(backend="aot_eager")
    with pytest.raises(it.errors.KernelError, match=r"layers.1, compiled by torch.compile"):
        it.watch(inner).__enter__()


def test_compiled_code_beside_the_model_is_told(compiled: tuple[Stack, nn.Module]) -> None:
    model, _ = compiled
    double = torch.compile(lambda x: 2 * x, backend="aot_eager")
    told = pytest.warns(UserWarning, match=r"Code compiled by torch.compile ran meanwhile")
    with told, it.watch(model) as seen:
        model(double(torch.randn(1, 5, 32)))
    assert "Code compiled" in str(seen.coverage()) and len(seen.calls) == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("by_hand", [False, True])
def test_compiling_while_another_thread_watches(
    compiled: tuple[Stack, nn.Module], by_hand: bool
) -> None:
    model, fast = compiled
    if by_hand:
        model.layers[0] = ByHand()
    x = torch.randn(1, 5, 32)
    found: list[torch.Tensor] = []
    with it.watch() as seen:
        in_a_thread(lambda: found.append(fast(x)))
    assert torch.equal(found[0], model(x)) and not seen.calls
