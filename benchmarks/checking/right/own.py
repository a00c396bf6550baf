"""Our own modules and models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import intently as it
from benchmarks.checking.right import Case, normal, of, tokens
from intently import nn as modules
from intently.nn import models

CAUSAL = it.causal()
WINDOW = it.causal() & it.window(3, 0)
C, H = 32, 4


def _attends(**options: Any) -> modules.AttentionOptions:
    return modules.AttentionOptions(**options)


_multi = of(
    "intently's MultiHeadAttention", lambda **options: modules.MultiHeadAttention(C, H, **options)
)


def _transformer(**options: Any) -> models.Transformer:
    return models.Transformer(models.TransformerOptions(90, 90, C, H, 1, 1, 64, **options))


def _language(**options: Any) -> models.LanguageModel:
    return models.LanguageModel(models.LanguageOptions(90, C, H, 2, **options))


_causal, _pair = (
    of("intently's LanguageModel", _language, 30),
    of("intently's Transformer", _transformer, 30),
)
BOTH = {"source": tokens(2, 8), "target": tokens(2, 6)}
TEXTS = {"inputs": BOTH}
STATES = {"x": normal(2, 6, C), "states": normal(2, 9, C)}
SINGLE: tuple[tuple[str, Callable[[], nn.Module], dict[str, Any]], ...] = (
    ("AttentionHead", lambda: modules.AttentionHead(C, 8), {}),
    ("ImageAttention", lambda: modules.ImageAttention(C, H), {}),
    ("EncoderLayer", lambda: modules.EncoderLayer(C, H, 64), {}),
    ("EncoderLayer, post-norm", lambda: modules.EncoderLayer(C, H, 64, norm="post"), {}),
    ("DecoderLayer", lambda: modules.DecoderLayer(C, H, 64), STATES),
    ("SpatialTransformer", lambda: modules.SpatialTransformer(C, H, 8, context_width=C),
     {"image": normal(2, C, 4, 4), "context": normal(2, 9, C)}),
    ("RecurrentSeq2Seq", lambda: models.RecurrentSeq2Seq(models.RecurrentOptions(90, 90, C)), BOTH),
    ("VisionTransformer", lambda: models.VisionTransformer(
        models.VisionOptions((16, 16), 4, 7, width=C, layers=2)), {}),
)  # fmt: skip
CASES = (
    _multi("plain"),
    _multi("causal", {"mask": CAUSAL}, attention=_attends(mask=CAUSAL)),
    _multi("causal, inferred", attention=_attends(mask=CAUSAL)),
    _multi("window", {"mask": WINDOW}, attention=_attends(mask=WINDOW)),
    _multi("grouped", kv_heads=2),
    _multi("cross", {"inputs": {"x": normal(2, 6, C), "context": normal(2, 9, 20)}},
           context_width=20),
    _multi("rotary", {"mask": CAUSAL}, attention=_attends(mask=CAUSAL, positions=it.Rotary(8))),
    _multi("ALiBi", {"mask": CAUSAL}, attention=_attends(mask=CAUSAL, bias=it.alibi())),
    _multi("relative bias", attention=_attends(bias=modules.RelativeBias(H))),
    _multi("softcap", attention=_attends(softcap=30.0)),
    _multi("normed queries and keys", attention=_attends(qk_norm=nn.RMSNorm)),
    _multi("sinks", attention=_attends(sinks=modules.Sinks(H))),
    _multi("cosine", attention=_attends(score=it.Cosine(), scale=10.0)),
    _multi("additive score", attention=_attends(score=modules.AdditiveScore(H, 8, 16))),
    _multi("general score", attention=_attends(score=modules.GeneralScore(H, 8))),
    *(Case(f"intently's {name}", lambda make=make: make(), {"inputs": inputs} if inputs else {})
      for name, make, inputs in SINGLE),
    _causal("plain", {"mask": CAUSAL}), _causal("nothing said"),
    _causal("grouped", {"mask": CAUSAL}, kv_heads=2),
    _causal("learned positions", {"mask": CAUSAL}, positions=128),
    _causal("window", {"mask": WINDOW}, attention=_attends(mask=it.window(3, 0))),
    _pair("plain", TEXTS), _pair("post-norm", TEXTS, norm="post"),
    _pair("grouped, rotary", TEXTS, kv_heads=2, positions="rotary"),
    _pair("lengths", {"inputs": {**BOTH, "lengths": torch.tensor([8, 5])},
                      "arguments": {"lengths": "lengths"}}),
)  # fmt: skip
