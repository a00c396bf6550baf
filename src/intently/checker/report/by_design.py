"""Findings that a library documents: not a mistake, and the sentence that says so."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from torch import nn

from intently.checker.calling.trials import stated
from intently.checker.report.finding import Finding

OF_T5 = r"(t5|mt5|umt5|longt5|switch_transformers|pop2piano|pix2struct|udop)"
DOCUMENTED = {
    (rf"transformers\.models\.{OF_T5}\.", "no-scale"): (
        "T5 has no 1/√d: its query weights are drawn smaller by that factor"
    ),
    (r"transformers\.models\.gpt_neo\.", "no-scale"): (
        "GPT-Neo was trained without 1/√d, and its checkpoints need that"
    ),
    (r"transformers\.models\.vit_mae\.", "dropout-in-eval"): (
        "ViTMAE masks other patches in every call, unless it is given noise"
    ),
    (r"torch\.ao\.nn\.quantized\.dynamic\.", "batch-mixed"): (
        "Dynamic quantisation takes one scale for all rows of the batch"
    ),
}
"""Where modules are defined and the finding, and what is documented."""
SCALES = ("no-scale", "scale-one-over-d", "scale-model-width", "scale-inverted", "other-scale")
WORDS = ("scal", "multiplier", "query_pre_attn")
"""Words in the names of what a configuration states about a scale."""


def by_design(found: Finding, subject: Any, scale: float | None) -> Finding:
    """A finding, as by design where its library or its configuration says so."""
    if found.kind != "mistake":
        return found
    module = subject if isinstance(subject, nn.Module) else nn.Module()
    homes = {f"{type(m).__module__}." for m in module.modules()}
    for (pattern, name), sentence in DOCUMENTED.items():
        if found.name == name and any(re.match(pattern, home) for home in homes):
            return replace(found, kind="by design", said=f"{found.said}. {sentence}")
    for name, x in module.named_parameters() if found.name == "not-normalised" else ():
        if x.ndim == 2 and not bool(x.any()):  # a gate that has learned nothing yet
            said = f"{found.said}; {name} is all zeros, and may be its gate"
            return replace(found, kind="convention", said=said)
    configured = any(hasattr(m, "config") for m in module.modules())
    if found.name in SCALES and scale is not None and configured:
        for name, x in stated(module, *WORDS).items():
            if x > 0 and any(math.isclose(scale, y, rel_tol=1e-4) for y in (x, x**-0.5)):
                said = f"{found.said}. The configuration states {name} = {x:g}"
                return replace(found, kind="by design", said=said)
    return found
