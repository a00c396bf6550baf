"""Step by step with a cache: the same subject, called on pieces of its input."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from intently.examiner.subject import Subject, output_of

CACHES = ("past", "cache", "kv_cache", "past_key_values", "layer_past", "past_key_value", "state")


def stepped(subject: Subject, pieces: tuple[int, ...]) -> Subject | None:
    """The subject called on pieces of its input, each with the cache of the last; None without one.

    A cache is an argument of a known name, and what the call returns beside its output.
    """
    name = _cache_name(subject)
    if name is None or len(subject.of("x", "ids")) != 1:
        return None
    whole = subject.of("x", "ids")[0]

    def call(**given: Any) -> Tensor:
        x, past, out = given.pop(whole), None, []
        start = 0
        for n in pieces:
            piece = {**given, whole: x[:, start : start + n], name: past}
            made = subject.call(**piece)
            out.append(output_of(made))
            past = cache_of(made)
            start += n
        return torch.cat(out, 1)

    made = replace(subject, call=call, positional=False)
    try:
        with torch.no_grad():
            ran = subject.raw(**{name: None})
    except Exception:
        return None
    return made if cache_of(ran) is not None else None


def cache_of(out: Any) -> Any:
    """What a call returns for the next one, None if nothing."""
    if isinstance(out, Mapping) or hasattr(out, "past_key_values"):
        return getattr(out, "past_key_values", None)
    if isinstance(out, (list, tuple)) and len(out) > 1:
        rest = out[1:]
        return next((x for x in rest if isinstance(x, (list, tuple, dict)) or _is_cache(x)), None)
    return None


def _is_cache(x: Any) -> bool:
    return x is not None and not isinstance(x, (Tensor, int, float, bool))


def _cache_name(subject: Subject) -> str | None:
    said = next((n for n, meaning in subject.meanings.items() if meaning == "past"), None)
    if said is not None:
        return said
    target: Callable[..., Any] = subject.call
    if subject.module is not None and subject.call is subject.module:
        target = subject.module.forward
    try:
        names = inspect.signature(target).parameters
    except (TypeError, ValueError):
        return None
    return next((n for n in CACHES if n in names), None)
