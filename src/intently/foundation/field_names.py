"""Names that other libraries give to our arguments, and the errors that answer them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from intently.errors import KindError, build

RENAMED = {
    "width": "embed_dim d_model hidden_size hidden_dim model_dim dim n_embd embedding_dim emb_dim "
    "query_dim channels in_channels d_in",
    "heads": "num_heads nhead n_head n_heads num_attention_heads number_of_heads h",
    "kv_heads": "num_kv_heads n_kv_heads num_key_value_heads num_query_groups",
    "context_width": "kdim vdim context_dim cross_attention_dim encoder_hidden_size",
    "head_width": "head_dim head_size key_dim d_k d_head dim_head d_out",
    "value_width": "value_dim d_v",
    "inner": "dim_feedforward d_ff dff ffn_dim intermediate_size mlp_dim",
    "dropout": "dropout_p dropout_rate attn_dropout attention_dropout attn_pdrop attn_drop p",
    "q": "query queries Q",
    "k": "key keys K",
    "v": "value values V",
    "x": "query queries inputs input hidden_states src tgt q",
    "context": "memory encoder_hidden_states encoder_output key value k v",
    "states": "memory encoder_hidden_states encoder_output context",
    "states_mask": "memory_mask context_mask",
    "cache": "past_key_value past_key_values layer_past kv_cache",
    "bias": "use_bias qkv_bias attn_bias attention_bias position_bias relative_position_bias",
    "scale": "softmax_scale sm_scale scaling",
    "softcap": "soft_cap logits_soft_cap attn_logit_softcapping",
    "sinks": "s_aux",
    "activation": "act hidden_act",
    "norm": "norm_first",
    "cross": "cross_heads",
    "lengths": "valid_lens src_lengths seq_lens valid_length",
}
"""Our parameters, and the names that others give them."""

CAUSAL = "is_causal causal use_causal_mask causal_mask"
PADDED = "key_padding_mask src_key_padding_mask tgt_key_padding_mask"
WEIGHTS = "need_weights average_attn_weights output_attentions return_attention_scores return_attn"
TEMPERATURE = "scale=1 / (temperature * d**0.5)"
SAID = {
    ("mask", CAUSAL): "mask=it.causal()",
    ("attention", CAUSAL): "attention=AttentionOptions(mask=it.causal())",
    ("mask", "attn_mask src_mask tgt_mask masks"): "mask=, in which True means attend",
    ("mask", "attention_mask"): "mask=it.padding(attention_mask.bool())",
    ("lengths", "attention_mask mask"): "it.padding(attention_mask.bool())",
    ("mask", PADDED): "mask=it.padding(~key_padding_mask), since True means attend",
    ("lengths", PADDED): "it.padding(~key_padding_mask), since True means attend",
    ("mask", "window_size sliding_window"): "mask=it.window(window_size - 1, 0)",
    ("before", "window_size size width"): "before=window_size - 1, after=0",
    ("scale", "temperature"): TEMPERATURE,
    ("attention", "temperature"): f"attention=AttentionOptions({TEMPERATURE})",
    ("head_widths", "head_dim key_dim d_k d_head dim_head value_dim"): "head_widths=(d, e)",
    ("projections", "bias qkv_bias use_bias"): "projections=Projections(bias=…)",
    ("attention", "mask score bias scale softcap sinks positions qk_norm"): (
        "attention=AttentionOptions(…), which holds it"
    ),
    ("", "batch_first"): "-: the batch always comes first",
    ("", "enable_gqa"): "-: heads may share keys without it",
    ("", "device dtype"): "-: convert the block by .to(…)",
    ("mask", WEIGHTS): "-: attend(…) of the same arguments returns the weights",
    ("", WEIGHTS): "-: its method attend(…) returns the weights",
}
"""What to write where a name alone does not say it: "" is every function, "-" nothing to write."""

F = TypeVar("F", bound=Callable[..., Any])


def answered(call: F) -> F:
    """Let a function or class answer names of other libraries with ours.

    >>> @answered
    ... def mix(width, heads): ...
    >>> mix(16, nhead=2)
    Traceback (most recent call last):
    ...
    intently.errors.KindError: mix: expected width, heads; got nhead. For nhead write heads=.
    """
    made: Any = call
    if isinstance(made, type):
        made.__init__ = answered(made.__init__)
        return call

    @functools.wraps(call)
    def answering(*given: Any, **options: Any) -> Any:
        try:
            return call(*given, **options)
        except TypeError as error:
            if not isinstance(error, KindError):
                check_names_of(call, given, options)
            raise

    return answering  # pyright: ignore[reportReturnType]


def plain_signature(call: F) -> F:
    """Hide ``*more`` and ``**other`` of a function that answers them itself, without a wrapper."""
    found = inspect.signature(call)
    kept = [p for p in found.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    made: Any = call
    made.__signature__ = found.replace(parameters=kept)
    return call


def check_names_of(call: Any, given: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Raise `KindError` if a function does not take these arguments, with the names that it has."""
    parameters = inspect.signature(call).parameters
    of = type(given[0]) if "self" in parameters else call
    own = [name for name in parameters if name != "self"]
    unknown = [name for name in options if name not in own]
    if unknown:
        fixes = "; ".join(_ours(each, own) for each in unknown)
        expected, got = ", ".join(own), ", ".join(unknown)
        raise build(KindError, of.__name__, expected, got, fix=fixes) from None
    most = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters.values() if p.name in own)
    count = len(given) - ("self" in parameters)
    if count > most:
        rest = ", ".join(f"{each}=" for each in own[most:])
        fix = f"name the others: {rest}" if rest else f"leave out {count - most} of them"
        if {"x", "context"} <= {*own}:
            fix = "write layer(x) for self-attention, layer(x, context) for cross-attention, and "
            fix += "it.attention(q, k, v) for what is projected already"
        elif own[:2] == ["q", "k"] and "v" not in own:
            fix = "write it.attention(q, k, v), or it.attend(q, k) @ v"
        expected = f"at most {most} argument{'s' * (most != 1)}" + " without a name" * bool(rest)
        raise build(KindError, of.__name__, expected, count, fix=fix) from None


def _ours(theirs: str, own: list[str]) -> str:
    """What to write instead of a name, for a function with these parameters."""
    for (parameter, names), text in SAID.items():
        if theirs in names.split() and (parameter in own or not parameter):
            kept = not text.startswith("-")
            return f"for {theirs} write {text}" if kept else f"leave out {theirs}{text[1:]}"
    for parameter, names in RENAMED.items():
        if parameter in own and theirs in names.split():
            return f"for {theirs} write {parameter}="
    near = get_close_matches(theirs, own, 1)
    return f"for {theirs} write {near[0]}=" if near else f"leave out {theirs}"
