"""Recordings that nobody vouches for: every lie is refused with the reason."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import intently as it
from intently.errors import DataError
from intently.observe import load_recording
from intently.observe.saving import values
from intently.observe.watching.call import AttentionSpec

from .saved import (
    D,
    S,
    T,
    edited,
    entry,
    first,
    packed,
    parts,
    recording,
    refused,
    reopened,
    retold,
)


def test_cut_files(good: Path) -> None:
    content = good.read_bytes()
    header, _ = parts(content)
    start = 8 + int.from_bytes(content[:8], "little")
    ends = [start + x["data_offsets"][1] for n, x in header.items() if n != "__metadata__"]
    assert "it is empty or was cut" in refused(good, b"")
    assert "it is empty or was cut" in refused(good, content[:7])
    for at in (8, 9, 50, start - 64, start - 1):
        assert "an end within the header: it was cut" in refused(good, content[:at])
    for at in sorted({start, start + 1, *(end + n for end in ends for n in (-1, 0, 1))}):
        if at != len(content):
            told = refused(good, (content + b"\0")[:at])
            assert "more or fewer bytes than its tensors have" in told


def test_foreign_files(good: Path, tmp_path: Path) -> None:
    content = good.read_bytes()
    os.mkfifo(tmp_path / "pipe")
    for name, told in (("no", "no such file"), ("", "a folder"), ("pipe", "no ordinary file")):
        with pytest.raises(DataError, match=f"got {told}"):
            load_recording(tmp_path / name)
    assert "it is another kind of file" in refused(good, b"\x80\x04\x95pickled things\x94.")
    for size in (len(content) + 1, 10**8 + 1, 2**63, 2**64 - 1):
        told = refused(good, size.to_bytes(8, "little") + content[8:])
        assert "it is another kind of file" in told or "it was cut" in told
    assert "does not describe tensors" in refused(good, packed([1], b""))
    deep = b"[" * 100_000
    assert "does not describe" in refused(good, len(deep).to_bytes(8, "little") + deep)
    save_file({"x": torch.zeros(2)}, good)
    assert "a different kind of safetensors file" in refused(good, good.read_bytes())


HEADERS: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda x: x.update(shape=[-1, 4, T, D]), "does not describe tensors"),
    (lambda x: x.update(shape=[2**62, 2**62, T, D]), "of a size that cannot be"),
    (lambda x: x.update(shape=[2, 4, T, D + 1]), "shape, dtype and place do not agree"),
    (lambda x: x.update(dtype="F64"), "shape, dtype and place do not agree"),
    (lambda x: x.update(dtype="F1024"), "a tensor of dtype F1024, which Intently does not"),
    (lambda x: x.update(dtype="U32"), "a tensor of dtype U32, which Intently does not write"),
    (lambda x: x.update(data_offsets=[-8, 0]), "does not describe tensors"),
    (lambda x: x.update(data_offsets=[x["data_offsets"][1], x["data_offsets"][0]]), "tensor"),
    (lambda x: x["data_offsets"].__setitem__(0, x["data_offsets"][0] + 4), "tensor"),
    (lambda x: x["data_offsets"].__setitem__(1, x["data_offsets"][1] + 2**60), "tensor"),
    (lambda x: x.update(dtype="I32"), "expected a floating-point tensor; got dtype torch.int32"),
    (lambda x: x.update(shape=[4, 2, T, D]), "k: expected leading axes that broadcast"),
    (lambda x: x.update(shape=[2, 4, T * D]), "'layers.1.attention', call 1: k: expected"),
]


@pytest.mark.parametrize(("change", "told"), HEADERS)
def test_headers_that_lie(
    good: Path, change: Callable[[dict[str, Any]], object], told: str
) -> None:
    name = "layers.1.attention/1/q"
    assert told in refused(good, edited(good, lambda header: change(header[name])))


def test_tensors_that_overlap(good: Path) -> None:
    one, other = "layers.1.attention/0/k", "layers.1.attention/0/q"
    changed = edited(good, lambda x: x[one].update(data_offsets=x[other]["data_offsets"]))
    assert "overlap" in refused(good, changed)


def test_tensors_without_entries(good: Path) -> None:
    vast = {"dtype": "F32", "shape": [0, 2**40], "data_offsets": [0, 0]}
    told = refused(good, edited(good, lambda header: header.update(x=vast)))
    assert "a tensor of a size that cannot be, (0, 1099511627776)" in told


def test_formats(good: Path) -> None:
    content = good.read_bytes()
    for about, why in (
        ({"format": "3"}, "format 3, where this version reads 2. It was written by a newer"),
        ({"format": "1"}, "format 1, where this version reads 2. It was written by an older"),
        *(
            ({"format": x}, f"format {x!r}. It is damaged")
            for x in ("", "0", "-1", "x", "١", "1.0")
        ),
        ({"recording": ""}, "an empty file"),
        ({"recording": "[]"}, "JSON: a list where an object"),
        ({"recording": "{"}, "no JSON at line 1"),
        ({"recording": "[" * 100_000}, "nested more than 100 deep"),
        ({"recording": "9" * 10_000}, "number of 10000 digits"),
    ):
        good.write_bytes(content)
        changed = edited(good, lambda header, about=about: header["__metadata__"].update(about))
        assert why in refused(good, changed)


LIES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda x: first(x).update(name="../../etc/passwd"), "which leads out of a folder"),
    (lambda x: first(x).update(name="a\\..\\b"), "which leads out of a folder"),
    (lambda x: first(x).update(name="a\x1b[31m"), "which cannot be printed"),
    (lambda x: first(x).update(name="a\ud800"), "which cannot be printed"),
    (lambda x: first(x).update(name=""), "which has 0 characters and not 1 to 4096"),
    (lambda x: first(x).update(name="a" * 5000), "which has 5000 characters"),
    (lambda x: first(x).update(name=7), "entries[0].name: 7 where text belongs"),
    (lambda x: first(x).update(source="\x07"), "which cannot be printed"),
    (lambda x: first(x).update(index=1), "calls of 'layers.0.attention' that are not counted"),
    (lambda x: first(x).update(index=False), "index: false where a whole number belongs"),
    (lambda x: x["entries"].append(first(x)), "that are not counted from 0"),
    (lambda x: first(x).update(q={"tensor": "no"}), "a tensor that is not there, 'no'"),
    (lambda x: first(x).update(k={"tensor": "shared/0"}), "'layers.0.attention', call 0: "),
    (lambda x: first(x).update(values=first(x)["q"] | {"x": 1}), "a tensor that is not there"),
    (lambda x: first(x).update(values={"tensor": "shared/0"}), "values: expected a floating-p"),
    (lambda x: first(x).update(verified=1), "verified: 1 where true or false or null belongs"),
    (lambda x: first(x).update(why=["x"]), "why: a list where text or null belongs"),
    (lambda x: first(x).update(steps=True), "steps: true where a whole number belongs"),
    (lambda x: x.update(tokens=["a", 3]), "tokens: a list where null or a list or a list of 2"),
    (lambda x: x.update(tokens=[["a"], ["b"], ["c"]]), "tokens: a list where null or a list"),
    (lambda x: x.update(tokens={"rows": "ab"}), "tokens: an object where null or a list"),
    (lambda x: first(x).update(compared=7), "call 0: more rows compared than there are"),
    (lambda x: first(x).update(compared=None), "compared: null where a whole number belongs"),
    (lambda x: x.update(tokens="abc"), 'tokens: "abc" where null or a list'),
    (lambda x: x.update(covered=[]), "covered: a list where an object belongs"),
    (lambda x: x["covered"].update(unseen={"\n": "x"}), "which cannot be printed"),
    (lambda x: x.update(entries={}), "entries: an object where a list belongs"),
    (lambda x: x["entries"].append(3), "entries[3]: 3 where an object belongs"),
    (lambda x: first(x).update(how=None), "entries[0].how: null where an object belongs"),
    (lambda x: first(x)["how"].update(scale=math.nan), "JSON with the number NaN"),
    (lambda x: first(x)["how"].update(scale=2**1200), "a whole number of 362 digits"),
    (
        lambda x: first(x)["how"].update(scale=True),
        "scale: true where null or a number or an object belongs",
    ),
    (lambda x: first(x)["how"].update(softcap=-1), "softcap: expected a finite number"),
    (lambda x: first(x)["how"].update(dropout=2), "dropout: expected a probability"),
    (lambda x: first(x)["how"].pop("dropout"), "no entries[0].how.dropout"),
    (lambda x: first(x)["how"].update(sinks={"tensor": "shared/0"}), "sinks: expected"),
    (lambda x: first(x)["how"].update(mask=["os.system", "true"]), "a kind of mask, bias or score"),
    (lambda x: first(x)["how"].update(mask=["alibi", None, None, None]), "no mask where one"),
    (lambda x: first(x)["how"].update(mask="causal"), "no name of a mask, bias or score"),
    (lambda x: first(x)["how"].update(mask=["causal"] * 3), "'causal' as a part of a mask"),
    (lambda x: first(x)["how"].update(mask=["causal", 1, 2]), "made of other parts than it has"),
    (lambda x: first(x)["how"].update(mask=["causal", 0.5]), "'0.5' as a part of a mask"),
    (lambda x: first(x)["how"].update(mask=["window", -1, 0, None]), "before: expected an int ≥ 0"),
    (lambda x: first(x)["how"].update(mask=["dilated", 0, None]), "step: expected an int ≥ 1"),
    (lambda x: first(x)["how"].update(mask=["grid", 2, 2, 1]), "mask: expected t = s = 2·2"),
    (lambda x: first(x)["how"].update(mask=["both", ["causal", None], 3]), "no mask where one"),
    (lambda x: first(x)["how"].update(mask=["not", ["dot"]]), "no mask where one belongs"),
    (lambda x: first(x)["how"].update(mask=["allowed", first(x)["q"]]), "a boolean tensor"),
    (lambda x: first(x)["how"].update(mask=["segments", 3, None]), "without a tensor of ids"),
    (lambda x: first(x)["how"].update(mask=["padding", None]), "lengths: expected integers"),
    (lambda x: first(x)["how"].update(bias=["causal", None]), "no bias where one belongs"),
    (lambda x: first(x)["how"].update(bias=["buckets", 1, 2, 3, 4]), "table: expected shape (b"),
    (lambda x: first(x)["how"].update(bias=["alibi", 2**40, None, None]), "one entry for each"),
    (lambda x: first(x)["how"].update(score=["energies", first(x)["q"]]), "energies of shape (2"),
    (lambda x: first(x)["how"].update(score=["general", None]), "weight: expected a"),
    (lambda x: first(x)["how"].update(score=["dot", None]), "made of other parts than it has"),
    (lambda x: first(x).update(steps=-1), "call 0: 6 rows of other steps"),
    (lambda x: first(x).update(steps=7), "call 0: 6 rows of other steps"),
    (lambda x: first(x).update(steps=10**30), "a whole number of 31 digits"),
    (
        lambda x: first(x)["how"].update(score=["energies", first(x)["how"]["sinks"]]),
        "energies of shape (4,) for q of shape (2, 4, 6, 8)",
    ),
]


@pytest.mark.parametrize(("change", "told"), LIES)
def test_descriptions_that_lie(
    good: Path, change: Callable[[dict[str, Any]], object], told: str
) -> None:
    assert told in refused(good, retold(good, change))


def test_masks_without_end(good: Path) -> None:
    mask: list[Any] = ["causal", None]
    for _ in range(values.NODES):
        mask = ["not", mask]
    change = retold(good, lambda x: first(x)["how"].update(mask=mask))
    assert "a mask, bias or score of more than 64 others" in refused(good, change)
    change = retold(good, lambda x: first(x)["how"].update(mask=mask[1]))
    good.write_bytes(change)
    assert load_recording(good).calls[0].matrix().dense().isfinite().all()


def test_masks_of_more_others_than_can_be_asked(good: Path, tmp_path: Path) -> None:
    """A mask of 2**20 others would be asked 2**20 times for every tile."""
    mask: list[Any] = ["causal", None]
    whole = it.causal()
    for _ in range(9):
        mask, whole = ["both", mask, mask], whole & whole
    change = retold(good, lambda x: first(x)["how"].update(mask=mask))
    assert "a mask, bias or score of more than 64 others" in refused(good, change)
    back = reopened(
        recording(entry(how=AttentionSpec(mask=whole))), tmp_path
    )  # which is written out
    assert torch.equal(back.calls[0].matrix().dense() > 0, torch.ones(2, 4, T, S).tril() > 0)
