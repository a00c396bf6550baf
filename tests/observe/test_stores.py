"""What the three stores keep, how much of it, and what they refuse."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intently as it
from intently.observe.recording.recording import Entry
from intently.observe.storage.stores import Spool, Store, packed

from .attending import Decoder, SelfAttention, Stack, attended, close, seen_by, stack


def storages(*tensors: Tensor) -> int:
    """Bytes of the storages that tensors keep alive, each counted once."""
    storages = {x.untyped_storage()._cdata: x.untyped_storage() for x in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def kept(seen: it.observe.Recording) -> list[Tensor]:  # type: ignore[name-defined]
    return [x for entry in seen.calls for x in entry.rows.operands()]


def exact(entry: Entry) -> int:
    """Bytes of q and k of one call."""
    return sum(x.numel() * x.element_size() for x in entry.rows.operands())


def test_copies_let_go_of_what_they_were_cut_from() -> None:
    model, x = stack(2), torch.randn(2, 64, 32)
    with it.watch(model) as copies, it.watch(model, store="reference") as references:
        model(x)
    both = sum(map(exact, copies.calls))
    assert storages(*kept(copies)) <= 1.01 * both
    assert storages(*kept(references)) == 1.5 * both  # q, k and v are of one storage
    assert torch.equal(copies["layers.1"].dense(), references["layers.1"].dense())


def test_half_precision_is_stored_and_close() -> None:
    model, x = stack(2), torch.randn(2, 9, 32)
    seen = seen_by(model, x, dtype=torch.bfloat16)
    expected = model.layers[0].weights(x)  # type: ignore[operator]
    close(seen["layers.0"], expected.bfloat16(), gap=0.02)
    assert all(entry.verified for entry in seen.calls)


def test_a_reference_that_changed_is_refused() -> None:
    q, mask = torch.randn(1, 2, 5, 8), torch.rand(2, 5, 5) > 0.3
    mask[..., 0] = True
    for x in (q, mask):
        references = it.watch(store="reference")
        with it.watch() as copies, references as seen, torch.no_grad():
            F.scaled_dot_product_attention(q, q, q, mask)
        expected = seen["attention"].dense()
        x.logical_not_() if x is mask else x.add_(1)
        assert torch.equal(copies["attention"].dense(), expected)
        told = r"store: .*changed in place since.*store=.copy"
        with pytest.raises(it.errors.StaleError, match=told):
            seen["attention"]


def test_inference_tensors_are_copied_and_references_to_them_refused() -> None:
    model, x = stack(1), torch.randn(1, 5, 32)
    references = it.watch(model, store="reference")
    with torch.inference_mode(), it.watch(model) as copies, references as seen:
        model(x)
    with pytest.raises(it.errors.StaleError, match=r"an inference tensor of shape .* does not"):
        seen["layers.0"]
    assert seen.calls[0].verified is None and "inference" in str(seen.coverage())
    assert not any(tensor.is_inference() for tensor in kept(copies))


def test_masks_and_biases_are_kept_once() -> None:
    bias = torch.randn(4, 6, 6)
    model = Stack(*[SelfAttention(is_causal=False, attn_mask=bias) for _ in range(3)])
    x = torch.randn(2, 6, 32)
    with it.watch(model) as seen, torch.no_grad():
        model(x)
        bias += 1
        model(x)
    held = [entry.rows.how().bias.tensors()[0] for entry in seen.calls]  # type: ignore[union-attr]
    ids = [id(x) for x in held]
    assert [ids.index(one) for one in ids] == [0, 0, 0, 3, 3, 3]
    assert all(entry.verified for entry in seen.calls)


def test_disk_keeps_little_in_memory_and_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = stack(2), torch.randn(2, 40, 32)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with it.watch(model, store="disk") as seen, it.watch(model) as copies:
        model(x)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size == pytest.approx(sum(map(exact, seen.calls)), rel=0.05)
    for name in seen.layers:
        assert torch.equal(seen[name].dense(), copies[name].dense())
    assert all(entry.verified for entry in seen.calls)
    del seen
    gc.collect()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_spool_gives_back_what_was_written(dtype: torch.dtype) -> None:
    store = Store("disk", None, 0)
    given = [
        torch.randn(2, 3, 5, 7, dtype=dtype),
        torch.randn(2, 5, 3, 7, dtype=dtype).transpose(1, 2),
        torch.randn(1, 3, 1, 7, dtype=dtype).expand(4, 3, 5, 7),
        torch.randn(0, 3, dtype=dtype),
        torch.randn((), dtype=dtype).expand(1, 1, 5, 7),
        torch.randn(3, 2**20, dtype=dtype)[:, ::2],
    ]
    for x, y in [(x, store.own(x)) for x in given]:
        assert y.shape == tuple(x.shape) and torch.equal(y.get(), x)


def test_what_is_expanded_is_packed_once() -> None:
    x = torch.randn(1, 2, 1, 8).expand(6, 2, 5, 8)
    assert packed(x).untyped_storage().nbytes() == 16 * 4 and torch.equal(packed(x), x)


@pytest.mark.parametrize("store", ["copy", "disk", "reference"])
def test_a_mask_that_is_one_expanded_number_is_kept(store: Any) -> None:
    q = torch.randn(1, 2, 5, 4)
    seen = attended(q, q, torch.full((), 0.5).expand(5, 5), store=store)
    (entry,) = seen.calls
    close(entry, it.attend(q, q).dense())


def full_at(monkeypatch: pytest.MonkeyPatch, room: Callable[[Spool], int]) -> None:
    """A disk that takes so many bytes of a write, and then is full."""
    whole = Spool._put

    def write(spool: Spool, data: bytes | memoryview) -> None:
        fits = room(spool)
        whole(spool, memoryview(data)[: max(fits, 0)])
        if len(data) > fits:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Spool, "_put", write)


def test_a_full_disk_ends_the_recording_and_not_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = stack(4), torch.randn(2, 40, 32)
    plain = model(x)
    full_at(monkeypatch, lambda spool: 30_000 - spool._size)
    with it.watch(model, store="disk") as seen:
        assert torch.equal(model(x), plain)
    assert seen.layers == ("layers.0",)
    assert "The recording ended at layers.1: [Errno 28] No space left" in str(seen.coverage())
    assert seen["layers.0"].shape == (2, 4, 40, 40)


@pytest.mark.parametrize("moving", [False, True])
@pytest.mark.parametrize("room", [0, 3_000, 9_000, 15_000, 22_000, 30_000])
def test_what_was_written_is_read_while_the_disk_is_full(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, room: int, moving: bool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    full_at(monkeypatch, lambda spool: room - spool._size)
    model = Decoder()
    q, k, states = torch.randn(2, 1, 300, 4), torch.randn(2, 1, 300, 4), torch.randn(2, 1, 7, 4)
    with it.watch(model, store="disk") as seen:
        for n in range(1, 301):
            if moving and n % 7 == 0:  # beams change places
                q, k, states = q.flip(0), k.flip(0), states.flip(0)
            model(q[..., n - 1 : n, :], k[..., :n, :], states)
            if n in (30, 170):  # reading meanwhile changes nothing
                assert all(entry.matrix().shape == entry.shape for entry in seen.calls)
    told = str(seen.coverage())
    ended = not room or any(entry.steps < 300 for entry in seen.calls)
    assert ("No space left" in told) == ended
    assert ended or room == 30_000
    assert len(seen.calls) == (2 if room else 0)
    for entry in seen.calls:
        (found_q, found_k), steps = entry.rows.operands(), entry.steps
        assert entry.shape[-2] == steps == found_q.shape[-2]
        turned = moving and (steps // 7) % 2 != (300 // 7) % 2
        cross = entry.name == "cross"
        all_q, all_k = (q + 1 if cross else q), (states if cross else k[..., :steps, :])
        assert torch.equal(found_q, (all_q.flip(0) if turned else all_q)[..., :steps, :])
        assert torch.equal(found_k, all_k.flip(0) if turned else all_k)
        assert entry.matrix().dense().isfinite().all()
    if seen.calls:
        files = list(tmp_path.glob("*.watch"))
        assert all(file.stat().st_size <= room for file in files)
        seen.save(tmp_path / "run.safetensors")
        assert it.load_recording(tmp_path / "run.safetensors").calls[0].steps == seen.calls[0].steps


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_device_that_is_full_says_so() -> None:
    spool = Spool()
    spool._file.close()
    spool._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    with pytest.raises(OSError, match="No space left"):
        spool.write(torch.zeros(9), torch.float32)


def test_a_write_that_fails_gives_its_room_back(monkeypatch: pytest.MonkeyPatch) -> None:
    store, x = Store("disk", None, 0), torch.randn(3, 5)
    first = store.own(x)
    assert store._spool is not None
    size = os.path.getsize(store._spool.path)
    with monkeypatch.context() as patch:
        full_at(patch, lambda spool: 7)
        for _ in range(3):
            with pytest.raises(OSError, match="No space left"):
                store.own(x + 1)
            assert os.path.getsize(store._spool.path) == size
            assert torch.equal(first.get(), x)
    second = store.own(x + 1)
    assert torch.equal(first.get(), x) and torch.equal(second.get(), x + 1)


def test_values_and_gradients_are_kept_on_request() -> None:
    model, x = stack(1), torch.randn(2, 6, 32)
    layer = model.layers[0]
    assert isinstance(layer, SelfAttention)
    with it.watch(model, gradients=True) as seen:
        y = model(x)
    entry = seen.calls[0]
    with pytest.raises(it.errors.ArgumentError, match="grad: expected a backward pass"):
        entry.grad()
    y.square().sum().backward()
    q, k, v = layer.split(x)
    mixed = it.attention(q, k, v, mask=it.causal()).detach().requires_grad_()
    (grad,) = torch.autograd.grad((x + layer.merge(mixed)).square().sum(), mixed)
    assert torch.equal(entry.v(), v) and torch.allclose(entry.grad(), grad, atol=1e-5)
    (without,) = seen_by(model, x).calls
    with pytest.raises(it.errors.ArgumentError, match=r"v: expected .*gradients=True"):
        without.v()


@pytest.mark.parametrize("store", ["copy", "disk", "reference"])
def test_weights_of_a_native_operator_are_kept_unless_by_reference(store: Any) -> None:
    layer, x = nn.MultiheadAttention(16, 4, batch_first=True).eval(), torch.randn(1, 5, 16)
    with torch.no_grad():
        _, before = layer(x, x, x, average_attn_weights=False)
        with it.watch(layer, store=store) as seen:
            layer(x, x, x, need_weights=False)
        layer.in_proj_weight.mul_(2)
    message = r"tensors and weights that the model had when it ran; got a tensor of .*store=.copy"
    refusal = pytest.raises(it.errors.StaleError, match=message)
    with refusal if store == "reference" else nullcontext():
        close(seen["MultiheadAttention"], before)


def test_a_forked_child_leaves_the_file_to_its_parent() -> None:
    q = torch.randn(1, 2, 5, 8)
    seen = attended(q, q, store="disk")
    code = os.fork()
    if not code:
        del seen
        gc.collect()
        os._exit(0)
    os.waitpid(code, 0)
    assert seen["attention"].dense().shape == (1, 2, 5, 5)


@pytest.mark.parametrize("store", ["copy", "disk"])
def test_a_weight_whose_change_is_not_counted_is_kept_again(store: Any) -> None:
    layer, x = nn.MultiheadAttention(16, 4, batch_first=True).eval(), torch.randn(1, 5, 16)
    layer.requires_grad_(False)
    with it.watch(layer, store=store) as seen:
        plain = []
        for _ in range(2):
            plain.append(layer(x, x, x, average_attn_weights=False)[1])
            layer.in_proj_weight.data.mul_(2)
    for entry, weights in zip(seen.calls, plain):
        assert entry.verified
        close(entry, weights)


def test_a_reference_notices_a_fused_optimizer() -> None:
    layer, x = nn.MultiheadAttention(16, 4, batch_first=True).eval(), torch.randn(1, 5, 16)
    with torch.no_grad():
        seen = seen_by(layer, x, x, x, store="reference")
    assert seen["MultiheadAttention"].dense().shape == (1, 4, 5, 5)
    layer(x, x, x)[0].pow(2).sum().backward()
    torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True).step()
    with pytest.raises(it.errors.StaleError, match="weights that the model had when it ran"):
        seen["MultiheadAttention"].dense()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_mask_whose_change_is_not_counted_is_looked_at(mode: Any) -> None:
    q = torch.randn(1, 2, 5, 4)
    with mode(), it.watch() as seen:
        mask = torch.ones(5, 5, dtype=torch.bool).tril()
        for change in (None, torch.ones(5, 5, dtype=torch.bool).triu(), torch.rand(5, 5) > 0.5):
            if change is not None:
                mask.numpy()[:] = change.fill_diagonal_(True).numpy()
            F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    assert len(seen.calls) == 3 and all(entry.verified for entry in seen.calls)
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    assert not seen.calls[0].matrix().dense()[..., later].any()


@pytest.mark.parametrize("store", ["copy", "disk", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("b", "h", "t", "s", "d"),
    [(1, 2, 0, 3, 4), (1, 2, 3, 0, 4), (0, 2, 3, 3, 4), (1, 0, 3, 3, 4), (1, 2, 3, 3, 0)],
)
def test_empty_operands_are_kept_and_not_compared(
    store: Any, dtype: torch.dtype, b: int, h: int, t: int, s: int, d: int
) -> None:
    q, k = torch.randn(b, h, t, d, dtype=dtype), torch.randn(b, h, s, d, dtype=dtype)
    with it.watch(store=store) as seen:
        F.scaled_dot_product_attention(q, k, k)
        F.scaled_dot_product_attention(q, k, k)
    assert [entry.verified for entry in seen.calls] == [None, None]
    assert "not compared: nothing to compare" in str(seen.coverage())
    assert seen.calls[0].matrix().dense().shape == (b, h, t, s)
