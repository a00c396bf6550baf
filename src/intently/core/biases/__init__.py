"""Biases as values, added to the scores before the mask and the softmax.

A bias is made without knowing t and s; tiles of it are evaluated later, when the `Geometry` of the
matrix is known, so nothing of size t × s is built. By default, query i of t is at position s − t +
i, as in every mask. Biases add with ``+``:

>>> import torch
>>> alibi(8) + relative_buckets(torch.zeros(32, 8))
alibi(8) + relative_buckets(32×8 tensor)
"""

from intently.core.biases.bias import Bias, TensorBias, as_bias
from intently.core.biases.by_distance import alibi, relative_buckets
from intently.foundation.on_demand import listed

__all__ = ["Bias", "TensorBias", "alibi", "as_bias", "relative_buckets"]

__dir__ = listed(__name__)
