"""Modules and folders of other libraries: what `load` and `dump` ask of them.

The folders are those that ``save_pretrained`` of transformers wrote: they are read without network
or code, and refused in our words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from intently.errors import (
    ArgumentError,
    CheckpointError,
    DataError,
    IntentlyError,
    KindError,
    build,
    lacks_memory,
)
from intently.foundation.files import File
from intently.foundation.on_demand import require
from intently.nn import DecoderLayer, EncoderLayer, MultiHeadAttention
from intently.nn.weights.copying import M, Map, elsewhere

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


SHOWN = 6
"""Most names that a message lists."""


def listed(names: Iterable[str]) -> str:
    """Return the first few names for a message."""
    every = sorted(names)
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return (", ".join(map(repr, every[:SHOWN])) or "no tensors") + more


def tensors_of(module: nn.Module, argument: str = "foreign") -> dict[str, Tensor]:
    """Return the parameters and the saved buffers of a PyTorch module without hooks.

    Raises `CheckpointError` if a bias would be lost because no ``state_dict`` holds it.
    """
    check_hooks(module, argument)
    state = module.state_dict(keep_vars=True)
    for path, part in module.named_modules():
        for name, x in {**vars(part), **part._buffers}.items():
            full = f"{path}.{name}" if path else name
            lost = isinstance(x, Tensor) and full not in state
            if lost and full.removesuffix("bias") + "weight" in state:
                expected, got = "biases in its state_dict", f"{full}, a tensor outside it"
                fix = f"make it a parameter: nn.Parameter({name})"
                raise build(CheckpointError, argument, expected, got, fix=fix)
    return state


def check_options(source: str, *options: tuple[str, object, object, str]) -> None:
    """Refuse the first option without a counterpart: rows of (option, value, wanted, cause).

    ``wanted`` may be a list of several values. Raises `ArgumentError`.
    """
    for option, value, wanted, cause in options:
        several = wanted if isinstance(wanted, list) else [wanted]
        if not any(value is x or value == x for x in several):
            expected = " or ".join(map(repr, several))
            if len(several) > 3:
                expected = f"one of {', '.join(map(str, several))}"
            raise build(ArgumentError, f"{source}.{option}", expected, repr(value), cause)


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
            got = f"{type(module).__name__}, which has a {name} of its own"
            cause = "what it computes is not known"
            raise build(KindError, verb, f"a module of type {names}", got, cause)


def check_plain(ours: MultiHeadAttention, options: Iterable[str], there: str) -> None:
    """Refuse options, and shared key heads, that the layer ``there`` does not have."""
    values, cause = {x: getattr(ours.attention, x) for x in options}, f"there is none in {there}"
    check_options(
        "MultiHeadAttention",
        *((f"attention.{option}", value, None, cause) for option, value in values.items()),
        ("kv_heads", ours.kv_heads, ours.heads, f"heads do not share keys in {there}"),
    )


Rows = list[tuple[list[str], list[str]]]
"""Names of tensors here and there: one on each side, or one beside several that it joins."""


def rows(table: str) -> Rows:
    """Return the rows of a table of our names and theirs.

    Names that end with "." or "_" stand for a weight and, where there is one, a bias; "*" is the
    number of a layer; a+b are the rows of a above those of b; words in braces, on both sides, make
    a row each.

    >>> rows("{q,k}_  to_{q,k}.")
    [(['q_'], ['to_q.']), (['k_'], ['to_k.'])]
    """
    lines = [line.split() for line in table.strip().splitlines()]
    return [row for ours, theirs in lines for row in _spelled(ours, theirs)]


def _spelled(ours: str, theirs: str) -> Rows:
    left, right = (re.split(r"\{(.*?)\}", side, maxsplit=1) for side in (ours, theirs))
    if len(left) == 1:
        return [(ours.split("+"), theirs.split("+"))]
    pairs = zip(left[1].split(","), right[1].split(","))
    return [row for a, b in pairs for row in _spelled(a.join(left[::2]), b.join(right[::2]))]


def under(ours: str, theirs: str, part: Rows) -> Rows:
    """Return the rows of a part that has these names in the whole."""
    return [([ours + x for x in left], [theirs + x for x in right]) for left, right in part]


def swapped(table: Rows) -> Rows:
    """Return the rows with both sides exchanged: what `load` reads, `dump` writes."""
    return [(theirs, ours) for ours, theirs in table]


def as_it_is(name: str, x: Tensor) -> Tensor:
    """Return x."""
    return x


def transfer(
    module: M,
    table: Rows,
    theirs: Mapping[str, Tensor],
    source: str,
    turn: Callable[[str, Tensor], Tensor] = as_it_is,
) -> M:
    """Return a module that was made on "meta", with copies of the tensors that the table names.

    The module's names are on the left. Dtypes, devices, ``requires_grad`` and ties are kept; a bias
    that is missing is zero; ``turn`` brings a tensor, by the module's name, into the module's
    shape, axes of size 1 apart. Raises `CheckpointError` naming tensors of ``source`` that are
    missing or left over, `ArgumentError` where frozen and trainable ones become one.

    >>> given = {"w": torch.ones(1, 2), "b": torch.ones(1), "lora": torch.ones(1)}
    >>> transfer(nn.Linear(2, 1), rows("{weight,bias} {w,b}"), given, "Layer")
    Traceback (most recent call last):
    ...
    intently.errors.CheckpointError: Layer: expected every parameter to have a place; got 'lora' \
left over. Our block would compute something else without them.
    """
    shapes = {name: x.shape for name, x in module.state_dict().items()}
    places = {other for name in shapes for other in (name, *elsewhere(name))}
    layers = sorted({int(i) for i in re.findall(r"layers\.(\d+)\.", " ".join(places))})
    copies: dict[int, Tensor] = {}
    taken: dict[str, Tensor] = {}
    ours: dict[str, Tensor] = {}

    def take(name: str) -> Tensor:
        weight = taken.get(name.removesuffix("bias") + "weight")
        if name not in theirs and name.endswith("bias") and weight is not None:
            return Map(weight, None).bias_or_zeros()
        if name not in theirs:
            expected, got = f"a tensor {name!r}", f"none of {listed(set(theirs) - set(taken))}"
            cause = "it is a different form or version of this layer"
            raise build(CheckpointError, source, expected, got, cause)
        x = theirs[name]
        if id(x) not in copies:
            copies[id(x)] = x.detach().clone().requires_grad_(x.requires_grad)
        return copies[id(x)]

    for row in table:
        for i in layers if "*" in row[0][0] else [0]:
            for kind in ("weight", "bias"):
                into, out_of = (_complete(side, i, kind) for side in row)
                if places.isdisjoint(into) or into[0] in ours:
                    continue
                given = {name: take(name) for name in out_of}
                taken |= given
                learns(f"{type(module).__name__}.{into[0]}", given)
                one = torch.cat(list(given.values())) if len(given) > 1 else given[out_of[0]]
                parts = [x.clone() for x in one.chunk(len(into))] if len(into) > 1 else [one]
                for name, x in zip(into, parts):
                    ours[name] = _unit_axes(turn(name, x), shapes.get(name))
    if left := set(theirs) - set(taken):
        expected, got = "every parameter to have a place", f"{listed(left)} left over"
        cause = "our block would compute something else without them"
        raise build(CheckpointError, source, expected, got, cause)
    return _filled(module, ours)


def _complete(names: list[str], layer: int, kind: str) -> list[str]:
    names = [name.replace("*", str(layer)) for name in names]
    return [name + kind if name.endswith((".", "_")) else name for name in names]


def _unit_axes(x: Tensor, shape: torch.Size | None) -> Tensor:
    """The tensor with the module's axes of size 1, where nothing else differs."""
    if shape is None or x.ndim == len(shape) or x.numel() != shape.numel():
        return x
    return x.view(shape)


def learns(name: str, parts: Mapping[str, Tensor]) -> bool:
    """Return whether the parts of a parameter require grad; raise `ArgumentError` if mixed."""
    frozen = sorted(part for part, x in parts.items() if not x.requires_grad)
    if 0 < len(frozen) < len(parts):
        expected = f"all or none of {', '.join(parts)} frozen"
        cause = "they become one tensor, which learns or does not"
        fix = "freeze, or let learn, all of them there and load again"
        raise build(ArgumentError, name, expected, f"{', '.join(frozen)} frozen alone", cause, fix)
    return not frozen


def _filled(module: M, tensors: Mapping[str, Tensor]) -> M:
    """Make the tensors the module's own: their dtypes, devices, ``requires_grad``, and ties."""
    module.load_state_dict({name: x.detach() for name, x in tensors.items()}, assign=True)
    for name, p in module.named_parameters():
        parts = {x: tensors[x] for x in (name, *elsewhere(name)) if x in tensors}
        p.requires_grad_(learns(f"{type(module).__name__}.{name}", parts))
    first: dict[int, str] = {}
    for name, x in tensors.items():
        other = first.setdefault(id(x), name)
        if other != name:
            path, _, last = name.rpartition(".")
            setattr(module.get_submodule(path), last, module.get_parameter(other))
    return module


def like_norm(theirs: nn.Module, source: str, *kinds: type) -> nn.Module:
    """Return a copy of a norm; raise `KindError` unless it is of the ``kinds``."""
    check_kind(theirs, *kinds, verb=f"load({source})")
    return deepcopy(theirs)


def assemble(width: int, parts: Mapping[str, nn.Module], **options: Any) -> nn.Module:
    """Return our layer with these parts, by our names."""
    kind = DecoderLayer if "cross_attention" in parts else EncoderLayer
    layer = kind(width, 1, nn.Identity(), **options)
    for name, part in parts.items():
        setattr(layer, name, part)
    return layer


HERE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
LAYERS = re.compile(r"(^|_)(n_layers?|num_layers)$|hidden_layers$|(en|de)coder_layers$")
"""Options of a config that count layers."""


@contextmanager
def quiet() -> Iterator[Any]:
    """Yield transformers with its warnings and progress bars off."""
    require("transformers", "reads such folders")
    import transformers

    logging = transformers.utils.logging
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield transformers
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def reading(folder: Path, expected: str) -> Iterator[Any]:
    """Yield transformers, quiet; any error that is not ours becomes a `DataError`."""
    with quiet() as transformers:
        try:
            yield transformers
        except IntentlyError:
            raise
        except Exception as error:
            if lacks_memory(error):
                raise
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            fix = "save it again with model.save_pretrained(folder)"
            raise build(DataError, str(folder), expected, first, fix=fix) from None


def kind_of(transformers: Any, folder: Path, expected: str) -> Any:
    """Return the class that the config of a folder names, if its weights can have its layers."""
    file = File(folder / "config.json", "the config of a transformers model", DataError)
    config = file.json({str: object})
    if "configuration_files" in config:
        raise file.refusal("one that names other files", fix="remove its configuration_files")
    name = next(iter(config.get("architectures") or ()), None)
    kind = getattr(transformers, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise build(DataError, str(folder), expected, f"one of class {name}")
    files = list(folder.glob("*.safetensors"))
    if not files:
        raise build(DataError, str(folder), expected, "no file of weights")
    tensors = sum(
        len(File(path, "a safetensors file", DataError).header(most=2**28).tensors)
        for path in files
    )
    for option, layers in _counts(config):
        if layers > tensors:
            wanted = f"{option} up to {tensors:,}, the number of tensors in the folder"
            raise build(DataError, str(file.path), wanted, f"{layers:,}", "it is damaged")
    transformers.AutoConfig.from_pretrained(folder, **HERE)  # refuses what is wrong with the rest
    return kind


def loaded(kind: Any, folder: Path, spare: str = "(?!)") -> Any:
    """Return the model of a folder; its tensors must be those of its class.

    Only tensors whose names match ``spare`` may be missing or left over. Raises `CheckpointError`.
    """
    model, report = kind.from_pretrained(
        folder, use_safetensors=True, output_loading_info=True, **HERE
    )
    wrong = [
        f"{listed(names)} {what}"
        for key, what in (
            ("missing_keys", "missing"),
            ("unexpected_keys", "left over"),
            ("mismatched_keys", "of a different shape"),
        )
        if (names := [x for x in map(str, report.get(key, ())) if not re.fullmatch(spare, x)])
    ]
    if wrong:
        expected, got = f"the tensors of {kind.__name__}", ", ".join(wrong)
        cause = "the folder holds another model than its config says"
        raise build(CheckpointError, str(folder), expected, got, cause)
    return model


def _counts(config: Any) -> Iterator[tuple[str, int]]:
    """Yield the options that count layers, at any depth, and their values."""
    if isinstance(config, dict):
        for name, value in config.items():
            if isinstance(value, int) and LAYERS.search(name):
                yield name, value
    if isinstance(config, dict | list):
        for value in config.values() if isinstance(config, dict) else config:
            yield from _counts(value)
