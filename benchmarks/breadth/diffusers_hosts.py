"""Hosts for the attention processors of diffusers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from breadth_diffusers_options import WIDTH, WORDS
from breadth_inputs import BATCH, normal
from torch import nn

HEAD = 8


Built = tuple[nn.Module, Iterator[dict[str, Any]]]

PLAIN: dict[str, Any] = {"query_dim": WIDTH, "heads": 4, "dim_head": HEAD, "bias": True}
ADDED = PLAIN | {"added_kv_proj_dim": WIDTH, "context_pre_only": False}
FORMS: tuple[dict[str, Any], ...] = (
    PLAIN,
    PLAIN | {"qk_norm": "layer_norm"},
    PLAIN | {"cross_attention_dim": WIDTH},
    PLAIN | {"added_kv_proj_dim": WIDTH, "norm_num_groups": 4},
    ADDED,
    ADDED | {"qk_norm": "rms_norm"},
    PLAIN | {"kv_heads": 2, "qk_norm": "layer_norm_across_heads", "cross_attention_dim": WIDTH},
    PLAIN | {"pre_only": True, "qk_norm": "rms_norm"},
)
"""The forms of `Attention` that processors ask for."""

KNOWN: dict[str, Any] = {
    "slice_size": 2, "hidden_size": WIDTH, "cross_attention_dim": WIDTH, "num_tokens": (4,),
    "scale": 1.0, "ip_hidden_states_dim": WIDTH, "ip_encoder_hidden_states_dim": WIDTH,
    "head_dim": HEAD, "timesteps_emb_dim": WIDTH,
}  # fmt: skip
"""What processors are made from."""


def hosts(kind: Any) -> Iterator[Callable[[], Built]]:
    """The modules that a processor may be made for."""
    from diffusers.models.attention_processor import Attention, SanaMultiscaleLinearAttention
    from diffusers.models.transformers.transformer_flux import FluxAttention

    if "Flux" in kind.__name__:
        forms = [functools.partial(FluxAttention, **ADDED)]
    elif "SanaMultiscale" in kind.__name__:
        forms = [functools.partial(SanaMultiscaleLinearAttention, WIDTH, WIDTH, None, 16)]
    else:
        forms = [functools.partial(Attention, **form) for form in FORMS]
    for form in forms:
        yield functools.partial(_host, kind, form)


def _host(kind: Any, form: Callable[[], Any]) -> Built:
    processor = _processor(kind)
    if not callable(processor):
        raise TypeError(f"{kind.__name__} is an empty class: it has no __call__")
    attention = form()
    if "Fused" in kind.__name__:
        attention.fuse_projections()
    if hasattr(attention, "set_processor"):
        attention.set_processor(processor)
    else:
        attention.processor = processor
    return attention, _calls("IPAdapter" in kind.__name__)


def _processor(kind: Any) -> Any:
    """A processor; the old name of another class tells no arguments, so its error does."""
    if "__new__" not in vars(kind):
        names = inspect.signature(kind.__init__).parameters
        return kind(**{n: x for n, x in KNOWN.items() if n in names})
    try:
        return kind()
    except TypeError as error:
        return kind(**{n: x for n, x in KNOWN.items() if f"'{n}'" in str(error)})


def _calls(adapted: bool) -> Iterator[dict[str, Any]]:
    """What a call of a host may be given; one that is ``adapted`` gets what it adapts to."""
    image, words = normal(BATCH, 16, WIDTH), normal(BATCH, WORDS, WIDTH)
    rotary = (torch.ones(23, HEAD), torch.zeros(23, HEAD))
    adapters = [normal(BATCH, 1, 4, WIDTH)]
    calls: tuple[dict[str, Any], ...] = (
        {}, {"encoder_hidden_states": words},
        {"encoder_hidden_states": words, "image_rotary_emb": rotary},
        {"encoder_hidden_states": (words, adapters)},
        {"encoder_hidden_states": words, "ip_hidden_states": adapters,
         "temb": normal(BATCH, WIDTH)},
        {"encoder_hidden_states": words, "ip_hidden_states": adapters},
        {"encoder_hidden_states": words, "attention_mask": torch.ones(BATCH, WORDS).bool()},
        {"query_rotary_emb": None, "key_rotary_emb": None, "encoder_hidden_states": words},
    )  # fmt: skip
    for more in calls[3:] + calls[:3] if adapted else calls:
        yield {"hidden_states": image, **more}
    for x in (normal(BATCH, WIDTH, 4, 4), normal(3 * BATCH, 16, WIDTH)):
        for y in (words, normal(3 * BATCH, WORDS, WIDTH)):
            yield {"hidden_states": x}
            yield {"hidden_states": x, "encoder_hidden_states": y}
