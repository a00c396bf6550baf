"""Small recordings, and their files with other headers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from intently.errors import DataError
from intently.foundation.files import digest
from intently.foundation.files import plain as plain_json
from intently.observe import load_recording
from intently.observe.generation.joining import Rows
from intently.observe.recording.recording import Entry, Recording
from intently.observe.saving import files
from intently.observe.storage.stores import Held, KeptSpec
from intently.observe.watching.call import AttentionSpec

T, S, D = 6, 6, 8


def entry(
    name: str = "layers.0.attention", index: int = 0, how: AttentionSpec | None = None, **shape: int
) -> Entry:
    h, g = shape.get("h", 4), shape.get("g", 4)
    q, k = torch.randn(2, h, shape.get("t", T), D), torch.randn(2, g, shape.get("s", S), D)
    rows = Rows(Held(q), Held(k), KeptSpec(how or AttentionSpec()))
    made = Entry(name, index, "functional", rows)
    made.verified = True
    return made


def single(q: Tensor, k: Tensor | None = None, **how: Any) -> Entry:
    """An entry "x" of these operands."""
    operands = Held(q), Held(q if k is None else k)
    return Entry("x", 0, "functional", Rows(*operands, KeptSpec(AttentionSpec(**how))))


def recording(*entries: Entry) -> Recording:
    made = Recording(["The", "cat", "sat", "on", "the", "mat"])
    made.calls.extend(entries or (entry(),))
    return made


def reopened(made: Recording, folder: Path) -> Recording:
    return load_recording(files.save(made, folder / "run.safetensors"))


LENGTHS = torch.tensor([6, 4])


def parts(content: bytes) -> tuple[dict[str, Any], bytes]:
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def packed(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def resealed(header: dict[str, Any]) -> dict[str, Any]:
    """The header with a checksum that fits it, as somebody who knows how it is made would write."""
    header["__metadata__"].pop("sha256", None)
    header["__metadata__"]["sha256"] = digest(plain_json(header))
    return header


def refused(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_recording(path)
    told = str(caught.value)
    assert told.startswith(f"{path}: expected a recording saved with Recording.save; got ")
    return told.split("; got ", 1)[1]


def edited(path: Path, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The file with another header."""
    header, data = parts(path.read_bytes())
    change(header)
    return packed(resealed(header), data)


def retold(path: Path, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The file with another description in its metadata."""

    def in_metadata(header: dict[str, Any]) -> None:
        about = json.loads(header["__metadata__"]["recording"])
        change(about)
        header["__metadata__"]["recording"] = json.dumps(about)

    return edited(path, in_metadata)


def first(x: dict[str, Any]) -> dict[str, Any]:
    return x["entries"][0]
