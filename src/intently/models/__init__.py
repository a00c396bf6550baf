"""Models: attention at work."""

from intently.foundation.on_demand import listed
from intently.models.language import LanguageCache, LanguageModel, LanguageOptions
from intently.models.layers import mlp
from intently.models.recurrent import (
    RecurrentCache,
    RecurrentMemory,
    RecurrentOptions,
    RecurrentSeq2Seq,
)
from intently.models.seq2seq import EncoderCache
from intently.models.transformer import DecoderCache, Memory, Transformer, TransformerOptions
from intently.models.vision import VisionOptions, VisionTransformer

__all__ = [
    "DecoderCache",
    "EncoderCache",
    "LanguageCache",
    "LanguageModel",
    "LanguageOptions",
    "Memory",
    "RecurrentCache",
    "RecurrentMemory",
    "RecurrentOptions",
    "RecurrentSeq2Seq",
    "Transformer",
    "TransformerOptions",
    "VisionOptions",
    "VisionTransformer",
    "mlp",
]

__dir__ = listed(__name__)
