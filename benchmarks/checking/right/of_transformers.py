"""Models of transformers, built tiny with random weights, and attention modules out of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

import intently as it
from benchmarks.breadth.shrink import made
from benchmarks.checking.right import Case, normal, real, tokens

B, T, S, C = 2, 6, 9, 32
CAUSAL = it.causal()


def model(name: str, **options: Any) -> Any:
    """A tiny model of a class of transformers, its weights random."""
    import transformers

    transformers.logging.set_verbosity_error()
    kind = getattr(transformers, name)
    config = made(kind.config_class, kind.config_class.model_type)
    for n, value in options.items():
        setattr(config, n, value)
    torch.manual_seed(0)
    return kind(config).eval()


def inside(name: str, kind: str, **options: Any) -> Any:
    """The first module of a class inside a tiny model."""
    parts = model(name, **options).modules()
    return next(x for x in parts if type(x).__name__ == kind)


def _of(name: str, options: dict[str, Any] | None = None) -> Callable[[], Any]:
    return lambda: model(name, **(options or {}))


def _whole(said: str, name: str, asked: dict[str, Any] | None = None, **options: Any) -> Case:
    title = f"{name}{', ' if said else ''}{said}"
    return Case(title, _of(name, options), asked or {}, 30)


DECODERS = (
    "GPT2LMHeadModel", "LlamaForCausalLM", "MistralForCausalLM", "GemmaForCausalLM",
    "Gemma2ForCausalLM", "Gemma3ForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
    "GPTNeoXForCausalLM", "FalconForCausalLM", "BloomForCausalLM", "MptForCausalLM",
    "OPTForCausalLM", "PhiForCausalLM", "Phi3ForCausalLM", "Olmo2ForCausalLM",
    "GPTJForCausalLM", "GPTNeoForCausalLM", "CohereForCausalLM", "Starcoder2ForCausalLM",
    "CodeGenForCausalLM", "StableLmForCausalLM", "GptOssForCausalLM", "GraniteForCausalLM",
    "GPTBigCodeForCausalLM", "MixtralForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM",
    "SmolLM3ForCausalLM", "BioGptForCausalLM", "XGLMForCausalLM", "LlamaModel", "GPT2Model",
)  # fmt: skip
ENCODERS = (
    "BertModel", "RobertaModel", "ElectraModel", "ModernBertModel", "DebertaModel",
    "DebertaV2Model", "DistilBertModel", "AlbertModel", "MPNetModel", "CamembertModel",
    "BertForMaskedLM", "BertForSequenceClassification", "T5EncoderModel", "RoFormerModel",
    "XLMRobertaModel", "NomicBertModel",
)  # fmt: skip
PAIRS = (
    "T5ForConditionalGeneration", "BartForConditionalGeneration", "MarianMTModel",
    "MBartForConditionalGeneration", "PegasusForConditionalGeneration",
    "M2M100ForConditionalGeneration", "WhisperForConditionalGeneration", "BartModel",
    "LEDModel", "Speech2TextForConditionalGeneration",
)  # fmt: skip
SEEING = (
    "ViTModel", "ViTForImageClassification", "CLIPVisionModel", "CLIPTextModel", "CLIPModel",
    "SwinModel", "BeitModel", "Dinov2Model", "DeiTModel", "SiglipVisionModel", "SiglipModel",
    "PvtModel", "SegformerModel", "ViTMAEModel", "DetrModel", "YolosModel",
)  # fmt: skip
EAGER = {"_attn_implementation": "eager"}


def _padded(side: str) -> dict[str, Any]:
    return {
        "inputs": {"input_ids": tokens(B, T), "attention_mask": real(B, T, side).long()},
        "arguments": {"attention_mask": "attend"},
    }


def _models() -> Iterator[Case]:
    plain = {"inputs": {"input_ids": tokens(B, T)}}
    for name in DECODERS:
        yield _whole("", name)
    for name in DECODERS[:4]:
        yield _whole("ids and mask stated", name, {**plain, "mask": CAUSAL})
    for name in ("LlamaForCausalLM", "GPT2LMHeadModel", "BloomForCausalLM", "FalconForCausalLM"):
        yield _whole("eager", name, {"mask": CAUSAL}, **EAGER)
    for name in ("LlamaForCausalLM", "GPT2LMHeadModel", "OPTForCausalLM"):
        yield _whole("padding", name, {**_padded("right"), "mask": CAUSAL})
    for name in (*ENCODERS, *PAIRS, *SEEING):
        yield _whole("", name)
    for name in ("BertModel", "DistilBertModel", "ModernBertModel", "T5EncoderModel"):
        yield _whole("padding", name, _padded("right"))
    for name in ("T5ForConditionalGeneration", "BartForConditionalGeneration"):
        given = {"input_ids": tokens(B, S), "decoder_input_ids": tokens(B, T)}
        yield _whole("both ids stated", name, {"inputs": given})


MODULES = (
    ("BertModel", "BertAttention", {}), ("BertModel", "BertLayer", {}),
    ("ViTModel", "ViTAttention", {}), ("CLIPVisionModel", "CLIPAttention", {}),
    ("Dinov2Model", "Dinov2Layer", {}), ("BartModel", "BartAttention", {}),
    ("OPTForCausalLM", "OPTAttention", {}), ("GPT2Model", "GPT2Attention", {}),
    ("GPT2Model", "GPT2Block", {}), ("T5EncoderModel", "T5LayerSelfAttention", {}),
    ("T5EncoderModel", "T5Attention", {}), ("ElectraModel", "ElectraAttention", {}),
    ("SiglipVisionModel", "SiglipAttention", {}), ("SwinModel", "SwinLayer", {}),
    ("BeitModel", "BeitAttention", {}), ("WhisperForConditionalGeneration", "WhisperAttention", {}),
    ("DistilBertModel", "TransformerBlock", {}), ("DetrModel", "DetrEncoderLayer", {}),
)  # fmt: skip


def _modules() -> Iterator[Case]:
    for name, kind, options in MODULES:
        yield Case(f"{kind} of transformers", lambda n=name, k=kind, o=options: inside(n, k, **o))
    yield Case("BartAttention of transformers, cross",
               lambda: inside("BartModel", "BartAttention"),
               {"inputs": {"hidden_states": normal(B, T, C),
                           "key_value_states": normal(B, S, C)},
                "arguments": {"key_value_states": "context"}})  # fmt: skip
    for name, kind in (("LlamaModel", "LlamaAttention"), ("Qwen3ForCausalLM", "Qwen3Attention")):
        angle = torch.arange(T)[:, None] * 10_000.0 ** (-torch.arange(0, 8, 2) / 8)
        angle = angle.repeat(1, 2)[None].expand(B, -1, -1)
        added = torch.zeros(B, 1, T, T).masked_fill(~torch.ones(T, T).tril().bool(), -1e38)
        yield Case(f"{kind} of transformers", lambda n=name, k=kind: inside(n, k), {
            "inputs": {"hidden_states": normal(B, T, C),
                       "position_embeddings": (angle.cos(), angle.sin()),
                       "attention_mask": added}, "mask": CAUSAL})  # fmt: skip
        yield Case(f"{kind} of transformers, nothing said", lambda n=name, k=kind: inside(n, k))


CASES = (*_models(), *_modules())
