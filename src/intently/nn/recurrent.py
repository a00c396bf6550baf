"""Attention of recurrent decoders: one query a step, keys projected once for the sequence.

``memory = att.remember(states, lengths)`` is computed once after the encoder; ``att(query,
memory)`` returns the context of one decoder step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from intently.core.attention import Attention, attend
from intently.core.scores import Score, energies
from intently.errors import ArgumentError, build, shape_of
from intently.foundation.arrays import check_floats
from intently.foundation.checks import check_kind, check_word, probability, whole_number
from intently.foundation.field_names import answered
from intently.nn.caches.rows import Padded, row_lengths
from intently.nn.checks import check_dtype
from intently.nn.linear import Linear, xavier
from intently.nn.weights import reading
from intently.nn.weights.copying import AllOrNothing, Map, filled, tensors
from intently.nn.weights.reading import Weight

FLOATS = "a floating-point tensor (b, {}, width)"


@dataclass(frozen=True)
class Remembered(Padded):
    """Projected keys (b, s, a) and the states (b, s, k) they came from; the padding of the rows."""

    keys: Tensor
    states: Tensor
    lengths: Tensor | None = None


class Energies(Score):
    """vᵀ tanh(q + k) of projected queries and keys, both of width a; v (a,)."""

    axes = (1,)

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        return energies(q, k, self.parts[0].to(q.dtype))


class RecurrentAttention(AllOrNothing):
    """Projects encoder states and attends to them; the score is a dot product by default."""

    def __init__(self, width: int, context_width: int, dropout: float) -> None:
        super().__init__()
        self.width = whole_number(width, "width", 1)
        self.context_width = whole_number(context_width, "context_width", 1)
        self.dropout = probability(dropout, "dropout")
        self.query: Linear | None = None
        self.key: Linear | None = None
        self.energy: nn.Parameter | None = None

    def add_layer(self, units: int, bias: bool) -> None:
        """Score by vᵀ tanh(W q + U k + b), newly initialised."""
        self.query = Linear(self.width, units, bias=False)
        self.key = Linear(self.context_width, units, bias=bias)
        self.energy = nn.Parameter(torch.empty(units))
        xavier(self.query, self.key)
        nn.init.uniform_(self.energy, -(units**-0.5), units**-0.5)

    @property
    def matching(self) -> Score | None:
        """The score that matches projected queries with the keys, None for their dot product."""
        energy = self.energy
        return None if energy is None else Energies(energy)

    def remember(
        self,
        states: Float[Tensor, "b s k"],
        lengths: Int[Tensor, " b"] | Sequence[int] | None = None,
    ) -> Remembered:
        """Project the encoder's states (b, s, k) once; ``lengths`` (b,) where rows are padded.

        Raises `ArgumentError` for other shapes and for lengths below 0 or above s, `KindError` for
        another dtype or device, and for lengths that are not integers.
        """
        self._check(states, "states", "s", self.context_width)
        if lengths is not None:
            lengths = row_lengths(lengths, states)
        return Remembered(states if self.key is None else self.key(states), states, lengths)

    def forward(self, query: Float[Tensor, "b t c"], memory: Remembered) -> Float[Tensor, "b t k"]:
        """Return the contexts (b, t, k) of the decoder's states ``query`` (b, t, c)."""
        return self.attend(query, memory).matmul(memory.states)

    def attend(self, query: Float[Tensor, "b t c"], memory: Remembered) -> Attention:
        """Return the lazy matrix (b, t, s) that `forward` of the same arguments multiplies."""
        cause = "keys are projected once for the sequence"
        check_kind(memory, Remembered, "memory", "what remember(states) returned", cause)
        self._check(query, "query", "t", self.width)
        if len(query) != len(memory.keys):
            expected = f"shape (b={len(memory.keys)}, t, c={self.width})"
            cause, fix = (
                "the memory belongs to another batch",
                "pick its rows: memory.expand(index)",
            )
            raise build(ArgumentError, "query", expected, shape_of(query), cause, fix)
        maps = self.query
        return attend(
            query if maps is None else maps(query),
            memory.keys,
            score=self.matching,
            scale=1.0,
            mask=memory.mask,
            dropout=self.dropout if self.training else 0.0,
        )

    def _check(self, x: Tensor, name: str, steps: str, width: int) -> None:
        check_floats(x, name, FLOATS.format(steps))
        for weight in islice(self.parameters(), 1):
            check_dtype(x, name, weight)
        if x.ndim != 3 or x.shape[-1] != width:
            expected = f"shape (b, {steps}, {'c' if name == 'query' else 'k'}={width})"
            single = name == "query" and x.ndim == 2
            fix = "a single step needs its axis: query[:, None]" if single else None
            raise build(ArgumentError, name, expected, shape_of(x), fix=fix)


@answered
class AdditiveAttention(RecurrentAttention):
    """vᵀ tanh(W q + U k + b) between a decoder's states (b, t, c) and an encoder's (b, s, k).

    ``hidden`` is the width a of its layer; ``bias`` (a,) is b. ``dropout`` acts on the weights
    while training. Raises `ArgumentError` for widths < 1.

    Source: Bahdanau et al. 2015, "Neural Machine Translation by Jointly Learning to Align and
    Translate", section 3.1 and appendix A.1.2.

    >>> att = AdditiveAttention(16, 24, 32)
    >>> memory = att.remember(torch.zeros(2, 7, 24), torch.tensor([7, 4]))
    >>> att(torch.zeros(2, 1, 16), memory).shape, att.attend(torch.zeros(2, 1, 16), memory).shape
    (torch.Size([2, 1, 24]), (2, 1, 7))
    """

    def __init__(
        self,
        width: int,
        context_width: int,
        hidden: int,
        *,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(width, context_width, dropout)
        self.add_layer(whole_number(hidden, "hidden", 1), bias)

    @classmethod
    def from_weights(cls, query: Weight, key: Weight, energy: Weight) -> AdditiveAttention:
        """Return a block with copies of the weights of other code.

        ``query`` is W (a, c), ``key`` U (a, k), stored (out, in): each a tensor, a pair
        (weight, bias) or an ``nn.Linear``; ``energy`` is v, (a,) or (1, a). The biases of W and U
        are added together; a bias of v would shift all scores of a query equally, and is omitted.
        One map of [q; k] corresponds to two: ``W[:, :c]`` and ``W[:, c:]``. Raises `ArgumentError`
        if shapes do not fit and `KindError` for other types, mixed dtypes and integers.

        >>> AdditiveAttention.from_weights(nn.Linear(16, 32), nn.Linear(24, 32), torch.ones(32))
        AdditiveAttention(
          (query): Linear(in_features=16, out_features=32, bias=False)
          (key): Linear(in_features=24, out_features=32, bias=True)
        )
        """
        n, found = read_layer(query, key, energy)
        return filled(cls(n["c"], n["k"], n["a"], bias=found["key.bias"] is not None), found)


def read_layer(
    query: object, key: object, energy: object
) -> tuple[dict[str, int], dict[str, Tensor | None]]:
    """Read vᵀ tanh(W q + U k + b): its widths a, c and k, and its tensors."""
    maps = {"query": reading.read_map(query, "query"), "key": reading.read_map(key, "key")}
    found = maps | {"energy": reading.read_vector(energy, "energy")}
    n = reading.sizes(found, query="a c", key="a k", energy="1 a")
    biases = [each.bias_or_zeros() for each in maps.values()]
    return n, {
        "query.weight": maps["query"].weight,
        "key.weight": maps["key"].weight,
        "key.bias": biases[0] + biases[1] if reading.has_bias(maps) else None,
        "energy": found["energy"].weight[0],
    }


@answered
class LuongAttention(RecurrentAttention):
    """The scores of Luong between a decoder's states (b, t, c) and an encoder's (b, s, k).

    ``score`` is "dot", q·k, for c = k; "general", qᵀ W k; or "concat", vᵀ tanh(W [q; k] + b) with a
    layer of ``hidden`` units (c unless given), where ``bias=False`` omits b as in the paper; in
    "general", a bias would shift all scores of a query equally and change no weight. Raises
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
        """Return a block with copies of the weights of other code.

        For "general" ``key`` is W (c, k), the map applied to the encoder's states before the
        product with the decoder's; its bias is omitted, see above. For "concat" ``key``, ``query``
        and ``energy`` are those of `AdditiveAttention.from_weights`. Raises as that method does,
        and `ArgumentError` for "dot", which has no weights.

        >>> LuongAttention.from_weights("general", torch.ones(16, 24)).context_width
        24
        """
        if score not in ("general", "concat"):
            cause = "it has no weights: write LuongAttention(c, c)" if score == "dot" else None
            raise build(ArgumentError, "score", '"general" or "concat"', repr(score), cause)
        needed, none = 'a weight, for the score "concat"', 'None: it is for the score "concat"'
        for name, given in (("query", query), ("energy", energy)):
            if (given is None) == (score == "concat"):
                expected, got = (needed, "None") if given is None else (none, "a weight")
                raise build(ArgumentError, name, expected, got)
        if score == "concat":
            n, found = read_layer(query, key, energy)
            bias = found["key.bias"] is not None
            return filled(cls(n["c"], n["k"], score, hidden=n["a"], bias=bias), found)
        weight = reading.read_map(key, "key").weight
        c, k = weight.shape
        return filled(cls(c, k, score), {"key.weight": weight})


class AttentionalVector(AllOrNothing):
    """tanh(W [c; h] + b) of the contexts c (b, t, k) and the decoder's states h (b, t, c).

    Luong's decoder predicts the next word from it, and with input feeding also reads it beside the
    next word. W is (c, k + c), the columns of the context first; ``bias=False`` omits b (c,), as in
    the paper. Raises `ArgumentError` for widths < 1 and for other shapes, `KindError` for another
    dtype or device.

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
        """Return the layer with copies of the weights of other code.

        ``join`` is W (c, k + c), stored (out, in): a tensor, a pair (weight, bias) or an
        ``nn.Linear``. ``layout`` says whose columns come first: ``"context query"``, as in the
        paper, or ``"query context"``. Raises `ArgumentError` if shapes do not fit and `KindError`
        for other types and integers.

        >>> AttentionalVector.from_weights(torch.ones(16, 24 + 16), layout="query context").width
        16
        """
        reading.check_layout(layout, ("context query", "query context"))
        weight, bias = reading.read_map(join, "join")
        c, k = len(weight), weight.shape[1] - len(weight)
        if k < 1:
            raise reading.misfit("join", "shape (c, k + c)", weight)
        if layout == "query context":
            weight = weight.roll(k, 1)
        return filled(cls(c, k, bias=bias is not None), tensors({"join": Map(weight, bias)}))

    def forward(
        self, context: Float[Tensor, "b t k"], query: Float[Tensor, "b t c"]
    ) -> Float[Tensor, "b t c"]:
        """Return the attentional vectors (b, t, c) of contexts and decoder states."""
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
