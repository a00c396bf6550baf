"""Every model and every attention processor of diffusers, built tiny with random weights."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.breadth.diffusers_inputs import inputs
from benchmarks.breadth.diffusers_options import HEADS, MADE, OPTIONS, SIDE, WIDTH, WORDS, of
from benchmarks.breadth.inputs import BATCH, normal
from benchmarks.breadth.run import Way, stirred, told

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


PARAMETERS = 60_000_000

NUMBERS: tuple[tuple[str, int], ...] = (
    (r"(.*_)?num_(.*_)?layers|num_.*blocks|depth|.*_depth|n_layers?|num_single_layers", 1),
    (r"(.*_|n)?heads|n_head", HEADS),
    (r"joint_attention_dim|text_dim|caption_channels|cross_attention_dim|text_embed_dim|image_dim|"
     r"pooled_projection_dim|encoder_hid_dim|caption_dim|text_feat_dim|cap_feat_dim|"
     r"cross_attention_dim_t5|cross_attention_input_dim|context_dim|.*text.*_dim", WIDTH),
    (r"ffn_dim|intermediate_size|(.*_)?ffn_hidden_size|ffn_inner_dim", 2 * WIDTH),
    (r"sample_size|sample_height|sample_width|pos_embed_max_size|image_size", SIDE),
    (r"sample_frames|num_frames|video_length", 2),
    (r"layers_per_block|num_res_blocks|transformer_layers_per_block|layers_per_.*", 1),
    (r"(decoder_)?base_dim|ch|channels|hidden_channels", WIDTH),
    (r"vocab_size", 50),
    (r"attention_head_dim|head_dim", 128),
    (r"(.*_)?hidden_dim|inner_dim|(.*_)?embed_dim|model_dim", 64),
)  # fmt: skip
"""What a number becomes, by its name; widths of heads stay, as rotary axes have to fill them."""

INNER = r"hidden_size|caption_projection_dim|dim|model_dim|dit_dim|token_dim|embed_dim|inner_dim"
"""Widths that are the number of heads times the width of one."""

PACKAGES = {
    r"(?!LoRA).*XFormers.*": "xformers", r"(?!Fused).*NPU": "torch_npu", r"XLA.*": "torch_xla",
    "CosmosControlNetModel": "torchvision",
}  # fmt: skip
"""What families need beside diffusers."""

WIDTHS = ("block_out_channels", "encoder_block_out_channels", "decoder_block_out_channels")


@functools.cache
def _kinds() -> dict[str, Any]:
    """The classes of models and of attention processors, by name."""
    try:
        import diffusers
        from diffusers.models import attention_processor
        from diffusers.models.modeling_utils import ModelMixin
    except ImportError:
        return {}
    models = {
        name: kind
        for name in dir(diffusers)
        if inspect.isclass(kind := getattr(diffusers, name, None))
        and issubclass(kind, ModelMixin)
        and kind is not ModelMixin
    }
    processors = {
        name: kind
        for name, kind in vars(attention_processor).items()
        if re.search(r"AttnProcessor", name) and inspect.isclass(kind)
    }
    return models | processors


def families() -> list[str]:
    """The names of all models and attention processors."""
    return list(_kinds())


def ways(family: str) -> Iterator[Way | tuple[str, str]]:
    """One way to run a model or processor, the first that works."""
    torch.manual_seed(0)
    errors: list[Exception] = []
    for build in trials(_kinds()[family]):
        try:
            model, every = build()
            model = stirred(model)
        except Exception as error:
            errors.append(error)
            continue
        for given in every:
            try:
                with torch.no_grad():
                    model(**given)
            except Exception as error:
                errors.append(error)
            else:
                yield Way("call", model, functools.partial(_called, model, given))
                return
    package = next((x for p, x in PACKAGES.items() if re.fullmatch(p, family)), None)
    missing = package and not importlib.util.find_spec(package)
    yield "build", f"needs {package}, which isn't installed" if missing else told(_telling(errors))


def trials(kind: Any) -> Iterator[Callable[[], Built]]:
    """The forms of a model or of the host of a processor."""
    return hosts(kind) if "AttnProcessor" in kind.__name__ else _models(kind)


def _telling(errors: list[Exception]) -> Exception:
    """The error that says most: the last of the smallest form, rather of shapes than of names."""
    if not errors:
        return TypeError("none of its inputs is known")
    shapes = [x for x in errors if not isinstance(x, (TypeError, MemoryError))]
    return next(iter(reversed(shapes)), errors[0])


def _called(model: nn.Module, given: dict[str, Any]) -> list[Any]:
    out = model(**given)
    return list(out.values()) if isinstance(out, dict) else [out]


# --- models -------------------------------------------------------------------------------------


def _models(kind: Any) -> Iterator[Callable[[], Built]]:
    """A model with small numbers, and with small numbers of layers only."""
    for patterns in (NUMBERS, NUMBERS[:1] + NUMBERS[6:7], ()):
        yield functools.partial(_model, kind, patterns)


def _model(kind: Any, patterns: tuple[tuple[str, int], ...]) -> Built:
    model = _made(kind.__name__) if patterns is NUMBERS else None
    model = _built(kind, patterns) if model is None else model
    parts = (x.config for x in model.modules() if hasattr(x, "config"))
    return model, inputs(model, next(parts))


def _made(name: str) -> Any:
    """A model that is made of others."""
    import diffusers

    part = name.replace("Multi", "")
    if name in MADE:
        return MADE[name](diffusers, _tiny)
    return _kinds()[name]([_tiny(part)]) if part != name else None


def _tiny(name: str, **more: Any) -> nn.Module:
    return _built(_kinds()[name], NUMBERS, **more)


def _built(kind: Any, patterns: tuple[tuple[str, int], ...], **more: Any) -> nn.Module:
    options = _options(kind, patterns) | more
    with torch.device("meta"):
        size = sum(x.numel() for x in kind(**options).parameters())
    if size > PARAMETERS:
        raise MemoryError(f"{size / 1e6:,.0f} million parameters")
    return kind(**options)


def _options(kind: Any, patterns: tuple[tuple[str, int], ...]) -> dict[str, Any]:
    """The defaults of a signature, the numbers in it small."""
    out: dict[str, Any] = {}
    for name, x in inspect.signature(kind.__init__).parameters.items():
        if name == "self" or x.kind in (x.VAR_KEYWORD, x.VAR_POSITIONAL):
            continue
        value: Any = WIDTH if x.default is x.empty else x.default
        small = next((n for p, n in patterns if re.fullmatch(p, name)), None)
        if isinstance(value, bool) or value is None or (x.default is not x.empty and not patterns):
            continue
        if isinstance(value, int) and small is not None:
            out[name] = min(value, small)
        elif name in WIDTHS and patterns is NUMBERS and isinstance(value, (list, tuple)):
            out[name] = tuple(WIDTH for _ in value)
        elif x.default is x.empty:
            out[name] = value
    if patterns is NUMBERS:
        out |= _widths(kind) | (of(OPTIONS, kind.__name__) or {})
    return out


def _widths(kind: Any) -> dict[str, Any]:
    """Widths for `HEADS` heads as wide as by default: rotary axes have to fill them."""
    numbers = {
        name: x.default
        for name, x in inspect.signature(kind.__init__).parameters.items()
        if isinstance(x.default, int) and not isinstance(x.default, bool)
    }
    widths = [name for name in numbers if re.fullmatch(INNER, name)]
    heads = [numbers[name] for name in numbers if re.fullmatch(NUMBERS[1][0], name)]
    head = numbers.get("attention_head_dim", numbers.get("head_dim"))
    if head is None and widths and heads:
        head = numbers[widths[0]] // heads[0]
    return {} if head is None else {name: HEADS * min(head, 128) for name in widths}
