"""Our own modules and models."""

from __future__ import annotations

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


def _language(name: str, mask: it.Mask | None = CAUSAL, **options: Any) -> Case:
    made = models.LanguageOptions(90, C, H, 2, **options)
    asked = {} if mask is None else {"mask": mask}
    return Case(f"intently's LanguageModel, {name}", lambda: models.LanguageModel(made), asked, 30)


PAIR = models.TransformerOptions(90, 90, C, H, 1, 1, 64)


def _transformer(**options: Any) -> models.Transformer:
    return models.Transformer(models.TransformerOptions(90, 90, C, H, 1, 1, 64, **options))


def _pair(name: str, **options: Any) -> Case:
    inputs = {"source": tokens(2, 8), "target": tokens(2, 6)}
    return Case(
        f"intently's Transformer, {name}", lambda: _transformer(**options), {"inputs": inputs}, 30
    )


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
    Case("intently's AttentionHead", lambda: modules.AttentionHead(C, 8)),
    Case("intently's ImageAttention", lambda: modules.ImageAttention(C, H)),
    Case("intently's EncoderLayer", lambda: modules.EncoderLayer(C, H, 64)),
    Case("intently's EncoderLayer, post-norm",
         lambda: modules.EncoderLayer(C, H, 64, norm="post")),
    Case("intently's DecoderLayer", lambda: modules.DecoderLayer(C, H, 64),
         {"inputs": {"x": normal(2, 6, C), "states": normal(2, 9, C)}}),
    Case("intently's SpatialTransformer",
         lambda: modules.SpatialTransformer(C, H, 8, context_width=C),
         {"inputs": {"image": normal(2, C, 4, 4), "context": normal(2, 9, C)}}),
    _language("plain"), _language("nothing said", None),
    _language("grouped", kv_heads=2),
    _language("learned positions", positions=128),
    _language("window", WINDOW, attention=_attends(mask=it.window(3, 0))),
    _pair("plain"), _pair("post-norm", norm="post"), _pair("grouped, rotary", kv_heads=2,
                                                           positions="rotary"),
    Case("intently's Transformer, lengths", lambda: _transformer(), {
        "inputs": {"source": tokens(2, 8), "target": tokens(2, 6),
                   "lengths": torch.tensor([8, 5])}, "arguments": {"lengths": "lengths"}}, 30),
    Case("intently's RecurrentSeq2Seq", lambda: models.RecurrentSeq2Seq(
        models.RecurrentOptions(90, 90, C)),
        {"inputs": {"source": tokens(2, 8), "target": tokens(2, 6)}}, 30),
    Case("intently's VisionTransformer", lambda: models.VisionTransformer(
        models.VisionOptions((16, 16), 4, 7, width=C, layers=2)), {}, 30),
)  # fmt: skip
