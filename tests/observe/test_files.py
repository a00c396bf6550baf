"""Recordings as files: what comes back, what is refused, what is left behind."""

from __future__ import annotations

import copy
import errno
import json
import math
import os
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import intently as it
from intently.errors import (
    ArgumentError,
    DataError,
    IntentlyError,
    KindError,
    MemoryRefused,
    StaleError,
)
from intently.foundation.files import digest
from intently.foundation.files import plain as plain_json
from intently.masks import Geometry, Mask
from intently.modules.additive import Energies
from intently.modules.caches.beams import SideBySide
from intently.modules.caches.masks import KeptBias, KeptMask, Written
from intently.observe import load_recording
from intently.observe.recording.recording import Entry, Recording, Whole
from intently.observe.saving import files, value_json, writing
from intently.observe.storage.stores import Held, KeptSpec
from intently.observe.watching.call import AttentionSpec
from intently.scores import Additive, Cosine, General, Score

T, S, D = 6, 6, 8


def entry(
    name: str = "layers.0.attention", index: int = 0, how: AttentionSpec | None = None, **shape: int
) -> Entry:
    h, g = shape.get("h", 4), shape.get("g", 4)
    q, k = torch.randn(2, h, shape.get("t", T), D), torch.randn(2, g, shape.get("s", S), D)
    made = Entry(
        name, index, "functional", Whole(Held(q), Held(k), KeptSpec(how or AttentionSpec()))
    )
    made.verified = True
    return made


def single(q: Tensor, k: Tensor | None = None, **how: Any) -> Entry:
    """An entry "x" of these operands."""
    operands = Held(q), Held(q if k is None else k)
    return Entry("x", 0, "functional", Whole(*operands, KeptSpec(AttentionSpec(**how))))


def recording(*entries: Entry) -> Recording:
    made = Recording(["The", "cat", "sat", "on", "the", "mat"])
    made.calls.extend(entries or (entry(),))
    return made


def reopened(made: Recording, folder: Path) -> Recording:
    return load_recording(files.save(made, folder / "run.safetensors"))


# --- what comes back ------------------------------------------------------------------------------


def test_all_of_a_recording_comes_back(tmp_path: Path) -> None:
    one, other = entry(), entry(index=1, g=2)
    one.tokens, one.why, one.steps = ["a\n", "\ud800", "c", "d", "e", "f"], None, 3
    other.verified, other.why, other.compared = None, "dropout=0.1 changed what came out", 4
    other.tokens = ["a"], ["b", "c"]
    other.values, other.gradient = Held(torch.randn(2, 2, S, 5)), torch.randn(2, 4, T, 5)
    made = recording(one, other)
    made.covered.unseen["layers.1"] = "it did not run"
    made.covered.note("Code compiled by torch.compile ran meanwhile.")
    back = reopened(made, tmp_path)
    assert back.tokens == made.tokens and back.layers == made.layers
    assert back.covered.unseen == made.covered.unseen and back.covered.notes == made.covered.notes
    for a, b in zip(made.calls, back.calls, strict=True):
        for told in ("name", "index", "source", "verified", "why", "compared", "steps", "tokens"):
            assert getattr(a, told) == getattr(b, told)
        assert a.shape == b.shape
        assert torch.equal(a.matrix().dense(), b.matrix().dense())
    assert torch.equal(back.calls[1].v(), other.v())
    assert torch.equal(back.calls[1].grad(), other.grad())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_every_dtype_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    q = torch.randn(1, 2, 3, 4).to(dtype)
    back = reopened(recording(single(q, mask=it.allowed(torch.eye(3) > 0))), tmp_path)
    assert torch.equal(back["x"].dense(), torch.eye(3, dtype=dtype).expand(1, 2, 3, 3))


def test_tensors_lie_head_after_head(tmp_path: Path) -> None:
    """However they were kept: the rows of one head are then read alone."""
    q = torch.randn(2, 5, 3, 4).transpose(1, 2)
    made = single(q, q[:, :1].expand(2, 3, 5, 4))
    (back,) = reopened(recording(made), tmp_path).calls
    assert back.attention().q.is_contiguous() and back.attention().k.is_contiguous()
    assert torch.equal(back.matrix().dense(), made.matrix().dense())


class Even(Mask):
    """A mask of the user's own."""

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return ((rows[:, None] + cols) % 2 == 0)[None, None]


class Slope(it.Bias):
    """A bias of the user's own."""

    def tile(
        self, g: Geometry, rows: Tensor, cols: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        return (rows[:, None] - cols).to(dtype or torch.float64) / 7


LENGTHS = torch.tensor([6, 4])
MASKS = [
    it.causal(),
    it.causal(torch.tensor([0, -1])),
    it.window(2, 1),
    it.window(1, 0, 1),
    it.dilated(2),
    it.prefix(3),
    it.prefix(LENGTHS),
    it.padding(LENGTHS),
    it.segments(torch.tensor([0, 0, 1, 1, 1, 2])),
    it.grid(2, 3, 1),
    it.segments(torch.zeros(2, 6, dtype=torch.int32), torch.ones(2, 6, dtype=torch.int32)),
    it.allowed(torch.eye(6) > 0),
    it.allowed(torch.rand(2, 1, 6, 6) > 0.5),
    ~it.causal() | it.prefix(1),
    it.causal() & it.padding(LENGTHS) & ~it.window(0, 0),
    Written(LENGTHS),
    KeptMask(it.window(4, 0), 1, 3),
    SideBySide(it.causal(), 2),
    Even(),
    it.causal() & Even(),
]
BIASES = [
    it.alibi(),
    it.alibi(slopes=[0.1, 0.2, 0.3, 0.4]),
    it.alibi(4) + torch.randn(4, 6, 6),
    it.relative_buckets(torch.randn(8, 4), max_distance=9, offset=torch.tensor([0, 1])),
    it.relative_buckets(torch.randn(8, 1), bidirectional=False),
    KeptBias(it.alibi(), 1, 2),
    Slope(),
    it.alibi() + Slope(),
]
SCORES = [
    Cosine(),
    General(torch.randn(4, D, D)),
    Additive(torch.randn(3, D), torch.randn(3, D), torch.randn(3)),
    Additive(torch.randn(3, D), torch.randn(3, D), torch.randn(3), torch.randn(3)),
]
HOWS = [
    *(AttentionSpec(mask=mask) for mask in MASKS),
    *(AttentionSpec(bias=bias) for bias in BIASES),
    *(AttentionSpec(score=score, scale=0.5) for score in SCORES),
    AttentionSpec(softcap=20.0, scale=torch.rand(4, 1, 1), sinks=torch.randn(4), dropout=0.1),
]


@pytest.mark.parametrize("how", HOWS)
def test_masks_biases_and_scores_come_back(tmp_path: Path, how: AttentionSpec) -> None:
    made = recording(entry(how=how))
    back = reopened(made, tmp_path)
    want, got = made.calls[0].matrix().dense(), back.calls[0].matrix().dense()
    if not any(own in repr(how) for own in ("Even", "Slope")):
        found = back.calls[0].rows.how()
        assert repr(found) == repr(how)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-6)


def test_energies_come_back(tmp_path: Path) -> None:
    """The score of recurrent decoders, without heads."""
    q, k = torch.randn(2, 1, D), torch.randn(2, S, D)
    made = single(q, k, score=Energies(torch.randn(D)), mask=it.padding(LENGTHS), scale=1.0)
    back = reopened(recording(made), tmp_path)
    assert torch.equal(back["x"].dense(), made.matrix().dense())


def test_shared_tensors_are_written_once(tmp_path: Path) -> None:
    mask = it.allowed(torch.rand(T, S) > 0.3)
    made = recording(*(entry("x", n, AttentionSpec(mask=mask)) for n in range(3)))
    with safe_open(files.save(made, tmp_path / "a"), "pt") as file:
        assert sum(key.startswith("shared/") for key in file.keys()) == 1  # noqa: SIM118


def test_other_programs_read_the_tensors(tmp_path: Path) -> None:
    odd = it.allowed(torch.rand(1, S) > 0.1)
    made = recording(
        *(
            entry(
                "x", n, AttentionSpec(mask=odd & it.padding(LENGTHS), sinks=torch.zeros(4).double())
            )
            for n in range(2)
        )
    )
    path = files.save(made, tmp_path / "run.safetensors")
    found = load_file(path)
    for n, one in enumerate(made.calls):
        q, k = one.rows.operands()
        assert torch.equal(found[f"x/{n}/q"], q) and torch.equal(found[f"x/{n}/k"], k)
    header, _ = parts(path.read_bytes())
    start = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    assert start % 64 == 0
    for name, x in found.items():  # so that they are used where they lie
        assert header[name]["data_offsets"][0] % x.element_size() == 0


def test_a_watched_model_comes_back(tmp_path: Path) -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    hidden = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with it.watch(layer) as seen, torch.no_grad():
        layer(torch.randn(2, 5, 16), src_key_padding_mask=hidden)
    seen.save(tmp_path / "run.safetensors")
    back = it.load_recording(tmp_path / "run.safetensors")
    assert back.layers == seen.layers and back.calls[0].verified
    assert torch.equal(back.calls[0].matrix().dense(), seen.calls[0].matrix().dense())


def test_what_is_saved_may_be_what_was_loaded(tmp_path: Path) -> None:
    made = recording()
    back = reopened(made, tmp_path)
    again = reopened(back, tmp_path)
    want = made.calls[0].matrix().dense()
    assert torch.equal(again.calls[0].matrix().dense(), want)
    assert torch.equal(back.calls[0].matrix().dense(), want)


# --- nothing is read until asked ------------------------------------------------------------------


def resident() -> int:
    """Bytes of mapped files in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssFile"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux what is in memory")
def test_one_head_is_read_for_a_tile(tmp_path: Path) -> None:
    q = torch.randn(1, 32, 4096, 64)  # 32 MiB each
    path = files.save(recording(single(q, mask=it.causal())), tmp_path / "big")
    load_recording(path)["x"][0, 1, :2, :2]
    before = resident()
    back = load_recording(path)
    assert resident() - before < 2**20
    tile = back["x"][0, 20, 4000:4032, 1000:1032]
    assert resident() - before < 2**22
    whole = it.attend(q[0, 20], q[0, 20], mask=it.causal())
    torch.testing.assert_close(tile, whole[4000:4032, 1000:1032], rtol=0, atol=1e-6)


# --- writing --------------------------------------------------------------------------------------


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = files.save(recording(), tmp_path / "run.safetensors")
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OSError, match=r"run\.safetensors: .*; got No space left on device\. What was"
    ):
        files.save(recording(), path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["run.safetensors"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="asks Linux for a full disk")
def test_a_disk_that_fills_up_while_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.open

    def full(self: Path, mode: str = "r", *more: Any) -> Any:
        if mode != "xb":
            return real(self, mode, *more)
        self.symlink_to("/dev/full")
        return real(self, "wb", *more)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match="No space left"):
        files.save(recording(), tmp_path / "run.safetensors")
    assert not os.listdir(tmp_path)


def test_an_interrupted_save_leaves_nothing(tmp_path: Path) -> None:
    class Interrupted(Held):
        times = 0

        def get(self) -> Tensor:
            self.times += 1
            if self.times > 2:
                raise KeyboardInterrupt
            return super().get()

    x = torch.randn(1, 1, 2, 2)
    made = Entry("x", 0, "functional", Whole(Interrupted(x), Held(x), KeptSpec(AttentionSpec())))
    with pytest.raises(KeyboardInterrupt):
        files.save(recording(made), tmp_path / "run.safetensors")
    assert not os.listdir(tmp_path)


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"path: expected the name of a file; got .*a folder"):
        files.save(recording(), tmp_path)
    with pytest.raises(OSError, match="No such file or directory"):
        files.save(recording(), tmp_path / "no" / "run.safetensors")
    assert not os.listdir(tmp_path)


class Odd(Score):
    """A score of the user's own."""

    def operands(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k


def test_what_a_file_cannot_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.safetensors"
    with pytest.raises(KindError, match=r"save: expected a score of intently\.scores; got Odd"):
        files.save(recording(entry(how=AttentionSpec(score=Odd()))), path)
    with pytest.raises(ArgumentError, match=r"got '\.\./x'. Which leads out of a folder"):
        files.save(recording(entry("../x")), path)
    monkeypatch.setattr(value_json, "WRITTEN_OUT", 35)
    with pytest.raises(MemoryRefused, match=r"at most 35 bytes for Even; got 36 bytes"):
        files.save(recording(entry(how=AttentionSpec(mask=Even()))), path)
    with pytest.raises(MemoryRefused, match=r"for Slope; got 144 bytes for shape \(6, 6\)"):
        files.save(recording(entry(how=AttentionSpec(bias=Slope()))), path)
    monkeypatch.setattr(writing, "HEADER", 100)
    with pytest.raises(ArgumentError, match="save: expected names and tokens of at most 100 bytes"):
        files.save(recording(), path)
    assert not os.listdir(tmp_path)


def test_a_recording_that_grows_while_it_is_saved(tmp_path: Path) -> None:
    class Growing(Held):
        def get(self) -> Tensor:
            self.tensor = torch.cat([self.tensor, self.tensor[..., :1, :]], -2)
            return self.tensor

    x = torch.randn(1, 1, 2, 2)
    grown = Entry("x", 0, "functional", Whole(Growing(x), Held(x), KeptSpec(AttentionSpec())))
    with pytest.raises(ArgumentError, match=r"save: expected a tensor of shape .* as before"):
        files.save(recording(grown), tmp_path / "run.safetensors")
    assert not os.listdir(tmp_path)


# --- files that nobody vouches for ----------------------------------------------------------------


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


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A recording with something of everything."""
    mask = it.causal() & it.padding(LENGTHS) & ~it.allowed(torch.rand(T, S) > 0.9)
    bias = it.alibi() + torch.randn(T, S)
    how = AttentionSpec(
        mask=mask, bias=bias, scale=torch.ones(4, 1, 1), sinks=torch.zeros(4), softcap=30.0
    )
    one, other = (
        entry(how=how),
        entry("layers.1.attention", 0, AttentionSpec(score=Cosine(), scale=2.0)),
    )
    one.values, one.gradient = Held(torch.randn(2, 4, S, 3)), torch.randn(2, 4, T, 3)
    made = recording(one, other, entry("layers.1.attention", 1))
    made.covered.unseen["layers.2"] = "it did not run"
    return files.save(made, tmp_path / "run.safetensors")


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
    assert "a safetensors file of another kind" in refused(good, good.read_bytes())


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
    def overlap(header: dict[str, Any]) -> None:
        names = sorted(n for n in header if n.startswith("layers.1"))
        header[names[0]]["data_offsets"] = header[names[1]]["data_offsets"]

    assert "overlap" in refused(good, edited(good, overlap))


def test_tensors_without_entries(good: Path) -> None:
    def vast(header: dict[str, Any]) -> None:
        header["x"] = {"dtype": "F32", "shape": [0, 2**40], "data_offsets": [0, 0]}

    told = refused(good, edited(good, vast))
    assert "a tensor of a size that cannot be, (0, 1099511627776)" in told


def test_formats(good: Path) -> None:
    def form(text: str) -> bytes:
        return edited(good, lambda header: header["__metadata__"].update(format=text))

    assert "format 3, where this version reads 2. It was written by a newer" in refused(
        good, form("3")
    )
    assert "format 1 with what only later ones have. It is damaged" in refused(good, form("1"))
    for odd in ("", "0", "-1", "x", "١", "1.0"):
        assert f"format {odd!r}. It is damaged" in refused(good, form(odd))

    good.write_bytes(form("2"))

    def told(text: str) -> bytes:
        return edited(good, lambda header: header["__metadata__"].update(recording=text))

    for odd, why in (
        ("", "an empty file"),
        ("[]", "JSON: a list where an object"),
        ("{", "no JSON at line 1"),
        ("[" * 100_000, "nested more than 100 deep"),
        ("9" * 10_000, "number of 10000 digits"),
    ):
        assert why in refused(good, told(odd))


def first(x: dict[str, Any]) -> dict[str, Any]:
    return x["entries"][0]


LIES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda x: first(x).update(name="../../etc/passwd"), "which leads out of a folder"),
    (lambda x: first(x).update(name="/etc/passwd"), "which leads out of a folder"),
    (lambda x: first(x).update(name="a\\..\\b"), "which leads out of a folder"),
    (lambda x: first(x).update(name="a\x1b[31m"), "which cannot be printed"),
    (lambda x: first(x).update(name="a\u202eb"), "which cannot be printed"),
    (lambda x: first(x).update(name="a\ud800"), "which cannot be printed"),
    (lambda x: first(x).update(name=""), "which has 0 characters and not 1 to 4096"),
    (lambda x: first(x).update(name="a" * 5000), "which has 5000 characters"),
    (lambda x: first(x).update(name=7), "'7' where a name belongs"),
    (lambda x: first(x).update(source="\x07"), "which cannot be printed"),
    (lambda x: first(x).update(index=1), "calls of 'layers.0.attention' that are not counted"),
    (lambda x: first(x).update(index=False), "'False' where a number belongs"),
    (lambda x: x["entries"].append(first(x)), "that are not counted from 0"),
    (lambda x: first(x).update(q={"tensor": "no"}), "a tensor that is not there, 'no'"),
    (lambda x: first(x).update(q="layers.0.attention/0/q"), "a tensor that is not there"),
    (lambda x: first(x).pop("k"), "a tensor that is not there, 'None'"),
    (lambda x: first(x).update(k={"tensor": "shared/0"}), "'layers.0.attention', call 0: "),
    (lambda x: first(x).update(values=first(x)["q"] | {"x": 1}), "a tensor that is not there"),
    (lambda x: first(x).update(values={"tensor": "shared/0"}), "values of shape (2,)"),
    (lambda x: first(x).update(verified=1), "'1' where a verdict belongs"),
    (lambda x: first(x).update(why=["x"]), "where a reason belongs"),
    (lambda x: first(x).update(steps=True), "'True' where a number of steps belongs"),
    (lambda x: first(x).update(tokens=["a", 3]), "'3' where tokens belongs"),
    (lambda x: first(x).update(tokens=[["a"], [3]]), "'3' where tokens belongs"),
    (lambda x: first(x).update(tokens=[["a"], ["b"], ["c"]]), "where tokens belongs"),
    (lambda x: first(x).update(compared=-1), "call 0: more rows compared than there are"),
    (lambda x: first(x).update(compared=7), "call 0: more rows compared than there are"),
    (lambda x: first(x).update(compared=None), "'None' where a number of rows belongs"),
    (lambda x: x.update(tokens="abc"), "'abc' where tokens belongs"),
    (lambda x: x.update(covered=[]), "where coverage belongs"),
    (lambda x: x["covered"].update(unseen={"\n": "x"}), "which cannot be printed"),
    (lambda x: x.update(entries={}), "where entries belongs"),
    (lambda x: x["entries"].append(3), "where an entry belongs"),
    (lambda x: first(x).update(how=None), "where what weights are made of belongs"),
    (lambda x: first(x)["how"].update(scale=math.nan), "JSON with the number NaN"),
    (lambda x: first(x)["how"].update(scale=math.inf), "JSON with the number Infinity"),
    (lambda x: first(x)["how"].update(scale=2**1200), "a whole number of 362 digits"),
    (lambda x: first(x)["how"].update(scale=True), "'True' where scale belongs"),
    (lambda x: first(x)["how"].update(softcap=-1), "softcap: expected a finite number"),
    (lambda x: first(x)["how"].update(dropout=2), "dropout: expected a probability"),
    (lambda x: first(x)["how"].pop("dropout"), "'None' where dropout belongs"),
    (lambda x: first(x)["how"].update(sinks={"tensor": "shared/0"}), "sinks: expected"),
    (lambda x: first(x)["how"].update(mask=["os.system", "true"]), "a kind of mask, bias or score"),
    (lambda x: first(x)["how"].update(mask=["alibi", None, None, None]), "no mask where one"),
    (lambda x: first(x)["how"].update(mask="causal"), "no name of a mask, bias or score"),
    (lambda x: first(x)["how"].update(mask=[]), "no name of a mask, bias or score"),
    (lambda x: first(x)["how"].update(mask=["causal"] * 3), "'causal' as a part of a mask"),
    (lambda x: first(x)["how"].update(mask=["causal", 1, 2]), "made of other parts than it has"),
    (lambda x: first(x)["how"].update(mask=["causal", 2**60]), "as a part of a mask"),
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
    (lambda x: first(x)["how"].update(bias=["buckets", 1, 2, 3, 4]), "without a table"),
    (lambda x: first(x)["how"].update(bias=["alibi", 2**40, None, None]), "one entry for each"),
    (lambda x: first(x)["how"].update(score=["energies", first(x)["q"]]), "no floating-point"),
    (lambda x: first(x)["how"].update(score=["general", None]), "weight: expected a"),
    (lambda x: first(x)["how"].update(score=["cosine", 1, 2, 3]), "made of other parts than"),
    (lambda x: first(x)["how"].update(score=["dot", None]), "made of other parts than it has"),
    (lambda x: first(x).update(steps=-1), "call 0: 6 rows of other steps"),
    (lambda x: first(x).update(steps=0), "call 0: 6 rows of other steps"),
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
    for _ in range(value_json.DEPTH + 1):
        mask = ["not", mask]
    change = retold(good, lambda x: first(x)["how"].update(mask=mask))
    assert "masks more than 64 deep in each other" in refused(good, change)


def test_masks_of_more_others_than_can_be_asked(good: Path, tmp_path: Path) -> None:
    """A mask of 2**20 others would be asked 2**20 times for every tile."""
    mask: list[Any] = ["causal", None]
    whole = it.causal()
    for _ in range(9):
        mask, whole = ["both", mask, mask], whole & whole
    change = retold(good, lambda x: first(x)["how"].update(mask=mask))
    assert "a mask, bias or score of more than 256 others" in refused(good, change)
    back = reopened(
        recording(entry(how=AttentionSpec(mask=whole))), tmp_path
    )  # which is written out
    assert torch.equal(back.calls[0].matrix().dense() > 0, torch.ones(2, 4, T, S).tril() > 0)


def test_tensors_are_compared_with_their_checksums(tmp_path: Path) -> None:
    """Small ones when they are asked for, large ones where the whole file is read."""
    mask = it.allowed(torch.rand(T, S) > 0.3)
    q = torch.randn(1, 2, 2**14, 64)  # 8 MiB
    made = [entry("a"), entry("b", how=AttentionSpec(mask=mask)), single(q)]
    made[0].gradient = torch.randn(2, 4, T, 5)
    good = files.save(recording(*made), tmp_path / "run.safetensors")
    header, data = parts(good.read_bytes())
    for name, asked in (
        ("a/0/q", lambda seen: seen["a"]),
        ("a/0/gradient", lambda seen: seen.calls[0].grad()),
        ("shared/0", lambda seen: seen["b"]),
        ("x/0/k", lambda seen: None),
    ):
        changed = bytearray(data)
        changed[header[name]["data_offsets"][0]] ^= 1
        good.write_bytes(packed(header, bytes(changed)))
        told = f"another checksum of {name!r} than it was written with"
        with pytest.raises(DataError, match=told):
            load_recording(good, whole=True)
        if name != "x/0/k":
            with pytest.raises(DataError, match=told):
                asked(load_recording(good))
        else:
            load_recording(good)["x"][0, 0, :2, :2]


def test_recordings_of_format_1_had_no_checksums(good: Path) -> None:
    want = load_recording(good)["layers.0.attention"].dense()
    header, data = parts(good.read_bytes())
    del header["__metadata__"]["sha256"], header["__metadata__"]["checksums"]
    header["__metadata__"]["format"] = "1"
    good.write_bytes(packed(header, data))
    assert torch.equal(load_recording(good, whole=True)["layers.0.attention"].dense(), want)


def test_scales_and_sinks_that_are_no_numbers(tmp_path: Path) -> None:
    for how, told in (
        (AttentionSpec(scale=torch.full((4, 1, 1), math.nan)), "a scale that is no finite number"),
        (AttentionSpec(sinks=torch.full((4,), math.nan)), "sinks that are no numbers"),
        (AttentionSpec(sinks=torch.full((4,), math.inf)), "sinks that are no numbers"),
    ):
        path = files.save(recording(entry(how=how)), tmp_path / "x")
        assert told in refused(path, path.read_bytes())


def test_leading_axes_that_multiply(tmp_path: Path) -> None:
    """Small tensors that broadcast to something vast."""
    q, k = torch.zeros(512, 1, 1, 1), torch.zeros(1, 512, 1, 1)
    path = files.save(recording(single(q, k)), tmp_path / "x")
    assert "which do not fit" in refused(path, path.read_bytes())


def test_vectors_without_a_width(tmp_path: Path) -> None:
    """They take no bytes, however many they are."""
    for n, fits in ((2**12, True), (2**12 + 1, False), (2**28, False)):
        path = files.save(recording(single(torch.zeros(1, 1, n, 0))), tmp_path / "x")
        if fits:
            assert load_recording(path)["x"].shape == (1, 1, n, n)
        else:
            assert "of queries and keys without entries" in refused(path, path.read_bytes())


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


def test_a_scale_of_zero_comes_back(tmp_path: Path) -> None:
    """All keys weigh the same then; F.scaled_dot_product_attention takes it."""
    back = reopened(recording(entry(how=AttentionSpec(scale=0.0))), tmp_path)
    assert torch.allclose(back.calls[0].matrix().dense(), torch.tensor(1 / S))


def test_booleans_that_are_neither(good: Path) -> None:
    header, data = parts(good.read_bytes())
    (place,) = (x["data_offsets"] for x in header.values() if x.get("dtype") == "BOOL")
    changed = bytearray(data)
    changed[place[0]] = 2
    del header["__metadata__"]["sha256"], header["__metadata__"]["checksums"]
    header["__metadata__"]["format"] = "1"
    good.write_bytes(packed(header, bytes(changed)))
    seen = load_recording(good)
    with pytest.raises(DataError, match="a boolean tensor with bytes that are neither 0 nor 1"):
        seen["layers.0.attention"]


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


# --- whatever else somebody may write -------------------------------------------------------------


def used(path: Path) -> None:
    """Open a file and use all of it; only our own errors may come of it."""
    try:
        seen = load_recording(path)
        str(seen.coverage())
        for one in seen.calls:
            matrix = one.matrix()
            _ = matrix[..., :1, :1], matrix.entropy()
    except IntentlyError:
        pass


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


def test_an_open_file_is_not_copied(tmp_path: Path) -> None:
    path, q = tmp_path / "run.safetensors", torch.randn(1, 2, 4, 8)
    with it.watch() as seen:
        it.attention(q, q, q)
    seen.save(path)
    found = it.load_recording(path)
    for again in (copy.deepcopy, pickle.dumps):
        with pytest.raises(it.errors.ArgumentError, match=r"got one that is an open file. Open it"):
            again(found)
    assert torch.equal(found["attention"].dense(), seen["attention"].dense())
