"""Modules: attention with parameters, built on `intently.attend`."""

from intently.foundation.on_demand import listed
from intently.modules.blocks import DecoderLayer, EncoderLayer
from intently.modules.caches.key_value import FixedCache, KeyValueCache, WindowCache
from intently.modules.feed_forward import FeedForward, GatedFeedForward
from intently.modules.image.attention import (
    ChannelNorm,
    ImageAttention,
    SpatialTransformer,
    group_norm,
)
from intently.modules.image.convolution import ConvolutionAsAttention, convolution_as_attention
from intently.modules.learned import AdditiveScore, GeneralScore, RelativeBias, Sinks
from intently.modules.multi_head import AttentionHead, MultiHeadAttention
from intently.modules.options import AttentionOptions
from intently.modules.projected import Projections
from intently.modules.recurrent import (
    AdditiveAttention,
    AttentionalVector,
    LuongAttention,
    Remembered,
)

__all__ = [
    "AdditiveAttention",
    "AdditiveScore",
    "AttentionHead",
    "AttentionOptions",
    "AttentionalVector",
    "ChannelNorm",
    "ConvolutionAsAttention",
    "DecoderLayer",
    "EncoderLayer",
    "FeedForward",
    "FixedCache",
    "GatedFeedForward",
    "GeneralScore",
    "ImageAttention",
    "KeyValueCache",
    "LuongAttention",
    "MultiHeadAttention",
    "Projections",
    "RelativeBias",
    "Remembered",
    "Sinks",
    "SpatialTransformer",
    "WindowCache",
    "convolution_as_attention",
    "group_norm",
]

__dir__ = listed(__name__)
