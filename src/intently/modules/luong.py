"""The attention of Luong's decoder, and the vector from which it predicts."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from intently.errors import ArgumentError, build, shape_of
from intently.foundation.arrays import check_floats
from intently.foundation.checks import check_word, whole_number
from intently.modules.additive import FLOATS, RecurrentAttention, read_layer
from intently.modules.checks import check_dtype
from intently.modules.linear import Linear, xavier
from intently.modules.weights import reading
from intently.modules.weights.loading import AllOrNothing
from intently.modules.weights.reading import Weight


class LuongAttention(RecurrentAttention):
    """The scores of Luong between a decoder's states (b, t, c) and an encoder's (b, s, k).

    ``score`` is "dot", q·k, for c = k; "general", qᵀ W k; or "concat", vᵀ tanh(W [q; k] + b) with a
    layer of ``hidden`` units (c unless given), where ``bias=False`` leaves out b as the paper does;
    in "general" it would shift all the scores of a query alike, and change no weight. Raises
    `ArgumentError` for another score, and for "dot" between different widths.

    Source: Luong et al. 2015, "Effective Approaches to Attention-based Neural Machine
    Translation", section 3.1, equation 8. It gives the context c of that paper; what its decoder
    predicts from is `AttentionalVector`.

    >>> att = LuongAttention(16, 24, "general")
    >>> att(torch.zeros(2, 1, 16), att.remember(torch.zeros(2, 7, 24))).shape
    torch.Size([2, 1, 24])
    """

    def __init__(
        self,
        width: int,
        context_width: int,
        score: Literal["dot", "general", "concat"] = "dot",
        *,
        hidden: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(width, context_width, dropout)
        check_word(score, "score", ("dot", "general", "concat"))
        if score == "dot" and width != context_width:
            expected = f'width={width} for the score "dot"'
            fix = '"general" and "concat" join different widths'
            raise build(ArgumentError, "context_width", expected, context_width, fix=fix)
        if hidden is not None and score != "concat":
            raise build(ArgumentError, "hidden", 'None: it is for the score "concat"', hidden)
        self.score = score
        if score == "general":
            self.key = Linear(context_width, width, bias=False)
            xavier(self.key)
        elif score == "concat":
            self.add_layer(width if hidden is None else whole_number(hidden, "hidden", 1), bias)

    @classmethod
    def from_weights(
        cls,
        score: Literal["general", "concat"],
        key: Weight,
        *,
        query: Weight | None = None,
        energy: Weight | None = None,
    ) -> LuongAttention:
        """Return a block with the weights of anybody's own code, copied.

        For "general" ``key`` is W (c, k), the map that turns the encoder's states into what is
        multiplied with the decoder's; a bias of it is left out, see above. For "concat" ``key``,
        ``query`` and ``energy`` are those of `AdditiveAttention.from_weights`. Raises what that
        does, and `ArgumentError` for "dot", which has no weights.

        >>> LuongAttention.from_weights("general", torch.ones(16, 24)).context_width
        24
        """
        if score == "concat":
            for name, given in (("query", query), ("energy", energy)):
                if given is None:
                    raise build(ArgumentError, name, 'a weight, for the score "concat"', "None")
            n, found = read_layer(query, key, energy)
            bias = found["key.bias"] is not None
            return reading.filled(cls(n["c"], n["k"], score, hidden=n["a"], bias=bias), found)
        if score != "general":
            cause = "it has no weights: write LuongAttention(c, c)" if score == "dot" else None
            raise build(ArgumentError, "score", '"general" or "concat"', repr(score), cause)
        for name, given in (("query", query), ("energy", energy)):
            if given is not None:
                raise build(ArgumentError, name, 'None: it is for the score "concat"', "a weight")
        weight = reading.read_map(key, "key").weight
        c, k = weight.shape
        return reading.filled(cls(c, k, score), {"key.weight": weight})


class AttentionalVector(AllOrNothing):
    """tanh(W [c; h] + b) of the context c (b, t, k) that a decoder's states h (b, t, c) took.

    Luong's decoder predicts the next word from it, and with input feeding also reads it beside the
    next word. W is (c, k + c), the columns of the context first; ``bias=False`` leaves out b (c,),
    as the paper does. Raises `ArgumentError` for widths < 1 and for other shapes, `KindError` for
    another dtype or device.

    Source: Luong et al. 2015, equation 5; input feeding in section 3.3.

    >>> att, vector = LuongAttention(16, 24, "general"), AttentionalVector(16, 24)
    >>> states, h = torch.zeros(2, 7, 24), torch.zeros(2, 1, 16)
    >>> vector(att(h, att.remember(states)), h).shape
    torch.Size([2, 1, 16])
    """

    def __init__(self, width: int, context_width: int, *, bias: bool = True) -> None:
        super().__init__()
        self.width = whole_number(width, "width", 1)
        self.context_width = whole_number(context_width, "context_width", 1)
        self.join = Linear(context_width + width, width, bias=bias)
        xavier(self.join)

    @classmethod
    def from_weights(cls, join: Weight, *, layout: str) -> AttentionalVector:
        """Return the layer with the weights of anybody's own code, copied.

        ``join`` is W (c, k + c), stored (out, in): a tensor, a pair (weight, bias) or an
        ``nn.Linear``. ``layout`` says whose columns come first: ``"context query"``, as in the
        paper, or ``"query context"``. Raises `ArgumentError` where shapes do not fit and
        `KindError` for other types and integers.

        >>> AttentionalVector.from_weights(torch.ones(16, 24 + 16), layout="query context").width
        16
        """
        reading.check_layout(layout, ("context query", "query context"))
        weight, bias = reading.read_map(join, "join")
        c, k = len(weight), weight.shape[1] - len(weight)
        if k < 1:
            got, fix = shape_of(weight), reading.TURN
            raise build(ArgumentError, "join", "shape (c, k + c)", got, reading.TRANSPOSED, fix)
        if layout == "query context":
            weight = weight.roll(k, 1)
        layer = cls(c, k, bias=bias is not None)
        return reading.filled(layer, reading.tensors({"join": reading.Map(weight, bias)}))

    def forward(
        self, context: Float[Tensor, "b t k"], query: Float[Tensor, "b t c"]
    ) -> Float[Tensor, "b t c"]:
        """Return the attentional vectors (b, t, c) of contexts and the states that took them."""
        for x, name in ((query, "query"), (context, "context")):
            check_floats(x, name, FLOATS.format("t"))
            check_dtype(x, name, self.join.weight)
        if query.ndim != 3 or query.shape[-1] != self.width:
            raise build(ArgumentError, "query", f"shape (b, t, c={self.width})", shape_of(query))
        b, t, _ = query.shape
        if tuple(context.shape) != (b, t, self.context_width):
            expected = f"shape (b={b}, t={t}, k={self.context_width})"
            cause = "it belongs to another step or batch"
            raise build(ArgumentError, "context", expected, shape_of(context), cause)
        return torch.tanh(self.join(torch.cat([context, query], -1)))
