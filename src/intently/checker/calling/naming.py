"""What the names of arguments say: which input is queries, context, token ids, a mask."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from intently.checker.calling.subject import Role, Subject, changed_at, is_whole

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
READ_BY = ("decoder_input_ids", "tgt", "trg", "target", "tgt_ids", "target_ids")
READ_BY += ("decoder_inputs_embeds", "query_input")
"""Inputs of a decoder: beside them, other ids or states are what it attends to."""


MEANINGS = (
    *("attend", "ignore", "add", "bias", "lengths", "past", "positions", "x", "context"),
    "sequence first",
)
"""What an argument may be said to mean."""
DOCUMENTED: dict[str, str] = {"torch.nn.": "ignore", "transformers.": "attend"}
"""What True means in the boolean masks of a library, by where its modules are defined."""


def roles_of(given: Mapping[str, Any], meanings: Mapping[str, str]) -> dict[str, Role]:
    """The role of each input: by what is said of it, its kind, its name, and those beside it."""
    roles: dict[str, Role] = {n: _role(n, x, meanings.get(n)) for n, x in given.items()}
    settings = (n for n, r in roles.items() if r == "setting" and isinstance(given[n], Tensor))
    free = [n for n in settings if given[n].is_floating_point()]
    if not any(r in ("q", "x", "ids") for r in roles.values()) and len(free) in (1, 2, 3):
        alike = len({given[n].ndim for n in free}) == 1
        three: tuple[Role, ...] = ("q", "k", "v") if alike else ("x",)
        plain: tuple[tuple[Role, ...], ...] = (("x",), ("x", "context"), three)
        first_is_read = [_beside(n) for n in free] == [True, False]
        roles.update(zip(free[::-1] if first_is_read else free, plain[len(free) - 1]))
    own = [n for n, r in roles.items() if r in ("x", "ids")]
    mine = [given[n] for n in own]
    flat = all(x.ndim == 2 and x.is_floating_point() for x in mine)  # a state beside a text
    for n in free if mine else ():
        told = _beside(n) or (flat and len(given[n]) == len(mine[0]))
        if roles[n] == "setting" and given[n].ndim > 2 and told:
            roles[n] = "context"
    if reader := next((n for n in READ_BY if n in own), None):
        roles |= {n: "context" for n in own if n != reader}
    return roles


def _beside(name: str) -> bool:
    """Whether a name tells that an input is attended to beside a main one."""
    return any(word in name.lower() for word in OTHERS)


def _role(name: str, x: Any, meaning: str | None) -> Role:
    if meaning in ("x", "context"):
        return meaning
    if meaning not in (None, "sequence first"):
        return "mask"
    if not isinstance(x, Tensor):
        return "setting"
    named = named_role(name)
    lengths = x.ndim == 1 and is_whole(x) and "len" in name.lower()
    if named == "mask" or x.dtype == torch.bool or lengths:
        return "mask"
    if x.is_floating_point():
        return named or "setting"
    return "ids" if x.ndim == 2 and named in (None, "ids", "x", "context") else "setting"


def named_role(name: str) -> Role | None:
    """The role that a name tells, None if it tells none."""
    for role, known in NAMES.items():
        if name in known:
            return role
    return "mask" if "mask" in name.lower() else None


def parameters_named(subject: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a call by name, as far as they can be known."""
    if isinstance(subject, partial):
        inner = [*parameters_named(subject.func).items()][len(subject.args) :]
        return {n: p for n, p in inner if n not in subject.keywords}
    target: Callable[..., Any] = subject.forward if isinstance(subject, nn.Module) else subject
    if (schema := getattr(target, "schema", None)) is not None:  # TorchScript
        names = [x.name for x in schema.arguments]
        return _parameters(names[1:] if isinstance(subject, nn.Module) else names)
    own = getattr(subject, "call", None)  # Keras: forward takes anything and hands it on
    try:
        found = inspect.signature(target).parameters
        if all(map(catches_all, found.values())) and callable(own):
            found = inspect.signature(own).parameters
        return dict(found)
    except (TypeError, ValueError):
        return _documented(target)


def catches_all(p: inspect.Parameter) -> bool:
    """Whether a parameter takes any number of arguments."""
    return p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)


def _documented(target: Any) -> dict[str, inspect.Parameter]:
    """The signature that opens the documentation of a built-in function."""
    head = (getattr(target, "__doc__", None) or "").strip().split(")")[0]
    with suppress(SyntaxError):
        made = ast.parse(f"def {head}): pass").body[0]
        if isinstance(made, ast.FunctionDef):
            return _parameters([x.arg for x in made.args.args], len(made.args.defaults))
    return {}


def _parameters(names: list[str], optional: int = 0) -> dict[str, inspect.Parameter]:
    """Parameters by name, of which the last so many have a default."""
    defaults = [inspect.Parameter.empty] * (len(names) - optional) + [None] * optional
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return {n: inspect.Parameter(n, kind, default=x) for n, x in zip(names, defaults)}


def sequence_first(subject: Any, meanings: dict[str, str], given: Mapping[str, Any]) -> bool:
    """Whether batch comes second: said, by the layer's own ``batch_first``, or by a padding mask.

    A mask (b, t) beside an input (t, b, c) of other sizes leaves no other reading.
    """
    if "sequence first" in meanings.values():
        return True
    shapes = {n: tuple(x.shape) for n, x in given.items() if isinstance(x, Tensor)}
    if any(len(shape) > 3 for shape in shapes.values()):
        return False
    theirs = type(subject).__module__.startswith("torch.nn.")
    for part in subject.modules() if theirs else [subject]:
        if getattr(part, "batch_first", None) is not None:
            return part.batch_first is False
    wide = [shape[:2] for shape in shapes.values() if len(shape) == 3]
    masks = [shapes.get(n, ()) for n, m in meanings.items() if m in ("attend", "ignore")]
    return any(len(mask) == 2 and mask not in wide and mask[::-1] in wide for mask in masks)


def with_meanings(subject: Subject, given: Any) -> Subject:
    """The subject with the meaning of each mask, and a note on how it is known."""
    meanings, notes = dict(subject.meanings), list(subject.notes)
    for name in subject.of("mask"):
        x = subject.inputs.get(name)
        if name in meanings or not isinstance(x, Tensor):
            continue
        found, how = None, ""
        with suppress(Exception):  # whatever the code does with another mask
            found, how = _meaning(subject, name, x, given)
        unknown = f"what `{name}` means is not known: say it in arguments="
        notes.append(f"the meaning of `{name}` is {how}" if found else unknown)
        meanings |= {name: found} if found else {}
    if subject.sequence_first:
        notes.append("called with the sequence first")
    return replace(subject, meanings=meanings, notes=tuple(notes))


def _meaning(subject: Subject, name: str, x: Tensor, given: Any) -> tuple[str | None, str]:
    if x.is_floating_point() and not bool(((x == 0) | (x == 1)).all()):
        if bool(((x == 0) | (x <= -1e3)).all()):
            return "add", "told by its values"
        return "bias" if x.ndim >= 2 else None, "told by its values"
    if x.ndim == 1 and is_whole(x):
        return "lengths", "told by its values"
    if given is torch.nn.functional.scaled_dot_product_attention:
        return "attend", "documented"
    home = type(given).__module__ if isinstance(given, nn.Module) else ""
    for prefix, meaning in DOCUMENTED.items():
        if home.startswith(prefix):
            return meaning, "documented"
    return _by_trial(subject, name, x), "found by trial"


def _by_trial(subject: Subject, name: str, mask: Tensor) -> str | None:
    """Which inputs an output depends on, beside where the mask is True."""
    true = mask != 0
    names = subject.of("context", "k") or subject.of("x", "ids")
    if bool(true.all()) or not bool(true.any()) or not names:
        return None
    first, turned = subject.output(), {name: (mask == 0).to(mask.dtype)}
    told = not subject.of("context") or any(w in name for w in OTHERS)
    if told and mask.ndim == 2 and torch.equal(subject.output(**turned), first):
        for side in (true[:, 0], true[:, -1]):  # what has no effect tells by where it ends
            if bool((side == side[0]).all()):
                return "attend" if bool(side[0]) else "ignore"
        return None
    if first.ndim < 3:
        return None
    depends = _dependence(subject, [names[0], *subject.of("v")], first)
    t, s = depends.shape[1:]
    own = torch.eye(t, s, dtype=torch.bool) & (t == s)
    for shape in _shapes(true, *depends.shape):
        for meaning, allowed in (("attend", shape), ("ignore", ~shape)):
            if bool((depends <= allowed | own).all()) and bool((depends & ~own).any()):
                return meaning
    return None


def _dependence(subject: Subject, names: list[str], first: Tensor) -> Tensor:
    """Which outputs (b, t) depend on which inputs (b, s), False where they do not."""
    x = subject.inputs[names[0]]
    axis = 1 if x.ndim == 3 or not x.is_floating_point() else x.ndim - 2
    columns: list[Tensor] = []
    for j in range(x.shape[axis]):
        changed = {n: changed_at(subject.inputs[n], axis, j) for n in names}
        off = (subject.output(**changed) - first).abs().nan_to_num(1.0)
        off = off.transpose(1, 2).flatten(2) if off.ndim == 4 else off
        columns.append(off.amax(-1) > 1e-6 * first.abs().nan_to_num(0.0).amax())
    return torch.stack(columns, -1)


def _shapes(mask: Tensor, b: int, t: int, s: int) -> Iterator[Tensor]:
    """The mask as (b, t, s), in the ways in which it may be laid out."""
    mask = mask[:, 0] if mask.ndim == 4 and mask.shape[1] == 1 else mask
    if mask.shape == (b, s):
        yield mask[:, None].expand(b, t, s)
    if tuple(mask.shape) in ((t, s), *product((1, b), (1, t), (s,))):
        yield mask.expand(b, t, s)
