"""Mask tensors that equal a mask value, recognised: causal, window, padding.

A band around the diagonal, joined with a rule about keys, is found by the first and the last key of
each row, and is used only if it equals the tensor entry by entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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


class KnownMasks:
    """`simplified`, remembered for tensors that come again unchanged, as they do in every layer."""

    def __init__(self) -> None:
        self._known: dict[
            tuple[object, ...], tuple[StorageWeakRef, Tensor | None, AttentionSpec]
        ] = {}

    def simplified(self, how: AttentionSpec, g: Geometry) -> AttentionSpec:
        """Return the same with tensors of mask and bias as values, if they are equal to some."""
        value = how.bias if how.mask is None else how.mask
        if type(value) is not Allowed and type(value) is not TensorBias:
            return how
        x = value.tensor.detach()
        key = (identity(x), g, how.mask is None)
        alive, old, found = self._known.get(key, (None, None, how))
        if alive is None or alive.expired() or (old is not None and not same(old, x)):
            found = simplified(how, g)
            old = packed(x) if x.is_inference() or small(x) else None  # not every change is counted
            self._known[key] = StorageWeakRef(x.untyped_storage()), old, found
        return replace(how, mask=found.mask, bias=found.bias if how.mask is None else how.bias)


def simplified(how: AttentionSpec, g: Geometry) -> AttentionSpec:
    """Return the same with tensors of mask and bias as values, if they are equal to some."""
    mask, bias = how.mask, how.bias
    if mask is None and type(bias) is TensorBias and not bias.tensor.requires_grad:
        hides = bias.tensor <= torch.finfo(bias.tensor.dtype).min / 2
        empty = hides.all(-1, keepdim=True)
        # the lowest number of a dtype hides like −∞, except in rows that see nothing at all
        lowest = bool((empty & (bias.tensor != -torch.inf)).any())
        if not lowest and bool((hides | (bias.tensor == 0)).all()):
            mask, bias = allowed(~hides), None
        elif bias.tensor.dtype is torch.float16 and bool(empty.any()):
            # in float32 its lowest number would leave scores; the model adds it in float16
            low = torch.finfo(torch.float32).min
            bias = TensorBias(bias.tensor.float().masked_fill(empty, low))
    mask = _recognised(mask, g) if type(mask) is Allowed else mask
    return how if mask is how.mask and bias is how.bias else replace(how, mask=mask, bias=bias)


def _recognised(mask: Allowed, g: Geometry) -> Mask | None:
    """A band joined with a rule about keys, if the mask equals one and is the same for all heads.

    None if it hides nothing.
    """
    lead = len(g.lead)
    x = mask.tensor.reshape((1,) * (lead + 2 - mask.tensor.ndim) + tuple(mask.tensor.shape))
    if x.shape[1:lead].numel() != 1 or not x.numel():
        return mask
    x = x.expand(*x.shape[:-1], g.s)
    some = x.view(torch.uint8).amax(-2).bool()
    keys = None if bool(some.all()) else _keys_mask(some.reshape(-1, g.s), lead)
    if x.shape[-2] == 1:
        return keys
    for band in _bands(x, g):
        both = band if keys is None else keys if band is None else band & keys
        for found in (band,) if keys is None else (band, both):
            if _equal(x, found, g):
                return found
    return mask


def _bands(x: Tensor, g: Geometry) -> Iterator[Mask | None]:
    """Bands in which query i sees the keys i − before … i + after, as x (…, t, s) does at most."""
    yield None
    bits = x.view(torch.uint8)
    full = bits.amax(-1).bool()
    if not bool(full.any()):
        return
    rows, start = torch.arange(g.t, device=x.device), g.s - g.t
    after = int((g.s - 1 - bits.flip(-1).argmax(-1) - rows)[full].max())
    before = int((rows - bits.argmax(-1))[full].max())
    if after > start and before + start >= 0:
        yield window(before + start, after - start)
    if after >= 0:
        offset = None if after == start else after
        yield causal(offset)
        yield causal(offset) & window(before + after, 0, offset)


def _equal(x: Tensor, mask: Mask | None, g: Geometry) -> bool:
    """Whether a tensor (…, t, s) is what a mask says, some rows at a time."""
    if mask is None:
        return bool(x.all())
    rows, cols = (torch.arange(n, device=x.device) for n in (g.t, g.s))
    some = rows.split(max(1, BLOCK // (x.shape[:-2].numel() * g.s)))
    parts = ((at, x[..., int(at[0]) : int(at[-1]) + 1, :]) for at in some)
    return all(torch.equal(part, mask.allow(g, at, cols).expand_as(part)) for at, part in parts)


def _keys_mask(keys: Tensor, lead: int) -> Mask:
    """Padding on the right as lengths, other rules about keys (n, s) as a small tensor."""
    if not lead:
        return allowed(keys[0])
    lengths = keys.sum(-1)
    if torch.equal(keys, torch.arange(keys.shape[-1], device=keys.device) < lengths[:, None]):
        return padding(lengths)
    return allowed(keys.view(len(keys), *(1,) * lead, -1))
