"""What runs on a GPU: kernels, statistics, blocks, models, watching and training, against float64.

Skipped without CUDA. Run it where there is a GPU: ``pytest tests/gpu``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import intently as it
from intently.core.biases import alibi, relative_buckets
from intently.core.masks import Geometry
from intently.tasks.corpora import sample
from intently.tasks.corpora.files import ParallelText
from intently.tasks.decoding import SearchOptions
from intently.tasks.training import TrainingOptions
from intently.tasks.translation import Translator
from intently.tasks.translation.runs import fit

from ..combinations import each

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
GPU = torch.device("cuda")
B, H, G, T, D = 2, 8, 4, 320, 64
EPS = {x: torch.finfo(x).eps for x in (torch.float32, torch.bfloat16)}

MASKS: dict[str, Callable[[], it.Mask | None]] = {
    "none": lambda: None,
    "causal": it.causal,
    "causal, first rows empty": lambda: it.causal(-5),
    "window": lambda: it.causal() & it.window(40, 0),
    "prefix": lambda: it.causal() | it.prefix(30),
    "padding": lambda: it.padding(torch.tensor([T - 70, 9])),
    "segments": lambda: it.segments(torch.arange(T).expand(B, T) // 50),
    "dilated": lambda: it.dilated(3),
    "grid": lambda: it.grid(16, T // 16, 2),
    "inverted": lambda: ~it.window(9, 9),
    "dense": lambda: it.allowed(numbers(H, T, T).to(GPU) > -0.5),
}
OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "softcap": lambda: {"softcap": 5.0},
    "sinks": lambda: {"sinks": numbers(H).to(GPU)},
    "alibi": lambda: {"bias": alibi(H)},
    "buckets": lambda: {"bias": relative_buckets(numbers(32, H).to(GPU))},
    "bias": lambda: {"bias": numbers(H, T, T).to(GPU)},
}


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def operands(dtype: torch.dtype, t: int = T) -> list[Tensor]:
    """Q (b, h, t, d), k and v (b, g, t, d) on the GPU, with gradients."""
    shapes = ((B, H, t, D), (B, G, t, D), (B, G, t, D))
    drawn = [numbers(*shape, seed=i).to(GPU, dtype) for i, shape in enumerate(shapes)]
    return [x.requires_grad_() for x in drawn]


def weights(q: Tensor, k: Tensor, allow: Tensor, options: dict[str, Any]) -> Tensor:
    """The plain formula, every step in the dtype of q; a bias comes as a tensor."""
    z = q @ k.repeat_interleave(H // G, -3).mT / math.sqrt(D)
    if "softcap" in options:
        z = options["softcap"] * torch.tanh(z / options["softcap"])
    if "bias" in options:
        z = z + options["bias"].to(z)
    z = z.masked_fill(~allow, -math.inf)
    if "sinks" in options:
        sinks = options["sinks"].to(z)[:, None, None].expand(*z.shape[:-1], 1)
        return torch.softmax(torch.cat([z, sinks], -1), -1)[..., :-1]
    empty = (~allow).all(-1, keepdim=True)
    return torch.softmax(z.masked_fill(empty, 0), -1).masked_fill(empty, 0)


def error(found: Tensor, truth: Tensor) -> float:
    return float((found.detach().double() - truth.detach()).abs().max())


KERNELS = ["torch_fused", "flex", "tiled", "eager"]
SOME = [(name, "plain") for name in MASKS]
SOME += product(("none", "causal", "padding", "dense"), [x for x in OPTIONS if x != "plain"])


@each({"mask, options": SOME, "kernel, dtype": list(product(KERNELS, EPS))}, times=2)
def test_products_and_gradients(kernel: str, mask: str, options: str, dtype: torch.dtype) -> None:
    """Contract 7, held tighter: no score here is large, and no gradient cancels."""
    rule, given = MASKS[mask](), OPTIONS[options]()
    q, k, v = operands(dtype)
    A = it.attend(q, k, mask=rule, **given)
    try:
        with it.kernels.use(kernel):
            y = A @ v
    except it.errors.KernelError as refusal:
        pytest.skip(str(refusal))
    geometry = Geometry((B, H), T, T, GPU)
    allow = torch.ones(T, T, dtype=torch.bool, device=GPU) if rule is None else rule.dense(geometry)
    dense = dict(given)
    if "bias" in given:
        zeros = torch.zeros(B, H, T, 1, dtype=torch.float64, device=GPU)
        dense["bias"] = it.attend(zeros, zeros, bias=given["bias"]).scores[:]
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    rough = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    results = [
        weights(a, b, allow, dense) @ c.repeat_interleave(H // G, -3) for a, b, c in (exact, rough)
    ]
    truth, plain = results
    assert y.dtype is dtype and y.device.type == "cuda"
    slack = 8 * EPS[dtype]
    assert error(y, truth) <= 2 * error(plain, truth) + slack * float(truth.detach().abs().max())
    up = numbers(*y.shape, seed=9).to(GPU, dtype)
    found = torch.autograd.grad(y, (q, k, v), up)
    true = torch.autograd.grad(truth, exact, up.double())
    near = torch.autograd.grad(plain, rough, up)
    for name, x, reference, r in zip("qkv", found, true, near, strict=True):
        limit = 3 * error(r, reference) + slack * max(float(reference.abs().max()), 1e-3)
        assert error(x, reference) <= limit, f"gradient of {name}"


def test_kernels_are_chosen_fastest_first() -> None:
    q, k, v = operands(torch.bfloat16)
    chosen = [
        it.attend(q, k, mask=rule, **options).plan(v).kernel
        for rule, options in [
            (None, {}),
            (it.causal(), {}),
            (it.window(40, 0), {}),
            (it.causal(), {"softcap": 5.0}),
            (it.causal(), {"dropout": 0.1}),
        ]
    ]
    assert it.kernels.available() == ("torch_fused", "flex", "tiled", "eager")
    assert chosen[:2] == ["torch_fused"] * 2 and chosen[2:4] == ["flex"] * 2
    assert chosen[4] != "flex"
    step = it.attend(q[:, :, :1], k, mask=it.window(40, 0), softcap=5.0)
    assert "t=1 is below 128" in str(step.plan(v))


def test_other_numbers_are_other_kernels() -> None:
    q, k, v = (x.detach() for x in operands(torch.float32))
    for number in (3.0, 5.0, 7.0, 9.0):
        A = it.attend(q, k, mask=it.causal(), softcap=number, scale=number / 20)
        with it.kernels.use("eager"):
            expected = A @ v
        torch.testing.assert_close(A @ v, expected, atol=2e-5, rtol=2e-5)


def test_more_kinds_of_masks_than_pytorch_compiles_for_one_function() -> None:
    """Past eight, PyTorch would fall back to building the matrix, also after others' calls."""
    from torch.nn.attention.flex_attention import flex_attention

    q, k, v = (x.detach() for x in operands(torch.float32))
    theirs = torch.compile(flex_attention)
    for n in range(10):
        theirs(q, k, v, score_mod=lambda z, b, h, i, j, n=n: z + n, enable_gqa=True)
    A = it.attend(q, k, mask=it.causal() | it.dilated(7), softcap=11.0)
    with it.kernels.use("eager"):
        expected = A @ v
    with it.kernels.use("flex"):
        torch.testing.assert_close(A @ v, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("t", [1, 17, 127, 128, 129, 1000])
def test_lengths_that_fill_no_block(t: int) -> None:
    q, k, v = (x.detach() for x in operands(torch.float32, t))
    mask = it.causal() & it.padding(torch.tensor([t, max(1, t // 2)]))
    with it.kernels.use("flex"):
        y = it.attend(q, k, mask=mask, softcap=9.0) @ v
    expected = (
        it.attend(q.cpu().double(), k.cpu().double(), mask=mask, softcap=9.0) @ v.cpu().double()
    )
    torch.testing.assert_close(y.cpu().double(), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_no_query_sees_cannot_spread(kernel: str) -> None:
    q, k, v = (x.detach() for x in operands(torch.float32))
    mask = it.padding(torch.tensor([100, 0]))
    k[0, :, 100:], v[0, :, 100:], v[1], k[1] = math.nan, math.inf, math.nan, math.inf
    with it.kernels.use(kernel):
        try:
            y = it.attend(q, k, mask=mask) @ v
        except it.errors.KernelError as refusal:
            pytest.skip(str(refusal))
    assert bool(y.isfinite().all()) and bool((y[1] == 0).all())


def statistics(A: it.Attention) -> dict[str, Tensor]:
    values, places = A.top(4)
    return {
        "lse": A.lse,
        "entropy": A.entropy(),
        "received": A.received(),
        "top": values,
        "places": places,
        "distance": A.distance(),
        "pool": A.pool(16, 16),
        "argmax": A.argmax(),
    }


def test_statistics_equal_those_of_the_cpu() -> None:
    q, k, _ = (x.detach() for x in operands(torch.float32))
    mask = it.causal() & it.window(100, 0)
    found = statistics(it.attend(q, k, mask=mask))
    truth = statistics(it.attend(q.cpu().double(), k.cpu().double(), mask=mask))
    for name, x in found.items():
        assert x.device.type == "cuda", name
        same = x.cpu().double(), truth[name].double()
        torch.testing.assert_close(*same, atol=1e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("options", [{"softcap": 5.0}, {"dropout": 0.1}, {}], ids=str)
def test_memory_grows_with_the_length(options: dict[str, Any]) -> None:
    """Nothing of size t · s: 16,384² float32 weights of one head would be 1 GiB."""
    t = 16_384
    q, k, v = (torch.randn(1, 1, t, 64, device=GPU) for _ in range(3))
    A = it.attend(q, k, mask=it.window(256, 0), **options)
    y = A @ v
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    y = A @ v
    A.entropy()
    assert y.shape == (1, 1, t, 64)
    assert torch.cuda.max_memory_allocated() - before < 256 * 2**20


def test_dropout_is_that_of_the_seed() -> None:
    q, k, v = operands(torch.float32)
    runs = []
    for _ in range(2):
        torch.manual_seed(3)
        runs.append(it.attend(q, k, mask=it.causal(), dropout=0.5) @ v)
    assert torch.equal(*runs)
    assert not torch.equal(runs[0], it.attend(q, k, mask=it.causal()) @ v)


def test_devices_that_differ_are_refused() -> None:
    q, k, v = operands(torch.float32)
    with pytest.raises(it.errors.IntentlyError, match="device"):
        it.attend(q, k.detach().cpu())
    with pytest.raises(it.errors.IntentlyError, match="device"):
        it.attend(q, k) @ v.detach().cpu()


def test_a_compiled_graph() -> None:
    q, k, v = (x.detach() for x in operands(torch.float32))

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return it.attention(q, k, v, mask=it.causal() & it.window(50, 0), softcap=9.0)

    torch.testing.assert_close(
        torch.compile(f, fullgraph=True)(q, k, v), f(q, k, v), atol=2e-5, rtol=2e-5
    )


def test_autocast() -> None:
    q, k, v = operands(torch.float32)
    with torch.autocast("cuda", torch.bfloat16):
        y = it.attend(q, k, mask=it.causal(), softcap=5.0) @ v
    assert y.dtype is torch.bfloat16
    y.float().sum().backward()
    assert q.grad is not None and bool(q.grad.isfinite().all())


@pytest.mark.parametrize("kv_heads", [8, 2])
def test_a_block_and_its_cache(kv_heads: int) -> None:
    options = it.nn.AttentionOptions(mask=it.causal())
    block = it.nn.MultiHeadAttention(256, 8, kv_heads=kv_heads, attention=options).eval()
    x = torch.randn(2, 40, 256)
    expected = block(x)
    block, x = block.to(GPU), x.to(GPU)
    whole, cache = block(x), it.nn.KeyValueCache()
    steps = [block(x[:, i : i + 1], cache=cache) for i in range(40)]
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=2e-5, rtol=2e-4)
    torch.testing.assert_close(whole.cpu(), expected, atol=2e-5, rtol=2e-4)


SENTENCE = "The animal didn't cross the road because it was too tired."


@pytest.mark.parametrize("beam", [1, 4])
def test_the_embedded_translator_says_and_sees_the_same(beam: int) -> None:
    translator, options = Translator.load(), SearchOptions(beam=beam)
    (expected,) = translator.translate([SENTENCE], options)
    translator.model.to(GPU)
    (found,) = translator.translate([SENTENCE], options)
    assert found.text == expected.text
    for name, matrix in expected.attention.items():
        torch.testing.assert_close(
            found.attention[name].dense().cpu(), matrix.dense(), atol=1e-4, rtol=1e-3
        )


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_watching_a_transformers_model(implementation: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_head=4, n_embd=64, vocab_size=100)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel._from_config(config, attn_implementation="eager")
    model = model.to(GPU).eval()
    ids = torch.randint(100, (2, 50), device=GPU)
    padding = torch.ones_like(ids)
    padding[1, :7] = 0
    expected = model(ids, attention_mask=padding, output_attentions=True).attentions
    model.set_attn_implementation(implementation)
    unwatched = model(ids, attention_mask=padding).logits
    with it.watch(model) as seen:
        watched = model(ids, attention_mask=padding).logits
    assert torch.equal(watched, unwatched)
    for name, weights in zip(seen, expected, strict=True):
        found = seen[name].dense()
        rows = padding.bool()[:, None, :, None]
        torch.testing.assert_close(
            found.masked_fill(~rows, 0), weights.masked_fill(~rows, 0), atol=1e-4, rtol=1e-3
        )
    seen.save(tmp_path / "seen")
    again = it.load_recording(tmp_path / "seen")
    assert list(again) == list(seen)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_goes_on_where_it_stopped(precision: str, tmp_path: Path) -> None:
    pairs = sample("train", 400)
    text = ParallelText([p.source for p in pairs], [p.target for p in pairs])
    options = TrainingOptions().with_flags(
        **{"width": 64, "heads": 4, "inner": 128, "encoder_layers": 2, "decoder_layers": 2},
        **{"steps": 20, "warmup": 5, "batch_tokens": 800, "save_every": 10, "evaluate_every": 20},
        **{"device": "cuda", "precision": precision, "max_length": 30},
    )

    def weights(out: Path, options: TrainingOptions, resume: bool = False) -> dict[str, Tensor]:
        fit(text, options, out, resume=resume)
        return Translator.load(out).model.state_dict()

    whole = weights(tmp_path / "whole", options)
    weights(tmp_path / "parts", options.with_flags(steps=10))
    parts = weights(tmp_path / "parts", options, resume=True)
    assert all(bool(x.isfinite().all()) for x in whole.values())
    same = [torch.equal(whole[name], parts[name]) for name in whole]
    assert all(same), f"{len(same) - sum(same)} of {len(same)} tensors differ"
