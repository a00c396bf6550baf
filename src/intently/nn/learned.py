"""Learned scores, biases and sinks: modules whose call returns the value.

Pass them to `AttentionOptions`; several layers may share one module, like the table of T5.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from intently.core.biases import Bias, relative_buckets
from intently.core.scores import Additive, General
from intently.nn.weights.loading import AllOrNothing


class RelativeBias(nn.Module):
    """The table (buckets, h) of T5: a learned number for each head and bucket of distances.

    Source: Raffel et al. 2020, section 2.1; see `intently.relative_buckets`.

    >>> RelativeBias(8)()
    relative_buckets(32×8 tensor)
    """

    def __init__(
        self, heads: int, *, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
    ) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(buckets, heads))
        self.max_distance, self.bidirectional = max_distance, bidirectional
        self()

    def forward(self) -> Bias:
        """Return the bias with the table as it is now."""
        return relative_buckets(
            self.table, max_distance=self.max_distance, bidirectional=self.bidirectional
        )


class Sinks(nn.Module):
    """One learned logit per head, which takes weight and contributes no value.

    >>> Sinks(4)()
    Parameter containing:
    tensor([0., 0., 0., 0.], requires_grad=True)
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(heads))

    def forward(self) -> Tensor:
        """Return the logits (h,)."""
        return self.logits


class GeneralScore(nn.Module):
    """qᵀ W k with a learned W (h, d, d_k) per head, initialised to the identity.

    Source: Luong et al. 2015, section 3.1, equation 8 ("general").

    >>> GeneralScore(4, 8)()
    General(4×8×8 tensor)
    """

    def __init__(self, heads: int, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(d).repeat(heads, 1, 1))

    def forward(self) -> General:
        """Return the score with the weight as it is now."""
        return General(self.weight)


class AdditiveScore(AllOrNothing):
    """vᵀ tanh(W q + U k + b) with learned W, U (h, a, d), v and b (h, a) for each of h heads.

    Source: Bahdanau et al. 2015, appendix A.1.2.

    >>> AdditiveScore(2, 8, 16)()
    Additive(2×16×8 tensor, 2×16×8 tensor, 2×16 tensor, 2×16 tensor)
    """

    def __init__(self, heads: int, d: int, hidden: int) -> None:
        super().__init__()
        self.query_weight = nn.Parameter(torch.empty(heads, hidden, d))
        self.key_weight = nn.Parameter(torch.empty(heads, hidden, d))
        self.energy = nn.Parameter(torch.empty(heads, hidden))
        self.bias = nn.Parameter(torch.zeros(heads, hidden))
        for weight in (self.query_weight, self.key_weight):
            for own in weight.detach():
                nn.init.xavier_uniform_(own)
        nn.init.uniform_(self.energy, -(hidden**-0.5), hidden**-0.5)

    def forward(self) -> Additive:
        """Return the score with the weights as they are now."""
        return Additive(self.query_weight, self.key_weight, self.energy, self.bias)
