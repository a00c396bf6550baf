"""Options of the translating Transformer: the original parts and later variants."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from intently.errors import ArgumentError, build
from intently.foundation.checks import check_word, divisor, probability, whole_number
from intently.modules.feed_forward import FeedForward, GatedFeedForward

SHARES = ("output", "all")
POSITIONS = ("sinusoidal", "learned", "rotary")
FEED_FORWARDS = {"relu": FeedForward, "gated": partial(GatedFeedForward, bias=False)}


@dataclass(frozen=True)
class TransformerOptions:
    """The shape of a `Transformer`; the vocabularies count the special tokens too.

    ``share`` ties the output projection to the target's embedding ("output"), or both sides to one
    embedding of a joint vocabulary ("all").

    ``positions`` are added to the embeddings: "sinusoidal", or "learned", a table of
    ``learned_steps`` rows for each side, beyond which there is nothing. Or they are "rotary": each
    self-attention turns its queries and keys, and the cross-attention knows no positions.
    ``kv_heads`` (a divisor of ``heads``, all of them unless given) is how many heads of keys and
    values every attention has. The "gated" feed-forward (SwiGLU, without biases) has three maps
    of width × ``inner`` weights where "relu" has two: two thirds of ``inner`` make it as large.

    Source: learned, Gehring et al. 2017, section 3.1; rotary, Su et al. 2021, "RoFormer"; grouped
    heads, Ainslie et al. 2023, "GQA"; gated, Shazeer 2020, "GLU Variants Improve Transformer".

    >>> TransformerOptions(20, 30, heads=8, kv_heads=2, positions="rotary", feed_forward="gated")
    TransformerOptions(source_vocabulary=20, ...)
    """

    source_vocabulary: int
    target_vocabulary: int
    width: int = 128
    heads: int = 4
    encoder_layers: int = 2
    decoder_layers: int = 2
    inner: int = 512
    norm: Literal["pre", "post"] = "pre"
    dropout: float = 0.1
    share: Literal["output", "all"] = "output"
    kv_heads: int | None = None
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    feed_forward: Literal["relu", "gated"] = "relu"
    learned_steps: int = 512

    def __post_init__(self) -> None:
        check_word(self.share, "share", SHARES)
        check_word(self.norm, "norm", ("pre", "post"))
        check_word(self.positions, "positions", POSITIONS)
        check_word(self.feed_forward, "feed_forward", FEED_FORWARDS)
        for name in ("encoder_layers", "decoder_layers"):
            whole_number(getattr(self, name), name, 0)
        for name in ("source_vocabulary", "target_vocabulary", "width", "heads", "learned_steps"):
            whole_number(getattr(self, name), name, 1)
        probability(self.dropout, "dropout")
        if self.kv_heads is not None:
            divisor(self.kv_heads, "kv_heads", "heads", self.heads)
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise build(
                ArgumentError,
                "positions",
                '"sinusoidal" or "learned" for heads of an odd width',
                f'"rotary" where width/heads={self.width // self.heads}',
                "rotary positions turn pairs of numbers",
                "choose other heads or another width",
            )
