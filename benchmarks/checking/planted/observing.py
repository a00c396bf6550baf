"""What a user can observe of a subject: results, gradients, changed inputs, and calls again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Observed = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """One way to call a subject.

    ``steps`` cuts the input ``along`` in pieces of its axis 1 and hands the state from call to call
    as ``past``; the inputs in ``covers`` tell of all steps so far. Inputs are made float64.
    """

    name: str
    inputs: dict[str, Any]
    train: bool = False
    steps: tuple[int, ...] = ()
    along: str = "x"
    covers: tuple[str, ...] = ()


def observed(make: Callable[[], Any], case: Case) -> Observed:
    """Call a fresh subject in float64, twice, and return all that it computed and changed."""
    subject = make()
    if isinstance(subject, nn.Module):
        subject = subject.double().train(case.train)
    leaves = {
        name: x.detach().double().requires_grad_() if _is_float(x) else x
        for name, x in case.inputs.items()
    }
    given = {name: x.clone() if isinstance(x, Tensor) else x for name, x in leaves.items()}
    before = {name: x.detach().clone() for name, x in given.items() if isinstance(x, Tensor)}
    found: Observed = {}
    for time in ("first", "again"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            y = called(subject, given, case)
        results = [x for x in _tensors(y) if x.is_floating_point()]
        for i, x in enumerate(results):
            found[f"{time} {i}"] = x.detach()
        if time == "first":
            found |= _gradients(results, subject, leaves)
    for name, x in before.items():
        if x.dtype != torch.bool:
            found[f"change of {name}"] = given[name].detach() - x
    return found


def difference(a: Observed, b: Observed) -> float:
    """The largest difference of any observation, relative to the size of b; ∞ for NaN and shape."""
    if a.keys() != b.keys():
        return torch.inf
    return max((_apart(a[name], b[name]) for name in b), default=0.0)


def _apart(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape or not torch.equal(a.isfinite(), b.isfinite()):
        return torch.inf
    here = b.isfinite()
    a, b = a[here].double(), b[here].double()
    if not b.numel():
        return 0.0
    size = b.abs().max().item()
    return (a - b).abs().max().item() / (size if size > 1e-8 else 1.0)


def called(subject: Any, given: dict[str, Any], case: Case) -> Any:
    """The result of one call, or of the calls for all steps, joined."""
    if not case.steps:
        return subject(**given)
    parts, past, seen = [], None, 0
    for x in given[case.along].split(case.steps, 1):
        seen += x.shape[1]
        others = {name: given[name][:, :seen] for name in case.covers}
        y, past = subject(**{**given, **others, case.along: x, "past": past})
        parts.append(y)
    return torch.cat(parts, 1)


def _gradients(results: list[Tensor], subject: Any, leaves: dict[str, Any]) -> Observed:
    """Gradients of a fixed weighted sum of the first result, zero where there is none."""
    of = {f"gradient of {name}": x for name, x in leaves.items() if _is_float(x)}
    if isinstance(subject, nn.Module):
        of |= {f"gradient of {name}": p for name, p in subject.named_parameters()}
    if not of:
        return {}
    y = results[0].nan_to_num()
    if not y.requires_grad:
        return {name: torch.zeros_like(x) for name, x in of.items()}
    ramp = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
    grads = torch.autograd.grad(
        (y * ramp).sum(), list(of.values()), allow_unused=True, materialize_grads=True
    )
    return dict(zip(of, grads))


def _tensors(y: Any) -> list[Tensor]:
    if isinstance(y, tuple | list):
        return [x for each in y for x in _tensors(each)]
    return [y] if isinstance(y, Tensor) else []


def _is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
