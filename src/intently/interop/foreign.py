"""Modules and folders of other libraries: what `load` and `dump` ask of them.

The folders are those that ``save_pretrained`` of transformers wrote: they are read without network
or code, and refused in our words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

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
from intently.nn.weights.loading import Map, NamedTensors, fill, listed
from intently.nn.weights.reading import HeadMaps

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


def tensors_of(module: nn.Module, argument: str = "foreign") -> NamedTensors:
    """Return the parameters and the saved buffers of a PyTorch module without hooks."""
    check_hooks(module, argument)
    return NamedTensors(module.state_dict(keep_vars=True), type(module).__name__)


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


def multi_head(
    maps: Mapping[str, Map],
    heads: int,
    head_widths: tuple[int, int],
    *,
    kv_heads: int | None = None,
    norms: Mapping[str, Tensor | None] | None = None,
    **options: Any,
) -> MultiHeadAttention:
    """Return our block with these maps by "q", "k", "v", "out", and the tensors of its norms."""
    found = HeadMaps(dict(maps), heads, kv_heads or heads, head_widths)
    return fill(
        lambda: MultiHeadAttention(found.width, heads, **found.options, **options),
        {**found.tensors(), **(norms or {})},
    )


def read_norm(theirs: nn.Module, weights: NamedTensors, *kinds: type) -> nn.Module:
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
    ours: MultiHeadAttention, weights: NamedTensors, prefix: str = ""
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
    tensors = sum(len(_header(path).tensors) for path in files)
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
    model, found = kind.from_pretrained(
        folder, use_safetensors=True, output_loading_info=True, **HERE
    )
    wrong = [
        f"{listed(names)} {what}"
        for key, what in (
            ("missing_keys", "missing"),
            ("unexpected_keys", "left over"),
            ("mismatched_keys", "of a different shape"),
        )
        if (names := [x for x in map(str, found.get(key, ())) if not re.fullmatch(spare, x)])
    ]
    if wrong:
        raise build(
            CheckpointError,
            str(folder),
            f"the tensors of {kind.__name__}",
            ", ".join(wrong),
            "the folder holds another model than its config says",
        )
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


def _header(path: Path) -> Any:
    return File(path, "a safetensors file", DataError).header(most=2**28)
