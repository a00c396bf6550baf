"""`load`: a transformers model, live or from a local folder, as a model on our attention.

Families are tables of names and of options for one builder.

Sources: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2); Touvron
et al. 2023, "LLaMA", section 2.2, and Ainslie et al. 2023 for shared heads (Llama, Mistral, Qwen2,
Qwen3); Devlin et al. 2019, "BERT", section 3; Junczys-Dowmunt et al. 2018, "Marian".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intently.core.masks import Mask, causal, window
from intently.core.positions import Rotary
from intently.core.positions.scaling import DynamicNTK, Llama3, Scaling, YaRN
from intently.core.positions.scaling import Linear as LinearScaling
from intently.errors import DataError, KindError, build
from intently.interop.blocks import Decoder, Embeddings, Encoder, TextModel, TextToText
from intently.interop.transfer import (
    as_it_is,
    check_options,
    kind_of,
    loaded,
    reading,
    rows,
    tensors_of,
    transfer,
    under,
)
from intently.nn import (
    AttentionOptions,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    GatedFeedForward,
    MultiHeadAttention,
    Projections,
)
from intently.nn.linear import Linear

Model = TextModel | TextToText


@torch.inference_mode(False)
def load(source: str | Path | nn.Module) -> Model:
    """Return our model with the weights of a transformers model.

    ``source`` is a live model, or a local folder with ``config.json`` and safetensors; nothing is
    downloaded. It reads GPT-2, Llama, Mistral, Qwen2, Qwen3, BERT and Marian, bare or with the head
    of a language model. The result computes the same outputs, logits with a head and states
    without; ``attentions`` of the same arguments gives every layer's lazy matrix. Weights are
    copied with dtype and device, tied ones stay tied, frozen ones frozen; dropout and train or
    eval mode are kept.

    In masks, True means attend. A query that may attend to nothing (padding on the left) is zero;
    in transformers it is the mean of all values, which affects no other query.

    Raises `KindError` for other families, `CheckpointError` naming tensors that are missing or
    left over, `ArgumentError` for options without a counterpart, `DataError` for a folder without a
    model.

    >>> import torch, transformers
    >>> config = transformers.GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=10)
    >>> model = load(transformers.GPT2LMHeadModel(config).eval())
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 10])
    >>> model.attentions(torch.tensor([[1, 2, 3]]))["stack.layers.0.self_attention"].shape
    (1, 2, 3, 3)
    """
    if not isinstance(source, nn.Module | str | os.PathLike):
        raise build(KindError, "source", "a transformers model, or its folder", repr(source))
    model = source if isinstance(source, nn.Module) else _from_folder(Path(source))
    family, headed = _family_of(model)
    pooled = any("pooler" in path.split(".") for path, _ in model.named_modules())
    with torch.device("meta"):
        ours = family.make(model.config, headed, pooled)
    theirs = tensors_of(model, "source")
    for name in family.repeated:
        theirs.pop(name, None)
    body = under("", f"{family.body}." if headed else "", rows(family.table))
    ours = transfer(ours, body + rows(family.head), theirs, type(model).__name__, family.turn)
    return ours.train(model.training)


def _from_folder(folder: Path) -> nn.Module:
    """Return the model of a local folder, of the class in its config, with all tensors checked."""
    if not (folder / "config.json").is_file():
        wanted, cause = "a folder with config.json and safetensors", "nothing is downloaded"
        fix = "save one with model.save_pretrained(folder)"
        raise build(DataError, "source", wanted, str(folder), cause, fix)
    expected = "a transformers model in safetensors"
    with reading(folder, expected) as transformers:
        return loaded(kind_of(transformers, folder, expected), folder)


def _family_of(model: nn.Module) -> tuple[Family, bool]:
    """Return the family of a model, and whether the model has a head."""
    name = type(model).__name__
    config: Any = getattr(model, "config", None)
    if name in CLASSES:
        is_causal = name.startswith("Bert") or getattr(config, "is_causal", True)
        check_options("config", ("is_causal", is_causal, True, "decoders are read as causal ones"))
        return CLASSES[name]
    family = getattr(config, "model_type", None)
    got = name if family is None else f"{name}, of the family {family!r}"
    cause = "other families have no counterpart here"
    fix = 'to run them on our attention: register(), then model.set_attn_implementation("intently")'
    raise build(KindError, "source", f"one of {', '.join(CLASSES)}", got, cause, fix)


@dataclass(frozen=True)
class Family:
    """How the models of a family are made, and what their tensors are called."""

    make: Callable[[Any, bool, bool], Model]
    """Return our model of a config, headed or not, with a pooler or not, without its weights."""
    body: str
    """The name of the bare model within one with a head."""
    table: str
    """Our names and theirs in the bare model."""
    head: str
    """Those of the head, which is outside it."""
    repeated: tuple[str, ...] = ()
    """Names of tensors that repeat others."""
    turn: Callable[[str, Tensor], Tensor] = as_it_is
    """Brings a tensor, by our name, into our shape."""


def _head(config: Any, width: int, headed: bool) -> nn.Module:
    return Linear(width, config.vocab_size, bias=False) if headed else nn.Identity()


def _layers(
    config: Any,
    norms: Callable[[int], nn.Module],
    *,
    inner: int,
    count: int | None = None,
    heads: int | None = None,
    norm: Literal["pre", "post"] = "pre",
    options: Callable[[int], AttentionOptions] = lambda layer: AttentionOptions(),
    heads_of: Mapping[str, Any] | None = None,
    gated: bool = False,
    bias: bool = True,
    cross: bool = False,
    dropouts: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> Any:
    """Return an `Encoder`, or with ``cross`` a `Decoder`; "pre" has a norm after the last layer.

    ``options`` are those of the self-attention of layer i, ``heads_of`` more keywords of
    `MultiHeadAttention`; ``bias`` is that of the feed-forward part; ``dropouts`` act on the output
    of each part, on attention weights, and within the feed-forward part.
    """
    c, (outer, of_weights, inside) = config.hidden_size, dropouts
    heads = heads or config.num_attention_heads
    block = partial(MultiHeadAttention, c, heads, dropout=of_weights, **heads_of or {})
    kind, act = GatedFeedForward if gated else FeedForward, _activation(config)
    layers = []
    for i in range(config.num_hidden_layers if count is None else count):
        attention, feed = (
            block(attention=options(i)),
            kind(c, inner, inside, activation=act, bias=bias),
        )
        layer = partial(DecoderLayer, cross=block()) if cross else EncoderLayer
        layers.append(layer(c, attention, feed, norm=norm, dropout=outer, norms=norms))
    last = norms(c) if norm == "pre" else None
    return Decoder(layers, last) if cross else Encoder(layers, last)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "swish": F.silu,
    "tanh": F.tanh,
}


def _activation(config: Any) -> Callable[[Tensor], Tensor]:
    name = getattr(config, "hidden_act", None) or config.activation_function
    cause = "other activations have no counterpart"
    check_options("config", ("hidden_act", name, [*ACTIVATIONS], cause))
    return ACTIVATIONS[name]


def _gpt2(config: Any, headed: bool, pooled: bool) -> TextModel:
    """Learned positions, norms before, one fused projection."""
    c = config.hidden_size
    scale = (c // config.num_attention_heads) ** -0.5 if config.scale_attn_weights else 1.0
    by_layer = config.scale_attn_by_inverse_layer_idx
    stack = _layers(
        config,
        partial(nn.LayerNorm, eps=config.layer_norm_epsilon),
        inner=config.n_inner or 4 * c,
        options=lambda i: AttentionOptions(
            mask=causal(), scale=scale / (i + 1) if by_layer else scale
        ),
        dropouts=(config.resid_pdrop, config.attn_pdrop, 0.0),
    )
    embed = Embeddings(config.vocab_size, c, places=config.n_positions, dropout=config.embd_pdrop)
    return TextModel(embed, stack, _head(config, c, headed))


def _llama(config: Any, headed: bool, pooled: bool) -> TextModel:
    """Rotary positions, shared key/value heads, gates, RMS norms; a window in sliding layers.

    Qwen2 has biases in q, k and v only; Qwen3 norms q and k in each head.
    """
    c = config.hidden_size
    d = getattr(config, "head_dim", None) or c // config.num_attention_heads
    norms = partial(nn.RMSNorm, eps=config.rms_norm_eps)
    bias, qwen2 = getattr(config, "attention_bias", False), config.model_type == "qwen2"
    turned, qk_norm = _rotary(config, d), norms if config.model_type == "qwen3" else None
    stack = _layers(
        config,
        norms,
        inner=config.intermediate_size,
        options=lambda i: AttentionOptions(
            mask=_sliding(config, i), positions=turned, qk_norm=qk_norm
        ),
        heads_of={
            "kv_heads": config.num_key_value_heads,
            "head_widths": (d, d),
            "projections": Projections(bias=qwen2 or bias, out_bias=bias and not qwen2),
        },
        gated=True,
        bias=getattr(config, "mlp_bias", False),
        dropouts=(0.0, config.attention_dropout, 0.0),
    )
    return TextModel(Embeddings(config.vocab_size, c), stack, _head(config, c, headed))


def _sliding(config: Any, i: int) -> Mask:
    """The mask of layer i: causal, or a sliding window."""
    kinds = getattr(config, "layer_types", None)
    width = getattr(config, "sliding_window", None)
    slides = width is not None if kinds is None else kinds[i] == "sliding_attention"
    return window(width - 1, 0) if slides and width is not None else causal()


def _rotary(config: Any, d: int) -> Rotary:
    """Return the rotary positions of a config; raise `ArgumentError` for unknown scalings.

    Without a scaling, these families use only the base and rotate the whole head, ignoring
    ``partial_rotary_factor``; with a scaling, they rotate the whole head or fail.
    """
    given = dict(config.rope_parameters)
    kind, base = given.pop("rope_type", "default"), given.pop("rope_theta")
    if kind == "default":
        return Rotary(d, base=base)
    part = given.pop("partial_rotary_factor", None)
    take, most = given.pop, config.max_position_embeddings
    scalings: dict[str, Callable[[], Scaling]] = {
        "linear": lambda: LinearScaling(take("factor")),
        "dynamic": lambda: DynamicNTK(take("factor"), most),
        "yarn": lambda: YaRN(
            take("factor"),
            take("original_max_position_embeddings", None) or most,
            beta_fast=take("beta_fast", None) or 32.0,
            beta_slow=take("beta_slow", None) or 1.0,
            attention=take("attention_factor", None),
            truncate=take("truncate", True),
        ),
        "llama3": lambda: Llama3(
            take("factor"),
            low=take("low_freq_factor"),
            high=take("high_freq_factor"),
            original=take("original_max_position_embeddings"),
        ),
    }
    whole = "their own model cannot turn a part of each head"
    check_options(
        "config",
        (f"partial_rotary_factor beside {kind!r}", part, [None, 1], whole),
        ("rope_parameters.rope_type", kind, ["default", *scalings], "other scalings are not read"),
    )
    scaling = scalings[kind]()
    left = [name for name, value in given.items() if value is not None]
    unread = f"options that {kind!r} does not read"
    check_options("config.rope_parameters", (unread, left, [[]], "the angles would differ"))
    return Rotary(d, base=base, scaling=scaling)


def _bert(config: Any, headed: bool, pooled: bool) -> TextModel:
    """Learned positions and segments, norms after, attention in both directions."""
    for name in ("is_decoder", "add_cross_attention"):
        encoder = "BERT is read as an encoder only"
        check_options("config", (name, getattr(config, name), False, encoder))
    c, p = config.hidden_size, config.hidden_dropout_prob
    norms = partial(nn.LayerNorm, eps=config.layer_norm_eps)
    dropouts = (p, config.attention_probs_dropout_prob, 0.0)
    stack = _layers(config, norms, inner=config.intermediate_size, norm="post", dropouts=dropouts)
    embed = Embeddings(
        config.vocab_size,
        c,
        places=config.max_position_embeddings,
        types=config.type_vocab_size,
        norm=norms(c),
        dropout=p,
    )
    act = Activation(_activation(config))
    head = nn.Sequential(Linear(c, c), act, norms(c), Linear(c, config.vocab_size))
    pooler = nn.Sequential(Linear(c, c), nn.Tanh()) if pooled else None
    return TextModel(embed, stack, head if headed else nn.Identity(), pooler)


def _marian(config: Any, headed: bool, pooled: bool) -> TextToText:
    """Sinusoidal positions, sines before cosines; norms after; a fixed bias on the logits."""
    for name in ("encoder_layerdrop", "decoder_layerdrop"):
        check_options("config", (name, getattr(config, name), 0, "layers are never skipped here"))
    c, p = config.d_model, config.dropout

    def layers(side: str, **options: Any) -> Any:
        return _layers(
            config,
            partial(nn.LayerNorm, eps=1e-5),
            inner=getattr(config, f"{side}_ffn_dim"),
            count=getattr(config, f"{side}_layers"),
            heads=getattr(config, f"{side}_attention_heads"),
            norm="post",
            dropouts=(p, config.attention_dropout, config.activation_dropout),
            **options,
        )

    def embed(tokens: int) -> Embeddings:
        scale = c**0.5 if config.scale_embedding else 1.0
        return Embeddings(tokens, c, places=config.max_position_embeddings, scale=scale, dropout=p)

    return TextToText(
        embed(config.vocab_size),
        embed(config.decoder_vocab_size),
        layers("encoder"),
        layers("decoder", options=lambda i: AttentionOptions(mask=causal()), cross=True),
        Linear(c, config.decoder_vocab_size) if headed else nn.Identity(),
    )


class Activation(nn.Module):
    """One of the activations as a module, for heads."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation of x, entry by entry."""
        return self.function(x)


def _turned(name: str, x: Tensor) -> Tensor:
    """GPT-2's linear maps are ``Conv1D``, weights (in, out); ours are (out, in)."""
    return x.mT.contiguous() if ".layers." in name and x.ndim == 2 else x


GPT2 = Family(
    _gpt2,
    "transformer",
    """
    embed.tokens.                              wte.
    embed.places.                              wpe.
    stack.layers.*.{self,feed}_norm.           h.*.ln_{1,2}.
    stack.layers.*.self_attention.{qkv,out}_   h.*.attn.c_{attn,proj}.
    stack.layers.*.feed_forward.{up,down}.     h.*.mlp.c_{fc,proj}.
    stack.norm.                                ln_f.
    """,
    head="head. lm_head.",
    turn=_turned,
)

LLAMA = Family(
    _llama,
    "model",
    """
    embed.tokens.                                  embed_tokens.
    stack.layers.*.{self,feed}_norm.               layers.*.{input,post_attention}_layernorm.
    stack.layers.*.self_attention.{q,k,v,out}_     layers.*.self_attn.{q,k,v,o}_proj.
    stack.layers.*.self_attention.{q,k}_norm.      layers.*.self_attn.{q,k}_norm.
    stack.layers.*.feed_forward.gate_up.           layers.*.mlp.gate_proj.+layers.*.mlp.up_proj.
    stack.layers.*.feed_forward.down.              layers.*.mlp.down_proj.
    stack.norm.                                    norm.
    """,
    head="head. lm_head.",
)

BERT = Family(
    _bert,
    "bert",
    """
    embed.{tokens,places}.                    embeddings.{word,position}_embeddings.
    embed.types.                              embeddings.token_type_embeddings.
    embed.norm.                               embeddings.LayerNorm.
    stack.layers.*.self_attention.{q,k,v}_    encoder.layer.*.attention.self.{query,key,value}.
    stack.layers.*.self_attention.out_        encoder.layer.*.attention.output.dense.
    stack.layers.*.self_norm.                 encoder.layer.*.attention.output.LayerNorm.
    stack.layers.*.feed_forward.{up,down}.    encoder.layer.*.{intermediate,output}.dense.
    stack.layers.*.feed_norm.                 encoder.layer.*.output.LayerNorm.
    pooler.0.                                 pooler.dense.
    """,
    head="head.{0,2,3}. cls.predictions.{transform.dense,transform.LayerNorm,decoder}.",
    repeated=("cls.predictions.bias",),
)

MARIAN = Family(
    _marian,
    "model",
    """
    {source,target}.tokens.                        {encoder,decoder}.embed_tokens.
    {source,target}.places.                        {encoder,decoder}.embed_positions.
    {en,de}coder.layers.*.self_attention.{q,k,v}_  {en,de}coder.layers.*.self_attn.{q,k,v}_proj.
    {en,de}coder.layers.*.self_attention.out_      {en,de}coder.layers.*.self_attn.out_proj.
    {en,de}coder.layers.*.self_norm.               {en,de}coder.layers.*.self_attn_layer_norm.
    decoder.layers.*.cross_attention.{q,k,v,out}_  decoder.layers.*.encoder_attn.{q,k,v,out}_proj.
    decoder.layers.*.cross_norm.                   decoder.layers.*.encoder_attn_layer_norm.
    {en,de}coder.layers.*.feed_forward.{up,down}.  {en,de}coder.layers.*.fc{1,2}.
    {en,de}coder.layers.*.feed_norm.               {en,de}coder.layers.*.final_layer_norm.
    """,
    head="head.{weight,bias} {lm_head.weight,final_logits_bias}",
    repeated=("shared.weight", "model.shared.weight"),
)

_HEADED = {
    "GPT2": (GPT2, "LMHeadModel"),
    "Llama": (LLAMA, "ForCausalLM"),
    "Mistral": (LLAMA, "ForCausalLM"),
    "Qwen2": (LLAMA, "ForCausalLM"),
    "Qwen3": (LLAMA, "ForCausalLM"),
    "Marian": (MARIAN, "MTModel"),
    "Bert": (BERT, "ForMaskedLM"),
}
CLASSES = {
    f"{name}{kind}": (family, kind != "Model")
    for name, (family, headed) in _HEADED.items()
    for kind in ("Model", headed)
}
"""For each class of theirs its family, and whether it has a head."""
