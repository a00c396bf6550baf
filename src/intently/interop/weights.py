"""Tensors of a module from another library: each is consumed once, none may be left over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from intently.errors import ArgumentError, CheckpointError, KindError, build
from intently.modules import DecoderLayer, EncoderLayer, MultiHeadAttention

M = TypeVar("M", bound=nn.Module)

SHOWN = 6
"""Most names that a message lists."""


HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def check_hooks(module: nn.Module, argument: str = "foreign") -> None:
    """Raise `ArgumentError` for hooks in a module: a copy of its weights would lose them.

    Those of transformers itself only collect states, or switch gradients on.
    """
    for name, part in module.named_modules():
        for kind in HOOKS:
            hooks = (getattr(part, kind, None) or {}).values()
            if not all(
                str(getattr(x, "__module__", "")).startswith("transformers.") for x in hooks
            ):
                where = type(module).__name__ + (f".{name}" if name else "")
                got = f"{kind.strip('_').replace('_', ' ')} of {where}"
                cause = "they may change what it computes"
                fix = "remove them, and register them on the result"
                raise build(ArgumentError, argument, "a module without hooks", got, cause, fix)


class Weights:
    """Named tensors of ``source``, taken one by one until none is left.

    >>> weights = Weights({"w": torch.ones(2), "lora": torch.ones(1)}, "Layer")
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

    @classmethod
    def of(cls, module: nn.Module, argument: str = "foreign") -> Weights:
        """Return the parameters and the saved buffers of a PyTorch module without hooks."""
        check_hooks(module, argument)
        return cls(module.state_dict(keep_vars=True), type(module).__name__)

    def take(self, name: str) -> Tensor:
        """Return a copy of the tensor with its ``requires_grad``.

        Raises `CheckpointError` where it is missing.
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
        return x.detach().clone().requires_grad_(x.requires_grad)

    def optional(self, name: str) -> Tensor | None:
        """Return a copy of the tensor, None where it is missing."""
        return self.take(name) if name in self._left else None

    def within(self, name: str) -> Weights:
        """Take all tensors of a submodule as its own `Weights`."""
        prefix = f"{name}."
        found = {key: self._left.pop(key) for key in list(self._left) if key.startswith(prefix)}
        part = {key.removeprefix(prefix): x for key, x in found.items()}
        return Weights(part, f"{self.source}.{name}")

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
    dtypes, devices and ``requires_grad`` (`copy_requires_grad`); None stands for a tensor that the
    module must not have. Raises `CheckpointError` if names or shapes are not those of the module.

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
    return module


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


def refuse(source: str, option: str, expected: str, got: object, cause: str) -> NoReturn:
    """Raise `ArgumentError` for an option without a counterpart on the other side."""
    raise build(ArgumentError, f"{source}.{option}", expected, got, cause)


def check_options(source: str, *options: tuple[str, bool, str, object, str]) -> None:
    """Refuse the first option that does not fit: rows of (option, fits, expected, got, cause)."""
    for option, fits, expected, got, cause in options:
        if not fits:
            refuse(source, option, expected, got, cause)


def check_kind(module: object, *kinds: type, verb: str) -> None:
    """Raise `KindError` unless the module is of these classes and computes the same.

    Subclasses without a ``forward`` or ``call`` of their own are accepted.
    """
    parent = next((kind for kind in kinds if isinstance(module, kind)), None)
    names = " or ".join(kind.__name__ for kind in kinds)
    if parent is None:
        got, cause, fix = type(module).__name__, None, None
        if got in names.split(" or "):
            got = f"{got} of {type(module).__module__}"
            cause = "it is another class of that name, and what it computes is not known"
            fix = "pass its weights and their layout to MultiHeadAttention.from_weights"
        raise build(KindError, verb, f"a module of type {names}", got, cause, fix)
    for name in ("forward", "call"):
        if getattr(type(module), name, None) is not getattr(parent, name, None):
            raise build(
                KindError,
                verb,
                f"a module of type {names}",
                f"{type(module).__name__}, which has a {name} of its own",
                "what it computes is not known",
            )


def check_plain(ours: MultiHeadAttention, options: Iterable[str], there: str) -> None:
    """Refuse options, and shared key heads, that the layer ``there`` does not have."""
    own = {option: getattr(ours.attention, option) for option in options}
    shared = (
        "kv_heads",
        ours.kv_heads == ours.heads,
        f"kv_heads=heads={ours.heads}",
        ours.kv_heads,
        f"heads do not share keys in {there}",
    )
    check_options(
        "MultiHeadAttention",
        *(
            (f"attention.{option}", got is None, "None", got, f"there is none in {there}")
            for option, got in own.items()
        ),
        shared,
    )


def read_norm(theirs: nn.Module, weights: Weights, *kinds: type) -> nn.Module:
    """Return a copy of a layer or group norm with these weights.

    Raises `KindError` unless it is of the ``kinds``.
    """
    check_kind(theirs, *kinds, verb=f"load({weights.source})")
    tensors = {name: weights.optional(name) for name in ("weight", "bias")}
    weights.finish()
    affine, bias = (x is not None for x in tensors.values())
    if isinstance(theirs, nn.GroupNorm):
        groups, c, eps = theirs.num_groups, theirs.num_channels, theirs.eps
        return fill(lambda: nn.GroupNorm(groups, c, eps, affine), tensors)
    assert isinstance(theirs, nn.LayerNorm)
    shape, eps = list(theirs.normalized_shape), theirs.eps
    return fill(lambda: nn.LayerNorm(shape, eps, affine, bias), tensors)


def assemble(
    width: int, parts: Mapping[str, nn.Module | None], **options: Any
) -> EncoderLayer | DecoderLayer:
    """Return our layer with these parts, by our names."""
    kind = DecoderLayer if "cross_attention" in parts else EncoderLayer
    with torch.device("meta"):
        layer = kind(width, 1, nn.Identity(), **options)
    for name, part in parts.items():
        setattr(layer, name, part)
    return layer


def separate(
    ours: MultiHeadAttention, weights: Weights, prefix: str = ""
) -> dict[str, Tensor | None]:
    """Take the q, k and v projections of our block, fused or separate, as "q_weight", …"""
    found: dict[str, Tensor | None] = {}
    sizes = (ours.heads * ours.d, ours.kv_heads * ours.d, ours.kv_heads * ours.e)
    for kind in ("weight", "bias"):
        joint = weights.optional(f"{prefix}qkv_{kind}")
        parts = [None] * 3 if joint is None else [x.clone() for x in joint.split(sizes)]
        for letter, part in zip("qkv", parts):
            name = f"{letter}_{kind}"
            found[name] = weights.optional(prefix + name) if part is None else part
    return found
