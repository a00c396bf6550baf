"""Recordings as files: what comes back, what is refused, what is left behind."""

from __future__ import annotations

import copy
import errno
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

import intently as it
from intently.core.masks import Geometry, Mask
from intently.core.scores import Additive, Cosine, General, Score
from intently.errors import ArgumentError, KindError, MemoryRefused
from intently.nn.caches.masks import KeptBias, KeptMask, SideBySide, Written
from intently.nn.recurrent import Energies
from intently.observe import load_recording
from intently.observe.generation.joining import Rows
from intently.observe.recording.recording import Entry
from intently.observe.saving import files, values
from intently.observe.storage.stores import Held, KeptSpec
from intently.observe.watching.call import AttentionSpec

from .attending import close, watched
from .saved import LENGTHS, D, S, T, entry, parts, recording, reopened, single

# --- what comes back ------------------------------------------------------------------------------


def test_all_of_a_recording_comes_back(tmp_path: Path) -> None:
    one, other = entry(), entry(index=1, g=2)
    one.why, one.steps, one.changed = None, 3, "aten.mul"
    other.verified, other.why, other.compared = None, "dropout=0.1 changed what came out", 4
    other.values, other.gradient = Held(torch.randn(2, 2, S, 5)), Held(torch.randn(2, 4, T, 5))
    made = recording(one, other)
    made.covered.unseen["layers.1"] = "it did not run"
    made.covered.note("Code compiled by torch.compile ran meanwhile.")
    back = reopened(made, tmp_path)
    for tokens in (["a\n", "\ud800"], (["a"], ["b", "c"]), [["a"], (["b"], ["c"])]):
        made.tokens = tokens
        back = reopened(made, tmp_path)
        assert back.tokens == tokens
    assert back.layers == made.layers
    assert back.covered.unseen == made.covered.unseen and back.covered.notes == made.covered.notes
    for a, b in zip(made.calls, back.calls, strict=True):
        for told in ("name", "index", "source", "verified", "why", "compared", "steps", "changed"):
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
    made = entry(how=how)
    (back,) = reopened(recording(made), tmp_path).calls
    if not any(own in repr(how) for own in ("Even", "Slope")):
        assert repr(back.rows.how()) == repr(how)
    close(back, made.matrix().dense(), gap=1e-6)


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
    how = AttentionSpec(mask=odd & it.padding(LENGTHS), sinks=torch.zeros(4).double())
    made = recording(entry("x", 0, how), entry("x", 1, how))
    path = files.save(made, tmp_path / "run.safetensors")
    found = load_file(path)
    for n, one in enumerate(made.calls):
        q, k = one.rows.operands()
        assert torch.equal(found[f"x/{n}/q"], q) and torch.equal(found[f"x/{n}/k"], k)
    header, data = parts(path.read_bytes())
    assert (path.stat().st_size - len(data)) % 64 == 0
    for name, x in found.items():  # so that they are used where they lie
        assert header[name]["data_offsets"][0] % x.element_size() == 0


def test_a_watched_model_comes_back(tmp_path: Path) -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    hidden = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        seen = watched(layer, torch.randn(2, 5, 16), src_key_padding_mask=hidden)
    seen.save(tmp_path / "run.safetensors")
    back = it.load_recording(tmp_path / "run.safetensors")
    assert back.layers == seen.layers and back.calls[0].verified
    assert torch.equal(back.calls[0].matrix().dense(), seen.calls[0].matrix().dense())


def test_what_is_saved_may_be_what_was_loaded(tmp_path: Path) -> None:
    made = recording()
    back = reopened(made, tmp_path)
    again = reopened(back, tmp_path)
    want, *found = (x.calls[0].matrix().dense() for x in (made, back, again))
    assert all(torch.equal(x, want) for x in found)


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
    told = r"run\.safetensors: .*; got No space left on device\. What was"
    with pytest.raises(OSError, match=told):
        files.save(recording(), path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["run.safetensors"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="asks Linux for a full disk")
def test_a_disk_that_fills_up_while_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def full(path: str | Path, flags: int, *more: Any) -> int:
        if not flags & os.O_EXCL:
            return real(path, flags, *more)
        Path(path).symlink_to("/dev/full")
        return real(path, flags & ~os.O_EXCL, *more)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="No space left"):
        files.save(recording(), tmp_path / "run.safetensors")
    assert not os.listdir(tmp_path)


class Interrupted(Held):
    """A tensor during whose reading somebody presses Ctrl-C."""

    times = 0

    def get(self) -> Tensor:
        self.times += 1
        if self.times > 2:
            raise KeyboardInterrupt
        return super().get()


class Growing(Held):
    """A tensor that is longer at each reading."""

    def get(self) -> Tensor:
        self.tensor = torch.cat([self.tensor, self.tensor[..., :1, :]], -2)
        return self.tensor


@pytest.mark.parametrize(
    ("kind", "error", "told"),
    [
        (Interrupted, KeyboardInterrupt, ""),
        (Growing, ArgumentError, "save: expected a tensor of shape .* as before"),
    ],
)
def test_a_save_that_fails_leaves_nothing(
    tmp_path: Path, kind: type[Held], error: type[BaseException], told: str
) -> None:
    x = torch.randn(1, 1, 2, 2)
    made = Entry("x", 0, "functional", Rows(kind(x), Held(x), KeptSpec(AttentionSpec())))
    with pytest.raises(error, match=told):
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
    monkeypatch.setattr(values, "WRITTEN_OUT", 35)
    monkeypatch.setattr(files, "HEADER", 1000)
    for made, kind, told in (
        (
            entry(how=AttentionSpec(score=Odd())),
            KindError,
            r"save: expected a score of intently\.core\.scores; got Odd",
        ),
        (entry("../x"), ArgumentError, r"got '\.\./x'. Which leads out of a folder"),
        (
            entry(how=AttentionSpec(mask=Even())),
            MemoryRefused,
            "at most 35 bytes for Even; got 36 bytes",
        ),
        (
            entry(how=AttentionSpec(bias=Slope())),
            MemoryRefused,
            r"for Slope; got 144 bytes for shape \(6, 6\)",
        ),
        (
            entry("x" * 1000),
            ArgumentError,
            "save: expected names and tokens of at most 1,000 bytes",
        ),
    ):
        with pytest.raises(kind, match=told):
            files.save(recording(made), tmp_path / "run.safetensors")
    assert not os.listdir(tmp_path)


def test_a_scale_of_zero_comes_back(tmp_path: Path) -> None:
    """All keys weigh the same then; F.scaled_dot_product_attention takes it."""
    back = reopened(recording(entry(how=AttentionSpec(scale=0.0))), tmp_path)
    assert torch.allclose(back.calls[0].matrix().dense(), torch.tensor(1 / S))


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


def test_an_attention_mask_is_saved_as_what_it_is(tmp_path: Path) -> None:
    x, seen = torch.randn(2, 5, 8), torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]]).bool()
    layer = it.nn.MultiHeadAttention(8, 2)
    with it.watch(layer) as watched:
        layer(x, mask=it.causal() & it.padding(seen))
    (name,) = watched.layers
    watched.save(tmp_path / "a.safetensors")
    back = it.load_recording(tmp_path / "a.safetensors")
    assert repr(back[name].mask) == "causal() & padding(2×5 booleans)"
    assert torch.equal(back[name].dense(), watched[name].dense())
