"""A subject in a shorter type: all of it, or with its numbers rounded to that type."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from intently.checker.calling.subject import Subject
from intently.checker.calling.understanding import cast, copied
from intently.checker.precision import precision_of


def shortened(subject: Subject, dtype: torch.dtype) -> Subject:
    """The subject with parameters and inputs in another type."""
    call = copied(subject.call, dtype)
    return replace(
        subject,
        call=call,
        owner=call,
        module=call if subject.module is not None else None,
        inputs={n: cast(x, dtype) for n, x in subject.inputs.items()},
        precision=precision_of(dtype),
        widened=False,
    )


def rounded(subject: Subject, dtype: torch.dtype) -> Subject:
    """The subject as it is, with parameters and inputs that a shorter type can hold."""
    inputs = {n: _rounded(x, dtype) for n, x in subject.inputs.items()}
    if not isinstance(subject.call, nn.Module):
        return replace(subject, inputs=inputs)
    made = copy.deepcopy(subject.call)
    with torch.no_grad():
        for x in made.parameters():
            x.copy_(_rounded(x, dtype))
    return replace(subject, call=made, owner=made, module=made, inputs=inputs)


def _rounded(x: Any, dtype: torch.dtype) -> Any:
    return cast(cast(x, dtype), x.dtype) if isinstance(x, Tensor) else x
