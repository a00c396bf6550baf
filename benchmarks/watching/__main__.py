"""Measure what watching costs: time and memory beside the same run unwatched.

    python -m benchmarks.watching [--quick] [--only NAME …] [--out FILE.md] [--threads 2]

The model is a GPT-2 of 6 layers, 512 wide, 8 heads, with random weights. Watched and unwatched
runs take turns in one process; memory is the peak of a fresh process each.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

import intently as it
from benchmarks import measure
from benchmarks.measure import Peak
from benchmarks.report import READING, Goals, Section, Settings, arguments, megabytes, run, table

WIDTH, LAYERS, HEADS = 512, 6, 8
LENGTHS = (512, 1024, 2048, 4096, 8192)
SLOWER, BY_HAND, SHORT = 1.05, 1.5, 128
FASTER, LEANER = 4.0, 0.25
STORES = {"copy": 1.1, "reference": 1.6, "disk": None}
DISK = 64e6
GENERATED, STEPS = 1.2, 200
SUMMARY = 2.0
TILE = 0.020


def model(positions: int, attention: str = "sdpa") -> Any:
    """The GPT-2 shape, without a vocabulary worth the name."""
    return measure.gpt2(WIDTH, LAYERS, HEADS, n_positions=positions, attn_implementation=attention)


def kept(t: int) -> int:
    """Bytes of all queries and keys of a text of t tokens in float32."""
    return LAYERS * 2 * t * WIDTH * 4


# --- time ---------------------------------------------------------------------------------------


def slowdown(settings: Settings) -> Section:
    """Watched against unwatched, by length."""
    lines, goals, medians = [], Goals(), []
    for t in (64, 128) if settings.quick else LENGTHS:
        calls = _forward(model(t), measure.ids(t))
        calls["again"] = calls["unwatched"]
        seconds = measure.rounds(calls, settings.effort(30, 5, 41))
        found = measure.ratio(seconds["watched"], seconds["unwatched"])
        same = measure.ratio(seconds["again"], seconds["unwatched"])
        verdict = goals.at_most(found.median, SLOWER, f"{t:,} tokens", digits=3)
        medians.append(found.median)
        forward = 1e3 * measure.spread(seconds["unwatched"]).median
        lines.append(
            [f"{t:,}", f"{forward:,.4g}", found.text(3), same.text(3), str(found.n), verdict]
        )
    head = ["tokens", "unwatched, ms", "watched / unwatched", "A/A", "rounds", "reached"]
    body = f"One forward pass, everything recorded and checked; {READING}.\n\n"
    return Section(
        "watched / unwatched, `copy`",
        f"≤ {SLOWER}",
        f"{min(medians):.3f} to {max(medians):.3f}",
        goals.verdict,
        body + table(head, lines),
    )


def against(settings: Settings) -> Section:
    """Watching against `output_attentions=True`, and a length that only watching reaches."""
    t, far = (64, 128) if settings.quick else (4096, 16384)
    x = measure.ids(t)
    fused, plain = model(far), model(far, "eager")
    calls = _forward(fused, x)
    calls["output_attentions"] = lambda: _plainly(plain, x)
    seconds = measure.rounds(calls, settings.effort(60, 3, 5))
    found = measure.ratio(seconds["output_attentions"], seconds["watched"])
    goals = Goals()
    goals.at_least(found.median, FASTER)
    bare, ours, theirs = (
        measure.in_fresh_process(_peak, name, t, settings.threads).above
        for name in ("unwatched", "copy", "output_attentions")
    )
    share = (ours - bare) / (theirs - bare)
    goals.at_most(share, LEANER, "memory")
    start = time.perf_counter()
    with torch.no_grad(), it.watch(fused) as seen:
        fused(measure.ids(far))
    took = time.perf_counter() - start
    row = seen[f"transformer.h.{LAYERS - 1}.attn"][0, 0, -1]
    if not torch.isclose(row.sum(), row.new_ones(()), atol=1e-4):
        raise AssertionError("a row of the longest text does not sum to 1")
    head = ["", "time, s", "MB above the start", "MB above unwatched"]
    medians = {name: measure.spread(found).median for name, found in seconds.items()}
    rows = [
        [name, f"{medians[name]:.3g}", megabytes(above), megabytes(above - bare)]
        for name, above in (("unwatched", bare), ("watched", ours), ("output_attentions", theirs))
    ]
    body = (
        f"{t:,} tokens. At {far:,} the watched pass took {took:.3g} s and its last row of the last "
        f"layer sums to 1; all weights would be {LAYERS * HEADS * far**2 * 4 / 2**30:.0f} GiB.\n\n"
    )
    return Section(
        f"against `output_attentions=True` at {t:,} tokens",
        f"≥ {FASTER:.0f}× faster, ≤ 1/4 of the extra memory; works at {far:,}",
        f"{found.text()}× faster, {share:.3f} of the extra memory",
        goals.verdict,
        body + table(head, rows),
    )


def summary(settings: Settings) -> Section:
    """The summary of every head against the model's own forward pass."""
    t = 64 if settings.quick else 2048
    made, x = model(t), measure.ids(t)
    with torch.no_grad(), it.watch(made) as seen:
        made(x)
    calls: dict[str, measure.Call] = {
        "forward": lambda: _plainly(made, x, weights=False),
        "summary": seen.summary,
    }
    seconds = measure.rounds(calls, settings.effort(30, 5, 21))
    found = measure.ratio(seconds["summary"], seconds["forward"])
    forward = measure.spread(seconds["forward"]).median
    body = (
        f"{LAYERS} layers of {HEADS} heads; the forward pass takes {forward:.3g} s. {READING}, "
        f"{found.n} rounds."
    )
    return Section(
        f"`summary()` of a recording of {t:,} tokens",
        f"≤ {SUMMARY:.0f} × the model's forward",
        f"{found.text()}×",
        Goals().at_most(found.median, SUMMARY),
        body,
    )


def tile(settings: Settings) -> Section:
    """A 32 × 32 tile anywhere in one long head, from disk."""
    t, d = (512, 16) if settings.quick else (32768, 64)
    torch.manual_seed(measure.SEED)
    with torch.no_grad(), it.watch() as seen:
        it.attention(*torch.randn(3, 1, 1, t, d), mask=it.causal())
    draw = random.Random(measure.SEED)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.safetensors"
        seen.save(path)
        seconds = []
        for _ in range(3 if settings.quick else 51):
            row = draw.randrange(t - 32)
            column = draw.randrange(max(1, row))
            start = time.perf_counter()
            matrix = it.load_recording(path)["attention"]
            found = matrix[0, 0, row : row + 32, column : column + 32]
            seconds.append(time.perf_counter() - start)
            assert found.shape == (32, 32)
    spread = measure.spread(seconds)
    body = (
        f"d = {d}, causal; the file is opened anew each time. {READING} of {spread.n} places, the "
        f"slowest {1e3 * max(seconds):.1f} ms."
    )
    return Section(
        f"a 32 × 32 exact tile anywhere in a head of {t:,} tokens, from disk",
        f"≤ {1e3 * TILE:.0f} ms",
        f"{1e3 * spread.median:.1f} ms ({1e3 * spread.low:.1f} to {1e3 * spread.high:.1f})",
        Goals().at_most(1e3 * spread.median, 1e3 * TILE, unit=" ms", digits=1),
        body,
    )


def models(settings: Settings) -> Section:
    """Models of transformers whose attention is fused, or written by hand."""
    import transformers

    tokens = {"vocab_size": 64, **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))}
    gpt = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, **tokens}
    bert = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
            "intermediate_size": 4 * WIDTH, "vocab_size": 64}  # fmt: skip
    cases: dict[str, tuple[str, dict[str, Any], float]] = {
        "GPT-2": ("GPT2", gpt, SLOWER),
        "Llama, 2 key heads": ("Llama", {**bert, **tokens, "num_key_value_heads": 2}, SLOWER),
        "BERT": ("Bert", bert, SLOWER),
        "GPT-J, by hand": ("GPTJ", {**gpt, "rotary_dim": 32}, BY_HAND),
        "Bloom, by hand": (
            "Bloom", {"hidden_size": WIDTH, "n_layer": LAYERS, "n_head": HEADS, **tokens}, BY_HAND),
        "DeBERTa, by hand": (
            "DebertaV2",
            {**bert, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, BY_HAND),
    }  # fmt: skip
    lines, goals = [], Goals()
    for name, (kind, options, goal) in cases.items():
        torch.manual_seed(measure.SEED)
        config = getattr(transformers, f"{kind}Config")(**options)
        made, x = getattr(transformers, f"{kind}Model")(config).eval(), measure.ids(SHORT)
        calls = _forward(made, x, output_attentions=None)
        calls["again"] = calls["unwatched"]
        seconds = measure.rounds(calls, settings.effort(25, 5, 31))
        found, same = (
            measure.ratio(seconds[side], seconds["unwatched"]) for side in ("watched", "again")
        )
        verdict = goals.at_most(found.median, goal, name)
        plain = 1e3 * measure.spread(seconds["unwatched"]).median
        lines.append([name, f"{plain:.3g}", found.text(), same.text(), f"≤ {goal}", verdict])
    head = ["", "unwatched, ms", "watched / unwatched", "A/A", "goal", "reached"]
    return Section(
        f"other models, 1 × {SHORT} tokens",
        f"fused ≤ {SLOWER}, by hand ≤ {BY_HAND}",
        f"{lines[0][2]} (GPT-2) to {lines[-1][2]} (DeBERTa)",
        goals.verdict,
        f"One call, opening and leaving the watch included; {READING}.\n\n" + table(head, lines),
    )


# --- memory -------------------------------------------------------------------------------------


def memory(settings: Settings) -> Section:
    """Peaks above the unwatched run, for every store and for a generation."""
    t = 128 if settings.quick else 8192
    bare = measure.in_fresh_process(_peak, "unwatched", t, settings.threads).above
    lines, goals, said = [], Goals(), []

    def line(name: str, above: float, size: int, goal: float) -> list[str]:
        verdict = goals.at_most(above / 1e6, goal / 1e6, name, " MB", 0)
        return [name, *map(megabytes, (size, above, goal)), f"{above / size:.2f}", verdict]

    for store, limit in STORES.items():
        above = measure.in_fresh_process(_peak, store, t, settings.threads).above - bare
        goal = DISK if limit is None else limit * kept(t)
        lines.append(line(f"`{store}`, {t:,} tokens", above, kept(t), goal))
        said.append(f"`{store}` {above / kept(t):.2f}×")
    prompt = 16 if settings.quick else 2048
    steps = 8 if settings.quick else STEPS
    total = kept(prompt + steps - 1)
    bare, ours = (
        measure.in_fresh_process(_generated, watched, prompt, steps, settings.threads).above
        for watched in (False, True)
    )
    name = f"{steps} tokens generated after {prompt:,}"
    lines.append(line(name, ours - bare, total, GENERATED * total))
    said.append(f"generated {(ours - bare) / total:.2f}×")
    head = ["", "q and k, MB", "MB above unwatched", "goal, MB", "of q and k", "reached"]
    body = "Peak resident memory of fresh processes, the recording held until the end.\n\n"
    return Section(
        "memory above unwatched",
        "`copy` ≤ 1.1 ×, `reference` ≤ 1.6 × the bytes of q and k; `disk` ≤ 64 MB; "
        f"{STEPS} generated tokens ≤ {GENERATED} ×",
        ", ".join(said),
        goals.verdict,
        body + table(head, lines),
    )


def _peak(name: str, t: int, threads: int) -> Peak:
    """Peak of one pass in this process; ``name`` is a store, or how the pass runs without one."""
    torch.set_num_threads(threads)
    made = model(t, "eager" if name == "output_attentions" else "sdpa")
    x, held = measure.ids(t), []

    def call() -> list[torch.Tensor]:
        if name in STORES:
            with torch.no_grad(), it.watch(made, store=name) as seen:
                made(x)
            held.append(seen)
        else:
            held.append(_plainly(made, x, weights=name == "output_attentions"))
        return []

    made(measure.ids(16))
    return measure.peak(call)


def _generated(watched: bool, prompt: int, steps: int, threads: int) -> Peak:
    """Peak of one greedy generation in this process."""
    torch.set_num_threads(threads)
    made, x, held = model(prompt + steps), measure.ids(prompt), []

    def call() -> list[torch.Tensor]:
        with it.watch(made) if watched else nullcontext() as seen:
            made.generate(
                x,
                attention_mask=torch.ones_like(x),
                max_new_tokens=steps,
                do_sample=False,
                pad_token_id=0,
            )
        held.append(seen)
        return []

    made(measure.ids(16))
    return measure.peak(call)


# --- parts --------------------------------------------------------------------------------------


def _forward(
    made: Any, x: torch.Tensor, output_attentions: bool | None = False
) -> dict[str, Callable[[], Any]]:
    def watched() -> Any:
        with torch.no_grad(), it.watch(made) as seen:
            made(x)
        return seen

    return {"unwatched": lambda: _plainly(made, x, output_attentions), "watched": watched}


@torch.no_grad()
def _plainly(made: Any, x: torch.Tensor, weights: bool | None = True) -> Any:
    return made(x) if weights is None else made(x, output_attentions=weights)


PARTS = {
    "slowdown": slowdown,
    "memory": memory,
    "against": against,
    "summary": summary,
    "tile": tile,
    "models": models,
}


if __name__ == "__main__":
    shape = f" float32; GPT-2 shape, {LAYERS} layers, {WIDTH} wide, {HEADS} heads."
    run(arguments("Measure what watching costs.", PARTS).parse_args(), PARTS, shape)
