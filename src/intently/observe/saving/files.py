"""Recordings as files: one safetensors file, mapped into memory and not trusted.

The tensors are queries and keys (b, h, t, d), head after head, so that a read of some rows touches
one head. Everything else is JSON in the metadata: names, tokens, verdicts, and masks, biases and
scores in the form of `values`. A file that `save` would not have written is refused with the
reason; nothing in it is unpickled or run, and no name in it names a file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import intently
from intently.core.biases import Bias
from intently.core.masks import Geometry, Mask
from intently.core.matrix.blocks import InBlocks
from intently.core.scores import Score
from intently.errors import ArgumentError, IntentlyError, KindError, build, shape_of
from intently.foundation.values import Value
from intently.nn.recurrent import Energies
from intently.observe.generation.joining import Rows
from intently.observe.recording.coverage import printable
from intently.observe.recording.labels import Tokens, is_rows, sides
from intently.observe.recording.recording import Entry, Recording
from intently.observe.saving import values
from intently.observe.saving.tensors import InFile, Mapped, Planned, write
from intently.observe.saving.values import UnreadableError
from intently.observe.storage.stores import Kept, KeptSpec, identity
from intently.observe.watching.call import AttentionSpec

KIND, FORMAT = "intently recording", 2
"""The kind in the metadata, and the version of the format; other versions are refused."""

LONGEST = 4096
"""Characters of a name."""

_TENSOR = {"tensor": str}
_VALUES = {"score": Score, "mask": Mask, "bias": Bias, "weights": InBlocks}
_HOW = {
    "scale?": (None, float, _TENSOR),
    "softcap?": (None, float),
    "sinks?": (None, _TENSOR),
    "softmax?": (None, _TENSOR),
    "dropout": float,
    **{f"{name}?": object for name in _VALUES},
}
_ENTRY = {
    "name": str,
    "index": int,
    "source": str,
    "verified": (bool, None),
    "why?": (str, None),
    "changed?": (str, None),
    "steps": int,
    "compared?": int,
    "across?": (bool, None),
    "how": _HOW,
    str: object,
}
_TEXT = ([str], [[str], [str]])
_RECORDING = {
    "tokens?": (None, *_TEXT, {"rows": [_TEXT]}),
    "covered": {"unseen": {str: str}, "notes": [str]},
    "entries": [_ENTRY],
    str: object,
}
"""The shape of the JSON in a file; tensors, masks, biases and scores have readers."""

HOLLOW = 2**24
"""Weights at most if queries or keys have no entries, and so no bytes in the file."""


def save(recording: Recording, path: str | PathLike[str]) -> Path:
    """Write a recording as one safetensors file, whole or not at all, and return its path.

    Operands are written one after the other, those inside a native operator after they are
    computed; masks and biases of the user's own classes are written out as tensors. Raises
    `StaleError` if a reference has changed, `KindError` for scores of the user's own classes,
    `ArgumentError` for names that `load` would refuse, and `WriteError` if the disk is full or the
    folder does not exist.
    """
    sheet = _Sheet()
    with torch.no_grad():
        entries = [sheet.entry(entry) for entry in recording.calls]
    about = {
        "tokens": _told(recording.tokens),
        "covered": {"unseen": recording.covered.unseen, "notes": recording.covered.notes},
        "entries": entries,
    }
    metadata = {
        "kind": KIND,
        "format": str(FORMAT),
        "intently": intently.__version__,
        "recording": json.dumps(about, allow_nan=False, separators=(",", ":")),
    }
    target = Path(path)
    write(target, sheet.planned, metadata)
    return target


def load(path: str | PathLike[str], *, whole: bool = False) -> Recording:
    """Open a recording that `save` wrote; no tensor is read until it is asked for.

    Names, tokens, shapes and the rest of the header are compared with their checksum at once, a
    tensor of at most 4 MiB when it is first asked for. Larger ones are compared only if the
    ``whole`` file is to be read now.

    Raises `DataError` with the reason for files that are missing, cut, damaged, foreign or of a
    newer format, and for content that no recording holds. That weights were verified is only what
    the file says: whoever sends you one could have written anything there.
    """
    file = Mapped(Path(path))
    about = _about(file)
    for name, x in file.tensors.items() if whole else ():
        file.get(name, most=x.nbytes)
    try:
        recording = Recording(_texts(about.get("tokens")))
        for name, why in about["covered"]["unseen"].items():
            recording.covered.unseen[_name(name)] = printable(why)
        recording.covered.notes += map(printable, about["covered"]["notes"])
        counts: dict[str, int] = {}
        for form in about["entries"]:
            recording.add(_entry(form, file, counts))
    except UnreadableError as error:
        cause = "it is damaged, or was made by another program"
        raise file.file.refusal(str(error).removesuffix("."), cause) from None
    return recording


# --- to plain data --------------------------------------------------------------------------------


class _Sheet:
    """The content of a file: tensors by name, and once if several entries share them."""

    def __init__(self) -> None:
        self.planned: dict[str, Planned] = {}
        self._shared: dict[tuple[Any, ...], str] = {}

    def entry(self, entry: Entry) -> dict[str, Any]:
        """An entry as plain data, its tensors planned."""
        for text in (entry.name, entry.source):
            if fault := _fault(text):
                expected = "a name that can be read again"
                raise build(ArgumentError, "name", expected, repr(text), fault)
        (q, k), how = entry.rows.operands(), entry.rows.how()
        matrix = how.attend(q, k)
        g = Geometry(matrix.shape[:-2], matrix.shape[-2], matrix.shape[-1], matrix.device)
        parts: list[tuple[str, Tensor, Callable[[], Tensor]]] = [
            ("q", q, lambda: entry.rows.operands()[0]),
            ("k", k, lambda: entry.rows.operands()[1]),
        ]
        for part, kept in (("values", entry.values), ("gradient", entry.gradient)):
            if kept is not None:
                parts.append((part, kept.get(), kept.get))
        at = f"{entry.name}/{entry.index}"
        told = ("name", "index", "source", "verified", "why", "changed", "steps", "across")
        return {
            **{name: getattr(entry, name) for name in told},
            "compared": min(entry.compared, entry.shape[-2]),
            **{part: self._planned(f"{at}/{part}", x, get) for part, x, get in parts},
            "how": {part: self._part(x, g, entry.name) for part, x in vars(how).items()},
        }

    def _part(self, x: Any, g: Geometry, name: str) -> Any:
        """An argument of `attend` as plain data."""
        if isinstance(x, Value):
            form = values.form(x, g, self._once)
            if form is None:
                got, why = type(x).__name__, f"a file cannot say what {name!r} computes"
                raise build(KindError, "save", "a score of intently.core.scores", got, why)
            return form
        return self._once(x) if isinstance(x, Tensor) else x

    def _planned(self, key: str, x: Tensor, get: Callable[[], Tensor]) -> dict[str, str]:
        self.planned[key] = Planned(tuple(x.shape), x.dtype, get)
        return {"tensor": key}

    def _once(self, x: Tensor) -> dict[str, str]:
        key = self._shared.setdefault(identity(x), f"shared/{len(self._shared)}")
        return self._planned(key, x, lambda: x)


def _told(tokens: Tokens | None) -> list[Any] | dict[str, Any] | None:
    """Tokens as plain data: texts, two lists of them, or the texts of each row of a batch."""
    if is_rows(tokens):
        texts: Any = tokens
        return {"rows": [_told(text) for text in texts]}
    found = [list(side) for side in sides(tokens)]
    return (found or [None])[0] if len(found) < 2 else found


# --- from plain data ------------------------------------------------------------------------------


def _about(file: Mapped) -> dict[str, Any]:
    """The JSON in the metadata of a file."""
    metadata, refusal = file.header.metadata, file.file.refusal
    if metadata.get("kind") != KIND:
        raise refusal("a different kind of safetensors file", "it holds tensors, no recording")
    version = metadata.get("format", "")[:9]
    if not (version.isascii() and version.isdigit() and int(version)):
        raise refusal(f"format {version!r}", "it is damaged")
    if int(version) != FORMAT:
        newer = int(version) > FORMAT
        cause = f"it was written by {'a newer' if newer else 'an older'} version of Intently"
        fix = "upgrade intently" if newer else "record it again"
        raise refusal(f"format {version}, where this version reads {FORMAT}", cause, fix)
    file.sealed()
    content = metadata.get("recording", "").encode(errors="surrogatepass")
    return file.file.json(_RECORDING, content)


def _entry(form: dict[str, Any], file: Mapped, counts: dict[str, int]) -> Entry:
    name = _name(form["name"])
    index = counts[name] = counts.get(name, -1) + 1
    if form["index"] != index:
        raise UnreadableError(f"calls of {name!r} that are not counted from 0")
    try:
        found = {
            part: values.tensor_of(form.get(part), file.tensors.get)
            for part in ("q", "k", "values", "gradient")
            if part in "qk" or form.get(part) is not None
        }
        how = AttentionSpec(**{x: _part(x, part, file) for x, part in form["how"].items()})
        _check(found, how)
        kept: dict[str, Kept] = {part: InFile(file, form[part]["tensor"]) for part in found}
        entry = Entry(name, index, _name(form["source"]), Rows(kept["q"], kept["k"], KeptSpec(how)))
        t = entry.shape[-2]
        if not 1 <= form["steps"] <= max(1, t):
            raise UnreadableError(f"{t} rows of other steps")
        if not 0 <= form.get("compared", 0) <= t:
            raise UnreadableError("more rows compared than there are")
    except (IntentlyError, UnreadableError) as error:
        raise UnreadableError(f"{name!r}, call {index}: {error}") from None
    entry.verified, entry.across, entry.steps = form["verified"], form.get("across"), form["steps"]
    entry.why, entry.changed = (x and printable(x) for x in map(form.get, ("why", "changed")))
    entry.compared = form.get("compared", 0)
    entry.values, entry.gradient = kept.get("values"), kept.get("gradient")
    return entry


def _part(name: str, x: Any, file: Mapped) -> Any:
    """An argument of `attend` beside q and k."""
    if isinstance(x, dict) and name not in ("score", "mask", "bias"):
        return values.tensor_of(x, file.get)
    return values.value(x, file.get, _VALUES[name]) if name in _VALUES and x is not None else x


def _check(parts: Mapping[str, Tensor], how: AttentionSpec) -> None:
    """Raise unless the parts make a matrix; only the shapes of large tensors are checked."""
    q, k = parts["q"], parts["k"]
    given = {name: getattr(how, name) for name in ("weights", "softmax")}
    given = {name: x for name, x in given.items() if isinstance(x, Tensor)}
    for name, x in {**parts, **given}.items():
        if not x.is_floating_point():  # `attend` would take them for a learner's
            raise UnreadableError(f"{name}: expected a floating-point tensor; got dtype {x.dtype}")
    matrix = how.attend(q, k)
    *lead, t, s = matrix.shape
    shapes = f"q of {shape_of(q)} and k of {shape_of(k)}"
    if how.weights is not None:
        if matrix.shape != (*q.shape[:-1], k.shape[-2]):
            raise UnreadableError(f"weights {matrix.shape} for {shapes}")
        if how.softmax is not None and how.softmax.shape != matrix.shape:
            raise UnreadableError(f"a softmax of {shape_of(how.softmax)} for {shapes}")
    elif not (q.numel() and k.numel()) and t * s * max(1, math.prod(lead)) > HOLLOW:
        raise UnreadableError(f"weights {matrix.shape} of queries and keys without entries")
    if math.prod(lead) > max(math.prod(q.shape[:-2]), math.prod(k.shape[:-2])):
        raise UnreadableError(f"{shapes}, which do not fit")
    energy = how.score.parts[0] if isinstance(how.score, Energies) else None
    if energy is not None and (q.ndim, energy.shape) != (3, q.shape[-1:]):
        raise UnreadableError(f"energies of {shape_of(energy)} for q of {shape_of(q)}")
    if isinstance(how.scale, Tensor) and not bool(how.scale.isfinite().all()):
        raise UnreadableError("a scale that is no finite number")
    if how.sinks is not None and bool((how.sinks.isnan() | (how.sinks == math.inf)).any()):
        raise UnreadableError("sinks that are no numbers")
    for name, want in (("values", s), ("gradient", t)):
        x = parts.get(name)
        if x is not None and (x.ndim != q.ndim or x.shape[-2] != want):
            raise UnreadableError(f"{name} of {shape_of(x)} for weights {matrix.shape}")


def _texts(x: Any) -> Any:
    """The texts of one sequence, of two, or of each row of a batch."""
    if isinstance(x, dict):
        return [_texts(text) for text in x["rows"]]
    return tuple(x) if x and isinstance(x[0], list) else x


def _name(x: str) -> str:
    if fault := _fault(x):
        raise UnreadableError(f"the name {x[:40]!r}, {fault}")
    return x


def _fault(name: str) -> str | None:
    """Why no module or source can have this name; None for a valid one."""
    if not name or len(name) > LONGEST:
        return f"which has {len(name)} characters and not 1 to {LONGEST}"
    if not name.isprintable():
        return "which cannot be printed"
    if "\\" in name or {"", ".."} & set(name.split("/")):
        return "which leads out of a folder"
    return None
