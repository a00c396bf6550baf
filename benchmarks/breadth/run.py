"""Run one family in all its ways, and judge each: this happens in the child process."""

from __future__ import annotations

import random
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import intently as it
from benchmarks.breadth import compare
from benchmarks.breadth.compare import CHANGED, RIGHT, SAID, SILENT, WRONG, Finding
from benchmarks.breadth.inputs import BATCH
from benchmarks.breadth.truth import Nothing, Truth
from intently.errors import IntentlyError

SEED = 3

DEEP_ONLY, NO_ATTENTION, NOT_BUILT = "right with deep only", "no attention", "not built"
VERDICTS = (RIGHT, DEEP_ONLY, SAID, SILENT, WRONG, CHANGED, NOT_BUILT)
"""What a family is found to be in one mode; `NO_ATTENTION` stands apart."""
WORST = {x: n for n, x in enumerate((NO_ATTENTION, *VERDICTS[:4], CHANGED, WRONG, NOT_BUILT))}


@dataclass
class Way:
    """One way to run a model: ``call`` gives its outputs for a ``batch``.

    ``beams`` is the number of a search.
    """

    name: str
    model: nn.Module
    call: Callable[[], Any]
    beams: int = 0
    batch: int = BATCH


@dataclass
class Row:
    """One family: what each of its modes is, how the two kinds of watch did, and why.

    ``checked`` are the calls that were verified, not compared and refused.
    """

    family: str
    library: str
    kind: str = ""
    modes: dict[str, str] = field(default_factory=dict)
    default: dict[str, str] = field(default_factory=dict)
    deep: dict[str, str] = field(default_factory=dict)
    checked: dict[str, list[int]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    matrices: int = 0
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """The worst of all modes; not built if there is none."""
        return max(self.modes.values(), key=WORST.__getitem__, default=NOT_BUILT)

    def json(self) -> dict[str, Any]:
        """Return the row as a dictionary that `Row` reads back."""
        return asdict(self)


def measured(row: Row, ways: Iterator[Way | tuple[str, str]], after: Callable[[Row], None]) -> Row:
    """Fill a row, and hand it over after each mode.

    A pair of ``ways`` is a mode that does not run, and why.
    """
    for way in ways:
        if isinstance(way, tuple):
            row.failed.setdefault(*way)  # the first reason is that of the smallest model
            continue
        row.kind = row.kind or type(way.model).__name__
        try:
            _one(row, way)
        except Exception as error:  # whatever a foreign model does is one cell of the table
            row.failed[way.name] = told(error)
        after(row)
    return row


def told(error: BaseException) -> str:
    """An error in one line, with the place where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
    return compare.shortened(f"{type(error).__name__}: {error}", 150) + where


def _one(row: Row, way: Way) -> None:
    """Run one mode unwatched, under the truth, watched, and watched with ``deep``."""
    first, _ = _outputs(way, nullcontext())
    plain, _ = _outputs(way, nullcontext())
    steady = _equal(first, plain)
    truth = Truth(way.model, way.batch)
    _outputs(way, truth.on())
    for x in truth.found:
        x.beams = way.beams
    row.matrices += len(truth.found)
    default = _watched(way, truth, plain if steady else None, deep=False)
    try:
        under_none, _ = _outputs(way, Nothing())
    except Exception as error:
        row.reasons[f"{way.name}, any dispatch mode"] = told(error)
        deep = Finding(SAID, "the model runs under no dispatch mode")
    else:
        deep = _watched(way, truth, under_none if steady else None, deep=True)
    row.modes[way.name] = _verdict(default, deep) if truth.found else NO_ATTENTION
    if not truth.found and CHANGED in (default.state, deep.state):
        row.modes[way.name] = CHANGED
    row.default[way.name], row.deep[way.name] = default.state, deep.state
    row.checked[way.name] = list(default.checked)
    for name, finding in (("", default), (" deep", deep)):
        if finding.why:
            row.reasons[way.name + name] = finding.why
    if not steady:
        row.reasons[f"{way.name}, unwatched"] = "two runs differ: outputs were not compared"


def _verdict(default: Finding, deep: Finding) -> str:
    """The verdict of a mode; a wrong matrix or output counts with and without ``deep``."""
    for state in (WRONG, CHANGED):
        if state in (default.state, deep.state):
            return state
    if default.state == RIGHT or default.state == SILENT:
        return default.state
    return DEEP_ONLY if deep.state == RIGHT else default.state


def _watched(way: Way, truth: Truth, expected: list[Tensor] | None, deep: bool) -> Finding:
    """Watch one run and judge it."""
    try:
        outputs, seen = _outputs(way, it.watch(way.model, deep=deep))
    except IntentlyError as error:
        return Finding(SAID, compare.shortened(str(error)))
    except Exception as error:
        return Finding(CHANGED, f"raises {told(error)}")
    if expected is not None and not _equal(outputs, expected):
        return Finding(CHANGED, f"outputs differ by {_difference(outputs, expected):.1e}")
    states = [entry.verified for entry in seen.calls]
    found = compare.judge(truth.found, [x for x in truth.all if not x.counts], seen, truth.factors)
    return found._replace(checked=tuple(map(states.count, (True, None, False))))


def _outputs(way: Way, within: AbstractContextManager[Any]) -> tuple[list[Tensor], Any]:
    """The tensors that a run returns, and what the block around it yields; seeds are set."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        with within as given:
            outputs = way.call()
        return [x.detach().clone() for x in flat(outputs)], given


def flat(x: Any) -> Iterator[Tensor]:
    """All tensors of nested outputs."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, dict):
        for y in x.values():
            yield from flat(y)
    elif isinstance(x, (list, tuple)):
        for y in x:
            yield from flat(y)


def _equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(
        a.shape == b.shape and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
        if a.is_floating_point()
        else torch.equal(a, b)
        for a, b in zip(first, second)
    )


def _difference(first: list[Tensor], second: list[Tensor]) -> float:
    """The largest difference of two outputs."""
    return max(
        (
            float((a.double() - b.double()).abs().nan_to_num(torch.inf).max())
            if a.shape == b.shape and not a.is_complex()
            else float("inf")
            for a, b in zip(first, second)
            if a.numel()
        ),
        default=float("inf"),
    )


@torch.no_grad()
def stirred(model: nn.Module) -> nn.Module:
    """Draw all weights again, so large that attention is far from uniform, and evaluate."""
    draw = torch.Generator().manual_seed(SEED)
    for parameter in model.parameters():
        if not parameter.is_floating_point() or not parameter.numel():
            continue
        noise = torch.randn(parameter.shape, generator=draw).to(parameter.dtype)
        if parameter.dim() > 1:
            fan_in = parameter[0].numel()
            parameter.copy_(noise * (1.0 if fan_in == 0 else fan_in**-0.5))
        else:
            parameter.copy_(parameter.nan_to_num(0.0).clamp(-2, 2) + 0.1 * noise)
    return model.eval()
