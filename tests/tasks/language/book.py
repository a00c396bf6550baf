"""A small text for language models."""

from __future__ import annotations

import random


def text(lines: int = 120) -> str:
    """Lines that say a word, then the same word again after five others."""
    draw = random.Random(1)
    words = ["cat", "dog", "sun", "sea", "ice", "oak"]
    return "".join(" ".join(draw.choices(words, k=6)) + ".\n" for _ in range(lines))
