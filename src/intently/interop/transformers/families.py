"""The families that `load` reads: each a table of names and its options for one builder.

Sources: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2); Touvron
et al. 2023, "LLaMA", section 2.2, and Ainslie et al. 2023 for shared heads (Llama, Mistral, Qwen2,
Qwen3); Devlin et al. 2019, "BERT", section 3; Junczys-Dowmunt et al. 2018, "Marian".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from intently.core.masks import Mask, causal, window
from intently.core.positions import Rotary
from intently.core.positions.scaling import DynamicNTK, Llama3, Scaling, YaRN
from intently.core.positions.scaling import Linear as LinearScaling
from intently.interop.foreign import check_options, refuse
from intently.interop.transformers.models import (
    Embeddings,
    Layers,
    TextModel,
    TextToText,
    activation,
)
from intently.nn import AttentionOptions, Projections
from intently.nn.linear import Linear

Model = TextModel | TextToText


def _as_it_is(name: str, x: Tensor) -> Tensor:
    """A tensor that has our shape."""
    return x


@dataclass(frozen=True)
class Family:
    """How the models of a family are made, and what their tensors are called."""

    make: Callable[[Any, bool, bool], Model]
    """Return our model of a config, headed or not, with a pooler or not, without its weights."""
    body: str
    """The name of the bare model within one with a head."""
    table: str
    """Our names and theirs; "*" is the number of a layer.

    One of ours that ends with "." or "_" stands for a weight and, where they have one, a bias. Two
    of theirs become one of ours, the first above the second. Only the head is outside the body.
    """
    repeated: tuple[str, ...] = ()
    """Names of tensors that repeat others."""
    turn: Callable[[str, Tensor], Tensor] = _as_it_is
    """Brings a tensor, by our name, into our shape."""

    @property
    def names(self) -> list[tuple[str, list[str]]]:
        """The rows of the table: our name, and theirs."""
        rows = (line.split() for line in self.table.strip().splitlines())
        return [(ours, theirs) for ours, *theirs in rows]


def _head(config: Any, width: int, headed: bool) -> nn.Module:
    return Linear(width, config.vocab_size, bias=False) if headed else nn.Identity()


def _gpt2(config: Any, headed: bool, pooled: bool) -> TextModel:
    """Learned positions, norms before, one fused projection."""
    c, h = config.hidden_size, config.num_attention_heads
    scale = (c // h) ** -0.5 if config.scale_attn_weights else 1.0
    by_layer = config.scale_attn_by_inverse_layer_idx
    layers = Layers(
        config.num_hidden_layers,
        c,
        h,
        config.n_inner or 4 * c,
        config.activation_function,
        partial(nn.LayerNorm, eps=config.layer_norm_epsilon),
        options=lambda i: AttentionOptions(
            mask=causal(), scale=scale / (i + 1) if by_layer else scale
        ),
        dropouts=(config.resid_pdrop, config.attn_pdrop, 0.0),
    )
    embed = Embeddings(config.vocab_size, c, places=config.n_positions, dropout=config.embd_pdrop)
    return TextModel(embed, layers.stack(), _head(config, c, headed))


def _llama(config: Any, headed: bool, pooled: bool) -> TextModel:
    """Rotary positions, shared key/value heads, gates, RMS norms; a window in sliding layers.

    Qwen2 has biases in q, k and v only; Qwen3 norms q and k in each head.
    """
    c, h = config.hidden_size, config.num_attention_heads
    d = getattr(config, "head_dim", None) or c // h
    norms = partial(nn.RMSNorm, eps=config.rms_norm_eps)
    bias, qwen2 = getattr(config, "attention_bias", False), config.model_type == "qwen2"
    turned, qk_norm = _rotary(config, d), norms if config.model_type == "qwen3" else None
    layers = Layers(
        config.num_hidden_layers,
        c,
        h,
        config.intermediate_size,
        config.hidden_act,
        norms,
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
    return TextModel(Embeddings(config.vocab_size, c), layers.stack(), _head(config, c, headed))


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
    check_options(
        "config",
        (
            "partial_rotary_factor",
            part in (None, 1),
            f"1 beside the scaling {kind!r}",
            part,
            "their own model cannot turn a part of each head",
        ),
        (
            "rope_parameters",
            kind in scalings,
            "default, linear, dynamic, yarn or llama3",
            repr(kind),
            "other scalings of rotary positions are not read",
        ),
    )
    scaling = scalings[kind]()
    left = [name for name, value in given.items() if value is not None]
    if left:
        refuse(
            "config",
            "rope_parameters",
            f"options of {kind!r} that are known",
            left,
            "the angles would differ",
        )
    return Rotary(d, base=base, scaling=scaling)


def _bert(config: Any, headed: bool, pooled: bool) -> TextModel:
    """Learned positions and segments, norms after, attention in both directions."""
    if config.is_decoder or config.add_cross_attention:
        refuse("config", "is_decoder", "False", True, "BERT is read as an encoder only")
    c, p = config.hidden_size, config.hidden_dropout_prob
    norms = partial(nn.LayerNorm, eps=config.layer_norm_eps)
    layers = Layers(
        config.num_hidden_layers,
        c,
        config.num_attention_heads,
        config.intermediate_size,
        config.hidden_act,
        norms,
        "post",
        dropouts=(p, config.attention_probs_dropout_prob, 0.0),
    )
    embed = Embeddings(
        config.vocab_size,
        c,
        places=config.max_position_embeddings,
        types=config.type_vocab_size,
        norm=norms(c),
        dropout=p,
    )
    function = Activation(activation(config.hidden_act))
    head = nn.Sequential(Linear(c, c), function, norms(c), Linear(c, config.vocab_size))
    pooler = nn.Sequential(Linear(c, c), nn.Tanh()) if pooled else None
    return TextModel(embed, layers.stack(), head if headed else nn.Identity(), pooler)


def _marian(config: Any, headed: bool, pooled: bool) -> TextToText:
    """Sinusoidal positions, sines before cosines; norms after; a fixed bias on the logits."""
    for name in ("encoder_layerdrop", "decoder_layerdrop"):
        if getattr(config, name):
            refuse("config", name, "0", getattr(config, name), "layers are never skipped here")
    c, p = config.d_model, config.dropout

    def layers(side: str, **options: Any) -> Layers:
        return Layers(
            getattr(config, f"{side}_layers"),
            c,
            getattr(config, f"{side}_attention_heads"),
            getattr(config, f"{side}_ffn_dim"),
            config.activation_function,
            partial(nn.LayerNorm, eps=1e-5),
            "post",
            dropouts=(p, config.attention_dropout, config.activation_dropout),
            **options,
        )

    def embed(tokens: int) -> Embeddings:
        scale = c**0.5 if config.scale_embedding else 1.0
        return Embeddings(tokens, c, places=config.max_position_embeddings, scale=scale, dropout=p)

    return TextToText(
        embed(config.vocab_size),
        embed(config.decoder_vocab_size),
        layers("encoder").stack(),
        layers("decoder", options=lambda i: AttentionOptions(mask=causal())).stack(cross=True),
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
    embed.tokens.                         wte
    embed.places.                         wpe
    stack.layers.*.self_norm.             h.*.ln_1
    stack.layers.*.self_attention.qkv_    h.*.attn.c_attn
    stack.layers.*.self_attention.out_    h.*.attn.c_proj
    stack.layers.*.feed_norm.             h.*.ln_2
    stack.layers.*.feed_forward.up.       h.*.mlp.c_fc
    stack.layers.*.feed_forward.down.     h.*.mlp.c_proj
    stack.norm.                           ln_f
    head.                                 lm_head
    """,
    turn=_turned,
)

LLAMA = Family(
    _llama,
    "model",
    """
    embed.tokens.                            embed_tokens
    stack.layers.*.self_norm.                layers.*.input_layernorm
    stack.layers.*.self_attention.q_         layers.*.self_attn.q_proj
    stack.layers.*.self_attention.k_         layers.*.self_attn.k_proj
    stack.layers.*.self_attention.v_         layers.*.self_attn.v_proj
    stack.layers.*.self_attention.q_norm.    layers.*.self_attn.q_norm
    stack.layers.*.self_attention.k_norm.    layers.*.self_attn.k_norm
    stack.layers.*.self_attention.out_       layers.*.self_attn.o_proj
    stack.layers.*.feed_norm.                layers.*.post_attention_layernorm
    stack.layers.*.feed_forward.gate_up.     layers.*.mlp.gate_proj layers.*.mlp.up_proj
    stack.layers.*.feed_forward.down.        layers.*.mlp.down_proj
    stack.norm.                              norm
    head.                                    lm_head
    """,
)

BERT = Family(
    _bert,
    "bert",
    """
    embed.tokens.                         embeddings.word_embeddings
    embed.places.                         embeddings.position_embeddings
    embed.types.                          embeddings.token_type_embeddings
    embed.norm.                           embeddings.LayerNorm
    stack.layers.*.self_attention.q_      encoder.layer.*.attention.self.query
    stack.layers.*.self_attention.k_      encoder.layer.*.attention.self.key
    stack.layers.*.self_attention.v_      encoder.layer.*.attention.self.value
    stack.layers.*.self_attention.out_    encoder.layer.*.attention.output.dense
    stack.layers.*.self_norm.             encoder.layer.*.attention.output.LayerNorm
    stack.layers.*.feed_forward.up.       encoder.layer.*.intermediate.dense
    stack.layers.*.feed_forward.down.     encoder.layer.*.output.dense
    stack.layers.*.feed_norm.             encoder.layer.*.output.LayerNorm
    pooler.0.                             pooler.dense
    head.0.                               cls.predictions.transform.dense
    head.2.                               cls.predictions.transform.LayerNorm
    head.3.                               cls.predictions.decoder
    """,
    repeated=("cls.predictions.bias",),
)

MARIAN = Family(
    _marian,
    "model",
    """
    source.tokens.                           encoder.embed_tokens
    source.places.                           encoder.embed_positions
    encoder.layers.*.self_attention.q_       encoder.layers.*.self_attn.q_proj
    encoder.layers.*.self_attention.k_       encoder.layers.*.self_attn.k_proj
    encoder.layers.*.self_attention.v_       encoder.layers.*.self_attn.v_proj
    encoder.layers.*.self_attention.out_     encoder.layers.*.self_attn.out_proj
    encoder.layers.*.self_norm.              encoder.layers.*.self_attn_layer_norm
    encoder.layers.*.feed_forward.up.        encoder.layers.*.fc1
    encoder.layers.*.feed_forward.down.      encoder.layers.*.fc2
    encoder.layers.*.feed_norm.              encoder.layers.*.final_layer_norm
    target.tokens.                           decoder.embed_tokens
    target.places.                           decoder.embed_positions
    decoder.layers.*.self_attention.q_       decoder.layers.*.self_attn.q_proj
    decoder.layers.*.self_attention.k_       decoder.layers.*.self_attn.k_proj
    decoder.layers.*.self_attention.v_       decoder.layers.*.self_attn.v_proj
    decoder.layers.*.self_attention.out_     decoder.layers.*.self_attn.out_proj
    decoder.layers.*.self_norm.              decoder.layers.*.self_attn_layer_norm
    decoder.layers.*.cross_attention.q_      decoder.layers.*.encoder_attn.q_proj
    decoder.layers.*.cross_attention.k_      decoder.layers.*.encoder_attn.k_proj
    decoder.layers.*.cross_attention.v_      decoder.layers.*.encoder_attn.v_proj
    decoder.layers.*.cross_attention.out_    decoder.layers.*.encoder_attn.out_proj
    decoder.layers.*.cross_norm.             decoder.layers.*.encoder_attn_layer_norm
    decoder.layers.*.feed_forward.up.        decoder.layers.*.fc1
    decoder.layers.*.feed_forward.down.      decoder.layers.*.fc2
    decoder.layers.*.feed_norm.              decoder.layers.*.final_layer_norm
    head.weight                              lm_head.weight
    head.bias                                final_logits_bias
    """,
    repeated=("shared.weight", "model.shared.weight"),
    turn=lambda name, x: x.flatten() if name == "head.bias" else x,
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
