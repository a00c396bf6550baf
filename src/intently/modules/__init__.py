"""Modules: attention with parameters, built on `intently.attend`."""

from intently.modules.blocks import DecoderLayer, EncoderLayer, FeedForward
from intently.modules.caches import KeyValueCache
from intently.modules.multi_head import MultiHeadAttention, Projections

__all__ = [
    "DecoderLayer",
    "EncoderLayer",
    "FeedForward",
    "KeyValueCache",
    "MultiHeadAttention",
    "Projections",
]
