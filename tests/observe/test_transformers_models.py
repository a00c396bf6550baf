"""Models of transformers, fused and plain, against the weights that their plain formula gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from intently.core.matrix.patterns import by_gradient
from intently.interop.transformers.backend import register
from intently.observe import Recording, watch

from ..combinations import each, pairs
from . import decoders
from .attending import close, watched
from .decoders import T, continued

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "vocab_size": 50,
}
ENDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED: dict[str, Any] = SIZES | ENDS | {"num_key_value_heads": 2}
GPT2: dict[str, Any] = ENDS | {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 50}
T5: dict[str, Any] = decoders.T5 | {
    "d_model": 16,
    "d_kv": 4,
    "vocab_size": 50,
    "decoder_start_token_id": 0,
    "eos_token_id": 1,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 6,
}
MARIAN: dict[str, Any] = decoders.MARIAN | ENDS | {"d_model": 16, "vocab_size": 50}
WINDOW: dict[str, Any] = {"sliding_window": 3}
CAPPED: dict[str, Any] = WINDOW | {"head_dim": 4, "attn_logit_softcapping": 2.0}
SINKS: dict[str, Any] = WINDOW | {"head_dim": 4, "num_local_experts": 2, "num_experts_per_tok": 1}

MODELS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: T.BertModel(T.BertConfig(**SIZES)),
    "gpt2": lambda: T.GPT2LMHeadModel(
        T.GPT2Config(**GPT2, n_positions=64, scale_attn_by_inverse_layer_idx=True)
    ),
    "llama": lambda: T.LlamaForCausalLM(T.LlamaConfig(**GROUPED)),
    "mistral": lambda: T.MistralForCausalLM(T.MistralConfig(**GROUPED, **WINDOW)),
    "gemma 2": lambda: T.Gemma2ForCausalLM(T.Gemma2Config(**GROUPED, **CAPPED)),
    "gpt-oss": lambda: T.GptOssForCausalLM(T.GptOssConfig(**GROUPED, **SINKS)),
    "t5": lambda: T.T5ForConditionalGeneration(T.T5Config(**T5)),
    "marian": lambda: T.MarianMTModel(T.MarianConfig(**MARIAN)),
    "vit": lambda: T.ViTModel(T.ViTConfig(**SIZES, image_size=8, patch_size=4)),
}
NAMES = {
    "bert": "encoder.layer.{}.attention.self",
    "gpt2": "transformer.h.{}.attn",
    "llama": "model.layers.{}.self_attn",
    "mistral": "model.layers.{}.self_attn",
    "gemma 2": "model.layers.{}.self_attn",
    "gpt-oss": "model.layers.{}.self_attn",
    "vit": "layers.{}.attention",
}
T5_NAMES = {
    "encoder": "encoder.block.{}.layer.0.SelfAttention",
    "decoder": "decoder.block.{}.layer.0.SelfAttention",
    "cross": "decoder.block.{}.layer.1.EncDecAttention",
}
MARIAN_NAMES = {
    "encoder": "model.encoder.layers.{}.self_attn",
    "decoder": "model.decoder.layers.{}.self_attn",
    "cross": "model.decoder.layers.{}.encoder_attn",
}
ONLY_PLAIN = ("gemma 2", "gpt-oss")  # transformers refuses their softcap and sinks in sdpa
TEXT = [name for name in NAMES if name != "vit"]


def drawn(name: str, implementation: str = "sdpa") -> Any:
    """A tiny model whose attention is uneven; transformers has no sdpa for some."""
    if implementation == "sdpa" and name in ONLY_PLAIN:
        pytest.skip(f"transformers has no sdpa for {name}")
    torch.manual_seed(0)
    register()
    model: Any = MODELS[name]().eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.4)
    model.set_attn_implementation(implementation)
    return model


def tokens(side: str, rows: int = 2, length: int = 7) -> dict[str, Tensor]:
    """Token numbers with some padding in the first row."""
    ids = torch.randint(3, 50, (rows, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if side:
        mask[0, :2] = 0
    mask = mask.flip(1) if side == "right" else mask
    return {"input_ids": ids * mask, "attention_mask": mask}


@torch.no_grad()
def seen_in(model: Any, given: dict[str, Any], deep: bool = False) -> Recording:
    return watched(model, deep=deep, **given)


@torch.no_grad()
def plain_weights(model: Any, given: dict[str, Any]) -> Any:
    model.set_attn_implementation("eager")
    return model(**given, output_attentions=True)


def close_layers(seen: Recording, model: Any, given: dict[str, Any]) -> None:
    """Every layer of one stack has the weights of the plain formula."""
    assert len(seen.layers) == 2
    mask = given.get("attention_mask", torch.empty(0))
    for layer, weights in zip(seen.layers, plain_weights(model, given).attentions):
        close(seen[layer], weights, mask if mask.ndim == 2 else None)


def close_sides(name: str, seen: Recording, model: Any, given: dict[str, Any]) -> None:
    """Every layer of an encoder and a decoder has them."""
    expected = plain_weights(model, given)
    names = T5_NAMES if name == "t5" else MARIAN_NAMES
    assert set(seen.layers) == {x.format(n) for x in names.values() for n in range(2)}
    for side in names:
        rows = given["attention_mask"] if side == "encoder" else None
        for n, weights in enumerate(expected[f"{side}_attentions"]):
            close(seen[names[side].format(n)], weights, rows)


@each(
    {
        "name, side": [*((n, s) for n in TEXT for s in ("", "left", "right")), ("vit", "")],
        "implementation": ["sdpa", "eager", "intently"],
    },
    times=2,
)
def test_models_of_one_stack(name: str, implementation: str, side: str) -> None:
    model = drawn(name, implementation)
    given = {"pixel_values": torch.randn(2, 3, 8, 8)} if name == "vit" else tokens(side)
    seen = seen_in(model, given)
    assert seen.layers == tuple(NAMES[name].format(n) for n in range(2))
    close_layers(seen, model, given)


@pairs(
    {
        "side": ["", "left", "right"],
        "implementation": ["sdpa", "eager", "intently"],
        "name": ["t5", "marian"],
    }
)
def test_encoders_and_decoders(name: str, implementation: str, side: str) -> None:
    model, given = drawn(name, implementation), tokens(side)
    given["decoder_input_ids"] = tokens("")["input_ids"][:, :5]
    close_sides(name, seen_in(model, given), model, given)


@pytest.mark.parametrize("deep", [False, True])
def test_flex_attention(deep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel is compiled; here the same function runs uncompiled."""
    from torch.nn.attention import flex_attention as flex
    from transformers import masking_utils
    from transformers.integrations import flex_attention as theirs

    def make(*args: Any, **kwargs: Any) -> Any:
        return flex.create_block_mask(*args, **{**kwargs, "_compile": False})

    monkeypatch.setattr(masking_utils, "create_block_mask", make)
    monkeypatch.setattr(
        theirs, "WrappedFlexAttention", lambda training: lambda: flex.flex_attention
    )
    for name, side in (("llama", "left"), ("mistral", "right"), ("gemma 2", "left")):
        model, given = drawn(name, "flex_attention"), tokens(side)
        close_layers(seen_in(model, given, deep), model, given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("std", [0.05, 0.4])
def test_sinks_in_half_precision_are_verified(std: float, dtype: torch.dtype) -> None:
    """GPT-OSS rounds its scores three times; large ones move its weights by more than the rest."""
    torch.manual_seed(0)
    sizes = GROUPED | SINKS | {"hidden_size": 64, "head_dim": 64}
    model: Any = T.GptOssForCausalLM(T.GptOssConfig(**sizes)).eval().to(dtype)
    for p in model.parameters():
        nn.init.normal_(p, std=std)
    for rows, length in ((2, 7), (1, 40)):
        one, _ = seen_in(model, {"input_ids": torch.randint(3, 50, (rows, length))}).calls
        assert one.attention().problem.sinks is not None
    generated(model, tokens("left"), do_sample=False)


def test_a_sink_of_each_query_takes_weight() -> None:
    """Inkling 2 computes its sinks from the queries' tokens."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 50, "head_dim": 8}
    heads = {f"{x}num_{y}_heads": 4 for x in ("", "swa_") for y in ("attention", "key_value")}
    kinds = {"layer_types": ["hybrid_sliding", "hybrid"], "swa_head_dim": 8}
    experts = {"moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2}
    torch.manual_seed(0)
    ends = {"unpadded_vocab_size": 50, "eos_token_id": 1}
    config = T.Inkling2TextConfig(**sizes, **heads, **kinds, **experts, **ends)
    model: Any = T.Inkling2TextModel(config).eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.4)
    for side in ("", "left", "right"):
        given = tokens(side)
        seen, expected = seen_in(model, given), plain_weights(model, given).attentions
        for n, weights in enumerate(expected):
            close(seen[f"layers.{n}.self_attn"], weights, given["attention_mask"])
            assert float(weights.sum(-1).min()) < 0.9


def test_what_is_kept_of_grouped_heads_is_not_repeated() -> None:
    entry = seen_in(drawn("llama"), tokens("")).calls[0].attention()
    assert entry.q.shape == (2, 4, 7, 4) and entry.k.shape == (2, 2, 7, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_booleans_that_the_plain_formula_adds(dtype: torch.dtype) -> None:
    """Grounding DINO's: they hide nothing there, though they do in sdpa."""
    within = torch.eye(7, dtype=torch.bool).expand(2, 1, 7, 7)
    for implementation in ("eager", "sdpa"):
        model = drawn("bert", implementation).to(dtype)
        given = tokens("") | {"attention_mask": within}
        seen = seen_in(model, given)
        hidden = seen[seen.layers[0]].dense().float().masked_fill(within, 0)
        assert (float(hidden.max()) > 0.1) == (implementation == "eager")


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_masks_are_kept_as_values(implementation: str) -> None:
    def mask(name: str, side: str) -> str:
        return repr(seen_in(drawn(name, implementation), tokens(side)).calls[0].attention().mask)

    assert mask("bert", "right") == "padding([5, 7])"
    assert mask("llama", "") == "causal()"
    assert mask("llama", "right") in ("causal() & padding([5, 7])", "padding([5, 7]) & causal()")
    assert "window(2, 0" in mask("mistral", "") and "tensor" not in mask("mistral", "")


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_position_bias_of_t5_is_kept_as_buckets(implementation: str) -> None:
    given = tokens("right") | {"decoder_input_ids": tokens("")["input_ids"][:, :5]}
    for entry in seen_in(drawn("t5", implementation), given).calls:
        bias = entry.attention().problem.bias
        if "EncDec" in entry.name:
            assert bias is None
        else:
            assert str(bias).startswith("relative_buckets(8×4 tensor, max_distance=6")


def test_a_changed_position_bias_is_kept_as_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.t5 import modeling_t5

    original = modeling_t5.T5Attention.compute_bias

    def other(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        return original(self, *args, **kwargs) + 0.5 * torch.eye(7)[None, None]

    model, given = drawn("t5").encoder, {"input_ids": tokens("")["input_ids"]}
    monkeypatch.setattr(modeling_t5.T5Attention, "compute_bias", other)
    seen = seen_in(model, given)
    assert "TensorBias" in repr(seen.calls[0].attention().problem.bias)
    close_layers(seen, model, given)


def test_a_scale_that_is_misread_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from intently.observe.sources import transformers as source

    spec = source.AttentionSpec
    monkeypatch.setattr(source, "AttentionSpec", lambda **how: spec(**{**how, "scale": 1.0}))
    with torch.no_grad(), watch(model := drawn("llama")) as seen:
        model(**tokens(""))
    assert [entry.verified for entry in seen.calls] == [False, False]


@pytest.mark.parametrize("implementation", ["sdpa", "intently"])
def test_without_a_mask_queries_count_from_the_first_key(implementation: str) -> None:
    """So begins a generation with a static cache: most keys are not written yet."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    module = drawn("llama").model.layers[0].self_attn
    q, k = torch.randn(1, 4, 3, 4), torch.randn(1, 2, 6, 4)
    with watch() as seen:
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, print)
        attention(module, q, k, k, None, scaling=0.5)
    (entry,) = seen.calls
    assert entry.verified, entry.why
    z = (q @ k.repeat_interleave(2, 1).mT * 0.5)[..., :3]
    weights = z.masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf).softmax(-1)
    torch.testing.assert_close(entry.matrix().dense()[..., :3], weights)


def test_a_mask_that_says_more_is_added_to_the_position_bias() -> None:
    model = drawn("t5", "eager").encoder
    given = {
        "input_ids": tokens("")["input_ids"],
        "attention_mask": torch.linspace(-3, 0, 2 * 7 * 7).view(2, 1, 7, 7),
    }
    seen = seen_in(model, given)
    bias = repr(seen.calls[0].attention().problem.bias)
    assert bias.startswith("relative_buckets(") and bias.endswith("+ TensorBias(2×1×7×7 tensor)")
    close_layers(seen, model, given)


@pytest.mark.parametrize("hidden", [0, 1])
def test_a_boolean_mask_that_the_plain_formula_adds_is_no_mask(hidden: int) -> None:
    """BERT takes a mask of four axes as it is; its plain formula adds True as 1."""
    model = drawn("bert", "eager")
    mask = torch.eye(7, dtype=torch.bool).repeat(2, 1, 1, 1)
    mask[:, :, :hidden] = False
    given = {"input_ids": tokens("")["input_ids"], "attention_mask": mask}
    seen = seen_in(model, given)
    assert all(entry.verified for entry in seen.calls)
    close_layers(seen, model, given)


def test_a_paged_cache_is_not_seen_and_said_so() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    model = drawn("llama")
    module = model.model.layers[0].self_attn
    q, k = torch.randn(1, 4, 3, 4), torch.randn(1, 2, 3, 4)
    with watch(model) as seen:
        ALL_ATTENTION_FUNCTIONS.get_interface("sdpa", print)(module, q, k, k, None, cache=object())
    assert not seen.calls
    assert "transformers: continuous batching keeps keys in pages" in str(seen.coverage())


@torch.no_grad()
def generated(model: Any, given: dict[str, Tensor], **options: Any) -> tuple[Recording, Any]:
    """The recording of a generation that gives the same tokens as without it."""
    options |= {"max_new_tokens": 5, "min_new_tokens": 5}
    plain = model.generate(**given, **options)
    with watch(model) as seen:
        found = model.generate(**given, **options)
    assert torch.equal(plain, found)
    assert all(entry.verified for entry in seen.calls), seen.coverage()
    return seen, found


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "intently"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "gemma 2"])
def test_greedy_generation_is_one_matrix(name: str, implementation: str) -> None:
    model, given = drawn(name, implementation), tokens("left")
    seen, found = generated(model, given, do_sample=False)
    close_layers(seen, model, continued(found[:, :-1], given["attention_mask"]))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_gradients(implementation: str) -> None:
    """Of what the attention put out: A @ v with the gradient of the plain formula's weights."""
    model, given = drawn("gpt2", implementation), tokens("right")
    with watch(model, gradients=True) as seen:
        out = model(**given)
        out.logits.square().sum().backward()
    plain = drawn("gpt2", "eager")
    found = plain(**given, output_attentions=True)
    for weights in found.attentions:
        weights.retain_grad()
    found.logits.square().sum().backward()
    assert len(seen.calls) == 2
    for entry, weights in zip(seen.calls, found.attentions):
        mine = by_gradient(entry.matrix(), entry.v(), entry.grad())
        close(mine, (weights * weights.grad).detach(), gap=1e-4)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_under_autocast_the_recorded_queries_are_those_that_were_multiplied(
    implementation: str,
) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, initializer_range=0.8,
        pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    model.set_attn_implementation(implementation)
    ids = torch.randint(3, 60, (2, 10))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), watch(model) as seen:
        model(ids)
    assert len(seen.calls) == 2
    for call in seen.calls:
        A = call.attention()
        assert call.verified and A.q.dtype is A.k.dtype is torch.bfloat16
