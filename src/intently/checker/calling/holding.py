"""What a subject holds: its parameters, or the tensors in a function's closure, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn


def held_by(subject: Any, name: str = "", depth: int = 3) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a module; the tensors in the closure or the fields of a function."""
    if isinstance(subject, nn.Module):
        for n, x in subject.named_parameters():
            yield f"{name}.{n}".lstrip("."), x
    elif isinstance(subject, Tensor):
        if subject.is_floating_point():
            yield name, subject
    elif depth == 0:
        return
    elif on_tensors_already(subject):  # code of NumPy
        from intently.checker.calling.arrays import held_arrays

        yield from held_arrays(subject).items()
    elif isinstance(constants := _constants(subject), list):  # of JAX
        yield from ((f"constant {n}", x) for n, x in enumerate(constants) if x.is_floating_point())
    elif isinstance(subject, Mapping):
        for n, x in subject.items():
            yield from held_by(x, f"{name}.{n}".lstrip("."), depth - 1)
    elif isinstance(subject, (list, tuple)):
        for n, x in enumerate(subject):
            yield from held_by(x, f"{name}.{n}".lstrip("."), depth - 1)
    elif isinstance(subject, partial):
        yield from held_by((subject.func, *subject.args, subject.keywords), name, depth - 1)
    elif isinstance(subject, MethodType):
        yield from held_by(subject.__self__, name, depth - 1)
    elif isinstance(subject, FunctionType):
        cells = zip(subject.__code__.co_freevars, subject.__closure__ or ())
        for n, cell in cells:
            with suppress(ValueError):  # a cell that is still empty
                yield from held_by(cell.cell_contents, f"{name}.{n}".lstrip("."), depth - 1)
        known = subject.__globals__
        for n in subject.__code__.co_names:
            if isinstance(known.get(n), (Tensor, nn.Module)):
                yield from held_by(known[n], f"{name}.{n}".lstrip("."), depth - 1)
    elif not isinstance(subject, type) and callable(subject) and hasattr(subject, "__dict__"):
        yield from held_by(vars(subject), name, depth - 1)


def on_tensors_already(subject: Any) -> bool:
    """Whether a function stands for code of NumPy, and takes tensors."""
    return isinstance(subject, FunctionType) and "on_tensors" in vars(subject)


def _constants(subject: Any) -> Any:
    home = type(subject).__module__
    return subject.constants if home == "intently.checker.calling.programs" else None


def less_precise(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The dtype of the two with the larger steps."""
    return a if torch.finfo(a).eps > torch.finfo(b).eps else b
