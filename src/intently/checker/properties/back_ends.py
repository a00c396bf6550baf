"""The same attention on other back ends: PyTorch's plain kernels in place of fused ones, autocast.

Each is a call that runs the same code otherwise. The outputs must agree: of kernels to rounding, of
autocast to what rounding the weights and inputs to bfloat16 does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from intently.checker.calling.subject import Subject
from intently.checker.calling.trials import modules_of
from intently.checker.examined import Examination
from intently.checker.precision import HALF
from intently.checker.properties.numbers import rounded, shortened
from intently.checker.properties.trial import Trial, part

SAME = 1e-2
"""How far float32 may be off."""
LEAST = 0.1
"""Differences under autocast that are rounding, whatever the rounding of weights does."""
OTHER = {"eager": "sdpa", "sdpa": "eager"}
"""The other function of transformers' models that claim both."""
FAST = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
"""Modules of PyTorch with a fused fast path."""


def kernels(subject: Subject, whole: Examination) -> Iterator[tuple[str, Subject]]:
    """The subject on other kernels of PyTorch, and what these are called."""
    if any(isinstance(m, FAST) for m in modules_of(subject.module)):
        plain = partial(patch, "torch.backends.mha.get_fastpath_enabled", lambda: False)
        yield "without the fast path of PyTorch", within(subject, plain)
    if whole.run is not None and any(x.name == "_safe_softmax" for x in whole.run.results):
        plain = partial(sdpa_kernel, [SDPBackend.MATH])
        yield "with the math kernel of scaled_dot_product_attention", within(subject, plain)
    config = getattr(subject.module, "config", None)
    other = OTHER.get(getattr(config, "_attn_implementation", None) or "")
    if other and getattr(subject.module, "_supports_sdpa", False):
        asked = partial(_with_implementation, subject.module, other)
        yield f"with attn_implementation={other!r}", within(subject, asked)


def autocast(trial: Trial) -> tuple[Subject, float] | None:
    """The subject in float32 under autocast, and how far it may be off; None if it cannot be told.

    That is where it casts to half types itself, or is another function in float32.
    """
    if trial.subject.rounded:
        return None
    with suppress(Exception):  # code that cannot be copied, or runs in float64 only
        subject = shortened(trial.subject, torch.float32)
        short = rounded(trial.subject, torch.bfloat16)
        with torch.no_grad():
            plain, off = (part(trial.read(x.output()), trial.first) for x in (subject, short))
        if plain <= SAME:
            half = within(subject, partial(torch.autocast, "cpu", dtype=torch.bfloat16))
            return replace(half, precision=HALF), max(LEAST, 8 * off)
    return None


def within(subject: Subject, context: Callable[[], AbstractContextManager[Any]]) -> Subject:
    """The subject, each call within a context."""
    run = subject.call

    def call(*args: Any, **given: Any) -> Any:
        with context():
            return run(*args, **given)

    return replace(subject, call=call)


@contextmanager
def _with_implementation(module: Any, name: str) -> Iterator[None]:
    """Every configuration of a model of transformers asks for another attention function."""
    configs = {id(c): c for m in module.modules() if (c := getattr(m, "config", None))}.values()
    known = [(c, getattr(c, "_attn_implementation", None)) for c in configs]
    known = [(c, before) for c, before in known if before in OTHER]
    try:
        for config, _ in known:
            config._attn_implementation = name
        yield
    finally:
        for config, before in known:
            config._attn_implementation = before
