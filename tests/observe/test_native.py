"""PyTorch's own attention: `nn.MultiheadAttention` on every path, encoders, decoders, padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from intently.observe.sources import native

from ..combinations import pairs
from .attending import close, seen_by, watched

B, T, S, C, H = 2, 5, 7, 8, 2
PADDED = torch.tensor([[False] * 5 + [True] * 2, [False] * 7])
CAUSAL = torch.ones(S, S).triu(1).bool()
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


@pytest.fixture(autouse=True)
def _drawn() -> None:
    torch.manual_seed(0)


@contextmanager
def weights_of(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """The weights that each `nn.MultiheadAttention` gives when it is asked for them."""
    found: dict[str, list[Tensor]] = {}
    blocks = {n: m for n, m in model.named_modules() if isinstance(m, nn.MultiheadAttention)}

    def asked(forward: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        kwargs |= {"need_weights": True, "average_attn_weights": False}
        y, weights = forward(*args, **kwargs)
        found.setdefault(name, []).append(weights)
        return y, weights

    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for name, block in blocks.items():
            block.forward = partial(asked, block.forward, name)
        yield found
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
        for block in blocks.values():
            del block.forward


def large(model: nn.Module) -> nn.Module:
    """With weights that make attention uneven, and biases that are not zero."""
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    return model


MASKS = {
    "none": {},
    "padding": {"key_padding_mask": PADDED},
    "pattern": {"attn_mask": torch.ones(T, S).triu(3).bool()},
    "both": {"key_padding_mask": PADDED, "attn_mask": torch.ones(T, S).triu(3).bool()},
    "floats": {"attn_mask": torch.linspace(-2, 2, T * S).view(T, S)},
    "both floats": {
        "key_padding_mask": torch.zeros(B, S).masked_fill(PADDED, -torch.inf),
        "attn_mask": torch.linspace(-2, 2, T * S).view(T, S),
    },
    "for each head": {"attn_mask": torch.arange(B * H * T * S).view(B * H, T, S) % 3 == 1},
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "learned key": {"add_bias_kv": True},
    "zero key": {"add_zero_attn": True},
    "both": {"add_bias_kv": True, "add_zero_attn": True},
    "other widths": {"kdim": 6, "vdim": 5},
    "no biases": {"bias": False},
    "steps first": {"batch_first": False},
}


@pairs({"need_weights": [True, False], "mask": MASKS, "kind": KINDS})
def test_multi_head_attention(kind: str, mask: str, need_weights: bool) -> None:
    options = {"batch_first": True} | KINDS[kind]
    block = large(nn.MultiheadAttention(C, H, **options))
    widths = (T, C), (S, options.get("kdim", C)), (S, options.get("vdim", C))
    q, k, v = (torch.randn(B, n, width) for n, width in widths)
    if not options["batch_first"]:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    with torch.no_grad():
        seen = watched(block, q, k, v, need_weights=need_weights, **MASKS[mask])
        _, weights = block(q, k, v, average_attn_weights=False, **MASKS[mask])
    assert seen.layers == ("MultiheadAttention",)
    assert seen.calls[0].source == ("native" if need_weights else "functional")
    close(seen["MultiheadAttention"], weights)


def test_averaged_weights_are_the_mean_of_the_heads() -> None:
    block = large(nn.MultiheadAttention(C, H, batch_first=True))
    x, memory = torch.randn(B, T, C), torch.randn(B, S, C)
    found = watched(block, x, memory, memory)["MultiheadAttention"]
    close(found.mean_heads(), block(x, memory, memory)[1])


@pytest.mark.parametrize("need_weights", [True, False])
def test_one_sentence_without_a_batch(need_weights: bool) -> None:
    block = large(nn.MultiheadAttention(C, H))
    q, k = torch.randn(T, C), torch.randn(S, C)
    options = {"key_padding_mask": PADDED[0], "attn_mask": torch.ones(T, S).triu(3).bool()}
    seen = watched(block, q, k, k, need_weights=need_weights, **options)
    weights = block(q, k, k, average_attn_weights=False, **options)[1]
    close(seen["MultiheadAttention"], weights.view(seen.calls[0].shape))


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("mask", ["none", "padding", "pattern", "both"])
def test_the_fast_path_of_evaluation(mask: str, need_weights: bool) -> None:
    block = large(nn.MultiheadAttention(C, H, batch_first=True)).eval()
    x = torch.randn(B, S, C)
    options = MASKS[mask] | ({} if mask in ("none", "padding") else {"attn_mask": CAUSAL})
    with torch.no_grad():
        seen = watched(block, x, x, x, need_weights=need_weights, **options)
    assert seen.calls[0].source == "native"
    with weights_of(block) as weights:
        block(x, x, x, **options)
    close(seen["MultiheadAttention"], weights[""][0])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}])
def test_encoder(options: dict[str, Any], padded: bool, masked: bool) -> None:
    layer = nn.TransformerEncoderLayer(C, H, 16, batch_first=True, **options)
    encoder = large(nn.TransformerEncoder(layer, 3, enable_nested_tensor=not options)).eval()
    x = torch.randn(B, S, C)
    given = {"src_key_padding_mask": PADDED if padded else None, "mask": CAUSAL if masked else None}
    with torch.no_grad():
        seen = watched(encoder, x, **given)
    assert seen.layers == tuple(f"layers.{n}.self_attn" for n in range(3))
    assert {entry.source for entry in seen.calls} == {"native"}
    with weights_of(encoder) as weights:
        encoder(x, **given)
    for name in seen.layers:
        close(seen[name], weights[name][0], ~PADDED if padded else None)


def test_what_a_nested_batch_lacks_attends_nothing() -> None:
    layer = nn.TransformerEncoderLayer(C, H, 16, batch_first=True)
    encoder = large(nn.TransformerEncoder(layer, 1)).eval()
    with torch.no_grad():
        seen = watched(encoder, torch.randn(B, S, C), src_key_padding_mask=PADDED)
    weights = seen["layers.0.self_attn"].dense()
    assert not weights[0, :, 5:].any() and not weights[..., 5:][0].any()
    torch.testing.assert_close(weights.sum(-1)[0, :, :5], torch.ones(H, 5))


@pytest.mark.parametrize("grad", [False, True])
def test_transformer(grad: bool) -> None:
    model = large(nn.Transformer(C, H, 2, 2, 16, batch_first=True)).eval()
    src, tgt = torch.randn(B, S, C), torch.randn(B, T, C)
    given = {
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.bool),
        "src_key_padding_mask": PADDED,
        "memory_key_padding_mask": PADDED,
    }
    with torch.set_grad_enabled(grad):
        seen = watched(model, src, tgt, **given)
    with weights_of(model) as weights:
        model(src, tgt, **given)
    assert set(seen.layers) == set(weights) and "decoder.layers.1.multihead_attn" in seen.layers
    for name, (expected,) in weights.items():
        close(seen[name], expected, ~PADDED if "encoder" in name else None)


def test_training_keeps_the_weights_before_dropout_uncompared() -> None:
    block = large(nn.MultiheadAttention(C, H, dropout=0.5, batch_first=True))
    x = torch.randn(B, S, C)
    (entry,) = seen_by(block, x, x, x).calls
    assert entry.verified is None and "dropout=0.5" in str(entry.why)
    close(entry, block.eval()(x, x, x, average_attn_weights=False)[1])


@pytest.mark.parametrize("more", [False, True])
def test_autocast(more: bool) -> None:
    block = large(nn.MultiheadAttention(C, H, batch_first=True, add_bias_kv=more))
    x = torch.randn(B, S, C)
    with torch.autocast("cpu", torch.bfloat16):
        seen = watched(block, x, x, x)
        weights = block(x, x, x, average_attn_weights=False)[1]
    close(seen["MultiheadAttention"], weights.to(seen["MultiheadAttention"].dtype), gap=2e-2)


def test_a_mask_that_is_misread_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "allowed", lambda mask: None)
    block = large(nn.MultiheadAttention(C, H, batch_first=True)).eval()
    x = torch.randn(B, S, C)
    with torch.no_grad():
        seen = watched(block, x, x, x, key_padding_mask=PADDED, verified=False)
    assert seen.calls[0].verified is False


def test_what_cannot_be_read_is_missed_and_the_model_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("no such layout")

    layer = nn.TransformerEncoderLayer(C, H, 16, batch_first=True).eval()
    monkeypatch.setattr(native, "Projected", broken)
    with torch.no_grad():
        seen = watched(layer, torch.randn(B, S, C))
    assert not seen.calls
    assert "self_attn" in str(seen.coverage())
    assert "native: RuntimeError: no such layout" in str(seen.coverage())


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_fast_path_in_inference_mode(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 6, 16)
    with torch.no_grad():
        expected = seen_by(model, x)
    with torch.inference_mode():
        seen = watched(model, x)
    assert seen.layers == expected.layers and len(seen.layers) == 2, str(seen.coverage())
    for name in seen.layers:
        close(seen[name], expected[name].dense())
