"""One attention head: three linear maps and the attention between them."""

from __future__ import annotations

from torch import Tensor

from intently.attention_matrix import Attention
from intently.foundation.checks import whole_number
from intently.foundation.field_names import answered
from intently.modules.options import AttentionOptions
from intently.modules.projected import Projected, Projections
from intently.modules.weights.loading import filled
from intently.modules.weights.reading import Weights, read


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
