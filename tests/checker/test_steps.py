"""What caches, positions and paths get wrong, each beside a neighbour that is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intently as it
from intently.checker import check

from .reports import names


class Rotary(nn.Module):
    """Causal attention with rotary positions and a cache; subclasses slip."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def turned(self, x: Tensor, at: Tensor) -> Tensor:
        angle = at[:, None] * 100.0 ** (-torch.arange(4) / 4)
        a, b = x.chunk(2, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def places(self, start: int, t: int) -> Tensor:
        return torch.arange(start, start + t)

    def kept(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k, v

    def forward(self, x: Tensor, past: Any = None) -> Any:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        start = 0 if past is None else past[0].shape[2]
        q, k = (self.turned(y, self.places(start, y.shape[2])) for y in (q, k))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        t, s = q.shape[2], k.shape[2]
        z = q @ k.mT * 8**-0.5
        z = z.masked_fill(~torch.ones(t, s).tril(s - t).bool(), -torch.inf)
        return self.out((z.softmax(-1) @ v).transpose(1, 2).flatten(2)), self.kept(k, v)


class LaterOrigin(Rotary):
    """Right: only differences of positions count."""

    def places(self, start: int, t: int) -> Tensor:
        return super().places(start, t) + 5


class Restarted(Rotary):
    def places(self, start: int, t: int) -> Tensor:
        return torch.arange(t)


class OneAhead(Rotary):
    def places(self, start: int, t: int) -> Tensor:
        return super().places(start, t) + (start > 0)


class TurnedAgain(Rotary):
    def kept(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.turned(k, torch.arange(k.shape[2])), v


class RowsExchanged(Rotary):
    def kept(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k, v.flip(0)


class PairsApart(Rotary):
    def kept(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k, v.roll(1, 2)


class Forgetful(Rotary):
    def kept(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k, v.index_fill(2, torch.tensor([0]), 0.0) + v[:, :, -1:] * (v == v[:, :, :1])


class Detached(Rotary):
    def kept(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k.detach(), v.detach()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Restarted, "rotation-offset-lost"),
        (OneAhead, "rotation-off-by-one"),
        (TurnedAgain, "cache-rotated-twice"),
        (RowsExchanged, "cache-rows-exchanged"),
        (PairsApart, "cache-pairs-apart"),
        (Forgetful, "cache-overwritten"),
        (Detached, "gradient-cut"),
    ],
)
def test_what_a_cache_holds_wrongly_is_named(kind: type[Rotary], name: str) -> None:
    report = check(kind().eval(), mask=it.causal())
    assert set(names(report)) == {name}, str(report)


@pytest.mark.parametrize("kind", [Rotary, LaterOrigin])
def test_a_rotary_cache_that_is_right_passes(kind: type[Rotary]) -> None:
    assert not names(check(kind().eval(), mask=it.causal()))


class Rolling(nn.Module):
    """A window with a cache of its own."""

    def __init__(self, *, forgets: bool = True, cut: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.forgets, self.cut = nn.Linear(16, 48), forgets, cut
        self.past: Any = None

    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        t, s = q.shape[2], k.shape[2]
        distance = torch.arange(t)[:, None] + s - t - torch.arange(s)
        z = (q @ k.mT * 8**-0.5).masked_fill((distance < 0) | (distance > 2), -torch.inf)
        return (z.softmax(-1) @ v).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, cached: bool = False) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        if not cached:
            return self.attended(q, k, v)
        if self.forgets:
            self.past = None
        out = []
        for i in range(x.shape[1]):
            new = k[:, :, i : i + 1], v[:, :, i : i + 1]
            if self.past is not None:
                new = tuple(torch.cat([a, b], 2)[:, :, -3:] for a, b in zip(self.past, new))
            out.append(self.attended(q[:, :, i : i + 1], *new))
            self.past = tuple(y.detach() for y in new) if self.cut else new
        return torch.cat(out, 1)


@pytest.mark.parametrize(
    ("options", "name"),
    [({"forgets": False}, "state-left"), ({"cut": True}, "gradient-cut"), ({}, "")],
)
def test_what_a_setting_leaves_behind_is_named(options: dict[str, bool], name: str) -> None:
    mask = it.causal() & it.window(2, 0)
    report = check(Rolling(**options).eval(), mask=mask, same=[{"cached": True}])
    assert names(report) == [name] * bool(name), str(report)


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0])
def test_part_of_a_gradient_is_cut_and_all_of_it_is_scaled(factor: float) -> None:
    def part(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        z = q @ k.mT * q.shape[-1] ** -0.5
        e = (z - z.detach().amax(-1, keepdim=True)).exp()
        total = e.sum(-1, keepdim=True)
        return e / (factor * total + (1 - factor) * total.detach()) @ v

    def whole(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = factor * q + (1 - factor) * q.detach()
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v

    cut, scaled = names(check(part)), names(check(whole))
    expected = ["gradient-scaled" if factor else "gradient-cut"]
    assert (cut, scaled) == (([], []) if factor == 1 else (["gradient-cut"], expected))


@pytest.mark.parametrize("learned", [True, False])
def test_a_bias_without_gradient_is_a_hazard(learned: bool) -> None:
    def mine(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        z = q @ k.mT * q.shape[-1] ** -0.5
        return (z + (bias if learned else bias.detach())).softmax(-1) @ v

    q, k, v = torch.randn(3, 2, 4, 6, 8, generator=torch.Generator().manual_seed(0))
    bias = torch.randn(4, 6, 6, generator=torch.Generator().manual_seed(1))
    given = {"q": q, "k": k, "v": v, "bias": bias}
    report = check(mine, inputs=given, arguments={"bias": "add"})
    assert [f.name for f in report.hazards] == ([] if learned else ["gradient-cut"]), str(report)


class Padded(nn.Module):
    """Attention to itself or to a context, under lengths; may forget them without a context."""

    def __init__(self, careless: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.careless = careless
        self.q, self.kv = nn.Linear(16, 16), nn.Linear(16, 32)

    def forward(self, x: Tensor, context: Any = None, lengths: Any = None) -> Tensor:
        k, v = self.kv(x if context is None else context).chunk(2, -1)
        z = self.q(x) @ k.mT / 4
        if lengths is not None and not (self.careless and context is None):
            z = z.masked_fill(torch.arange(k.shape[1]) >= lengths[:, None, None], -torch.inf)
        return z.softmax(-1) @ v


@pytest.mark.parametrize("careless", [True, False])
def test_padding_is_examined_without_a_context_too(careless: bool) -> None:
    x, y = torch.randn(2, 2, 6, 16, generator=torch.Generator().manual_seed(0))
    given = {"x": x, "context": y, "lengths": torch.tensor([6, 3])}
    report = check(Padded(careless).eval(), inputs=given, arguments={"lengths": "lengths"})
    assert names(report) == ["padding-attended"] * careless, str(report)


class Placed(Rotary):
    """Positions from the mask; without one, from the cache, or restarted."""

    def __init__(self, restarts: bool) -> None:
        super().__init__()
        self.restarts, self.embed, self.at = restarts, nn.Embedding(9, 16), nn.Embedding(9, 16)

    def turned(self, x: Tensor, at: Tensor) -> Tensor:
        return x

    def forward(self, ids: Tensor, mask: Any = None, past: Any = None) -> Any:
        start, t = 0 if past is None or self.restarts else past[0].shape[2], ids.shape[1]
        at = torch.arange(start, start + t)
        if mask is not None:
            at = (mask.cumsum(-1) - 1).clamp(min=0)[:, -t:]
        return super().forward(self.embed(ids) + self.at(at), past)


@pytest.mark.parametrize("restarts", [True, False])
def test_steps_are_examined_without_a_mask_too(restarts: bool) -> None:
    given = {"ids": torch.tensor([[3, 1, 4, 1, 5, 2]] * 2), "mask": torch.ones(2, 6, dtype=int)}
    report = check(
        Placed(restarts).eval(), inputs=given, arguments={"mask": "attend"}, mask=it.causal()
    )
    found = [f.name for f in report.mistakes]
    assert found == ["position-offset-lost"] * restarts, str(report)
