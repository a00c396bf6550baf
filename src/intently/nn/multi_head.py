"""Attention of one head or of several: parameters around `intently.attend`."""

from __future__ import annotations

from torch import Tensor, nn

from intently.core.attention import Attention
from intently.errors import ArgumentError, build
from intently.foundation.checks import divisor, whole_number
from intently.foundation.field_names import answered
from intently.nn.linear import linear
from intently.nn.options import AttentionOptions
from intently.nn.projected_attention import Projected, Projections
from intently.nn.weights.copying import filled
from intently.nn.weights.reading import Weights, read, with_out


@answered
class AttentionHead(Projected):
    """Self- or cross-attention with one head: y = attend(W_q x, W_k c) @ W_v c, no output
    projection. ``width`` is c of the queries, ``head_width`` d of the projected queries and keys,
    ``value_width`` e of the output (d unless given), ``context_width`` the width of the context
    (``width`` unless given). Raises `ArgumentError` for widths < 1.

    Source: Vaswani et al. 2017, section 3.2.1.

    >>> import torch
    >>> head = AttentionHead(16, 4)
    >>> x = torch.zeros(2, 5, 16)
    >>> head(x).shape, head.attend(x).shape
    (torch.Size([2, 5, 4]), (2, 5, 5))
    """

    def __init__(
        self,
        width: int,
        head_width: int,
        *,
        context_width: int | None = None,
        value_width: int | None = None,
        bias: bool = True,
        attention: AttentionOptions = AttentionOptions(),
        dropout: float = 0.0,
    ) -> None:
        widths = (head_width, head_width if value_width is None else value_width)
        for name, size in zip(("head_width", "value_width"), widths):
            whole_number(size, name, 1)
        super().__init__(
            width, context_width, (1, 1), widths, attention, Projections(bias=bias), dropout
        )
        self.reset_parameters()

    @classmethod
    def from_weights(
        cls,
        q: Weights,
        k: Weights | None,
        v: Weights | None,
        *,
        layout: str = "h d",
        attention: AttentionOptions = AttentionOptions(),
    ) -> AttentionHead:
        """Return a head with copies of the weights of other code.

        ``q`` and ``k`` are (d, c), ``v`` is (e, c), each as `MultiHeadAttention.from_weights` takes
        them; or ``q`` holds all three, (3·d, c), queries first: ``layout="3 h d"``, k = v = None.
        Raises as that method does.

        >>> import torch
        >>> q, k, v = torch.ones(4, 16), torch.ones(4, 16), torch.ones(3, 16)
        >>> AttentionHead.from_weights(q, (k, torch.zeros(4)), v)
        AttentionHead(width=16, d=4, e=3)
        """
        found = read(q, k, v, layout, 1, 1)
        d, e = found.head_widths
        head = cls(
            found.width,
            d,
            value_width=e,
            context_width=found.context_width,
            bias=found.projections.bias,
            attention=attention,
        )
        return filled(head, found.tensors())

    def _output(self, y: Tensor) -> Tensor:
        return y.squeeze(1)

    def _of_heads(self, matrix: Attention) -> Attention:
        return matrix._lead((slice(None), 0))

    def extra_repr(self) -> str:
        return f"width={self.width}, d={self.d}, e={self.e}"


@answered
class MultiHeadAttention(Projected):
    """Self- or cross-attention with h heads between linear maps.

    ``width`` is c of the queries and the output, ``context_width`` the width of the context
    (``width`` unless given), ``kv_heads`` the g key/value heads that h query heads share, and
    ``head_widths`` (d, e) of queries/keys and of values (c/h unless given). ``attention`` holds the
    attention options, ``projections`` the form and storage of the maps. ``dropout`` acts on the
    weights in training mode.

    >>> import torch
    >>> layer = MultiHeadAttention(16, 4)
    >>> x = torch.zeros(2, 5, 16)
    >>> layer(x).shape, layer.attend(x).shape
    (torch.Size([2, 5, 16]), (2, 4, 5, 5))
    """

    out_weight: nn.Parameter
    out_bias: nn.Parameter | None

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        context_width: int | None = None,
        head_widths: tuple[int, int] | None = None,
        attention: AttentionOptions = AttentionOptions(),
        projections: Projections = Projections(),
        dropout: float = 0.0,
    ) -> None:
        whole_number(heads, "heads", 1)
        kv_heads = heads if kv_heads is None else divisor(kv_heads, "kv_heads", "heads", heads)
        if head_widths is None and whole_number(width, "width", 1) % heads:
            raise build(
                ArgumentError,
                "heads",
                f"a divisor of width={width}",
                heads,
                "each head gets width/heads",
                "choose another number, or give head_widths=(d, e)",
            )
        widths = (width // heads, width // heads) if head_widths is None else head_widths
        if not (isinstance(widths, tuple) and len(widths) == 2):
            raise build(ArgumentError, "head_widths", "two widths (d, e) ≥ 1", repr(widths))
        for width_of_head in widths:
            whole_number(width_of_head, "head_widths", 1)
        super().__init__(
            width, context_width, (heads, kv_heads), widths, attention, projections, dropout
        )
        out = width if projections.out_width is None else projections.out_width
        self._add("out", out, heads * self.e, projections.out_bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.xavier_uniform_(self.out_weight)

    @classmethod
    def from_weights(
        cls,
        q: Weights,
        k: Weights | None,
        v: Weights | None,
        out: Weights,
        *,
        layout: str,
        heads: int | None = None,
        kv_heads: int | None = None,
        attention: AttentionOptions = AttentionOptions(),
    ) -> MultiHeadAttention:
        """Return a block with copies of the weights of other code.

        Weights are stored (out, in), as ``nn.Linear`` stores them (Keras stores the transpose: pass
        ``kernel.numpy().T``); each is a tensor, an array, a pair (weight, bias), an ``nn.Linear``,
        a Keras ``Dense`` or a 1 × 1 convolution, weight (out, in, 1, 1). You must name the order of
        their rows; it is never guessed:

        ======================  ==============================================================
        ``"h d"``               q (h·d, c), k (g·d, c), v (g·e, c): head after head
        ``"3 h d"``             q (3·h·d, c): all queries, all keys, all values; k = v = None
        ``"h 3 d"``             q (h·3·d, c): query, key, value of head 1, of head 2, …
        ``"list of heads"``     q, k, v: one (d, c) for each head; out may be a list of (c, e)
        ======================  ==============================================================

        ``out`` is (c, h·e). ``heads`` must be given except with a list. ``"3 h d"`` and ``"h 3 d"``
        have the same shape but are different layers. Raises `ArgumentError` if shapes do not fit
        and `KindError` for other types, mixed dtypes and integers.

        >>> import torch
        >>> W = torch.randn(3 * 8, 8)
        >>> MultiHeadAttention.from_weights(W, None, None, torch.eye(8), layout="h 3 d", heads=2)
        MultiHeadAttention(width=8, heads=2, kv_heads=2, d=4)
        """
        found = with_out(read(q, k, v, layout, heads, kv_heads), out, layout)
        block = cls(found.width, found.heads, attention=attention, **found.options)
        return filled(block, found.tensors())

    def _output(self, y: Tensor) -> Tensor:
        return linear(y.transpose(1, 2).flatten(2), self.out_weight, self.out_bias)

    def extra_repr(self) -> str:
        return f"width={self.width}, heads={self.heads}, kv_heads={self.kv_heads}, d={self.d}"
