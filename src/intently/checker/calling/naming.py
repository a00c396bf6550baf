"""What the names of arguments say: which input is queries, context, token ids, a mask."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from intently.checker.calling.subject import Role

NAMES: dict[Role, tuple[str, ...]] = {
    "q": ("q", "query", "queries", "xq", "query_states", "query_layer"),
    "k": ("k", "key", "keys", "xk", "key_states", "key_layer"),
    "v": ("v", "value", "values", "xv", "value_states", "value_layer"),
    "past k": ("past_k", "past_key", "past_keys", "k_cache", "key_cache", "cache_k"),
    "past v": ("past_v", "past_value", "past_values", "v_cache", "value_cache", "cache_v"),
    "x": (
        *("x", "hidden_states", "input", "inputs", "src", "tgt", "target", "tensor", "hidden"),
        *("embeddings", "inputs_embeds", "sequence", "h", "feats", "features", "sample"),
        *("pixel_values", "image", "images", "img", "input_features", "input_values"),
    ),
    "context": (
        *("context", "encoder_hidden_states", "memory", "cond", "kv", "source", "enc", "ctx"),
        *("encoder_output", "encoder_out", "encoder_outputs", "y", "states", "key_value_states"),
        *("encoder_states", "cross_states"),
    ),
    "ids": (
        *("input_ids", "ids", "idx", "tokens", "token_ids", "src_ids", "decoder_input_ids"),
        *("tgt_ids", "target_ids"),
    ),
    "mask": (
        *("mask", "attn_mask", "attention_mask", "key_padding_mask", "src_key_padding_mask"),
        *("padding_mask", "src_mask", "tgt_mask", "encoder_attention_mask", "key_mask"),
        *("pad_mask", "lengths", "lens", "seq_lens", "memory_key_padding_mask", "attn_bias"),
        *("bias", "context_mask", "memory_mask", "tgt_key_padding_mask", "is_causal"),
        "decoder_attention_mask",
    ),
}
OTHERS = ("enc", "memory", "context", "source", "states", "cond", "text", "media", "kv")
"""Parts of the names of what is attended to beside a main input."""
READ_BY = ("decoder_input_ids", "tgt", "target", "tgt_ids", "target_ids", "decoder_inputs_embeds")
"""Inputs of a decoder: beside them, other ids or states are what it attends to."""


def roles_of(given: Mapping[str, Any], meanings: Mapping[str, str]) -> dict[str, Role]:
    """The role of each input: by what is said of it, its kind, its name, and those beside it."""
    roles: dict[str, Role] = {n: _role(n, x, meanings.get(n)) for n, x in given.items()}
    free = [
        n
        for n, x in given.items()
        if roles[n] == "setting" and isinstance(x, Tensor) and x.is_floating_point()
    ]
    if not any(r in ("q", "x", "ids") for r in roles.values()) and len(free) in (1, 2, 3):
        plain: tuple[tuple[Role, ...], ...] = (("x",), ("x", "context"), ("q", "k", "v"))
        roles.update(zip(free, plain[len(free) - 1]))
    mine = [given[n] for n, r in roles.items() if r in ("x", "ids")]
    flat = all(x.ndim == 2 and x.is_floating_point() for x in mine)  # a state beside a text
    for n in free if mine else ():
        told = any(w in n.lower() for w in OTHERS) or (flat and len(given[n]) == len(mine[0]))
        if roles[n] == "setting" and given[n].ndim > 2 and told:
            roles[n] = "context"
    reader = next((n for n in READ_BY if roles.get(n) in ("x", "ids")), None)
    if reader is not None:
        roles |= {n: "context" for n, r in roles.items() if r in ("x", "ids") and n != reader}
    return roles


def _role(name: str, x: Any, meaning: str | None) -> Role:
    if meaning in ("x", "context"):
        return meaning
    if meaning == "sequence first":
        meaning = None
    if meaning is not None:
        return "mask"
    if not isinstance(x, Tensor):
        return "setting"
    named = named_role(name)
    whole = not x.is_floating_point() and x.dtype != torch.bool
    if named == "mask" or x.dtype == torch.bool:
        return "mask"
    if whole:
        return "ids" if x.ndim == 2 and named in (None, "ids", "x", "context") else "setting"
    return named or "setting"


def named_role(name: str) -> Role | None:
    """The role that a name tells, None if it tells none."""
    return next((role for role, known in NAMES.items() if name in known), None)


def parameters_named(subject: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a call by name, as far as they can be known."""
    if isinstance(subject, partial):
        inner = parameters_named(subject.func)
        bound = len(subject.args)
        return {
            n: p
            for i, (n, p) in enumerate(inner.items())
            if i >= bound and n not in subject.keywords
        }
    target: Callable[..., Any] = subject.forward if isinstance(subject, nn.Module) else subject
    schema = getattr(target, "schema", None)  # TorchScript
    if schema is not None:
        own = 1 if isinstance(subject, nn.Module) else 0
        return _parameters([x.name for x in schema.arguments[own:]])
    own = getattr(subject, "call", None)  # Keras: forward takes anything and hands it on
    try:
        found = dict(inspect.signature(target).parameters)
        if all(_catches_all(p) for p in found.values()) and callable(own):
            found = dict(inspect.signature(own).parameters)
        return found
    except (TypeError, ValueError):
        return _documented(target)


def _catches_all(p: inspect.Parameter) -> bool:
    return p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)


def _documented(target: Any) -> dict[str, inspect.Parameter]:
    """The signature that opens the documentation of a built-in function."""
    text = getattr(target, "__doc__", None) or ""
    head = text.strip().split(")")[0] + "): pass"
    try:
        tree = ast.parse(f"def {head}").body[0]
    except SyntaxError:
        return {}
    if not isinstance(tree, ast.FunctionDef):
        return {}
    names = [x.arg for x in tree.args.args]
    return _parameters(names, len(names) - len(tree.args.defaults))


def _parameters(names: list[str], needed: int | None = None) -> dict[str, inspect.Parameter]:
    """Parameters by name, of which the first so many have no default; None: all."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    empty = inspect.Parameter.empty
    count = len(names) if needed is None else needed
    return {
        name: inspect.Parameter(name, kind, default=empty if n < count else None)
        for n, name in enumerate(names)
    }


def required(subject: Any) -> list[str]:
    """The names of the parameters without a default."""
    return [
        n
        for n, p in parameters_named(subject).items()
        if p.default is p.empty and not _catches_all(p)
    ]
