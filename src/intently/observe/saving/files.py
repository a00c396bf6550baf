"""Recordings as files: one safetensors file, mapped into memory and not trusted.

The tensors are queries and keys (b, h, t, d), head after head, so that a read of some rows touches
one head. Everything else is JSON in the metadata: names, tokens, verdicts, and masks, biases and
scores in the form of `values`. A file that `save` would not have written is refused with the
reason; nothing in it is unpickled or run, and no name in it names a file.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

import intently
from intently.core.biases import Bias
from intently.core.masks import Geometry, Mask
from intently.core.matrix.blocks import InBlocks
from intently.core.scores import Score
from intently.errors import (
    ArgumentError,
    DataError,
    IntentlyError,
    KindError,
    StaleError,
    build,
    shape_of,
)
from intently.foundation import files
from intently.foundation.files import DTYPES, Header, Stored, UnfitError
from intently.foundation.values import Value
from intently.nn.recurrent import Energies
from intently.observe.generation.joining import Rows
from intently.observe.recording.coverage import printable
from intently.observe.recording.labels import Tokens, is_rows, sides
from intently.observe.recording.recording import Entry, Recording
from intently.observe.saving import values
from intently.observe.saving.values import UnreadableError
from intently.observe.storage.stores import Kept, KeptSpec, identity, pieces
from intently.observe.watching.call import AttentionSpec

KIND, FORMAT = "intently recording", 2
"""The kind in the metadata, and the version of the format; other versions are refused."""

LONGEST, HOLLOW = 4096, 2**24
"""Characters of a name at most; weights if queries or keys have no entries, and so no bytes."""

NAMES = {getattr(torch, kind): name for name, (kind, _) in DTYPES.items()}
"""The names in the format of the dtypes that recordings hold."""

HEADER, ALIGNED, SMALL = files.HEADER, 64, 2**22
"""Bytes of a header at most; of which the start of the tensors is a multiple; and up to which a
tensor is read whole, to compare its checksum, when a part is wanted."""

AGAIN = "open it again: it.load_recording(path)"

_TENSOR = {"tensor": str}
_VALUES = {"score": Score, "mask": Mask, "bias": Bias, "weights": InBlocks}
_HOW = {"scale?": (None, float, _TENSOR), "softcap?": (None, float), "dropout": float}
_HOW |= {**dict.fromkeys(("sinks?", "softmax?"), (None, _TENSOR))}
_HOW |= {f"{name}?": object for name in _VALUES}
_TOLD = {"name": str, "index": int, "source": str, "verified": (bool, None), "why?": (str, None)}
_TOLD |= {"changed?": (str, None), "steps": int, "across?": (bool, None)}
_TEXT = ([str], [[str], [str]])
_RECORDING = {
    "tokens?": (None, *_TEXT, {"rows": [_TEXT]}),
    "covered": {"unseen": {str: str}, "notes": [str]},
    "entries": [{**_TOLD, "compared?": int, "how": _HOW, str: object}],
    str: object,
}
"""The shape of the JSON in a file; tensors, masks, biases and scores have readers."""

# --- writing --------------------------------------------------------------------------------------


def save(recording: Recording, path: str | PathLike[str]) -> Path:
    """Write a recording as one safetensors file, whole or not at all, and return its path.

    Operands are written one after the other, those inside a native operator after they are
    computed; masks and biases of the user's own classes are written out as tensors. Raises
    `StaleError` if a reference has changed, `KindError` for scores of the user's own classes,
    `ArgumentError` for names that `load` would refuse, and `WriteError` if the disk is full or the
    folder does not exist.
    """
    sheet, covered, target = _Sheet(), recording.covered, Path(path)
    with torch.no_grad():
        about = {
            "tokens": _told(recording.tokens),
            "covered": {"unseen": covered.unseen, "notes": covered.notes},
            "entries": [sheet.entry(entry) for entry in recording.calls],
        }
    metadata = {
        "kind": KIND,
        "format": str(FORMAT),
        "intently": intently.__version__,
        "recording": json.dumps(about, allow_nan=False, separators=(",", ":")),
    }
    _write(target, sheet.tensors, metadata)
    return target


class _Sheet:
    """The content of a file: what gives its ``tensors``, once if several entries share them."""

    def __init__(self) -> None:
        self.tensors: dict[str, Callable[[], Tensor]] = {}
        self._shared: dict[tuple[Any, ...], str] = {}

    def entry(self, entry: Entry) -> dict[str, Any]:
        """An entry as plain data."""
        for text in (entry.name, entry.source):
            if fault := _fault(text):
                expected = "a name that can be read again"
                raise build(ArgumentError, "name", expected, repr(text), fault)
        rows, how, matrix = entry.rows, entry.rows.how(), entry.attention()
        g = Geometry(matrix.shape[:-2], matrix.shape[-2], matrix.shape[-1], matrix.device)
        gets = {"q": lambda: rows.operands()[0], "k": lambda: rows.operands()[1]}
        kept = {"values": entry.values, "gradient": entry.gradient}
        gets |= {name: x.get for name, x in kept.items() if x is not None}
        at = f"{entry.name}/{entry.index}"
        return {
            **{name.removesuffix("?"): getattr(entry, name.removesuffix("?")) for name in _TOLD},
            "compared": min(entry.compared, entry.shape[-2]),
            **{name: self._planned(f"{at}/{name}", get) for name, get in gets.items()},
            "how": {name: self._part(x, g, entry.name) for name, x in vars(how).items()},
        }

    def _part(self, x: Any, g: Geometry, name: str) -> Any:
        """An argument of `attend` as plain data."""
        if not isinstance(x, Value):
            return self._once(x) if isinstance(x, Tensor) else x
        form = values.form(x, g, self._once)
        if form is None:
            got, why = type(x).__name__, f"a file cannot say what {name!r} computes"
            raise build(KindError, "save", "a score of intently.core.scores", got, why)
        return form

    def _once(self, x: Tensor) -> dict[str, str]:
        key = self._shared.setdefault(identity(x), f"shared/{len(self._shared)}")
        return self._planned(key, lambda: x)

    def _planned(self, key: str, get: Callable[[], Tensor]) -> dict[str, str]:
        self.tensors[key] = get
        return {"tensor": key}


def _told(tokens: Tokens | None) -> Any:
    """Tokens as plain data: texts, two lists of them, or the texts of each row of a batch."""
    if is_rows(tokens):
        texts: Any = tokens
        return {"rows": [_told(text) for text in texts]}
    found = [list(side) for side in sides(tokens)]
    return found if len(found) > 1 else next(iter(found), None)


def _write(
    path: Path, tensors: Mapping[str, Callable[[], Tensor]], metadata: Mapping[str, str]
) -> None:
    """Write a safetensors file: whole, or not at all.

    The metadata get a checksum of each tensor ("checksums") and one of the whole header
    ("sha256"). Raises `ArgumentError` for the name of a folder and for more names and tokens than
    a header holds, `WriteError` if the file cannot be written.
    """
    if path.is_dir():
        raise build(ArgumentError, "path", "the name of a file", f"{str(path)!r}, a folder")
    with torch.no_grad():
        blank = {name: get().to("meta") for name, get in tensors.items()}
    stored: dict[str, Stored] = {}
    at = 0
    for name, x in sorted(blank.items(), key=lambda item: -item[1].itemsize):
        stored[name] = Stored(NAMES[x.dtype], tuple(x.shape), at, at + x.nbytes)
        at += x.nbytes
    header, checks = Header(dict(metadata), stored), dict.fromkeys(stored, "0" * 64)
    with files.replacing(path) as file, torch.no_grad():
        file.write(_packed(header, checks))  # of the same length as the right one
        for name in stored:
            x, want = tensors[name](), blank[name]
            if (x.shape, x.dtype) != (want.shape, want.dtype):
                expected, cause = f"a tensor of {shape_of(want)} as before", "the recording grew"
                fix = "save when the watched block is done"
                raise build(ArgumentError, "save", expected, tuple(x.shape), cause, fix)
            checks[name] = _digest(x, file.write)
        file.seek(0)
        file.write(_packed(header, checks))


def _digest(x: Tensor, write: Callable[[memoryview], object] = len) -> str:
    """The checksum of a tensor; ``write`` takes its bytes."""
    sum_of = hashlib.sha256()
    for part in pieces(x, x.dtype):
        sum_of.update(part)
        write(part)
    return sum_of.hexdigest()


def _packed(header: Header, checks: Mapping[str, str]) -> bytes:
    """The length of the header, and the header with the checksums of its tensors and its own."""
    text = json.dumps(files.sealed_header(header, checks).plain(), separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNED)
    if len(text) > HEADER:
        expected = f"names and tokens of at most {HEADER:,} bytes"
        cause = "the header of a safetensors file holds no more"
        fix = "watch fewer layers or calls at a time: watch(model, layers=…)"
        raise build(ArgumentError, "save", expected, f"{len(text):,}", cause, fix)
    return len(text).to_bytes(8, "little") + text


# --- reading --------------------------------------------------------------------------------------


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
    for name, x in file.tensors.items() if whole else ():
        file.get(name, most=x.nbytes)
    try:
        about, counts = file.about, dict[str, int]()
        recording = Recording(_texts(about.get("tokens")))
        for name, why in about["covered"]["unseen"].items():
            recording.covered.unseen[_name(name)] = printable(why)
        recording.covered.notes += map(printable, about["covered"]["notes"])
        for form in about["entries"]:
            recording.add(_entry(form, file, counts))
    except UnreadableError as error:
        cause = "it is damaged, or was made by another program"
        raise file.file.refusal(str(error).removesuffix("."), cause) from None
    return recording


class Mapped:
    """An open file: what its metadata say ``about`` a recording, and its tensors by name, unread.

    Raises `DataError` unless the header is as `save` wrote it.
    """

    def __init__(self, path: Path) -> None:
        self.file = files.File(path, "a recording saved with Recording.save", DataError)
        self._handle = self.file.open()
        self._state = self._now()
        header, refusal = self.file.header(), self.file.refusal
        try:
            file = safe_open(path, "pt")
            self.tensors = {key: file.get_tensor(key) for key in header.tensors}
        except (SafetensorError, RuntimeError) as error:
            raise refusal(f"what the safetensors library refuses ({error})") from None
        except OSError as error:
            raise self.file.unreadable(error) from error
        self.check()
        if header.metadata.get("kind") != KIND:
            raise refusal("a different kind of safetensors file", "it holds tensors, no recording")
        version = header.metadata.get("format", "")[:9]
        if not (version.isascii() and version.isdigit() and int(version)):
            raise refusal(f"format {version!r}", "it is damaged")
        if int(version) != FORMAT:
            newer = int(version) > FORMAT
            cause = f"it was written by {'a newer' if newer else 'an older'} version of Intently"
            fix = "upgrade intently" if newer else "record it again"
            raise refusal(f"format {version}, where this version reads {FORMAT}", cause, fix)
        try:
            self._checks = files.checksums(header)
        except UnfitError as error:
            raise self.file.damaged(str(error)) from None
        content = header.metadata.get("recording", "").encode(errors="surrogatepass")
        self.about = self.file.json(_RECORDING, content)

    def check(self) -> None:
        """Raise `StaleError` if the file has changed: a shorter one could not be read."""
        if self._now() != self._state:
            expected, got = "the file as it was when it was opened", "one that was written to since"
            raise build(StaleError, str(self.file.path), expected, got, fix=AGAIN)

    def get(self, name: str, most: int = SMALL) -> Tensor | None:
        """Return a tensor by its name, compared with its checksum if it has at most so many bytes.

        Raises `DataError` if it has another one, or holds booleans that are neither True nor False.
        """
        x = self.tensors.get(name)
        if x is None or x.nbytes > most or name not in self._checks:
            return x
        if _digest(x) != self._checks[name]:
            raise self.file.damaged(f"another checksum of {name!r} than it was written with")
        if x.dtype is torch.bool and bool((x.view(torch.uint8) > 1).any()):
            raise self.file.refusal("a boolean tensor with bytes that are neither 0 nor 1")
        del self._checks[name]
        return x

    def __reduce__(self) -> Any:
        expected, got = "a recording in memory to copy or pickle", "one that is an open file"
        raise build(ArgumentError, str(self.file.path), expected, got, fix=AGAIN)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._handle.close()

    def _now(self) -> tuple[int, int]:
        found = os.fstat(self._handle.fileno())
        return found.st_size, found.st_mtime_ns


class InFile(Kept):
    """A tensor in a recording's file, mapped and not read."""

    def __init__(self, file: Mapped, name: str) -> None:
        self._file, self._name, self.shape = file, name, tuple(file.tensors[name].shape)

    def check(self) -> None:
        """Raise `StaleError` if the file was written to since; nothing is read."""
        self._file.check()

    def get(self) -> Tensor:
        """Return the tensor, of which a small one is compared with its checksum."""
        self._file.check()
        x = self._file.get(self._name)
        assert x is not None
        return x


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
        t, compared = entry.shape[-2], form.get("compared", 0)
        if not 1 <= form["steps"] <= max(1, t):
            raise UnreadableError(f"{t} rows of other steps")
        if not 0 <= compared <= t:
            raise UnreadableError("more rows compared than there are")
    except (IntentlyError, UnreadableError) as error:
        raise UnreadableError(f"{name!r}, call {index}: {error}") from None
    entry.verified, entry.across, entry.steps = form["verified"], form.get("across"), form["steps"]
    entry.why, entry.changed = (x and printable(x) for x in map(form.get, ("why", "changed")))
    entry.values, entry.gradient = map(kept.get, ("values", "gradient"))
    entry.compared = compared
    return entry


def _part(name: str, x: Any, file: Mapped) -> Any:
    """An argument of `attend` beside q and k."""
    if isinstance(x, dict) and name not in ("score", "mask", "bias"):
        return values.tensor_of(x, file.get)
    return values.value(x, file.get, _VALUES[name]) if name in _VALUES and x is not None else x


def _check(parts: Mapping[str, Tensor], how: AttentionSpec) -> None:
    """Raise unless the parts make a matrix; only the shapes of large tensors are checked."""
    q, k = parts["q"], parts["k"]
    for name, x in {**parts, "weights": how.weights, "softmax": how.softmax}.items():
        if isinstance(x, Tensor) and not x.is_floating_point():  # `attend` would take a learner's
            raise UnreadableError(f"{name}: expected a floating-point tensor; got dtype {x.dtype}")
    matrix = how.attend(q, k)
    *lead, t, s = matrix.shape
    shapes = f"q of {shape_of(q)} and k of {shape_of(k)}"
    energy = how.score.parts[0] if isinstance(how.score, Energies) else None
    if how.weights is not None:
        if matrix.shape != (*q.shape[:-1], k.shape[-2]):
            raise UnreadableError(f"weights {matrix.shape} for {shapes}")
        if how.softmax is not None and how.softmax.shape != matrix.shape:
            raise UnreadableError(f"a softmax of {shape_of(how.softmax)} for {shapes}")
    elif not (q.numel() and k.numel()) and t * s * max(1, math.prod(lead)) > HOLLOW:
        raise UnreadableError(f"weights {matrix.shape} of queries and keys without entries")
    if math.prod(lead) > max(math.prod(q.shape[:-2]), math.prod(k.shape[:-2])):
        raise UnreadableError(f"{shapes}, which do not fit")
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
