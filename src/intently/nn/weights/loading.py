"""Tensors into our modules: each is used once, and all are loaded or none.

Every ``from_weights`` copies with `filled` and `copied`, every ``load`` of another library takes
`NamedTensors` and makes a module with `fill`, and every checkpoint goes through `AllOrNothing`.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from intently.errors import ArgumentError, CheckpointError, KindError, build, shape_of

M = TypeVar("M", bound=nn.Module)

SHOWN = 6
"""Most names that a message lists."""


class Map(NamedTuple):
    """A linear map: weight (out, in) and bias (out,) or None."""

    weight: Tensor
    bias: Tensor | None

    def bias_or_zeros(self) -> Tensor:
        """The bias (out,); where there is none zeros, which learn if the weight does."""
        if self.bias is not None:
            return self.bias
        return self.weight.new_zeros(len(self.weight)).requires_grad_(self.weight.requires_grad)


class NamedTensors:
    """Named tensors of ``source``, taken one by one until none is left.

    >>> weights = NamedTensors({"w": torch.ones(2), "lora": torch.ones(1)}, "Layer")
    >>> weights.take("w")
    tensor([1., 1.])
    >>> weights.finish()
    Traceback (most recent call last):
    ...
    intently.errors.CheckpointError: Layer: expected every parameter to have a place; got 'lora' \
left over. Our block would compute something else without them.
    """

    def __init__(self, tensors: Mapping[str, Tensor], source: str) -> None:
        self.source = source
        self._left = dict(tensors)
        self._copies: dict[int, Tensor] = {}

    def take(self, name: str) -> Tensor:
        """Return a copy of the tensor with its ``requires_grad``.

        A tensor with several names has one copy. Raises `CheckpointError` where it is missing.
        """
        if name not in self._left:
            raise build(
                CheckpointError,
                self.source,
                f"a tensor {name!r}",
                f"none of {listed(self._left)}",
                "it is a different form or version of this layer",
            )
        x = self._left.pop(name)
        if id(x) not in self._copies:
            self._copies[id(x)] = x.detach().clone().requires_grad_(x.requires_grad)
        return self._copies[id(x)]

    def optional(self, name: str) -> Tensor | None:
        """Return a copy of the tensor, None where it is missing."""
        return self.take(name) if name in self._left else None

    def map(self, name: str) -> Map:
        """Take a linear map stored as ``name.weight`` (out, in) and, perhaps, ``name.bias``."""
        return Map(self.take(f"{name}.weight"), self.optional(f"{name}.bias"))

    def within(self, name: str) -> NamedTensors:
        """Take all tensors of a submodule as its own `NamedTensors`."""
        prefix = f"{name}."
        found = {key: self._left.pop(key) for key in list(self._left) if key.startswith(prefix)}
        part = {key.removeprefix(prefix): x for key, x in found.items()}
        return NamedTensors(part, f"{self.source}.{name}")

    def finish(self) -> None:
        """Raise `CheckpointError` naming the tensors that are left."""
        if self._left:
            raise build(
                CheckpointError,
                self.source,
                "every parameter to have a place",
                f"{listed(self._left)} left over",
                "our block would compute something else without them",
            )


def fill(make: Callable[[], M], tensors: Mapping[str, Tensor | None]) -> M:
    """Return the module from ``make`` with exactly these parameters and buffers.

    The module is made without drawing random numbers. The tensors become its own and keep their
    dtypes, devices and ``requires_grad`` (`copy_requires_grad`), and one tensor under two names
    becomes one parameter; None stands for a tensor that the module must not have. Raises
    `CheckpointError` if names or shapes are not those of the module.

    >>> fill(lambda: nn.Linear(2, 1), {"weight": torch.ones(1, 2), "bias": None})
    Traceback (most recent call last):
    ...
    intently.errors.CheckpointError: Linear: expected its own tensors; got 'bias' missing.
    """
    with torch.device("meta"):
        module = make()
    given = {name: x for name, x in tensors.items() if x is not None}
    try:
        copies = {name: x.detach() for name, x in given.items()}
        found = module.load_state_dict(copies, strict=False, assign=True)
    except RuntimeError as error:
        if isinstance(error, CheckpointError):
            raise
        reason = str(error).split("\n\t", 1)[-1]
        raise build(CheckpointError, type(module).__name__, "its own shapes", reason) from None
    wrong = [(found.missing_keys, "missing"), (found.unexpected_keys, "left over")]
    got = [f"{listed(names)} {what}" for names, what in wrong if names]
    if got:
        raise build(CheckpointError, type(module).__name__, "its own tensors", ", ".join(got))
    copy_requires_grad(module, given)
    _tie(module, given)
    return module


def _tie(module: nn.Module, given: Mapping[str, Tensor]) -> None:
    """Make parameters one whose tensors are one."""
    first: dict[int, str] = {}
    for name, x in given.items():
        other = first.setdefault(id(x), name)
        if other != name:
            path, _, last = name.rpartition(".")
            setattr(module.get_submodule(path), last, module.get_parameter(other))


def copy_requires_grad(module: nn.Module, given: Mapping[str, Tensor]) -> None:
    """Set ``requires_grad`` of each parameter to that of the tensors behind it.

    ``given`` are those tensors by name, with queries, keys and values fused or separate. Raises
    `ArgumentError` if a parameter combines frozen and trainable tensors.

    >>> import torch
    >>> layer = nn.Linear(2, 1)
    >>> bias = torch.ones(1, requires_grad=True)
    >>> copy_requires_grad(layer, {"weight": torch.ones(1, 2), "bias": bias})
    >>> layer.weight.requires_grad, layer.bias.requires_grad
    (False, True)
    """
    for name, p in module.named_parameters():
        found = {n: given[n] for n in (name, *_elsewhere(name)) if n in given}
        p.requires_grad_(learns(f"{type(module).__name__}.{name}", found))


def learns(name: str, parts: Mapping[str, Tensor]) -> bool:
    """Return whether the parts of a parameter require grad; raise `ArgumentError` if mixed."""
    frozen = sorted(part for part, x in parts.items() if not x.requires_grad)
    if 0 < len(frozen) < len(parts):
        raise build(
            ArgumentError,
            name,
            f"all or none of {', '.join(parts)} frozen",
            f"{', '.join(frozen)} frozen alone",
            "they become one tensor, which learns or does not",
            "freeze, or let learn, all of them there and load again",
        )
    return not frozen


def _elsewhere(name: str) -> list[str]:
    """The names of the same projection in its other form, fused or separate."""
    path, _, last = name.rpartition(".")
    which, _, kind = last.partition("_")
    others = {"qkv": ("q", "k", "v"), "q": ("qkv",), "k": ("qkv",), "v": ("qkv",)}.get(which, ())
    return [f"{path}.{other}_{kind}".removeprefix(".") for other in others]


def listed(names: Iterable[str]) -> str:
    """Return the first few names for a message."""
    every = sorted(names)
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return (", ".join(map(repr, every[:SHOWN])) or "no tensors") + more


def tensors(maps: Mapping[str, Map]) -> dict[str, Tensor | None]:
    """Return the maps under the names that linear layers have in a state."""
    pairs = {name: each._asdict() for name, each in maps.items()}
    return {f"{name}.{kind}": x for name, pair in pairs.items() for kind, x in pair.items()}


def filled(block: M, tensors: Mapping[str, Tensor | None]) -> M:
    """Return the block with these tensors copied into it, in their dtype and on their device.

    None marks parameters that the block lacks; parameters without an entry stay as they are.
    """
    given = {name: x for name, x in tensors.items() if x is not None}
    first = next(iter(given.values()))
    block.to(device=first.device, dtype=first.dtype)
    left = block.load_state_dict(given, strict=False).unexpected_keys
    assert not left, left  # the caller has made the block for these tensors
    return block


def copied(part: object, name: str, kind: type[M], like: Tensor | None = None) -> M:
    """Return a copy of a module with all its weights; raise unless it is of this kind.

    Where ``like`` is given, its weights must have that dtype and device.
    """
    if not isinstance(part, kind):
        what = "the module itself" if kind is nn.Module else f"a {kind.__name__}"
        raise build(KindError, name, f"{what}, with its weights", type(part).__name__)
    first = next(part.parameters(), None)
    if first is not None and like is not None:
        same_kind([Map(like, first)], name)
    return deepcopy(part)


def copied_norm(norm: object, name: str, width: int, like: Tensor) -> nn.Module:
    """Return a copy of a norm, whose weights must be (c=width,)."""
    made = copied(norm, name, nn.Module, like)
    weight = getattr(made, "weight", None)
    if isinstance(weight, Tensor) and tuple(weight.shape) != (width,):
        raise build(ArgumentError, name, f"a norm with weights (c={width},)", shape_of(weight))
    return made


def same_kind(maps: Iterable[Map], name: str) -> None:
    """Raise unless all the tensors have one dtype and lie on one device."""
    every = [x for pair in maps for x in pair if x is not None]
    first = every[0]
    for x in every:
        if (x.dtype, x.device) != (first.dtype, first.device):
            raise build(
                KindError,
                name,
                f"{first.dtype} on {first.device}, as the first weight",
                f"{x.dtype} on {x.device}",
                fix="convert one of them with .to(…)",
            )


class AllOrNothing(nn.Module):
    """A module whose `load_state_dict` changes nothing unless every tensor fits.

    The base of our blocks and models. Your own module that contains such blocks loads part by part,
    as in PyTorch, unless it also has this base.

    >>> class Pair(AllOrNothing):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.a, self.b = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> Pair().load_state_dict({**Pair().state_dict(), "b.bias": torch.ones(2)})
    Traceback (most recent call last):
    ...
    intently.errors.CheckpointError: Pair: expected its own tensors; got size mismatch for b.bias: \
copying a param with shape torch.Size([2]) from checkpoint, the shape in current model is \
torch.Size([1]). Nothing was loaded.
    """

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Copy ``state_dict`` into the module; return the names that were missing or left over.

        ``strict`` and ``assign`` are those of `nn.Module`. Raises `CheckpointError` (a
        `RuntimeError`, as PyTorch's own) naming every tensor that is missing, unexpected or of
        a different shape, `KindError` if ``state_dict`` is not a mapping of names to tensors; the
        module is then unchanged.
        """
        own = self.state_dict()
        _check_tensors(own, state_dict)
        _rehearse(self, own, state_dict, strict)
        return super().load_state_dict(state_dict, strict, assign)


def _no_tensor(x: object, name: str | None = None) -> KindError:
    got = type(x).__name__ + ("" if name is None else f" under {name!r}")
    fix = None if name is None else "arrays go through torch.tensor"
    return build(KindError, "state_dict", "a mapping of names to tensors", got, fix=fix)


def _check_tensors(own: Mapping[str, Any], state_dict: object) -> None:
    if not isinstance(state_dict, Mapping):
        raise _no_tensor(state_dict)
    for name in state_dict:
        if not isinstance(name, str):
            got = f"the name {name!r}"
            raise build(KindError, "state_dict", "a mapping of names to tensors", got)
    for name, ours in own.items():
        x = state_dict.get(name, ours)
        if isinstance(ours, Tensor) and not isinstance(x, Tensor):
            raise _no_tensor(x, name)


class _Unread:
    """Placeholder for a non-tensor under an unexpected key; raises when it is read.

    The loading of `Projected` reads keys of its other storage; it never reads keys left over.
    """

    def __init__(self, x: object, name: str) -> None:
        self._error = _no_tensor(x, name)

    def __getattr__(self, name: str) -> Any:
        raise self._error

    def __len__(self) -> int:
        raise self._error


def _rehearse(
    module: nn.Module, own: Mapping[str, Any], state_dict: Mapping[str, Any], strict: bool
) -> None:
    """Raise the errors of loading by loading only shapes: no number is read or written."""
    given: OrderedDict[str, Any] = OrderedDict(
        (name, _shape(x) if name in own or isinstance(x, Tensor) else _Unread(x, name))
        for name, x in state_dict.items()
    )
    given._metadata = getattr(state_dict, "_metadata", None)  # pyright: ignore  # versions
    try:
        with warnings.catch_warnings(action="ignore"), _shapes_of(module):
            nn.Module.load_state_dict(module, given, strict)
    except RuntimeError as error:
        found = (line.strip(" .") for line in str(error).split("\n\t", 1)[-1].split("\n\t"))
        raise build(
            CheckpointError,
            type(module).__name__,
            "its own tensors",
            "; ".join(found),
            "nothing was loaded",
        ) from None


@contextmanager
def _shapes_of(module: nn.Module) -> Iterator[None]:
    """Replace the module's tensors by tensors without storage inside the block."""
    kept = [(part, part._parameters, part._buffers) for part in module.modules()]
    try:
        for part, parameters, buffers in kept:
            for name, tensors in (("_parameters", parameters), ("_buffers", buffers)):
                setattr(part, name, {key: _shape(x) for key, x in tensors.items()})
        yield
    finally:
        for part, parameters, buffers in kept:
            part._parameters, part._buffers = parameters, buffers


def _shape(x: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    return torch.empty(x.shape, dtype=x.dtype, device="meta")


def restore(state_dict: dict[str, Any], prefix: str, sizes: tuple[int, ...], fused: bool) -> None:
    """Convert the maps of queries, keys and values to the layer's storage: one weight or three.

    If shapes do not fit, an entry of a wrong shape remains, which `wrong_shapes` reports.
    """
    for kind in ("weight", "bias"):
        joint = f"{prefix}qkv_{kind}"
        names = [f"{prefix}{letter}_{kind}" for letter in "qkv"]
        if fused and all(name in state_dict for name in names):
            parts = [state_dict.pop(name) for name in names]
            alike = len({x.shape[1:] for x in parts}) == 1
            state_dict[joint] = torch.cat(parts) if alike else parts[1]
        elif not fused and joint in state_dict:
            whole = state_dict.pop(joint)
            fits = len(whole) == sum(sizes)
            state_dict.update(zip(names, whole.split(sizes) if fits else [whole] * 3))


def wrong_shapes(part: nn.Module, state_dict: Mapping[str, Any], prefix: str) -> list[str]:
    """Say which parameters of a part have another shape in a checkpoint."""
    own = {prefix + name: shape_of(p) for name, p in part.named_parameters(recurse=False)}
    found = {name: shape_of(state_dict[name]) for name in sorted(own) if name in state_dict}
    cause = "the checkpoint is of a layer with other widths or heads"
    return [
        str(build(CheckpointError, name, own[name], got, cause))
        for name, got in found.items()
        if got != own[name]
    ]
