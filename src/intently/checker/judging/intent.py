"""Which keys each query should attend, and the ways in which code gets that wrong.

An intent is made of parts, such as a causal mask and padding; each part has variants, one for each
mistake that is known of it. What was measured is looked up among all intents with at most two
parts replaced by a variant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, permutations, product
from typing import Any

import torch
from torch import Tensor

from intently.core.biases import Bias, as_bias
from intently.core.masks import Mask, causal, window
from intently.core.masks.by_position import _Causal, _Window
from intently.core.masks.geometry import Geometry
from intently.core.masks.mask import Both
from intently.core.masks.ragged import Padding
from intently.errors import ArgumentError, build

ACROSS = "hidden by a causal mask"
"""What is said of cross-attention that is masked by position."""

Sizes = tuple[int, int, int, int]
Given = Mapping[str, tuple[Any, str]]


@dataclass(frozen=True)
class Part:
    """One rule of an intent: which keys it allows (b, h, t, s), and its mistaken variants."""

    name: str
    allowed: Tensor
    variants: Mapping[str, Tensor]
    padding: bool = False


@dataclass(frozen=True)
class Intent:
    """All rules together."""

    parts: tuple[Part, ...]
    sizes: tuple[int, int, int, int]
    inferred: bool = False
    open: bool = False
    """Whether no mask is stated, and none that is usual makes what was measured."""

    @property
    def allowed(self) -> Tensor:
        """Which keys each query should attend (b, h, t, s)."""
        out = torch.ones(self.sizes, dtype=torch.bool)
        for part in self.parts:
            out = out & part.allowed
        return out

    @property
    def by_position(self) -> Tensor:
        """Which keys are allowed as far as positions decide, whatever is padding."""
        out = torch.ones(self.sizes, dtype=torch.bool)
        for part in self.parts:
            if not part.padding:
                out = out & part.allowed
        return out

    @property
    def real(self) -> Tensor:
        """Which queries (b, h, t, 1) are no padding themselves, where they are the keys."""
        b, h, t, s = self.sizes
        out = torch.ones(b, h, t, 1, dtype=torch.bool)
        for part in self.parts if t == s else ():
            if part.padding:
                out = out & part.allowed.diagonal(dim1=-2, dim2=-1)[..., None]
        return out

    def explained(self, seen: Tensor, most: int = 2) -> tuple[tuple[str, str], ...] | None:
        """The fewest mistakes (part, variant) that make ``seen``; () if it is right.

        Rows that see nothing, or should not, are not compared: what they give is another matter.
        Of equal explanations, one that is right for these rows too comes first.
        """
        compared = self.allowed.any(-1, keepdim=True) & self.real
        for n in range(most + 1):
            found: tuple[tuple[str, str], ...] | None = None
            for names, made in self._mistaken(n):
                off = made != seen
                if not bool(off.any()):
                    return _each(names)
                some = compared & made.any(-1, keepdim=True)
                if found is None and bool(some.any()) and not bool((off & some).any()):
                    found = names
            if found is not None:
                return _each(found)
        return None

    def _mistaken(self, n: int) -> Iterator[tuple[tuple[tuple[str, str], ...], Tensor]]:
        """Each way to get n parts wrong, and what it makes."""
        for chosen in combinations(range(len(self.parts)), n):
            for names in product(*(self.parts[i].variants for i in chosen)):
                made = torch.ones(self.sizes, dtype=torch.bool)
                wrong = dict(zip(chosen, names))
                for i, part in enumerate(self.parts):
                    made = made & (part.variants[wrong[i]] if i in wrong else part.allowed)
                yield tuple((self.parts[i].name, v) for i, v in zip(chosen, names)), made
        if n == 1:
            yield from self._together()

    def _together(self) -> Iterator[tuple[tuple[tuple[str, str], ...], Tensor]]:
        """The rules of position as one mask that is wrong as a whole."""
        parts = [p for p in self.parts if not p.padding]
        if len(parts) < 2:
            return
        name, rest = " & ".join(p.name for p in parts), torch.ones(self.sizes, dtype=torch.bool)
        for part in self.parts:
            rest = rest & part.allowed if part.padding else rest
        yield ((name, "inverted"),), ~self.by_position & rest
        if not bool(rest.all()):
            yield ((self.written(), "inverted"),), ~self.allowed
        for variant in ("transposed", "top-left"):
            if all(variant in p.variants for p in parts):
                made = rest
                for part in parts:
                    made = made & part.variants[variant]
                yield ((name, variant),), made

    def written(self) -> str:
        """The intent in words."""
        return " & ".join(p.name for p in self.parts) or "no mask"


def intended(
    mask: Mask | None, given: Mapping[str, tuple[Any, str]], sizes: tuple[int, int, int, int]
) -> Intent:
    """The intent that is stated: by ``mask``, and by arguments with their meaning."""
    parts = [] if mask is None else [_of_mask(m, sizes) for m in _flat(mask)]
    for name, (value, meaning) in given.items():
        part = _of_argument(name, value, meaning, sizes)
        if part is not None and not any(_same(p, part) for p in parts):
            parts.append(part)
    return Intent(tuple(parts), sizes)


def _each(names: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Variants that are two mistakes in one part, as two."""
    return tuple((part, v) for part, both in names for v in both.split(" with "))


def _same(a: Part, b: Part) -> bool:
    """Whether two parts state one rule."""
    return bool((a.allowed == b.allowed).all())


def inferred(seen: Tensor, stated: Intent, cross: bool) -> Intent:
    """The stated intent and the mask by position that comes nearest to what was measured.

    Between two sequences (``cross``) of other lengths there is no order to mask by.
    """
    sizes = stated.sizes
    if stated.explained(seen, 0) is not None:
        return stated
    if cross and sizes[2] != sizes[3]:
        across = {ACROSS: dense_mask(causal(offset=0), sizes)}
        across[f"{ACROSS} from the end"] = dense_mask(causal(), sizes)
        every = Part("every key", torch.ones(sizes, dtype=torch.bool), across)
        intent = Intent((every, *stated.parts), sizes)
        if intent.explained(seen, 1) is not None:
            return intent
    t, s = sizes[2:]
    at = torch.arange(t)[:, None] + s - t - torch.arange(s)
    reach = int(at.expand(sizes)[seen].abs().max()) if bool(seen.any()) else 0
    widths = [n for n in (reach, reach - 1, reach + 1) if 0 < n < s]
    usual = [causal(), *(causal() & window(n, 0) for n in widths)]
    around = [window(n, n) for n in widths]
    many = min(t, s) > 4  # fewer may look like anything
    for most, candidates in ((0, [*usual, *around]), (1, usual[:1] * many)):
        for mask in candidates:
            parts = tuple(_of_mask(m, sizes) for m in _flat(mask))
            intent = Intent((*parts, *stated.parts), sizes, inferred=True)
            if intent.explained(seen, most) is not None:
                return intent
        if stated.explained(seen, 1) is not None:
            return stated
    return replace(stated, open=True)


def with_window(seen: Tensor, mask: Mask, given: Given, sizes: Sizes, widths: list[int]) -> Intent:
    """The stated intent; within a window, where a configuration states its width."""
    plain = intended(mask, given, sizes)
    if plain.explained(seen, 0) is None:
        for n in widths:
            intent = intended(mask & window(n - 1, 0), given, sizes)
            if intent.explained(seen, 0) is not None:
                return intent
    return plain


def reach(mask: Mask) -> int:
    """How many keys before or after its own a window holds; 0 without a window."""
    sides = [n for m in _flat(mask) if isinstance(m, _Window) for n in (m.before, m.after)]
    return max((n for n in sides if n < 64), default=0)


def _flat(mask: Mask) -> Iterator[Mask]:
    if isinstance(mask, Both):
        for part in mask.parts:
            yield from _flat(part)
    else:
        yield mask


class Unfit(ArgumentError):  # noqa: N818 - it is a refusal
    """A stated mask that is of other lengths than an attention."""


def dense_mask(mask: Mask, sizes: Sizes) -> Tensor:
    """Return a mask as booleans (b, h, t, s); raises `Unfit` for one of other lengths."""
    g = Geometry(sizes[:2], *sizes[2:], torch.device("cpu"))
    try:
        return mask.dense(g).expand(sizes)
    except (IndexError, RuntimeError, ArgumentError):
        b, h, t, s = sizes
        expected = f"a mask for b={b}, h={h}, t={t}, s={s}"
        fix = "pass inputs= of the lengths that the mask is for"
        raise build(Unfit, "mask", expected, repr(mask), fix=fix) from None


def dense_bias(bias: Bias | Tensor, sizes: Sizes) -> Tensor:
    """A bias (b, h, t, s)."""
    t, s = sizes[2:]
    g = Geometry(sizes[:2], t, s, torch.device("cpu"))
    return as_bias(bias).tile(g, torch.arange(t), torch.arange(s)).double().expand(sizes)


def added_by(given: Given, sizes: Sizes) -> Tensor | None:
    """What arguments add to the scores (b, h, t, s) of keys that they do not hide; None if 0."""
    b, h, t, s = sizes
    total = torch.zeros(sizes, dtype=torch.double)
    for x, meaning in given.values():
        if meaning not in ("add", "bias") or not isinstance(x, Tensor) or not x.is_floating_point():
            continue
        if x.ndim == 3 and len(x) == b * h:
            x = x.unflatten(0, (b, h))
        if x.ndim in (2, 4) and all(n in (1, m) for n, m in zip(x.shape[::-1], (s, t, h, b))):
            total = total + x.masked_fill(x <= -1e4, 0.0)
    return total if bool(total.any()) else None


def _of_mask(mask: Mask, sizes: tuple[int, int, int, int]) -> Part:
    t, s = sizes[2:]
    right = dense_mask(mask, sizes)
    variants: dict[str, Tensor] = {}
    start = s - t
    if isinstance(mask, _Causal):
        own = mask.parts[0] if mask.parts and isinstance(mask.parts[0], int) else start
        variants = {  # the nearest first: of equal explanations it is the one that is told
            "one key too far": dense_mask(causal(offset=own + 1), sizes),
            "one key too few": dense_mask(causal(offset=own - 1), sizes),
            "missing": torch.ones_like(right),
            "transposed": _across(right),
        }
        if own != 0:
            variants["top-left"] = dense_mask(causal(offset=0), sizes)
            for name, more in (("one key too far", 1), ("one key too few", -1)):
                variants[f"top-left with {name}"] = dense_mask(causal(offset=more), sizes)
        variants["inverted"] = ~right
        return Part("causal", right, variants)
    if isinstance(mask, _Window):
        before, after = mask.before, mask.after
        off = {"too wide": 1, "too narrow": -1}
        widths = {f"one key {n} before": (before + x, after) for n, x in off.items()}
        widths |= {f"one key {n} after": (before, after + x) for n, x in off.items()}
        widths |= {"without a limit before": (s + t, after)}
        widths |= {"without a limit after": (before, s + t)}
        for (n, x), (m, y) in product(off.items(), off.items()):
            widths[f"one key {n} before and one {m} after"] = before + x, after + y
        for name, (x, y) in widths.items():
            if x >= 0 and y >= 0:
                variants[name] = dense_mask(window(x, y), sizes)
        variants["missing"] = torch.ones_like(right)
        if before != after:
            variants["transposed"] = _across(right)
        if start:
            variants["top-left"] = dense_mask(window(before, after, offset=0), sizes)
        for n in {before, before + 1} - {0}:
            steps = torch.arange(s) // n - (torch.arange(t)[:, None] + start) // n
            variants[f"in blocks of {n}"] = ((steps >= -1) & (steps <= (after > 0))).expand(sizes)
        return Part("window", right, variants | {"inverted": ~right})
    if isinstance(mask, Padding):
        lengths = torch.as_tensor(mask.parts[0])
        return _padding("padding", torch.arange(s) < lengths[:, None], sizes)
    return _plain("stated mask", right)


def _of_argument(
    name: str, value: Any, meaning: str, sizes: tuple[int, int, int, int]
) -> Part | None:
    """The rule of an argument, None if it restricts nothing or belongs to another attention."""
    b, _, _, s = sizes
    if not isinstance(value, Tensor) or meaning not in ("attend", "ignore", "add", "lengths"):
        return None
    if meaning == "lengths":
        return _padding(name, torch.arange(s) < value.reshape(-1, 1).expand(b, 1), sizes)
    allowed = value != 0 if meaning == "attend" else value == 0
    if meaning == "add":
        allowed = value > -1e4
    return next((x for x in _laid_out(name, allowed, sizes) if x is not None), None)


def _laid_out(
    name: str, allowed: Tensor, sizes: tuple[int, int, int, int]
) -> Iterator[Part | None]:
    """The ways in which a mask of any shape may be laid out over (b, h, t, s)."""
    b, h, t, s = sizes
    shape = tuple(allowed.shape)
    if shape == (b, s) and (b, s) != (t, s):
        yield _padding(name, allowed, sizes)
    if shape[-1] == s and math.prod(shape[:-1]) in (1, b) and len(shape) in (3, 4):
        yield _padding(name, allowed.reshape(-1, s).expand(b, s), sizes)
    if shape[-2:] not in ((t, s), (1, s)):
        return
    if shape == (b, h, *shape[-2:]) or len(shape) == 2:
        yield _plain(name, allowed.expand(sizes))
    lead = math.prod(shape[:-2])
    for rows, heads in ((b, 1), (b, h), (1, h), (1, 1)):
        if lead == rows * heads:
            yield _plain(name, allowed.reshape(rows, heads, *shape[-2:]).expand(sizes))


def _padding(name: str, real: Tensor, sizes: tuple[int, int, int, int]) -> Part:
    """Padding: ``real`` (b, s) says which keys are not padding."""
    b, h, t, s = sizes

    def keys(x: Tensor) -> Tensor:
        return x[:, None, None, :].expand(sizes)

    lengths = real.sum(-1)
    left = bool((real[:, 1:] & ~real[:, :-1]).any())
    steps = torch.arange(s).flip(0) if left else torch.arange(s)
    variants = {
        "missing": keys(torch.ones_like(real)),
        "inverted": keys(~real),
        "one too long": keys(steps < (lengths + 1)[:, None]),
        "one too short": keys(steps < (lengths - 1)[:, None]),
        "on the wrong side": keys(real.flip(-1)),
        **{n: keys(x) for n, x in _other_rows(real)},
    }
    if t == s:
        variants["on the queries"] = real[:, None, :, None].expand(sizes)
    if b > 1 and h > 1:
        for n, made in enumerate(_reordered(keys(real))):
            variants[f"in a different order of heads and rows{' ' * n}"] = made
    wrong = {n: x for n, x in variants.items() if not x.equal(keys(real))}
    return Part(name, keys(real), wrong, padding=True)


def _plain(name: str, right: Tensor) -> Part:
    b, h = right.shape[:2]
    variants = {
        "missing": torch.ones_like(right),
        "inverted": ~right,
        "transposed": _across(right),
        "top-left": right & torch.ones_like(right).tril(),
        "one key late": right.roll(1, -1),
        "one key early": right.roll(-1, -1),
        **dict(_other_rows(right)),
    }
    if b > 1 and h > 1:
        for n, made in enumerate(_reordered(right)):
            variants[f"in a different order of heads and rows{' ' * n}"] = made
    alike = bool((right == right[:, :1, :1]).all()) and not bool(right.all())
    return Part(name, right, {n: x for n, x in variants.items() if not x.equal(right)}, alike)


def _other_rows(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The rows of a batch exchanged, or one row for all."""
    rows = range(len(x))
    for order in permutations(rows) if len(x) < 5 else ((*rows[-1:], *rows[:-1]), rows[::-1]):
        yield f"of another batch row: {', '.join(map(str, order))}", x[list(order)]
    for i in rows:
        yield f"of another batch row: {i} for all", x[i : i + 1].expand_as(x)


def _across(x: Tensor) -> Tensor:
    """A mask with queries and keys exchanged, cut or filled to the same shape."""
    t, s = x.shape[-2:]
    return x.mT if t == s else x.flip(-1).flip(-2)


def _reordered(x: Tensor) -> Iterator[Tensor]:
    """Masks repeated as (h, b) where scores are (b, h), and the other way."""
    b, h, t, s = x.shape
    flat = x[:, 0]
    yield flat.repeat(h, 1, 1).view(b, h, t, s)
    yield flat.repeat_interleave(h, 0).view(h, b, t, s).transpose(0, 1)
