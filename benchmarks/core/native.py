"""The native kernel: what acts on the logits, short and single queries, statistics, others."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import intently as it
from benchmarks import measure
from benchmarks.report import NONE, Section, Settings, reached, table
from intently.core.matrix import patterns

SHORT = (16, 32, 64)


def draw(*shapes: tuple[int, ...]) -> list[Tensor]:
    """Normal numbers of these shapes."""
    torch.manual_seed(measure.SEED)
    return [torch.randn(shape) for shape in shapes]


def extras(settings: Settings) -> Section:
    """What acts on the logits, beside the plain causal product."""
    t, h, d = (256, 2, 16) if settings.quick else (4096, 8, 64)
    q, k, v = draw(*[(1, h, t, d)] * 3)
    bias, sinks = torch.randn(h, t, t), torch.randn(h)
    mask, half = torch.rand(h, t, t) < 0.7, [x.bfloat16() for x in (q, k, v)]
    causal = it.causal()

    def ours(**options: Any) -> Callable[[], Tensor]:
        return lambda: it.attention(q, k, v, **{"mask": causal} | options)

    calls: dict[str, Callable[[], Any]] = {
        "causal": ours(),
        "softcap": ours(softcap=20.0),
        "ALiBi": ours(bias=it.alibi(h)),
        "sinks": ours(sinks=sinks),
        "bias (h, t, s)": ours(bias=bias),
        "mask (h, t, s)": ours(mask=causal & it.allowed(mask)),
        "dropout 0.1": ours(dropout=0.1),
        "bfloat16": lambda: it.attention(*half, mask=causal),
    }
    seconds = measure.rounds(calls, settings.effort(20, 5, 51))
    found = {name: measure.ratio(x, seconds["causal"]) for name, x in seconds.items()}
    slow = [f"{n} {x.median:.2f}" for n, x in found.items() if x.median > 1.3]
    return Section(
        f"softcap, biases, masks, dropout and bfloat16 at {t:,}",
        "≤ 1.3 × the plain causal forward",
        ", ".join(f"{n} {x.median:.2f}" for n, x in found.items() if n != "causal"),
        reached(slow),
        table(["", "time / plain causal"], [[n, x.text()] for n, x in found.items()]),
    )


def decoding(settings: Settings) -> Section:
    """One query over many keys, beside the speed at which memory can be read."""
    s = 4096 if settings.quick else 65536
    q, k, v = draw((1, 8, 1, 64), (1, 8, s, 64), (1, 8, s, 64))
    big = torch.randn(2 * k.numel())
    seconds = measure.rounds(
        {
            "ours": lambda: it.attention(q, k, v),
            "torch": lambda: F.scaled_dot_product_attention(q, k, v),
            "sum": lambda: big.sum(),
        },
        settings.effort(6, 7, 301),
    )
    against = measure.ratio(seconds["torch"], seconds["ours"])
    share = measure.ratio(seconds["sum"], seconds["ours"])
    misses = [f"{against.median:.2f} ×"] if against.median < 1.5 else []
    misses += [f"{share.median:.2f} of reading"] if share.median < 0.95 else []
    return Section(
        f"one query over {s:,} keys, 8 heads",
        "≥ 1.5 × torch, ≥ 0.95 of the time to read k and v",
        f"{against.median:.2f} ×, {share.median:.2f}",
        reached(misses),
        f"torch's time / ours {against.text()}; the time of a sum over as many numbers / ours "
        f"{share.text()}; {2 * k.nbytes / statistics.median(seconds['ours']) / 1e9:.1f} GB/s.",
    )


def batches(settings: Settings) -> Section:
    """Batches of short sequences, through the public call."""
    lines, every = [], []
    for t in SHORT:
        q, k, v = draw(*[(4 if settings.quick else 64, 8, t, 64)] * 3)
        calls = {
            "ours": lambda q=q, k=k, v=v: it.attention(q, k, v),
            "torch": lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v),
        }
        seconds = measure.rounds(calls, settings.effort(1, 7, 501))
        found = measure.ratio(seconds["torch"], seconds["ours"])
        every.append(found.median)
        lines.append([str(t), found.text()])
    return Section(
        "64 × 8 heads of short sequences, d = 64",
        "≥ 2 × torch",
        ", ".join(f"t = {t}: {x:.2f}" for t, x in zip(SHORT, every)),
        reached([] if min(every) >= 2 else [f"{min(every):.2f}"]),
        table(["t", "torch's time / ours"], lines),
    )


LIMITS = {
    "lse": 0.6,
    "entropy()": 0.6,
    "argmax()": 0.6,
    "top(8)": 0.9,
    "received()": 1.1,
    "mass(16 keys)": 1.1,
    "pool(256, 256)": 1.1,
    "all of summary()": 1.6,
}


def passes(settings: Settings) -> Section:
    """Statistics of a fresh causal matrix against the faster of both forwards."""
    t = 1024 if settings.quick else 32768
    q, k, v = draw(*[(1, 4, t, 64)] * 3)
    causal, tokens = it.causal(), torch.randint(0, 5000, (t,))
    reads: dict[str, Callable[[it.LazyMatrix], Any]] = {
        "lse": lambda A: A.lse,
        "entropy()": lambda A: A.entropy(),
        "argmax()": lambda A: A.argmax(),
        "top(8)": lambda A: A.top(8),
        "received()": lambda A: A.received(),
        "mass(16 keys)": lambda A: A.mass(range(16)),
        "pool(256, 256)": lambda A: A.pool(256, 256),
        "all of summary()": lambda A: patterns.measure(A, tokens),
    }
    calls: dict[str, Callable[[], Any]] = {
        "torch": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "ours": lambda: it.attention(q, k, v, mask=causal),
    }
    for name, read in reads.items():
        calls[name] = lambda read=read: read(it.attend(q, k, mask=causal))
    seconds = measure.rounds(calls, settings.effort(45, 5, 21))
    best = min(("torch", "ours"), key=lambda x: statistics.median(seconds[x]))
    found = {name: measure.ratio(seconds[name], seconds[best]) for name in reads}
    slow = [f"{n} {x.median:.2f}" for n, x in found.items() if x.median > LIMITS[n]]
    return Section(
        f"statistics of a fresh causal matrix at {t:,} against the faster forward ({best})",
        "one pass ≤ 0.6, top(8) ≤ 0.9, two passes ≤ 1.1, summary ≤ 1.6",
        ", ".join(f"{n} {x.median:.2f}" for n, x in found.items()),
        reached(slow),
        table(
            ["", "time / forward", "goal"],
            [[n, x.text(), f"≤ {LIMITS[n]}"] for n, x in found.items()],
        ),
    )


def compiled(settings: Settings) -> Section:
    """FlexAttention on the CPU, compiled: forward only there."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    t = 256 if settings.quick else 4096
    q, k, v = draw(*[(1, 8, t, 64)] * 3)
    flex = torch.compile(flex_attention)
    rules: dict[str, tuple[Any, Any]] = {
        "plain": (None, None),
        "causal": (it.causal(), lambda b, h, i, j: i >= j),
        "window(255, 0)": (it.window(255, 0), lambda b, h, i, j: (i >= j) & (i - j <= 255)),
    }
    lines = []
    for name, (mask, rule) in rules.items():
        blocks = None if rule is None else create_block_mask(rule, None, None, t, t, device="cpu")
        calls = {
            "ours": lambda m=mask: it.attention(q, k, v, mask=m),
            "flex": lambda b=blocks: flex(q, k, v, block_mask=b),
        }
        measure.check_agree(name, [calls["ours"]()], [calls["flex"]()])
        seconds = measure.rounds(calls, settings.effort(3, 5, 51))
        lines.append([name, measure.ratio(seconds["flex"], seconds["ours"]).text()])
    return Section(
        f"compiled FlexAttention on the CPU at {t:,}, 8 heads",
        NONE,
        "; ".join(f"{name} {ratio}" for name, ratio in lines),
        NONE,
        table(["", "its time / ours"], lines),
    )


def onnx(settings: Settings) -> Section:
    """ONNX Runtime's fused attention on the CPU (com.microsoft.MultiHeadAttention)."""
    try:
        import onnxruntime
        from onnx import TensorProto, helper
    except ImportError as error:
        return Section("ONNX Runtime on the CPU", NONE, f"not measured: {error}", NONE, "")
    lines = []
    for b, h, t, d in ((1, 2, 64, 16),) if settings.quick else ((8, 8, 512, 64), (1, 8, 4096, 64)):
        shape = [b, t, h * d]
        names = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "qkvy"]
        node = helper.make_node(
            "MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft", num_heads=h
        )
        graph = helper.make_graph([node], "attention", names[:3], names[3:])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = settings.threads
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        q, k, v = (x.view(b, t, h, d).transpose(1, 2) for x in draw(*[tuple(shape)] * 3))
        feed = {n: x.transpose(1, 2).reshape(shape).numpy() for n, x in zip("qkv", (q, k, v))}
        calls = {
            "ours": lambda q=q, k=k, v=v: it.attention(q, k, v),
            "onnx": lambda s=session, f=feed: s.run(["y"], f)[0],
        }
        theirs = torch.from_numpy(calls["onnx"]()).view(b, t, h, d).transpose(1, 2)
        measure.check_agree("onnx", [calls["ours"]()], [theirs])
        seconds = measure.rounds(calls, settings.effort(3, 5, 51))
        lines.append([str((b, h, t, d)), measure.ratio(seconds["onnx"], seconds["ours"]).text()])
    return Section(
        "ONNX Runtime on the CPU, MultiHeadAttention, heads last",
        NONE,
        "; ".join(f"{name} {ratio}" for name, ratio in lines),
        NONE,
        table(["(b, h, t, d)", "its time / ours"], lines),
    )


PARTS: dict[str, Callable[[Settings], Section]] = {
    "extras": extras,
    "decoding": decoding,
    "batches": batches,
    "passes": passes,
    "compiled": compiled,
    "onnx": onnx,
}
