"""Models of transformers, built tiny with random weights, and attention modules out of them."""

from __future__ import annotations

from collections.abc import Iterator
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


def inside(name: str, kind: str) -> Any:
    """The first module of a class inside a tiny model."""
    return next(x for x in model(name).modules() if type(x).__name__ == kind)


def _whole(said: str, name: str, asked: dict[str, Any] | None = None, **options: Any) -> Case:
    return Case(f"{name}{said}", lambda: model(name, **options), asked or {}, 30)


DECODERS = """
    GPT2LMHeadModel LlamaForCausalLM MistralForCausalLM GemmaForCausalLM Gemma2ForCausalLM
    Gemma3ForCausalLM Qwen2ForCausalLM Qwen3ForCausalLM GPTNeoXForCausalLM FalconForCausalLM
    BloomForCausalLM MptForCausalLM OPTForCausalLM PhiForCausalLM Phi3ForCausalLM
    Olmo2ForCausalLM GPTJForCausalLM GPTNeoForCausalLM CohereForCausalLM Starcoder2ForCausalLM
    CodeGenForCausalLM StableLmForCausalLM GptOssForCausalLM GraniteForCausalLM
    GPTBigCodeForCausalLM MixtralForCausalLM Qwen3MoeForCausalLM DeepseekV3ForCausalLM
    SmolLM3ForCausalLM BioGptForCausalLM XGLMForCausalLM LlamaModel GPT2Model
"""
ENCODERS = """
    BertModel RobertaModel ElectraModel ModernBertModel DebertaModel DebertaV2Model
    DistilBertModel AlbertModel MPNetModel CamembertModel BertForMaskedLM
    BertForSequenceClassification T5EncoderModel RoFormerModel XLMRobertaModel NomicBertModel
"""
PAIRS = """
    T5ForConditionalGeneration BartForConditionalGeneration MarianMTModel
    MBartForConditionalGeneration PegasusForConditionalGeneration M2M100ForConditionalGeneration
    WhisperForConditionalGeneration BartModel LEDModel Speech2TextForConditionalGeneration
"""
SEEING = """
    ViTModel ViTForImageClassification CLIPVisionModel CLIPTextModel CLIPModel SwinModel
    BeitModel Dinov2Model DeiTModel SiglipVisionModel SiglipModel PvtModel SegformerModel
    ViTMAEModel DetrModel YolosModel
"""
IDS, BOTH = {"input_ids": tokens(B, T)}, {"decoder_input_ids": tokens(B, T)}
PADDED: dict[str, Any] = {
    "inputs": {**IDS, "attention_mask": real(B, T).long()},
    "arguments": {"attention_mask": "attend"},
}
TOLD = (
    (", ids and mask stated", "GPT2LMHeadModel LlamaForCausalLM MistralForCausalLM",
     {"inputs": IDS, "mask": CAUSAL}),
    (", padding", "LlamaForCausalLM GPT2LMHeadModel OPTForCausalLM", {**PADDED, "mask": CAUSAL}),
    (", padding", "BertModel DistilBertModel ModernBertModel T5EncoderModel", PADDED),
    (", both ids stated", "T5ForConditionalGeneration BartForConditionalGeneration",
     {"inputs": {"input_ids": tokens(B, S), **BOTH}}),
)  # fmt: skip


def _models() -> Iterator[Case]:
    for name in ("LlamaForCausalLM", "GPT2LMHeadModel", "FalconForCausalLM"):
        yield _whole(", eager", name, {"mask": CAUSAL}, _attn_implementation="eager")
    for said, names, asked in (("", DECODERS + ENCODERS + PAIRS + SEEING, {}), *TOLD):
        for name in names.split():
            yield _whole(said, name, asked)


MODULES = """
    BertModel.BertAttention BertModel.BertLayer ViTModel.ViTAttention CLIPVisionModel.CLIPAttention
    Dinov2Model.Dinov2Layer BartModel.BartAttention OPTForCausalLM.OPTAttention
    GPT2Model.GPT2Attention GPT2Model.GPT2Block T5EncoderModel.T5LayerSelfAttention
    T5EncoderModel.T5Attention ElectraModel.ElectraAttention SiglipVisionModel.SiglipAttention
    SwinModel.SwinLayer BeitModel.BeitAttention WhisperForConditionalGeneration.WhisperAttention
    DistilBertModel.TransformerBlock DetrModel.DetrEncoderLayer
"""


def _modules() -> Iterator[Case]:
    for name, kind in (x.split(".") for x in MODULES.split()):
        yield Case(f"{kind} of transformers", lambda n=name, k=kind: inside(n, k))
    given = {"hidden_states": normal(B, T, C), "key_value_states": normal(B, S, C)}
    asked = {"inputs": given, "arguments": {"key_value_states": "context"}}
    yield Case("BartAttention, cross", lambda: inside("BartModel", "BartAttention"), asked)
    for name, kind in (("LlamaModel", "LlamaAttention"), ("Qwen3ForCausalLM", "Qwen3Attention")):
        angle = torch.arange(T)[:, None] * 10_000.0 ** (-torch.arange(0, 8, 2) / 8)
        angle = angle.repeat(1, 2)[None].expand(B, -1, -1)
        added = torch.zeros(B, 1, T, T).masked_fill(~torch.ones(T, T).tril().bool(), -1e38)
        given = {"hidden_states": normal(B, T, C), "attention_mask": added}
        given["position_embeddings"] = angle.cos(), angle.sin()
        asked = {"inputs": given, "mask": CAUSAL}
        yield Case(f"{kind} of transformers", lambda n=name, k=kind: inside(n, k), asked)
        yield Case(f"{kind}, nothing said", lambda n=name, k=kind: inside(n, k))


CASES = (*_models(), *_modules())
