"""Tiny random transformers models as ours: states, logits, caches, gradients and matrices."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import intently as it
from intently.errors import ArgumentError, CheckpointError, DataError, KindError
from intently.interop.transformers import TextModel, TextToText, VisionModel, load

from ..show.refusals import refuses

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "max_position_embeddings": 64,
}
SHARED = {**SMALL, "num_key_value_heads": 2}
ROPE = {"rope_theta": 500.0, "factor": 4.0}
GPT2 = {
    "vocab_size": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
T5 = {
    "vocab_size": 64,
    "d_model": 32,
    "d_kv": 6,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "dropout_rate": 0.0,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 9,
}
MARIAN = {
    "vocab_size": 64,
    "d_model": 32,
    "pad_token_id": 0,
    "dropout": 0.0,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 0,
    "activation_function": "swish",
    "scale_embedding": True,
}
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2 by layer": ("GPT2Model", {**GPT2, "scale_attn_by_inverse_layer_idx": True}),
    "llama": ("LlamaForCausalLM", {**SHARED, "head_dim": 12, "tie_word_embeddings": True}),
    "llama biased": ("LlamaModel", {**SHARED, "attention_bias": True, "mlp_bias": True}),
    "llama linear": ("LlamaModel", {**SHARED, "rope_parameters": {**ROPE, "rope_type": "linear"}}),
    "llama 3": (
        "LlamaModel",
        {
            **SHARED,
            "rope_parameters": {
                **ROPE,
                "rope_type": "llama3",
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "qwen2 yarn": (
        "Qwen2Model",
        {
            **SHARED,
            "rope_parameters": {
                **ROPE,
                "rope_type": "yarn",
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "qwen2": (
        "Qwen2ForCausalLM",
        {**SHARED, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", {**SHARED, "head_dim": 12}),
    "mistral": ("MistralForCausalLM", {**SHARED, "sliding_window": 4, "head_dim": 8}),
}
SIDES: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5ForConditionalGeneration", T5),
    "t5 gated": (
        "T5ForConditionalGeneration",
        {
            **T5,
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
            "scale_decoder_outputs": False,
        },
    ),
    "t5 bare": ("T5Model", T5),
    "marian": ("MarianMTModel", MARIAN),
    "marian bare": ("MarianModel", MARIAN),
}
ENCODERS = {"bert": "BertForMaskedLM", "bert bare": "BertModel"}
BERT = {**SMALL, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
VIT = {**SMALL, "image_size": 12, "patch_size": 4, "qkv_bias": False}


def foreign(name: str, given: dict[str, Any]) -> Any:
    """A model of theirs whose weights lie far from zero, biases and norms too."""
    kind = getattr(transformers, name)
    config = kind.config_class(**given)
    config._attn_implementation = "eager"
    model = kind(config).eval()
    torch.manual_seed(1)
    for p in model.parameters():
        if p.requires_grad:
            torch.nn.init.normal_(p, mean=float(p.ndim == 1), std=p.shape[-1] ** -0.5)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    return model


def ids(b: int = 2, t: int = 11, seed: int = 3) -> Tensor:
    return torch.randint(2, 64, (b, t), generator=torch.Generator().manual_seed(seed))


def padded(side: str, t: int = 11, n: int = 4) -> Tensor:
    seen = torch.ones(2, t, dtype=torch.long)
    seen[-1, slice(0, n) if side == "left" else slice(t - n, t)] = 0
    return seen


def ours(seen: Tensor | None) -> Tensor | None:
    return None if seen is None else seen.bool()[:, None, None, :]


def first(out: Any) -> Tensor:
    return out.logits if "logits" in out else out.last_hidden_state


def close(found: Tensor, want: Tensor, seen: Tensor | None = None, tol: float = 1e-5) -> None:
    assert found.shape == want.shape
    if seen is not None:
        found, want = found[seen.bool()], want[seen.bool()]
    apart = float((found.detach() - want.detach()).abs().max())
    assert apart <= tol * max(1.0, float(want.detach().abs().max())), apart


def text(name: str, given: dict[str, Any]) -> tuple[Any, TextModel]:
    theirs = foreign(name, given)
    model = load(theirs)
    assert isinstance(model, TextModel)
    return theirs, model


def pair(name: str, given: dict[str, Any]) -> tuple[Any, TextToText]:
    theirs = foreign(name, given)
    model = load(theirs)
    assert isinstance(model, TextToText)
    return theirs, model


@pytest.mark.parametrize("family", DECODERS)
def test_decoders(family: str) -> None:
    theirs, model = text(*DECODERS[family])
    with torch.no_grad():
        want = theirs(ids(), output_attentions=True)
        close(model(ids()), first(want))
        for i, weights in enumerate(want.attentions):
            close(model.attentions(ids())[f"layers.{i}.self"].dense(), weights)
        for side in ("left", "right"):
            seen = padded(side)
            close(model(ids(), mask=ours(seen)), first(theirs(ids(), attention_mask=seen)), seen)
        cache = model.new_cache()
        steps = [model(ids()[:, a:b], cache=cache) for a, b in ((0, 4), (4, 5), (5, 11))]
        close(torch.cat(steps, 1), first(want))


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2", "qwen3"])
def test_gradients(family: str) -> None:
    theirs, model = text(*DECODERS[family])
    theirs.train(), model.train()
    close(model(ids()), theirs(ids()).logits)
    for m in (theirs, model):
        first_or_own = m(ids())
        logits = first_or_own if isinstance(first_or_own, Tensor) else first_or_own.logits
        logits.log_softmax(-1)[..., 5].sum().backward()
    close(model.embed.tokens.weight.grad, theirs.get_input_embeddings().weight.grad, tol=5e-5)
    missing = [name for name, p in model.named_parameters() if p.grad is None]
    assert missing == []


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_bfloat16(family: str) -> None:
    """Within 2e-2 of theirs at the scale of a fresh model; at any scale as right as theirs."""
    whole = foreign(*DECODERS[family])
    for tol in (0.1, 2e-2):
        theirs = copy.deepcopy(whole).bfloat16()
        model = load(theirs)
        assert isinstance(model, TextModel)
        with torch.no_grad():
            truth, found, want = whole(ids()).logits, model(ids()), theirs(ids()).logits.float()
        assert found.dtype is torch.bfloat16
        close(found.float(), want, tol=tol)
        assert (found - truth).abs().mean() <= 1.5 * (want - truth).abs().mean()
        whole.apply(whole._init_weights)


HIDDEN = {"hidden_dropout_prob": 0.3}
DROPPED: list[tuple[str, dict[str, Any]]] = [
    ("GPT2LMHeadModel", {**GPT2, "resid_pdrop": 0.3, "embd_pdrop": 0.2}),
    ("BertModel", {**BERT, **HIDDEN}),
    ("ViTModel", {**VIT, **HIDDEN}),
    ("MarianMTModel", {**MARIAN, "dropout": 0.3, "activation_dropout": 0.2}),
]


@pytest.mark.parametrize("name, given", DROPPED)
def test_dropout_acts_where_theirs_does(name: str, given: dict[str, Any]) -> None:
    theirs = foreign(name, given).train()
    model = load(theirs)
    x = torch.randn(2, 3, 12, 12) if name == "ViTModel" else ids()
    both = {"decoder_input_ids": ids(t=6)} if name == "MarianMTModel" else {}
    torch.manual_seed(7)
    want = first(theirs(x, **both))
    torch.manual_seed(7)
    close(model(x, *both.values()), want)


def test_dropout_of_the_weights_is_kept() -> None:
    for name, given, place in (
        ("GPT2Model", {**GPT2, "attn_pdrop": 0.4}, "self"),
        ("LlamaModel", {**SHARED, "attention_dropout": 0.4}, "self"),
        ("BertModel", {**BERT, "attention_probs_dropout_prob": 0.4}, "self"),
        ("ViTModel", {**VIT, "attention_probs_dropout_prob": 0.4}, "self"),
        ("T5Model", {**T5, "dropout_rate": 0.4}, "cross"),
        ("MarianModel", {**MARIAN, "attention_dropout": 0.4}, "cross"),
    ):
        model = load(foreign(name, given))
        stack = model.decoder if isinstance(model, TextToText) else model.stack
        assert stack.layers[0].get_submodule(f"{place}_attention").dropout == 0.4, name


def test_positions_of_the_caller() -> None:
    theirs, model = text("GPT2LMHeadModel", GPT2)
    seen = padded("left")
    at = (seen.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        want = theirs(ids(), attention_mask=seen, position_ids=at).logits
        close(model(ids(), mask=ours(seen), positions=at), want, seen)


@pytest.mark.parametrize("name", ENCODERS.values())
@pytest.mark.parametrize("training", [False, True])
def test_bert(name: str, training: bool) -> None:
    theirs = foreign(name, BERT).train(training)
    model = load(theirs)
    assert isinstance(model, TextModel) and model.training == training
    types, seen = ids(seed=4) % 2, padded("right")
    given = {"attention_mask": seen, "token_type_ids": types, "output_attentions": True}
    want = theirs(ids(), **given)
    found = model(ids(), mask=it.padding(torch.tensor([11, 7])), types=types)
    close(found, first(want))
    matrices = model.attentions(ids(), mask=ours(seen), types=types)
    for i, weights in enumerate(want.attentions):
        close(matrices[f"layers.{i}.self"].dense(), weights)
    if name == "BertModel":
        close(model.pooled(found), want.pooler_output)
    else:
        with pytest.raises(ArgumentError, match="pooled: expected a model with a pooler"):
            model.pooled(found)
    found.square().sum().backward()
    first(want).square().sum().backward()
    close(model.embed.tokens.weight.grad, theirs.get_input_embeddings().weight.grad, tol=5e-5)


@pytest.mark.parametrize("name", ["ViTModel", "ViTForImageClassification"])
def test_vit(name: str) -> None:
    theirs = foreign(name, VIT)
    model = load(theirs)
    assert isinstance(model, VisionModel)
    pixels = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        want = theirs(pixels, output_attentions=True)
        close(model(pixels), first(want))
        for i, weights in enumerate(want.attentions):
            close(model.attentions(pixels)[f"layers.{i}.self"].dense(), weights)
        if name == "ViTModel":
            close(model.pooled(model(pixels)), want.pooler_output)
    with pytest.raises(ArgumentError, match=r"pixels: expected shape \(b, 3, 12, 12\)"):
        model(pixels[..., 1:])


@pytest.mark.parametrize("family", SIDES)
def test_two_sides(family: str) -> None:
    theirs, model = pair(*SIDES[family])
    seen, target = padded("right"), ids(t=6, seed=5)
    with torch.no_grad():
        want = theirs(ids(), attention_mask=seen, decoder_input_ids=target, output_attentions=True)
        close(model(ids(), target, mask=ours(seen)), first(want))
        found = model.attentions(ids(), target, mask=ours(seen))
        for i in range(2):
            close(found[f"encoder.layers.{i}.self"].dense(), want.encoder_attentions[i])
            close(found[f"decoder.layers.{i}.self"].dense(), want.decoder_attentions[i])
            close(found[f"decoder.layers.{i}.cross"].dense(), want.cross_attentions[i])
        states, cache = model.encode(ids(), mask=ours(seen)), model.new_cache()
        close(states, want.encoder_last_hidden_state)
        steps = [
            model.decode(target[:, a:b], states, states_mask=ours(seen), cache=cache)
            for a, b in ((0, 1), (1, 4), (4, 6))
        ]
        close(torch.cat(steps, 1), first(want))


@pytest.mark.parametrize("family", ["t5", "marian"])
def test_gradients_of_two_sides(family: str) -> None:
    theirs, model = pair(*SIDES[family])
    for m in (theirs.train(), model.train()):
        out = m(ids(), None, ids(t=6)) if m is theirs else m(ids(), ids(t=6))
        (out if isinstance(out, Tensor) else out.logits).log_softmax(-1)[..., 5].sum().backward()
    close(model.source.tokens.weight.grad, theirs.get_input_embeddings().weight.grad, tol=5e-5)
    if family == "t5":
        for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
            first_block = getattr(theirs, side).block[0].layer[0].SelfAttention
            table = stack.layers[0].self_attention.bias.table
            assert table is stack.layers[1].self_attention.bias.table
            close(table.grad, first_block.relative_attention_bias.weight.grad, tol=5e-5)


@pytest.mark.parametrize(
    "name, given",
    [
        DECODERS["gpt2"],
        DECODERS["llama"],
        ("BertForMaskedLM", BERT),
        SIDES["t5"],
        SIDES["marian"],
        ("ViTForImageClassification", VIT),
    ],
)
def test_folders(name: str, given: dict[str, Any], tmp_path: Path) -> None:
    theirs = foreign(name, given)
    theirs.save_pretrained(tmp_path)
    live, read = load(theirs).state_dict(), load(tmp_path).state_dict()
    assert live.keys() == read.keys()
    assert all(torch.equal(live[key], read[key]) for key in live)


def test_tied_weights_stay_tied() -> None:
    _, model = text(*DECODERS["gpt2"])
    assert model.head.weight is model.embed.tokens.weight
    _, sides = pair(*SIDES["t5"])
    assert sides.head.weight is sides.source.tokens.weight is sides.target.tokens.weight
    _, loose = text("LlamaForCausalLM", SHARED)
    assert loose.head.weight is not loose.embed.tokens.weight
    _, bert = text("BertForMaskedLM", BERT)
    assert list(bert.head.children())[-1].weight is bert.embed.tokens.weight


def test_what_is_theirs_stays_theirs() -> None:
    theirs, model = text(*DECODERS["llama"])
    before = theirs.lm_head.weight.clone()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert torch.equal(theirs.lm_head.weight, before)


def test_left_over_parameters_are_named(tmp_path: Path) -> None:
    theirs = foreign("GPT2LMHeadModel", {**GPT2, "add_cross_attention": True})
    with pytest.raises(CheckpointError, match=r"GPT2LMHeadModel: .*crossattention.* left over"):
        load(theirs)
    theirs = foreign(*DECODERS["llama"])
    theirs.model.layers[1].mlp.adapter = torch.nn.Linear(2, 2)
    with pytest.raises(CheckpointError, match=r"model.layers.1.mlp.adapter.bias"):
        load(theirs)


def test_folders_with_other_tensors(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    foreign(*DECODERS["llama"]).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "lora": torch.ones(1)}, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"the tensors of LlamaForCausalLM; got 'lora' left"):
        load(tmp_path)
    tensors.pop("model.norm.weight")
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"got 'model.norm.weight' missing"):
        load(tmp_path)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    refuses(
        KindError,
        {
            "BartModel, of the family 'bart'": lambda: load(
                foreign("BartModel", {**MARIAN, "eos_token_id": 2, "bos_token_id": 1})
            ),
            r"source: expected one of GPT2Model.*got Linear": lambda: load(torch.nn.Linear(2, 2)),
        },
    )
    refuses(DataError, {r"source: expected a folder with config\.json": lambda: load(tmp_path)})
    refuses(
        ArgumentError,
        {
            r"config.is_decoder: expected False; got True": lambda: load(
                foreign("BertModel", {**BERT, "is_decoder": True})
            ),
            r"config.is_causal: expected True; got False": lambda: load(
                foreign("LlamaModel", {**SHARED, "is_causal": False})
            ),
            r"config.hidden_act: expected one of relu.*'mish'": lambda: load(
                foreign("BertModel", {**BERT, "hidden_act": "mish"})
            ),
            r"config.encoder_layerdrop: expected 0; got 0.5": lambda: load(
                foreign("MarianModel", {**MARIAN, "encoder_layerdrop": 0.5})
            ),
        },
    )
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "factor": 4.0,
        "short_factor": [1.0] * 4,
        "long_factor": [1.0] * 4,
        "original_max_position_embeddings": 16,
    }
    with pytest.raises(ArgumentError, match=r"config\.rope_parameters: expected default, linear"):
        load(foreign("LlamaModel", {**SHARED, "rope_parameters": rope}))
    rope = {
        **ROPE,
        "rope_type": "yarn",
        "original_max_position_embeddings": 16,
        "mscale": 2.0,
        "mscale_all_dim": 1.0,
    }
    with pytest.raises(ArgumentError, match=r"options of 'yarn' that are known; got \['mscale"):
        load(foreign("LlamaModel", {**SHARED, "rope_parameters": rope}))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(DataError, match="the name of a class in architectures; got None"):
        load(tmp_path)


PARTIAL = {"partial_rotary_factor": 0.5, "rope_theta": 500.0, "factor": 4.0}
SCALED: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "beta_fast": 7.0},
    "linear": {"rope_type": "linear"},
    "dynamic": {"rope_type": "dynamic"},
    "yarn": {"rope_type": "yarn", "original_max_position_embeddings": 16},
    "llama3": {
        "rope_type": "llama3",
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}


@pytest.mark.parametrize("scaling", SCALED)
@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_a_head_turns_as_a_whole(family: str, scaling: str) -> None:
    """Without a scaling theirs pass over all options but the base; with one they cannot run."""
    given = {**SHARED, "head_dim": 12, "rope_parameters": {**PARTIAL, **SCALED[scaling]}}
    theirs = foreign(f"{family}Model", given)
    if scaling == "default":
        with torch.no_grad():
            close(load(theirs)(ids()), first(theirs(ids())))
        return
    with pytest.raises(RuntimeError):
        theirs(ids())
    with pytest.raises(ArgumentError) as caught:
        load(theirs)
    assert str(caught.value) == (
        f"config.partial_rotary_factor: expected 1 beside the scaling {scaling!r}; got 0.5. Their "
        "own model cannot turn a part of each head."
    )


def test_bad_calls() -> None:
    _, model = text(*DECODERS["gpt2"])
    refuses(
        KindError,
        {r"ids: expected a tensor \(b, t\) of whole numbers": lambda: model(torch.zeros(1, 2))},
    )
    refuses(
        ArgumentError,
        {
            r"ids: expected shape \(b, t\); got shape \(3,\)": lambda: model(ids()[0, :3]),
            "ids: expected at most 64 steps, cached ones included": lambda: model(ids(t=65)),
            r"types: expected None; got shape \(2, 11\)": lambda: model(ids(), types=ids()),
        },
    )
    _, model = text(*DECODERS["llama"])
    with pytest.raises(ArgumentError, match="positions: expected None"):
        model(ids(), positions=torch.arange(11))
