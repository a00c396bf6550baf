"""Path patching, against hooks on the eager model (Wang et al. 2022, section 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import intently as it
from intently.errors import ArgumentError

CLEAN, OTHER = torch.tensor([[3, 14, 15, 9, 2, 6, 5]]), torch.tensor([[3, 8, 15, 20, 2, 7, 5]])
HEADS, WIDTH, LAYERS = 4, 8, 3
MODEL = HEADS * WIDTH
Place = tuple[int, int]


def score(out: Any) -> Tensor:
    return out.logits[0, -1, 7] - out.logits[0, -1, 8]


def of(head: int) -> slice:
    return slice(head * WIDTH, (head + 1) * WIDTH)


@contextmanager
def hooked(gpt2: Any, kind: str, change: Callable[[int, Tensor], Tensor | None]) -> Iterator[None]:
    """Change what heads wrote (the input of c_proj) or read (the output of c_attn), by layer."""
    hooks = []
    for n, block in enumerate(gpt2.transformer.h):
        if kind == "wrote":

            def before(_: Any, given: Any, n: int = n) -> Any:
                found = change(n, given[0])
                return None if found is None else (found,)

            hooks.append(block.attn.c_proj.register_forward_pre_hook(before))
        else:
            hooks.append(
                block.attn.c_attn.register_forward_hook(lambda _, __, y, n=n: change(n, y))
            )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def kept(gpt2: Any, ids: Tensor) -> list[Tensor]:
    found: list[Tensor] = []
    with hooked(gpt2, "wrote", lambda n, y: found.append(y.clone())):
        gpt2(ids)
    return found


@torch.no_grad()
def by_hooks(
    gpt2: Any, sender: tuple[int, int], receiver: tuple[int, int] | None, part: int
) -> Any:
    own, other = kept(gpt2, CLEAN), kept(gpt2, OTHER)
    layer, head = sender

    def freeze(n: int, _: Tensor) -> Tensor:
        y = own[n].clone()
        if n == layer:
            y[..., of(head)] = other[n][..., of(head)]
        return y

    read: list[Tensor] = []
    with hooked(gpt2, "wrote", freeze), hooked(gpt2, "read", lambda n, y: read.append(y.clone())):
        direct = gpt2(CLEAN)
    if receiver is None:
        return float(score(direct))
    where = slice(part * MODEL + of(receiver[1]).start, part * MODEL + of(receiver[1]).stop)

    def put(n: int, y: Tensor) -> Tensor | None:
        if n != receiver[0]:
            return None
        y = y.clone()
        y[..., where] = read[n][..., where]
        return y

    with hooked(gpt2, "read", put):
        return float(score(gpt2(CLEAN)))


@pytest.mark.parametrize("part", ["queries", "keys", "values"])
def test_paths_are_those_of_hooks(gpt2: Any, part: Any) -> None:
    table = it.path_effects(
        gpt2,
        lambda: gpt2(CLEAN),
        lambda: gpt2(OTHER),
        score,
        receivers={"transformer.h.2.attn": [1]},
        parts=[part],
    )
    assert len(table) == LAYERS * HEADS
    number = ("queries", "keys", "values").index(part)
    want = [
        by_hooks(gpt2, (layer, head), (2, 1), number)
        for layer in range(LAYERS)
        for head in range(HEADS)
    ]
    assert table["after"] == pytest.approx(want, abs=1e-5)
    gaps = [abs(x) for x in table["difference"]]
    assert max(gaps[: 2 * HEADS]) > 1e-3 and max(gaps[2 * HEADS :]) < 1e-5


def test_the_direct_path_to_the_output(gpt2: Any) -> None:
    given: Any = {"transformer.h.1.attn": slice(1, 3), "*.h.2.*": 0}
    table = it.path_effects(gpt2, lambda: gpt2(CLEAN), lambda: gpt2(OTHER), score, senders=given)
    places = [(1, 1), (1, 2), (2, 0)]
    assert [(int(r["layer"].split(".")[2]), r["head"]) for r in table] == places
    want = [by_hooks(gpt2, place, None, 0) for place in places]
    assert table["after"] == pytest.approx(want, abs=1e-5)
    with torch.no_grad():
        assert table["before"] == pytest.approx([float(score(gpt2(CLEAN)))] * 3, abs=1e-5)
    assert min(map(abs, table["difference"])) > 1e-3


def test_refusals(gpt2: Any) -> None:
    def asked(**given: Any) -> None:
        it.path_effects(gpt2, lambda: gpt2(CLEAN), lambda: gpt2(OTHER), score, **given)

    for side in ("senders", "receivers"):
        with pytest.raises(ArgumentError, match=f"{side}: expected layers that attended"):
            asked(**{side: {"h.9": [0]}})
    for parts in (["outputs"], []):
        with pytest.raises(ArgumentError, match="parts"):
            asked(parts=parts)
    with pytest.raises(ArgumentError, match="heads"):
        asked(senders={"transformer.h.0.attn": [4]})
