"""Masks that come as tensors, as the values they are equal to: causal, window, padding.

A mask that is a band around the diagonal, joined with a rule about keys alone, is found by the
first and the last key of each row, and is believed only where it is equal entry by entry.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from intently.biases import Bias
from intently.biases.rule import Given
from intently.masks import Geometry, Mask, allowed, causal, padding, window
from intently.masks.by_tensor import Allowed
from intently.observe.call import How

BLOCK = 2**22
"""Entries of a mask that are compared at a time."""


@dataclass(frozen=True)
class Seen:
    """Query i stands at ``first + i`` and sees keys from ``before`` to ``after`` around it.

    None stands for no bound; ``keys`` (b, s) are the keys that may be seen at all.
    """

    first: int
    before: int | None
    after: int | None
    keys: Tensor | None

    def mask(self, t: int, s: int) -> Mask | None:
        """The same as a mask for t queries and s keys, None where all is seen."""
        offset = None if self.first == s - t else self.first
        rule: Mask | None = None
        before = None if self._reaches_start(t) else self.before
        after = None if self.after is None or self.first + self.after >= s - 1 else self.after
        if after == 0:
            rule = causal(offset)
        if before is not None or after not in (None, 0):
            band = window(
                s + t if before is None else before, s + t if after is None else after, offset
            )
            rule = band if rule is None else rule & band
        keys = None if self.keys is None else _keys_mask(self.keys)
        return keys if rule is None else rule if keys is None else rule & keys

    def _reaches_start(self, t: int) -> bool:
        return self.before is None or self.first + t - 1 - self.before <= 0


def simplified(how: How, g: Geometry) -> How:
    """The same with tensors of its mask and bias as values, where they are equal to some."""
    mask, bias = how.mask, how.bias
    if type(bias) is Given and not bias.tensor.requires_grad:
        hidden = _hidden(bias.tensor)
        if hidden is not None:
            mask = allowed(~hidden) if mask is None else mask & allowed(~hidden)
            bias = None
    if type(mask) is Allowed:
        found = recognise(mask.tensor, g.t, g.s)
        mask = mask if found is None else found.mask(g.t, g.s)
    if mask is how.mask and bias is how.bias:
        return how
    return How(how.score, mask, bias, how.scale, how.softcap, how.sinks, how.dropout)


def _hidden(bias: Tensor) -> Tensor | None:
    """Where an additive mask of 0 and −∞ hides; None for biases that say more.

    The lowest number of a dtype hides as −∞ does, but in rows that see nothing at all.
    """
    low = torch.finfo(bias.dtype).min
    hides = bias <= low / 2
    if not bool((hides | (bias == 0)).all()):
        return None
    whole = hides.all(-1)
    if bool(whole.any()) and not bool((bias == -torch.inf).all(-1).eq(whole).all()):
        return None
    return hides


def recognise(mask: Tensor, t: int, s: int) -> Seen | None:
    """A boolean mask (…, t or 1, s or 1), True means attend, as a band joined with padding.

    None where it is neither, or differs between heads.
    """
    mask = mask.expand(*mask.shape[:-2], mask.shape[-2] if mask.ndim > 1 else 1, s)
    while mask.ndim > 3 and mask.shape[1] == 1:
        mask = mask.squeeze(1)
    if mask.ndim > 3 or not mask.numel() or (mask.ndim == 3 and mask.shape[-2] not in (1, t)):
        return None
    if mask.shape[-2] == 1:
        return Seen(s - t, None, None, _some(mask.squeeze(-2)))
    rows = torch.arange(t, device=mask.device)
    as_bytes = mask.view(torch.uint8)
    first = as_bytes.argmax(-1)
    last = s - 1 - as_bytes.flip(-1).argmax(-1)
    full = as_bytes.amax(-1).bool()
    if not bool(full.any()):
        return None
    keys = as_bytes.amax(-2).bool()
    after = int((last - rows)[full].max())
    before = int((rows - first)[full].max())
    for first_at, back, ahead in _bands(before, after, t, s):
        seen = Seen(first_at, back, ahead, _some(keys))
        if _equal(mask, seen, t, s):
            return seen
    return None


def _bands(
    before: int, after: int, t: int, s: int
) -> list[tuple[int, int | None, int | None]]:
    """Bands that reach ``before`` and ``after`` from query i at key i: (first, before, after)."""
    found: list[tuple[int, int | None, int | None]] = [(s - t, None, None)]
    if after >= 0:
        start = s - t if after >= s - t else after
        found += [(after, None, 0), (after, before + after, 0)]
        found += [(start, before + start, after - start)] if after > start else []
    return [band for band in found if band[1] is None or band[1] >= 0]


def _equal(mask: Tensor, seen: Seen, t: int, s: int) -> bool:
    """Whether the mask (b, t, s) is what ``seen`` says, some rows at a time."""
    step = max(1, BLOCK // max(1, mask.numel() // t))
    cols = torch.arange(s, device=mask.device)
    for rows in torch.arange(t, device=mask.device).split(step):
        at = rows[:, None] + seen.first
        band = torch.ones(len(rows), s, dtype=torch.bool, device=mask.device)
        if seen.after is not None:
            band &= cols <= at + seen.after
        if seen.before is not None:
            band &= cols >= at - seen.before
        if seen.keys is not None:
            band = band & seen.keys[..., None, :]
        part = mask.narrow(-2, int(rows[0]), len(rows))
        if not bool((part == band).all()):
            return False
    return True


def _some(keys: Tensor) -> Tensor | None:
    """Which keys are seen; None where all are."""
    return None if bool(keys.all()) else keys.clone()


def _keys_mask(keys: Tensor) -> Mask:
    """Padding on the right as lengths, other rules about keys (b, s) as a small tensor."""
    if keys.ndim == 2:
        lengths = keys.sum(-1)
        if bool((keys == (torch.arange(keys.shape[-1], device=keys.device) < lengths[:, None])).all()):
            return padding(lengths)
        return allowed(keys[:, None, None, :])
    return allowed(keys)


__all__ = ["Bias", "Seen", "recognise", "simplified"]
