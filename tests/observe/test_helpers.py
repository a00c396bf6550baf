"""Where only helper functions attend by hand, the rest of a forward runs as without a watch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

import intently as it
from intently.observe.sources import by_hand

from .attending import Stack, close, seen_by, watched

pytestmark = pytest.mark.usefixtures("undone")
X = torch.randn(2, 5, 8)


def in_a_file(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    z = q @ k.mT / q.shape[-1] ** 0.5
    if q.shape[-2] == 4:
        raise ZeroDivisionError
    w = torch.softmax(z, -1)
    return w @ v


def of_scores(z: Tensor, v: Tensor) -> Tensor:
    w = torch.softmax(z, -1)
    return w @ v


def with_weights(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    z = q @ k.mT / q.shape[-1] ** 0.5
    w = torch.softmax(z, -1)
    return w @ v, w


def undivided(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    z = q @ k.mT / q.shape[-1] ** 0.5
    w = torch.exp(z)
    return w @ v / w.shape[-1], w.sum(-1, keepdim=True) / w.shape[-1]


HELPERS = in_a_file, of_scores


class Chooses(nn.Module):
    """Calls a fused function or a helper, and notes which mode is on before and after."""

    def __init__(self, fused: bool = False) -> None:
        super().__init__()
        self.fused, self.modes = fused, list[Any]()

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append(_get_current_dispatch_mode())
        y = F.scaled_dot_product_attention(x, x, x) if self.fused else self.attend(x)
        self.modes.append(_get_current_dispatch_mode())
        return y

    def attend(self, x: Tensor) -> Tensor:
        return in_a_file(x, x, x)

    def weights(self, x: Tensor) -> Tensor:
        return (x @ x.mT / x.shape[-1] ** 0.5).softmax(-1)


class Method(Chooses):
    def attend(self, x: Tensor) -> Tensor:
        z = x @ x.mT / x.shape[-1] ** 0.5
        w = torch.softmax(z, -1)
        return w @ x


class Inherits(Method):
    """Its helper belongs to another class."""


class OfScores(Chooses):
    """The helper is handed the scores."""

    def attend(self, x: Tensor) -> Tensor:
        return of_scores(x @ x.mT / x.shape[-1] ** 0.5, x)


class Static(Chooses):
    @staticmethod
    def attend(x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        z = x @ x.mT / x.shape[-1] ** 0.5
        w = torch.softmax(z, -1)
        return w @ x


class Both(Chooses):
    """A helper attends, and so does the forward."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        z = x @ x.mT / x.shape[-1] ** 0.5
        w = torch.softmax(z, -1)
        return y + w @ x


class MixesAgain(Chooses):
    """The forward mixes other values with the weights of its helper."""

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append(_get_current_dispatch_mode())
        y, w = with_weights(x, x, x)
        return y + w @ (x + 1)


class LooksUp(Chooses):
    """Looks up by name what attends beside its helper."""

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append(_get_current_dispatch_mode())
        return self.attend(x) + getattr(self, "other")(x)  # noqa: B009

    def other(self, x: Tensor) -> Tensor:
        z = x @ x.mT / x.shape[-1] ** 0.5
        w = torch.softmax(z, -1)
        return w @ (x + 1)


class Extends(Method):
    """Attends by hand where a base class goes on, beside its helper."""

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append(_get_current_dispatch_mode())
        return in_a_file(x, x, x) + super().attend(x)

    def attend(self, x: Tensor) -> Tensor:
        return x


class Divides(Chooses):
    """Its helper mixes exponentials, which are divided by their sum afterwards."""

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append(_get_current_dispatch_mode())
        y, total = undivided(x, x, x)
        return y / total


class Gathers(Chooses):
    """Attends to two blocks of keys, the places of which are laid out before."""

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append(_get_current_dispatch_mode())
        x = F.pad(x, (0, 0, 0, 1))
        blocks = x.unflatten(-2, (2, -1))
        return in_a_file(blocks, blocks, blocks).flatten(-3, -2)[..., :-1, :]


class Holds(Chooses):
    """Holds another function that attends."""

    def __init__(self) -> None:
        super().__init__()
        self.other = of_scores


def of(seen: it.Recording, name: str = "layers.0") -> Any:
    """The entry of a call by hand, whose queries were followed."""
    (entry,) = [x for x in seen.calls if x.name == name]
    assert (entry.source, entry.verified) == ("by hand", True), str(seen.coverage())
    assert entry.attention().q.shape[-1] == 8 and not seen.coverage().notes
    return entry


@pytest.mark.parametrize("kind", [Chooses, Method, Inherits])
def test_only_the_helper_is_followed(kind: type[Chooses]) -> None:
    attends = kind()
    seen = watched(Stack(attends), X)
    close(of(seen).matrix(), attends.weights(X), gap=1e-6)
    assert attends.modes and not any(attends.modes)
    assert (in_a_file, of_scores) == HELPERS and vars(Method)["attend"].__name__ == "attend"


@pytest.mark.parametrize("kind", [Chooses, Method])
def test_a_fused_call_is_not_followed(kind: type[Chooses]) -> None:
    attends = kind(fused=True)
    seen = watched(Stack(attends), X)
    assert [entry.source for entry in seen.calls] == ["functional"]
    assert attends.modes and not any(attends.modes)


TWICE = Both, MixesAgain, LooksUp, Extends
WHOLE = OfScores, Static, Holds, Divides, *TWICE


@pytest.mark.parametrize("kind", WHOLE)
def test_the_whole_forward_is_followed_where_more_attends(kind: type[Chooses]) -> None:
    attends = kind()
    seen = watched(Stack(attends), X)
    assert len(seen.calls) == (2 if kind in TWICE else 1)
    assert all(entry.verified and entry.attention().q.shape[-1] == 8 for entry in seen.calls)
    assert any(isinstance(mode, by_hand.Follow) for mode in attends.modes)


def test_the_whole_forward_is_followed_where_blocks_are_gathered() -> None:
    attends = Gathers()
    seen = watched(Stack(attends), X)
    assert seen.calls and any(isinstance(mode, by_hand.Follow) for mode in attends.modes)


def test_without_a_model_the_whole_forward_is_followed() -> None:
    attends = Chooses()
    with it.watch() as outer:
        attends(X)
        assert any(attends.modes)
        with it.watch(attends) as inner:
            attends.modes.clear()
            attends(X)
            assert not any(attends.modes)
        attends(X)
        assert any(attends.modes)
    of(inner, "Chooses")
    assert [entry.verified for entry in outer.calls] == [True] * 3
    assert all(entry.attention().q.shape[-1] == 8 for entry in outer.calls)


def test_a_method_that_a_module_holds_itself_is_seen() -> None:
    attends = Method()
    of(seen_by(Stack(attends), X))
    attends.attend = partial(in_a_file, X, X)  # type: ignore[method-assign]
    of(seen_by(Stack(attends, Method()), X), "layers.0")


def test_layers_that_are_not_wanted_are_not_followed() -> None:
    model = Stack(Chooses(), Chooses())
    of(seen_by(model, X, layers="layers.1"), "layers.1")


def test_an_exception_in_a_helper_leaves_nothing() -> None:
    with pytest.raises(ZeroDivisionError), it.watch(Stack(Chooses())) as seen:
        Chooses()(X[:, :4])
    with pytest.raises(ZeroDivisionError), it.watch(model := Stack(Chooses())):
        model(X[:, :4])
    assert not seen.calls and _get_current_dispatch_mode() is None


def test_a_helper_that_took_the_place_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack(Method())
    of(seen_by(model, X))
    monkeypatch.setattr(Method, "attend", OfScores.attend)
    of(seen_by(model, X))
    monkeypatch.delattr(Method, "attend")
    of(seen_by(model, X))
