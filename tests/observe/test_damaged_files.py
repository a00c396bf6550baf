"""Recordings whose bytes changed, or whose parts make no sense."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import intently as it
from intently.errors import DataError, IntentlyError, StaleError
from intently.foundation.files import digest
from intently.observe import load_recording
from intently.observe.recording.recording import Entry
from intently.observe.saving import files
from intently.observe.storage.stores import Held
from intently.observe.watching.call import AttentionSpec

from ..show.refusals import refuses
from .saved import (
    S,
    T,
    entry,
    first,
    packed,
    parts,
    recording,
    refused,
    reopened,
    resealed,
    retold,
    single,
)


def test_tensors_are_compared_with_their_checksums(tmp_path: Path) -> None:
    """Small ones when they are asked for, large ones where the whole file is read."""
    mask = it.allowed(torch.rand(T, S) > 0.3)
    q = torch.randn(1, 2, 2**14, 64)  # 8 MiB
    made = [entry("a"), entry("b", how=AttentionSpec(mask=mask)), single(q)]
    made[0].gradient = Held(torch.randn(2, 4, T, 5))
    good = files.save(recording(*made), tmp_path / "run.safetensors")
    header, data = parts(good.read_bytes())
    for name, asked in (
        ("a/0/q", lambda seen: seen["a"]),
        ("a/0/gradient", lambda seen: seen.calls[0].grad()),
        ("shared/0", lambda seen: seen["b"]),
        ("x/0/k", lambda seen: seen["x"][0, 0, :2, :2]),
    ):
        changed = bytearray(data)
        changed[header[name]["data_offsets"][0]] ^= 1
        good.write_bytes(packed(header, bytes(changed)))
        told = f"another checksum of {name!r} than it was written with"
        refuses(DataError, {told: lambda: load_recording(good, whole=True)})
        with nullcontext() if name == "x/0/k" else pytest.raises(DataError, match=told):
            asked(load_recording(good))


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (
            entry(how=AttentionSpec(scale=torch.full((4, 1, 1), math.nan))),
            "a scale that is no finite number",
        ),
        (entry(how=AttentionSpec(sinks=torch.full((4,), math.nan))), "sinks that are no numbers"),
        (entry(how=AttentionSpec(sinks=torch.full((4,), math.inf))), "sinks that are no numbers"),
        (single(torch.zeros(512, 1, 1, 1), torch.zeros(1, 512, 1, 1)), "which do not fit"),
        (single(torch.zeros(1, 1, 2**12 + 1, 0)), "of queries and keys without entries"),
        (single(torch.zeros(1, 1, 2**28, 0)), "of queries and keys without entries"),
    ],
    ids=["nan scale", "nan sinks", "infinite sinks", "vast when broadcast", "no width", "vast"],
)
def test_tensors_that_make_no_sense(tmp_path: Path, made: Entry, told: str) -> None:
    path = files.save(recording(made), tmp_path / "x")
    assert told in refused(path, path.read_bytes())


def test_some_vectors_without_a_width(tmp_path: Path) -> None:
    """They take no bytes, however many they are."""
    made = single(torch.zeros(1, 1, 2**12, 0))
    assert reopened(recording(made), tmp_path)["x"].shape == (1, 1, 2**12, 2**12)


@pytest.mark.parametrize("lead", [(0, 1), (1, 0), (2, 3)])
def test_a_tiny_file_that_claims_a_huge_matrix(tmp_path: Path, lead: tuple[int, int]) -> None:
    def written(t: int, s: int, d: int) -> Path:
        q, k = torch.zeros(*lead, t, d), torch.zeros(*lead, s, d)
        return files.save(recording(single(q, k)), tmp_path / "x")

    path = written(2**20, 2**20, 0 if all(lead) else 8)
    assert path.stat().st_size < 2000
    told = f"weights ({lead[0]}, {lead[1]}, 1048576, 1048576) of queries and keys without entries"
    assert told in refused(path, path.read_bytes())
    seen = load_recording(written(5, 0, 8))
    assert seen["x"].shape == (*lead, 5, 0) and len(seen.summary()) == lead[1]


def test_booleans_that_are_neither(good: Path) -> None:
    header, data = parts(good.read_bytes())
    ((name, x),) = ((name, x) for name, x in header.items() if x.get("dtype") == "BOOL")
    changed, (begin, end) = bytearray(data), x["data_offsets"]
    changed[begin] = 2
    checks = json.loads(header["__metadata__"]["checksums"])
    checks[name] = digest(bytes(changed[begin:end]))
    header["__metadata__"]["checksums"] = json.dumps(checks)
    told = refused(good, packed(resealed(header), bytes(changed)))
    assert "a boolean tensor with bytes that are neither 0 nor 1" in told


def test_a_file_that_changes_after_it_was_opened(good: Path) -> None:
    seen = load_recording(good)
    assert seen["layers.1.attention", 0].entropy().isfinite().all()
    os.truncate(good, 4096)
    with pytest.raises(StaleError, match="expected the file as it was when it was opened"):
        seen["layers.1.attention", 0]


def test_what_a_changed_file_held_is_left_out(good: Path) -> None:
    """Nothing dies of it, and nothing is read to find it out."""
    seen = load_recording(good)
    assert all(line.lost == [] for line in seen.coverage().seen)
    os.truncate(good, 4096)
    assert len(seen.summary()) == 0 and len(seen.summary().left_out) == 3
    assert "; 2 of 2 cannot be read any more: " in str(seen.coverage())


def test_printed_reasons_are_plain(good: Path) -> None:
    hostile = "\x1b[2J\nall is well"
    good.write_bytes(
        retold(good, lambda x: (first(x).update(why=hostile), x["covered"].update(notes=[hostile])))
    )
    seen = load_recording(good)
    assert seen.calls[0].why == seen.covered.notes[0] == "\\x1b[2J\\nall is well"


def used(path: Path) -> None:
    """Open a file and use all of it; only our own errors may come of it."""
    with suppress(IntentlyError):
        seen = load_recording(path)
        str(seen.coverage())
        for one in seen.calls:
            _ = one.matrix()[..., :1, :1], one.matrix().entropy()


def test_flipped_bits(good: Path) -> None:
    content = good.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    generator = random.Random(0)
    places = [generator.randrange(start) for _ in range(300)] + list(range(8))
    places += [generator.randrange(start, len(content)) for _ in range(50)]
    for at in places:
        changed = bytearray(content)
        changed[at] ^= 1 << generator.randrange(8)
        good.write_bytes(changed)
        used(good)


def leaves(x: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a description with every key in it."""
    for key in list(x) if isinstance(x, dict) else range(len(x)):
        yield x, key
        if isinstance(x[key], (dict, list)):
            yield from leaves(x[key])


HOSTILE = [
    None,
    True,
    0,
    -1,
    3,
    2**31,
    2**47,
    2**70,
    -(2**70),
    0.5,
    math.nan,
    math.inf,
    "",
    "x",
    "\0",
    [],
    {},
    [[]],
    ["causal", -(2**40)],
    ["not", ["causal", None]],
    {"tensor": "shared/1"},
    {"tensor": "layers.1.attention/0/q"},
    ["allowed", {"tensor": "layers.0.attention/0/q"}],
]


def test_every_part_of_a_description_replaced(good: Path) -> None:
    content = good.read_bytes()
    header, data = parts(content)
    text = header["__metadata__"]["recording"]
    for number in range(len(list(leaves(json.loads(text))))):
        for hostile in HOSTILE:
            about = json.loads(text)
            holder, key = list(leaves(about))[number]
            holder[key] = hostile
            header["__metadata__"]["recording"] = json.dumps(about)
            good.write_bytes(packed(header, data))
            used(good)
