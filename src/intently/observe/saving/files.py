"""Recordings as files: one safetensors file, mapped into memory and not trusted.

The tensors are queries and keys (b, h, t, d), head after head, so that a read of some rows touches
one head. Everything else is JSON in the metadata: names, tokens, verdicts, and masks, biases and
scores in the form of `value_json`. A file that `save` would not have written is refused with the
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
from intently.core.biases import Bias, TensorBias
from intently.core.masks import Geometry, Mask
from intently.core.matrix import LazyMatrix
from intently.core.scores import Score
from intently.errors import ArgumentError, IntentlyError, KindError, build, shape_of
from intently.nn.recurrent import Energies
from intently.observe.recording.blocks import InBlocks
from intently.observe.recording.coverage import printable
from intently.observe.recording.labels import Tokens, is_rows, sides
from intently.observe.recording.recording import Entry, Recording, Whole
from intently.observe.saving import value_json
from intently.observe.saving.mapped import InFile, Mapped
from intently.observe.saving.value_json import UnreadableError
from intently.observe.saving.writing import Planned, write
from intently.observe.storage.stores import KeptSpec, identity
from intently.observe.watching.call import AttentionSpec

KIND, FORMAT = "intently recording", 2
"""The kind in the metadata, and the version of the format; higher versions are refused."""

LONGEST = 4096
"""Characters of a name."""

_TENSOR = {"tensor": str}
_HOW = {
    "scale?": (None, float, _TENSOR),
    "softcap?": (None, float),
    "sinks?": (None, _TENSOR),
    "dropout": float,
    str: object,
}
_ENTRY = {
    "name": str,
    "index": int,
    "source": str,
    "verified": (bool, None),
    "why?": (str, None),
    "steps": int,
    "compared?": int,
    "across?": (bool, None),
    "how": _HOW,
    str: object,
}
_RECORDING = {"covered": {"unseen": {str: str}, "notes": [str]}, "entries": [_ENTRY], str: object}
"""The shape of the JSON in a file; tokens, tensors, masks, biases and scores have readers."""

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
    for x in file.tensors.values() if whole else ():
        file.verify(x, most=x.nbytes)
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
        raise file.refusal(str(error).removesuffix("."), cause) from None
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
        at = f"{entry.name}/{entry.index}"
        matrix, how = entry.attention(), entry.rows.how()
        q, k = entry.rows.operands()
        kept = {"values": entry.values, "gradient": entry.gradient}
        return {
            "name": entry.name,
            "index": entry.index,
            "source": entry.source,
            "verified": entry.verified,
            "why": entry.why,
            "compared": min(entry.compared, entry.shape[-2]),
            "steps": entry.steps,
            "across": entry.across,
            "tokens": _told(entry.tokens),
            "q": self._own(f"{at}/q", q, lambda: entry.rows.operands()[0]),
            "k": self._own(f"{at}/k", k, lambda: entry.rows.operands()[1]),
            "how": self._how(how, _geometry(matrix), entry.name),
            **{
                part: self._own(f"{at}/{part}", x.get(), x.get)
                for part, x in kept.items()
                if x is not None
            },
        }

    def _how(self, how: AttentionSpec, g: Geometry, name: str) -> dict[str, Any]:
        values = {
            part: None if x is None else value_json.form(x, g, self._once)
            for part, x in vars(how).items()
            if part in ("score", "mask", "bias", "weights")
        }
        if values["score"] is None and how.score is not None:
            got, why = type(how.score).__name__, f"a file cannot say what {name!r} computes"
            raise build(KindError, "save", "a score of intently.core.scores", got, why)
        return {
            **values,
            "scale": self._once(how.scale) if isinstance(how.scale, Tensor) else how.scale,
            "softcap": how.softcap,
            "sinks": None if how.sinks is None else self._once(how.sinks),
            "dropout": how.dropout,
        }

    def _own(self, key: str, x: Tensor, get: Callable[[], Tensor]) -> dict[str, str]:
        self.planned[key] = Planned(tuple(x.shape), x.dtype, get)
        return {"tensor": key}

    def _once(self, x: Tensor) -> dict[str, str]:
        known = self._shared.get(identity(x))
        if known is None:
            known = self._shared[identity(x)] = f"shared/{len(self._shared)}"
            self.planned[known] = Planned(tuple(x.shape), x.dtype, lambda: x)
        return {"tensor": known}


def _geometry(matrix: LazyMatrix) -> Geometry:
    return Geometry(matrix.shape[:-2], *matrix.shape[-2:], matrix.device)


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
    if file.metadata.get("kind") != KIND:
        raise file.refusal("a different kind of safetensors file", "it holds tensors, no recording")
    version = file.metadata.get("format", "")[:9]
    if not (version.isascii() and version.isdigit() and int(version)):
        raise file.refusal(f"format {version!r}", "it is damaged")
    if int(version) > FORMAT:
        raise file.refusal(
            f"format {version}, where this version reads {FORMAT}",
            "it was written by a newer version of Intently",
            "upgrade intently",
        )
    if int(version) > 1:
        file.sealed()
    elif file.metadata.keys() - {"kind", "format", "intently", "recording"}:
        raise file.refusal("format 1 with what only later ones have", "it is damaged")
    content = file.metadata.get("recording", "").encode(errors="surrogatepass")
    return file.file.json(_RECORDING, content)


def _entry(form: dict[str, Any], file: Mapped, counts: dict[str, int]) -> Entry:
    name = _name(form["name"])
    index = counts[name] = counts.get(name, -1) + 1
    if form["index"] != index:
        raise UnreadableError(f"calls of {name!r} that are not counted from 0")
    try:
        found = {
            part: value_json.tensor_of(form.get(part), file.tensors.get)
            for part in ("q", "k", "values", "gradient")
            if part in "qk" or form.get(part) is not None
        }
        how = _how(form["how"], file)
        _check(found, how)
    except (IntentlyError, UnreadableError) as error:
        raise UnreadableError(f"{name!r}, call {index}: {error}") from None
    rules = how.mask, how.bias, how.score, how.weights
    values = [value for value in rules if value is not None]
    spec = KeptSpec(how, tuple(InFile(file, x) for value in values for x in value.tensors()))
    kept = {part: InFile(file, x) for part, x in found.items()}
    rows = Whole(kept["q"], kept["k"], spec)
    entry = Entry(name, index, _name(form["source"]), rows)
    entry.verified, entry.steps = form["verified"], form["steps"]
    entry.why = form.get("why") and printable(form["why"])
    if not 1 <= entry.steps <= max(1, entry.shape[-2]):
        raise UnreadableError(f"{name!r}, call {index}: {entry.shape[-2]} rows of other steps")
    entry.compared = form.get("compared", 0)
    if not 0 <= entry.compared <= entry.shape[-2]:
        raise UnreadableError(f"{name!r}, call {index}: more rows compared than there are")
    entry.tokens, entry.across = _texts(form.get("tokens")), form.get("across")
    entry.values, entry.gradient = kept.get("values"), kept.get("gradient")
    return entry


def _how(form: dict[str, Any], file: Mapped) -> AttentionSpec:
    """The arguments of `attend` beside q and k."""

    def value(part: str, kind: type[Any]) -> Any:
        return None if form.get(part) is None else value_json.value(form[part], file.verified, kind)

    def tensor(part: str) -> Any:
        x = form.get(part)
        return value_json.tensor_of(x, file.verified) if isinstance(x, dict) else x

    return AttentionSpec(
        value("score", Score),
        value("mask", Mask),
        value("bias", Bias),
        tensor("scale"),
        form.get("softcap"),
        tensor("sinks"),
        form["dropout"],
        value("weights", Bias),
    )


def _check(parts: Mapping[str, Tensor], how: AttentionSpec) -> None:
    """Raise unless the parts make a matrix; only the shapes of large tensors are checked."""
    q, k = parts["q"], parts["k"]
    for name, x in (("q", q), ("k", k)):
        if not x.is_floating_point():  # `attend` would take them for a learner's
            raise UnreadableError(f"{name}: expected a floating-point tensor; got dtype {x.dtype}")
    if how.weights is not None and not isinstance(how.weights, TensorBias | InBlocks):
        raise UnreadableError("weights that are no tensor and not in blocks")
    matrix = how.attend(q, k)
    if how.weights is not None and matrix.shape != (*q.shape[:-1], k.shape[-2]):
        raise UnreadableError(
            f"weights {matrix.shape} for q of {shape_of(q)} and k of {shape_of(k)}"
        )
    *lead, t, s = matrix.shape
    if math.prod(lead) > max(math.prod(q.shape[:-2]), math.prod(k.shape[:-2])):
        raise UnreadableError(f"q of {shape_of(q)} and k of {shape_of(k)}, which do not fit")
    if (
        how.weights is None
        and not (q.numel() and k.numel())
        and t * s * max(1, math.prod(lead)) > HOLLOW
    ):
        raise UnreadableError(f"weights {tuple(matrix.shape)} of queries and keys without entries")
    energy = how.score.parts[0] if isinstance(how.score, Energies) else None
    if energy is not None and (q.ndim, energy.shape) != (3, q.shape[-1:]):
        raise UnreadableError(f"energies of {shape_of(energy)} for q of {shape_of(q)}")
    if isinstance(how.scale, Tensor) and not bool(how.scale.isfinite().all()):
        raise UnreadableError("a scale that is no finite number")
    if how.sinks is not None and bool((how.sinks.isnan() | (how.sinks == math.inf)).any()):
        raise UnreadableError("sinks that are no numbers")
    for name, want in (("values", s), ("gradient", t)):
        x = parts.get(name)
        if x is not None and (x.ndim != q.ndim or x.shape[-2] != want or not x.is_floating_point()):
            raise UnreadableError(f"{name} of {shape_of(x)} for weights {matrix.shape}")


def _texts(x: Any) -> Tokens | None:
    """The texts of one sequence, of two, or of each row of a batch."""
    if x is None:
        return None
    if isinstance(x, dict):
        rows = x.get("rows")
        if not isinstance(rows, list) or not rows:
            raise UnreadableError("tokens that are no lists of texts")
        texts: Any = [_texts(text) for text in rows]
        return texts
    pair = isinstance(x, list) and len(x) == 2 and all(isinstance(side, list) for side in x)
    for texts in x if pair else [x]:
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise UnreadableError("tokens that are no lists of texts")
    return (x[0], x[1]) if pair else x


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
