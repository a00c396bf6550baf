"""Build: attention with parameters, on `intently.attend`; in `models`, what is built of it."""

from intently.foundation.on_demand import listed, names
from intently.nn.blocks import DecoderLayer, EncoderLayer
from intently.nn.caches.key_value import FixedCache, KeyValueCache
from intently.nn.caches.window import WindowCache
from intently.nn.feed_forward import FeedForward, GatedFeedForward
from intently.nn.image.attention import ChannelNorm, ImageAttention, SpatialTransformer, group_norm
from intently.nn.image.convolution import ConvolutionAsAttention, convolution_as_attention
from intently.nn.multi_head import AttentionHead, MultiHeadAttention
from intently.nn.options import AdditiveScore, AttentionOptions, GeneralScore, RelativeBias, Sinks
from intently.nn.projected_attention import Projections
from intently.nn.recurrent import AdditiveAttention, AttentionalVector, LuongAttention, Remembered

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

__getattr__ = names(__name__, {})
__dir__ = listed(__name__)
