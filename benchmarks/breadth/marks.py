"""What `truth` knows of tensors, of PyTorch's operators, and of windows that overlap."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

SOFTMAX = {"softmax", "_softmax", "_safe_softmax", "special_softmax"}
LOG_SOFTMAX = {"log_softmax", "_log_softmax", "special_log_softmax"}
PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "matmul": (0, 1), "mv": (0, 1), "dot": (0, 1)}
PRODUCTS |= {"addmm": (1, 2), "baddbmm": (1, 2), "addmv": (1, 2), "linear": (0, 1)}
NATIVE = {"_transformer_encoder_layer_fwd", "_native_multi_head_attention"}
FUSED = "scaled_dot_product"
MOVES = {
    "view", "_unsafe_view", "reshape", "permute", "transpose", "t", "mT", "expand", "slice",
    "select", "squeeze", "unsqueeze", "clone", "contiguous", "alias", "detach", "split",
    "split_with_sizes", "chunk", "unbind", "cat", "stack", "constant_pad_nd", "roll",
    "flip", "repeat", "narrow", "unfold", "index", "index_select", "lift_fresh",
    "_reshape_alias", "movedim", "view_as", "_reshape_copy", "permute_copy", "flatten",
    "unflatten",
}  # fmt: skip
POINTWISE = {
    "mul", "div", "add", "sub", "where", "masked_fill", "dropout", "native_dropout",
    "_to_copy", "nan_to_num", "clamp", "clamp_min", "clamp_max", "to", "type_as", "relu",
    "copy_", "pow", "softplus", "threshold", "maximum", "minimum", "reciprocal",
    "log_sigmoid_forward",
}  # fmt: skip
STARTS = SOFTMAX | LOG_SOFTMAX | {"exp", "exp2", "logsumexp", "topk", "sort", "_sparse_softmax"}
KNOWN = STARTS | LOG_SOFTMAX | set(PRODUCTS) | MOVES | POINTWISE | {"sum", "convolution"}

COARSE, LOW = 1e-4, -1e3
"""The precision that counts as half, and the scores that count as hidden."""


@dataclass
class Attended:
    """One softmax: the ``weights`` (…, s) as normalised, and as they were multiplied (``used``).

    ``laid`` are its rows as one matrix, if it attends in windows that overlap. ``counts`` says that
    it met values; ``batch`` is the number of texts, ``beams`` that of the beams of a search, which
    may have given up some of them. ``rounding`` is what half precision may add to any weight.
    """

    module: str
    how: str
    weights: Tensor
    used: list[Tensor] = field(default_factory=list)
    laid: list[Tensor] = field(default_factory=list)
    counts: bool = False
    batch: int = 1
    beams: int = 0
    rounding: float = 0.0

    def forms(self, width: int | None = None) -> list[Tensor]:
        """The rows (n, s) in float64 as normalised, and as multiplied if that differs in width.

        A part of the keys may be left out (a sink), or multiplied in several pieces: then all
        pieces together are one form, and each is one for a recording of a ``width``. Windows as one
        matrix are another, and the only one for a recording of their ``width``, so that its rows
        have to lie at their places.
        """
        whole = self.weights.double().reshape(-1, self.weights.shape[-1])
        laid, pieces = [x.double() for x in self.laid], self.pieces()
        if whole.shape[-1] != width and any(x.shape[-1] == width for x in laid):
            return [*laid, *(x for x in pieces if x.shape[-1] == width)]
        side_by_side = pieces and all(len(x) == len(whole) for x in pieces)
        found = [whole, *([torch.cat(pieces, -1)] if side_by_side else []), *laid]
        return found if width is None else [*found, *pieces]

    def pieces(self) -> list[Tensor]:
        """The rows (n, s) in float64 of each product with values."""
        pieces = list[Tensor]()
        for x in self.used:
            rows = x.double().reshape(-1, x.shape[-1])
            if not any(rows.shape == y.shape and torch.equal(rows, y) for y in pieces):
                pieces.append(rows)
        return pieces


@dataclass
class Mark:
    """What is known of a tensor: which softmax it holds, and which of its keys, from 1.

    ``keys`` has the shape of the tensor, or is None where the places are not known any more.
    ``exponentials`` (…, t, s) are to be divided by their sum.
    """

    kind: str
    source: Attended | None
    keys: Tensor | None
    axis: int | Sequence[int] = -1
    shared: bool = False
    chosen: bool = False
    exponentials: Tensor | None = None


def rounding(scores: Tensor, eps: float) -> float:
    """How far weights may be from exact ones if scores are rounded three times in half precision.

    Each time a score z moves by up to eps |z| / 2, and a weight w by w (1 − w) times the difference
    of two such moves.
    """
    if eps < COARSE:
        return 0.0
    seen = scores[scores.isfinite() & (scores > LOW)]
    most = float(seen.abs().max()) if seen.numel() else 0.0
    return eps * (1 + 1.5 * most) / 2


def axis_of(args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    """The axis that a softmax is asked for."""
    return int(args[1] if len(args) > 1 else kwargs["dim"])


def tensors(x: Any) -> Iterator[Tensor]:
    """All tensors of nested arguments or results."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, (list, tuple)):
        for y in x:
            yield from tensors(y)
    elif isinstance(x, dict):
        for y in x.values():
            yield from tensors(y)


def spread(keys: Tensor, shape: Sequence[int]) -> Tensor | None:
    """Keys broadcast to a shape, None if they do not fit."""
    try:
        return keys.expand(shape)
    except RuntimeError:
        return None


def varies(keys: Tensor, axis: int) -> bool:
    """Whether different keys lie along an axis; one key alone lies along any axis of size 1."""
    if keys.numel() == 0 or keys.shape[axis] == 1:
        return keys.numel() > 0 and int(keys.max()) <= 1
    return bool((keys.amax(axis) != keys.amin(axis)).any())


PADDING = -1


def laid_out(weights: Tensor, values: Tensor) -> Tensor | None:
    """Rows (n · r, s) of the ``weights`` (n, r, c) of r queries each that attend to windows.

    A window (c, d) of ``values`` (n, c, d) begins r places after the one before. Values of one
    number are padding: it is left out at both ends unless it is attended to. None if these are no
    such windows.
    """
    if weights.dim() < 3 or weights.shape[:-2] != values.shape[:-2]:
        return None
    weights, values = weights.flatten(0, -3), values.flatten(0, -3)
    n, r, c = weights.shape
    if values.shape[1] != c or not values.numel() or n < 2 or not 0 < r < c:
        return None
    number = values.flatten(0, 1).unique(dim=0, return_inverse=True)[1].view(n, c)
    number[_padding(values)] = PADDING
    turn = _turns(number, r)
    if turn is None:
        return None
    width = max(turn) * r + c
    made, kept = weights.new_zeros(n, r, width), torch.zeros(width, dtype=torch.bool)
    blind = (weights - 1 / c).abs().amax(-1, keepdim=True) < 1e-6
    needed = (number != PADDING) | ((weights != 0) & ~blind).any(1)
    for i, k in enumerate(turn):
        made[i, :, k * r : k * r + c] = weights[i]
        kept[k * r : k * r + c] |= needed[i]
    places = kept.nonzero().flatten().tolist() or [0]
    return made[..., places[0] : places[-1] + 1].flatten(0, 1)


def merged(weights: Tensor, values: Tensor) -> Tensor | None:
    """Rows (n · r, c) with the weights of equal values (n, c, d) added; None if none are."""
    if weights.shape[:-2] != values.shape[:-2] or not values.numel():
        return None
    number = values.flatten(0, -2).unique(dim=0, return_inverse=True)[1].view(-1, values.shape[-2])
    real = ~_padding(values).view(-1, 1, values.shape[-2])
    same = (number[:, :, None] == number[:, None]) & real
    if not bool((same.sum(-1) > 1).any()):
        return None
    weights = weights.reshape(-1, *weights.shape[-2:])
    same |= torch.eye(number.shape[-1], dtype=torch.bool)
    first = same.int().argmax(-1)[:, None].expand_as(weights)
    return torch.zeros_like(weights).scatter_add(-1, first, weights).flatten(0, 1)


def _padding(values: Tensor) -> Tensor:
    """Which values (…, d) are one number d times, as padding is."""
    return (values == (values[..., :1] if values.shape[-1] > 1 else 0)).all(-1)


def _turns(number: Tensor, r: int) -> list[int] | None:
    """Which window of its row of windows each is, from 0; None if they are in no such rows."""
    windows = [tuple(x) for x in number.tolist()]
    empty = (PADDING,) * (number.shape[1] - r)
    after: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i, window in enumerate(windows):
        after[window[:-r]].append(i)
    ends = {window[r:] for window in windows} - {empty}
    now = [i for i, window in enumerate(windows) if window[:-r] not in ends]
    turn, step = dict.fromkeys(now, 0), 0
    while now:
        step += 1
        shared = {windows[i][r:] for i in now} - {empty}
        now = [j for end in shared for j in after.get(end, ()) if j not in turn]
        turn.update(dict.fromkeys(now, step))
    counts = [list(turn.values()).count(k) for k in range(step)]
    if len(turn) < len(windows) or len(counts) < 2 or len(set(counts)) > 1:
        return None
    return [turn[i] for i in range(len(windows))]
