"""Models: attention at work."""

from intently.models.transformer import (
    DecoderCache,
    EncoderCache,
    Memory,
    Transformer,
    TransformerOptions,
)

__all__ = ["DecoderCache", "EncoderCache", "Memory", "Transformer", "TransformerOptions"]
