"""What the pages of these tests show: a translation, every form of attention, hostile words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import intently as it
from intently.show.page import Picture, save_page

SENTENCE = "The animal didn't cross the road because it was too wide."

HOSTILE = (
    "</script><img src=x onerror=document.title='caught'>",
    "<!--<script>",
    "]]></style><b>",
    "\u202emoc.elpmaxe\u202c",
    "\u2066\u2067",
    "שלום",
    "مرحبا",
    "a" * 10_000,
    "\x00\x1b[31m",
    "\u2028\u2029",
    "&lt;b&gt;",
    '" onfocus="alert(1)',
    "javascript:alert(1)",
    "e\u0301\u0301\u0301" + "\u0301" * 200,
    "👩‍👩‍👧‍👦",
    "",
    " ",
    "\n",
    "${1}`'",
    "京",
)


def made(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def translation() -> Any:
    """A recording of the embedded translator: self-attention of both sides, cross-attention."""
    from intently.tasks.decoding import SearchOptions
    from intently.tasks.translation.translator import Translator

    translator = Translator.load()
    with it.watch(translator.model) as seen:
        (one,) = translator.translate([SENTENCE], SearchOptions(beam=1))
    source = [*translator.source_tokenizer.tokens(one.sides[0].ids), "</s>"]
    produced = ["<s>", *translator.target_tokenizer.tokens(one.hypothesis.ids), "</s>"]
    seen.tokens = source, produced
    return seen


def forms() -> dict[str, it.LazyMatrix]:
    """One attention of each form, 4 heads over 33 × 41, or 37 × 37, tokens."""
    q, k = 2 * made(1, 4, 33, 16), made(1, 4, 41, 16, seed=1)
    x = 2 * made(1, 4, 37, 16, seed=2)
    allow = made(1, 4, 33, 41, seed=3) > 0
    allow[:, :, 7] = False
    buckets = it.relative_buckets(made(8, 4, seed=4), max_distance=16)
    return {
        "plain": it.attend(q, k),
        "causal": it.attend(x, x, mask=it.causal()),
        "window": it.attend(x, x, mask=it.causal() & it.window(5, 0)),
        "groups": it.attend(x, x[:, :2], mask=it.causal()),
        "allowed": it.attend(q, k, mask=allow),
        "alibi": it.attend(x, x, bias=it.alibi(4), mask=it.causal()),
        "buckets": it.attend(x, x, bias=buckets),
        "dense bias": it.attend(q, k, bias=3 * made(33, 41, seed=5)),
        "softcap": it.attend(4 * q, k, softcap=3.0),
        "sinks": it.attend(q, k, sinks=torch.tensor([0.0, 1.0, 2.0, 9.0])),
        "cosine": it.attend(q, k, score=it.scores.Cosine(), scale=8.0),
        "additive": it.attend(
            q, k, score=it.scores.Additive(made(9, 16, seed=6), made(9, 16, seed=7), made(9))
        ),
        "weights": it.Dense(torch.softmax(3 * made(4, 33, 41, seed=8), -1)),
    }


def hostile() -> dict[str, it.LazyMatrix]:
    """Words that try to be something else."""
    n = len(HOSTILE)
    x = 2 * made(1, 2, n, 8)
    return {HOSTILE[0]: it.attend(x, x).label(HOSTILE, HOSTILE)}


def picture(path: Path) -> Path:
    """A page of an image of 4 × 6 patches after one token, and what 3 words look at in it."""
    image = np.linspace(0, 1, 40 * 60 * 3).reshape(40, 60, 3)
    words = ("a", "blue", "cat")
    x, y = 2 * made(1, 2, 25, 8), 2 * made(1, 2, 3, 8, seed=1)
    matrices = {"vision.0": it.attend(x, x), "cross.1": it.attend(y, x).label(words, None)}
    return save_page(matrices, path, sides=[Picture(image, 4, 6, before=1)])
