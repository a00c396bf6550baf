"""Mask tensors that equal a mask value, recognised: causal, window, padding.

A band around the diagonal, joined with a rule about keys, is found by the first and the last key of
each row, and is used only if it equals the tensor entry by entry.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import and_

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from intently.core.biases import TensorBias
from intently.core.masks import Geometry, Mask, allowed, causal, padding, window
from intently.core.masks.mask import Allowed
from intently.observe.storage.stores import identity, packed, same, small
from intently.observe.watching.call import AttentionSpec

BLOCK = 2**22
"""Entries of a mask that are compared at a time."""


@dataclass(frozen=True)
class Seen:
    """Query i stands at ``first + i`` and sees keys from − before to + after around it.

    None means no bound; ``keys`` (n, s) says which keys may be seen at all, n being 1 or the size
    of the first leading axis.
    """

    first: int
    before: int | None
    after: int | None
    keys: Tensor | None

    def mask(self, g: Geometry) -> Mask | None:
        """The same as a mask, None if everything is seen."""
        offset = None if self.first == g.s - g.t else self.first
        wide = g.s + g.t
        before = self.before
        if before is not None and self.first + g.t - 1 - before <= 0:
            before = None
        rules: list[Mask] = []
        if self.after == 0 and self.first < g.s - 1:
            rules.append(causal(offset))
        if before is not None or self.after:
            before = wide if before is None else before
            rules.append(window(before, wide if self.after is None else self.after, offset))
        if self.keys is not None:
            rules.append(_keys_mask(self.keys, len(g.lead)))
        return reduce(and_, rules) if rules else None


def simplified(how: AttentionSpec, g: Geometry) -> AttentionSpec:
    """Return the same with tensors of mask and bias as values, if they are equal to some."""
    mask, bias = how.mask, how.bias
    if mask is None and type(bias) is TensorBias and not bias.tensor.requires_grad:
        hidden = _hidden(bias.tensor)
        if hidden is not None:
            mask, bias = allowed(~hidden), None
        elif bias.tensor.dtype is torch.float16:
            bias = _lowered(bias)
    if type(mask) is Allowed:
        found = recognise(mask.tensor, g)
        mask = mask if found is None else found.mask(g)
    return how if mask is how.mask and bias is how.bias else replace(how, mask=mask, bias=bias)


class KnownMasks:
    """`simplified`, remembered for tensors that come again unchanged, as they do in every layer."""

    def __init__(self) -> None:
        self._known: dict[
            tuple[object, ...], tuple[StorageWeakRef, Tensor | None, AttentionSpec]
        ] = {}

    def simplified(self, how: AttentionSpec, g: Geometry) -> AttentionSpec:
        """Return the same with tensors of mask and bias as values, if they are equal to some."""
        value = how.bias if how.mask is None else how.mask
        if value is None or type(value) not in (Allowed, TensorBias):
            return how
        (x,) = (x.detach() for x in value.tensors())
        key = (identity(x), g, how.mask is None)
        alive, old, found = self._known.get(key, (None, None, how))
        if alive is None or alive.expired() or (old is not None and not same(old, x)):
            found = simplified(how, g)
            old = packed(x) if x.is_inference() or small(x) else None  # not every change is counted
            self._known[key] = StorageWeakRef(x.untyped_storage()), old, found
        return replace(how, mask=found.mask, bias=found.bias if how.mask is None else how.bias)


def recognise(mask: Tensor, g: Geometry) -> Seen | None:
    """Return a boolean mask, in which True means attend, as a band joined with a rule about keys.

    None if it is neither, or differs between heads.
    """
    lead = len(g.lead)
    mask = mask.reshape((1,) * (lead + 2 - mask.ndim) + tuple(mask.shape))
    if mask.shape[1:lead].numel() != 1 or not mask.numel():
        return None
    n = mask.shape[0] if lead else 1
    mask = mask.expand(*mask.shape[:-1], g.s).reshape(n, mask.shape[-2], g.s)
    if mask.shape[-2] == 1:
        return Seen(g.s - g.t, None, None, _some(mask.squeeze(-2)))
    bits = mask.view(torch.uint8)
    full = bits.amax(-1).bool()
    if not bool(full.any()):
        return None
    rows = torch.arange(g.t, device=mask.device)
    after = int((g.s - 1 - bits.flip(-1).argmax(-1) - rows)[full].max())
    before = int((rows - bits.argmax(-1))[full].max())
    keys = _some(bits.amax(-2).bool())
    for band in _bands(before, after, g):
        for some in (None, keys) if keys is not None else (None,):
            seen = Seen(*band, some)
            if _equal(mask, seen, g):
                return seen
    return None


def _bands(before: int, after: int, g: Geometry) -> list[tuple[int, int | None, int | None]]:
    """(first, before, after) of bands in which query i sees the keys i − before … i + after."""
    start = g.s - g.t
    found: list[tuple[int, int | None, int | None]] = [(start, None, None)]
    if after > start and before + start >= 0:
        found.append((start, before + start, after - start))
    if after >= 0:
        found += [(after, None, 0), (after, before + after, 0)]
    return found


def _equal(mask: Tensor, seen: Seen, g: Geometry) -> bool:
    """Whether the mask (n, t, s) is what ``seen`` says, some rows at a time."""
    step = max(1, BLOCK // (mask.shape[0] * g.s))
    cols = torch.arange(g.s, device=mask.device)
    keys = None if seen.keys is None else seen.keys[:, None]
    for start in range(0, g.t, step):
        part = mask[:, start : start + step]
        at = torch.arange(start, start + part.shape[1], device=mask.device)[:, None] + seen.first
        band = cols <= at + (g.s + g.t if seen.after is None else seen.after)
        if seen.before is not None:
            band &= cols >= at - seen.before
        if not torch.equal(part, (band if keys is None else band & keys).expand_as(part)):
            return False
    return True


def _hidden(bias: Tensor) -> Tensor | None:
    """The entries that an additive mask of 0 and −∞ hides; None for any other bias.

    The lowest number of a dtype hides like −∞, except in rows that see nothing at all.
    """
    hides = bias <= torch.finfo(bias.dtype).min / 2
    if not bool((hides | (bias == 0)).all()):
        return None
    empty = hides.all(-1)
    if bool(empty.any()) and bool((bias[empty] != -torch.inf).any()):
        return None
    return hides


def _lowered(bias: TensorBias) -> TensorBias:
    """The bias with rows that see nothing so low that every score added to it is lost.

    In float32 the lowest number of float16 would leave them; the model adds it in float16.
    """
    empty = (bias.tensor <= torch.finfo(torch.float16).min / 2).all(-1, keepdim=True)
    if not bool(empty.any()):
        return bias
    return TensorBias(bias.tensor.float().masked_fill(empty, torch.finfo(torch.float32).min))


def _some(keys: Tensor) -> Tensor | None:
    """The keys that are seen, None if all are."""
    return None if bool(keys.all()) else keys.clone()


def _keys_mask(keys: Tensor, lead: int) -> Mask:
    """Padding on the right as lengths, other rules about keys (n, s) as a small tensor."""
    if not lead:
        return allowed(keys[0])
    lengths = keys.sum(-1)
    if torch.equal(keys, torch.arange(keys.shape[-1], device=keys.device) < lengths[:, None]):
        return padding(lengths)
    return allowed(keys.view(len(keys), *(1,) * lead, -1))
