"""What the parts of a watch cost: opening it, the first call, further calls, a generation.

Every round runs the model unwatched, within a watch, and unwatched again; ratios are taken within
a round. With one thread, times are those of the thread's processor, so that other work on the
machine counts less.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import measure
import torch
import torch.nn.functional as F
from measure import Effort
from report import READING, Section, Settings, reached, table
from torch import Tensor, nn

import intently as it

WIDTH, LAYERS, HEADS = 512, 6, 8
UNWATCHED, FUSED, BY_HAND = 1.005, 1.05, 1.5
FURTHER = 4
STEPS = 32
SIZES = ((1, 128), (8, 128), (1, 512), (1, 2048))
Call = Callable[[], Any]


class SelfAttention(nn.Module):
    """Attention as in minGPT, written out in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("past", torch.ones(2048, 2048, dtype=torch.bool).tril())

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, HEADS, -1).transpose(1, 2) for y in self.c_attn(x).split(WIDTH, 2))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(~self.past[:t, :t], float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, WIDTH))


class Block(nn.Module):
    """A pre-norm layer; ``mlp`` does not attend."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), SelfAttention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


def convolutions() -> nn.Module:
    """A model without attention."""
    layers = [nn.Conv2d(3, 32, 3, padding=1)]
    layers += [nn.Conv2d(32, 32, 3, padding=1) for _ in range(5)]
    parts = [part for layer in layers for part in (layer, nn.BatchNorm2d(layer.out_channels))]
    return nn.Sequential(*parts, nn.ReLU())


def _transformers(name: str, **options: Any) -> nn.Module:
    import transformers

    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, f"{name}Model")(config)


_TOKENS = {"vocab_size": 64, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
_BERT = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 4 * WIDTH,
}
_GPT = {"n_positions": 4096, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, **_TOKENS}
_LLAMA = {**_BERT, **_TOKENS, "num_key_value_heads": 2}
BUILT: dict[str, Callable[[], nn.Module]] = {
    "GPT-2": lambda: _transformers("GPT2", **_GPT),
    "Llama, 2 key heads": lambda: _transformers("Llama", **_LLAMA),
    "BERT": lambda: _transformers("Bert", max_position_embeddings=4096, **_BERT, vocab_size=64),
    "GPT-J": lambda: _transformers("GPTJ", rotary_dim=32, **_GPT),
    "Bloom": lambda: _transformers(
        "Bloom", hidden_size=WIDTH, n_layer=LAYERS, n_head=HEADS, **_TOKENS
    ),
    "DeBERTa": lambda: _transformers(
        "DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"], **_BERT, vocab_size=64
    ),
    "minGPT": lambda: nn.Sequential(*(Block() for _ in range(LAYERS))),
}
IMAGES = {"ViT": (128, 512, 2048), "Swin": (128,)}
"""Models of images, and the lengths at which they are measured: Swin's windows have 49."""
DECODERS = ("GPT-2", "Llama, 2 key heads", "GPT-J", "Bloom")


def vision(name: str, t: int) -> tuple[nn.Module, int]:
    """ViT of about t patches, or the smallest Swin; and the side of its images."""
    if name == "ViT":
        side = 16 * round(math.sqrt(t))
        return _transformers("ViT", image_size=side, patch_size=16, **_BERT), side
    return _transformers("Swin"), 224


def built(name: str, b: int, t: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A model in eval mode and its input."""
    torch.manual_seed(measure.SEED)
    if name in IMAGES:
        model, side = vision(name, t)
        return model.eval(), (torch.randn(b, 3, side, side),)
    model = BUILT[name]().eval()
    x = torch.randn(b, t, WIDTH) if name == "minGPT" else torch.randint(60, (b, t))
    return model, (x,)


# --- measuring ----------------------------------------------------------------------------------


class Phases(NamedTuple):
    """Seconds of one round; ``further`` of a single call."""

    plain: float
    opening: float
    first: float
    further: float
    again: float


def _clock() -> Callable[[], float]:
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def phases(model: nn.Module, given: tuple[Tensor, ...], effort: Effort) -> list[Phases]:
    """Seconds of the parts of a watch, round by round."""
    now, found, start = _clock(), list[Phases](), time.perf_counter()
    with torch.no_grad():
        for done in range(-1, effort.at_most):
            if done >= effort.at_least and time.perf_counter() - start > effort.seconds:
                break
            times = [now()]
            model(*given)
            times.append(now())
            watch = it.watch(model)
            seen = watch.__enter__()
            times.append(now())
            model(*given)
            times.append(now())
            for _ in range(FURTHER):
                model(*given)
            times.append(now())
            watch.__exit__(None, None, None)
            times.append(now())
            model(*given)
            times.append(now())
            assert seen.calls and all(x.verified for x in seen.calls), str(seen.coverage())
            plain, enter, first, further, leave, again = (b - a for a, b in pairwise(times))
            if done >= 0:  # the first round touches what nobody touched before
                found.append(Phases(plain, enter + leave, first, further / FURTHER, again))
            del watch, seen
    return found


def _ratios(found: list[Phases], part: Callable[[Phases], float]) -> measure.Spread:
    return measure.spread(2 * part(x) / (x.plain + x.again) for x in found)


def _rows(
    names: tuple[str, ...], sizes: tuple[tuple[int, int], ...], settings: Settings, goal: float
) -> Iterator[tuple[list[str], list[str]]]:
    """The cells of each case, and what it misses."""
    for name in names:
        for b, t in sizes:
            if name in IMAGES and t not in IMAGES[name]:
                continue
            found = phases(*built(name, b, 16 if settings.quick else t), settings.effort(25, 5, 31))
            once = _ratios(found, lambda x: x.opening + x.first)
            first, further = (_ratios(found, lambda x, n=n: x[n]) for n in (2, 3))
            parts = ("one call, opened and left", once), ("further calls", further)
            short = [f"{part} {x.median - goal:.2f} over" for part, x in parts if x.median > goal]
            opening = 1e3 * measure.spread(x.opening for x in found).median
            noise = measure.spread(x.again / x.plain for x in found)
            yield (
                [
                    name,
                    f"{b} × {t:,}",
                    f"{1e3 * measure.spread(x.plain for x in found).median:,.4g}",
                    f"{opening:.2g}",
                    first.text(),
                    further.text(),
                    once.text(),
                    noise.text(),
                    reached(short),
                ],
                [f"{name} {b} × {t:,}: {x}" for x in short],
            )


_HEAD = (
    "",
    "size",
    "unwatched, ms",
    "opening, ms",
    "first call",
    "further calls",
    "one call, opened and left",
    "A/A",
    "reached",
)


def _section(
    title: str,
    names: tuple[str, ...],
    sizes: tuple[tuple[int, int], ...],
    settings: Settings,
    goal: float,
) -> Section:
    rows = list(_rows(names, sizes, settings, goal))
    misses = [x for _, missed in rows for x in missed]
    clock = "processor time of the one thread" if torch.get_num_threads() == 1 else "wall time"
    body = f"{clock}; watched / unwatched, {READING}; {LAYERS} layers, {WIDTH} wide.\n\n"
    medians = [float(cells[6].split()[0]) for cells, _ in rows]
    return Section(
        title,
        f"≤ {goal}",
        f"one call {min(medians):.2f} to {max(medians):.2f}",
        reached(misses),
        body + table(_HEAD, [cells for cells, _ in rows]),
    )


def fused(settings: Settings) -> Section:
    """Models that call fused functions."""
    names = ("GPT-2", "Llama, 2 key heads", "BERT", "ViT", "Swin")
    return _section("a watch of fused attention", names, SIZES, settings, FUSED)


def by_hand(settings: Settings) -> Section:
    """Models that write their attention out."""
    names = ("GPT-J", "Bloom", "DeBERTa", "minGPT")
    sizes = ((1, 128), (1, 512))
    return _section("a watch of attention by hand", names, sizes, settings, BY_HAND)


def unwatched(settings: Settings) -> Section:
    """What does not attend: a part of a watched model, and another model within the block."""
    torch.manual_seed(measure.SEED)
    model, other = nn.Sequential(Block(), Block()).eval(), convolutions().eval()
    t, side = (16, 8) if settings.quick else (128, 64)
    x, image = torch.randn(1, t, WIDTH), torch.randn(1, 3, side, side)
    cases: dict[str, Call] = {
        "the MLP of a watched model": lambda: model[0].mlp(x),
        "convolutions beside a watched model": lambda: other(image),
        "a module that does nothing, 100 times": lambda: [nothing(x) for _ in range(100)],
    }
    nothing = nn.Identity()
    lines, misses, medians = [], [], []
    for name, call in cases.items():
        seconds = _beside(model, call, settings.effort(15, 5, 101))
        found, same = (measure.ratio(seconds[key], seconds["plain"]) for key in ("in", "again"))
        goal = name != list(cases)[-1]  # the last row says what a call of a module costs at most
        short = [f"{found.median - 1:.3f} over"] if goal and found.median > UNWATCHED else []
        misses += [f"{name}: {y}" for y in short]
        medians += [found.median] if goal else []
        micro = 1e6 * measure.spread(seconds["plain"]).median
        lines.append([name, f"{micro:,.4g}", found.text(3), same.text(3), reached(short)])
    head = ["", "unwatched, µs", "within / without", "A/A", "reached"]
    return Section(
        "what does not attend, within a watch",
        "1.00",
        " and ".join(f"{x:.3f}" for x in medians),
        reached(misses),
        table(head, lines),
    )


def _beside(model: nn.Module, call: Call, effort: Effort) -> dict[str, list[float]]:
    """Seconds of a call without a watch of the model, within one, and without again."""
    now, start = _clock(), time.perf_counter()
    seconds: dict[str, list[float]] = {"plain": [], "in": [], "again": []}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        began = now()
        yield
        seconds[name].append(now() - began)

    with torch.no_grad():
        call()
        for done in range(effort.at_most):
            if done >= effort.at_least and time.perf_counter() - start > effort.seconds:
                break
            with timed("plain"):
                call()
            with it.watch(model):
                call()
                with timed("in"):
                    call()
            call()
            with timed("again"):
                call()
    return seconds


def generated(settings: Settings) -> Section:
    """Greedy generation of 32 tokens after 128."""
    prompt, steps = (8, 4) if settings.quick else (128, STEPS)
    lines, medians, now = [], [], _clock()
    import transformers

    for name in DECODERS:
        model = built(name, 1, prompt)[0]
        kind = type(model).__name__.removesuffix("Model")
        full = getattr(transformers, f"{kind}LMHeadModel", None)
        full = full or getattr(transformers, f"{kind}ForCausalLM")
        writer, x = full(model.config).eval(), torch.randint(60, (1, prompt))

        def write(writer: Any = writer, x: Tensor = x) -> Any:
            mask = torch.ones_like(x)
            return writer.generate(x, attention_mask=mask, max_new_tokens=steps, do_sample=False)

        seconds: dict[str, list[float]] = {"plain": [], "in": [], "again": []}
        effort, start = settings.effort(40, 3, 15), time.perf_counter()
        for done in range(-1, effort.at_most):
            if done >= effort.at_least and time.perf_counter() - start > effort.seconds:
                break
            times = [now()]
            write()
            times.append(now())
            with it.watch(writer):
                write()
            times.append(now())
            write()
            times.append(now())
            if done >= 0:
                for key, (a, b) in zip(seconds, pairwise(times), strict=True):
                    seconds[key].append(b - a)
        found, same = (measure.ratio(seconds[key], seconds["plain"]) for key in ("in", "again"))
        medians.append(found.median)
        plain = 1e3 * measure.spread(seconds["plain"]).median
        lines.append([name, f"{plain:,.4g}", found.text(), same.text(), str(found.n)])
    head = ["", "unwatched, ms", "watched / unwatched", "A/A", "rounds"]
    return Section(
        f"a watch of {STEPS} tokens generated after {prompt}",
        "none",
        f"{min(medians):.2f} to {max(medians):.2f}",
        "–",
        table(head, lines),
    )
