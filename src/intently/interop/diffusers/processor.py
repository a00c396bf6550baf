"""Diffusers' own modules on `intently.attention`: an attention processor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from intently.core.attention import attention
from intently.errors import ArgumentError, build

if TYPE_CHECKING:
    from diffusers.models.attention_processor import Attention as TheirAttention

WITH_QK_NORM = ["AttnProcessor2_0", "IntentlyAttnProcessor"]
"""Plain processors that apply a module's ``norm_q`` and ``norm_k``."""

PLAIN = [*WITH_QK_NORM, "AttnProcessor", "SlicedAttnProcessor", "XFormersAttnProcessor"]
"""Processors that compute attention of the module's own projections and nothing else."""


class IntentlyAttnProcessor:
    """A processor that runs diffusers' `Attention` on `intently.attention`.

    It computes what `AttnProcessor2_0` computes, and also respects the module's scale and shared
    key heads, which `AttnProcessor2_0` ignores (when `register` replaces that processor, it ignores
    the scale, too). Masks keep diffusers' meaning: numbers are added to the scores, and True means
    attend. Masks are not repeated for each head or query.

    >>> import torch
    >>> from diffusers.models.attention_processor import Attention
    >>> layer = Attention(8, heads=2, dim_head=4, processor=IntentlyAttnProcessor())
    >>> layer(torch.zeros(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """

    def __init__(self, instead_of: object = None) -> None:
        self.instead_of = instead_of
        """The processor that `unregister` puts back."""

    def __call__(
        self,
        attn: TheirAttention,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
    ) -> Tensor:
        """Return the output of ``attn`` for x (b, t, c) or (b, c, height, width)."""
        x = residual = hidden_states
        if attn.spatial_norm is not None:
            x = attn.spatial_norm(x, temb)
        if residual.ndim == 4:
            x = x.flatten(2).mT
        if attn.group_norm is not None:
            x = attn.group_norm(x.mT).mT
        context = x if encoder_hidden_states is None else encoder_hidden_states
        if encoder_hidden_states is not None and attn.norm_cross is not None:
            context = attn.norm_encoder_hidden_states(context)
        assert attn.to_k is not None and attn.to_v is not None
        q = attn.to_q(x)
        d = q.shape[-1] // attn.heads
        q, k, v = (
            y.unflatten(-1, (-1, d)).transpose(1, 2)
            for y in (q, attn.to_k(context), attn.to_v(context))
        )
        q = q if attn.norm_q is None else attn.norm_q(q)
        k = k if attn.norm_k is None else attn.norm_k(k)
        mask, bias = _mask_or_bias(attention_mask, q)
        y = attention(q, k, v, mask=mask, bias=bias, scale=scale_of(attn))
        y = y.transpose(1, 2).flatten(2)
        if attn.to_out is not None:
            for part in attn.to_out:
                y = part(y)
        y = y.mT.reshape(residual.shape) if residual.ndim == 4 else y
        y = y + residual if attn.residual_connection else y
        return y / attn.rescale_output_factor


def scale_of(attn: TheirAttention) -> float | None:
    """Return the factor of the scores that the module's processor applies; None for 1/√d."""
    current: Any = attn.processor
    if isinstance(current, IntentlyAttnProcessor) and current.instead_of is not None:
        current = current.instead_of
    return None if type(current).__name__ == "AttnProcessor2_0" else float(attn.scale)


def _mask_or_bias(theirs: Tensor | None, q: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return a mask (b, s), (b, t, s) or (b·h, t, s) with axes (b, h, t, s), some of size 1."""
    if theirs is None:
        return None, None
    b, h = q.shape[:2]
    if theirs.ndim == 2:
        theirs = theirs[:, None]
    if theirs.ndim == 3:
        theirs = theirs.unflatten(0, (b, h)) if len(theirs) == b * h else theirs[:, None]
    return (theirs, None) if not theirs.is_floating_point() else (None, theirs.to(q.dtype))


def register(model: nn.Module) -> list[str]:
    """Make every plain `Attention` in a diffusers model run on Intently; return the names.

    Modules whose processors compute something else (joint attention, rotary positions, adapters)
    are left unchanged. `unregister` restores the old processors. Raises `ArgumentError` if the
    model has no such module.

    >>> from diffusers.models.attention_processor import Attention
    >>> model = nn.ModuleDict({"attn": Attention(8, heads=2, dim_head=4)})
    >>> register(model), unregister(model)
    (['attn'], ['attn'])
    """
    from diffusers.models.attention_processor import Attention as TheirAttention

    changed = []
    for name, module in model.named_modules():
        if not isinstance(module, TheirAttention):
            continue
        current: Any = module.processor
        if type(current).__name__ not in (PLAIN if module.norm_q is None else WITH_QK_NORM):
            continue
        if not isinstance(current, IntentlyAttnProcessor):
            processor: Any = IntentlyAttnProcessor(instead_of=current)
            module.set_processor(processor)
        changed.append(name)
    if not changed:
        raise build(
            ArgumentError,
            "model",
            "diffusers modules with plain Attention in them",
            type(model).__name__,
            f"known processors are {', '.join(PLAIN)}",
        )
    return changed


def unregister(model: nn.Module) -> list[str]:
    """Restore the processor of every module that `register` changed; return the names."""
    changed = []
    for name, module in model.named_modules():
        current: Any = getattr(module, "processor", None)
        if isinstance(current, IntentlyAttnProcessor) and current.instead_of is not None:
            module.set_processor(current.instead_of)  # pyright: ignore[reportCallIssue]
            changed.append(name)
    return changed
