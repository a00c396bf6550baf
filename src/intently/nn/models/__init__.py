"""Models: attention at work."""

from intently.foundation.on_demand import listed
from intently.nn.models.language import LanguageCache, LanguageModel, LanguageOptions
from intently.nn.models.recurrent import (
    RecurrentCache,
    RecurrentMemory,
    RecurrentOptions,
    RecurrentSeq2Seq,
)
from intently.nn.models.shared import EncoderCache, mlp
from intently.nn.models.transformer import DecoderCache, Memory, Transformer, TransformerOptions
from intently.nn.models.vision import VisionOptions, VisionTransformer

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
