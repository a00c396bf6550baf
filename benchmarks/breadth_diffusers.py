"""Every model and every attention processor of diffusers, built tiny with random weights."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from breadth_run import Way, stirred, told
from torch import Tensor, nn

BATCH, WIDTH, HEADS, HEAD, WORDS, SIDE = 2, 32, 2, 8, 7, 8
TRIALS, PARAMETERS = 60, 60_000_000

NUMBERS: tuple[tuple[str, int], ...] = (
    (r"(.*_)?num_(.*_)?layers|num_.*blocks|depth|.*_depth|n_layers?|num_single_layers", 1),
    (r"num_attention_heads|num_heads|num_(.*_)?heads|n_heads?", HEADS),
    (r"num_key_value_heads|num_kv_heads|.*_kv_heads", HEADS),
    (r"joint_attention_dim|text_dim|caption_channels|cross_attention_dim|text_embed_dim|image_dim|"
     r"pooled_projection_dim|encoder_hid_dim|caption_dim|text_feat_dim|cap_feat_dim|"
     r"cross_attention_dim_t5|cross_attention_input_dim|context_dim|.*text.*_dim", WIDTH),
    (r"ffn_dim|intermediate_size|(.*_)?ffn_hidden_size|ffn_inner_dim", 2 * WIDTH),
    (r"sample_size|sample_height|sample_width|pos_embed_max_size|image_size", SIDE),
    (r"sample_frames|num_frames|video_length", 2),
    (r"layers_per_block|num_res_blocks|transformer_layers_per_block|layers_per_.*", 1),
    (r"vocab_size", 50),
    (r"attention_head_dim|head_dim", 128),
    (r"(.*_)?hidden_dim|inner_dim|(.*_)?embed_dim|model_dim", 64),
)  # fmt: skip
"""What a number becomes, by its name; widths of heads stay, as rotary axes have to fill them."""

RARE = {"guidance", "class_labels", "image_latents", "timestep_ratio", "r_timestep", "fps"}
"""Inputs that a model of the default configuration refuses."""

INNER = ("hidden_size", "caption_projection_dim")
"""Widths that are the number of heads times the width of one."""

OPTIONS: dict[str, dict[str, Any]] = {
    "CogVideoXTransformer3DModel": {"max_text_seq_length": WORDS},
    "ConsisIDTransformer3DModel": {"max_text_seq_length": WORDS},
    "SanaTransformer2DModel": {"cross_attention_dim": 64, "num_cross_attention_heads": 2,
                               "cross_attention_head_dim": 32},
    "SanaControlNetModel": {"cross_attention_dim": 64, "num_cross_attention_heads": 2,
                            "cross_attention_head_dim": 32},
    "UNet3DConditionModel": {"attention_head_dim": 8},
    "UNetMotionModel": {"num_attention_heads": 2},
    "I2VGenXLUNet": {"attention_head_dim": 8, "num_attention_heads": 2},
    "UNetSpatioTemporalConditionModel": {"num_attention_heads": (2, 2, 2, 2)},
    "Transformer2DModel": {"in_channels": 32, "num_attention_heads": 2, "attention_head_dim": 16},
    "TransformerTemporalModel": {"in_channels": 32, "num_attention_heads": 2},
    "DreamLiteTransformer2DModel": {"in_channels": 32, "num_attention_heads": 2},
    "HunyuanDiT2DModel": {"in_channels": 4, "patch_size": 2, "sample_size": 8},
    "LatteTransformer3DModel": {"in_channels": 4, "patch_size": 2, "sample_size": 8},
    "WanVACETransformer3DModel": {"vace_layers": [0]},
    "LuminaNextDiT2DModel": {"hidden_size": 32, "num_attention_heads": 2, "num_kv_heads": 2},
    "PriorTransformer": {"embedding_dim": 32, "num_embeddings": WORDS},
    "OmniGenTransformer2DModel": {"pad_token_id": 0},
}  # fmt: skip
"""What the configuration of single models needs beside the general rules."""

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
    kind = _kinds()[family]
    trials = _models(kind) if issubclass(kind, nn.Module) and "Attn" not in family else _hosts(kind)
    errors: list[Exception] = []
    for build in trials:
        try:
            model, inputs = build()
            model = stirred(model)
        except Exception as error:
            errors.append(error)
            continue
        for given in inputs:
            try:
                with torch.no_grad():
                    model(**given)
            except Exception as error:
                errors.append(error)
            else:
                yield Way("call", model, functools.partial(_called, model, given))
                return
    yield "build", told(_telling(errors))


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

Built = tuple[nn.Module, Iterator[dict[str, Any]]]


def _models(kind: Any) -> Iterator[Callable[[], Built]]:
    """A model with small numbers, and with small numbers of layers only."""
    for patterns in (NUMBERS, NUMBERS[:1] + NUMBERS[6:7], ()):
        yield functools.partial(_model, kind, patterns)


def _model(kind: Any, patterns: tuple[tuple[str, int], ...]) -> Built:
    options = _options(kind, patterns)
    with torch.device("meta"):
        size = sum(x.numel() for x in kind(**options).parameters())
    if size > PARAMETERS:
        raise MemoryError(f"{size / 1e6:,.0f} million parameters")
    model = kind(**options)
    return model, _inputs(model)


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
    parameters = inspect.signature(kind.__init__).parameters
    head = parameters.get("attention_head_dim")
    if patterns is NUMBERS and head is not None and isinstance(head.default, int):
        out |= {name: HEADS * out["attention_head_dim"] for name in INNER if name in parameters}
    return out | (OPTIONS.get(kind.__name__, {}) if patterns is NUMBERS else {})


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _inputs(model: Any) -> Iterator[dict[str, Any]]:
    """Inputs by the names in the signature of forward: what is needed, then all that is known."""
    c = model.config
    known = _known(c)
    parameters = inspect.signature(model.forward).parameters
    needed = [n for n, x in parameters.items()
              if x.default is x.empty and x.kind == x.POSITIONAL_OR_KEYWORD]  # fmt: skip
    every = [n for n in parameters if n in known]
    some = [n for n in every if n in needed or n.startswith(("encoder_hid", "timestep", "pooled"))]
    usual = [n for n in every if n in needed or n not in RARE]
    for names in dict.fromkeys(map(tuple, (needed, some, usual, every))):
        if all(n in known for n in names):
            kinds = [known[n] for n in reversed(names)]  # the first input, the image, varies first
            for tensors in itertools.islice(itertools.product(*kinds), TRIALS):
                yield dict(zip(names, reversed(tensors)))


def _first(config: Any, names: str, default: int) -> int:
    found = (config.get(name) for name in names.split())
    return next((x for x in found if isinstance(x, int)), default)


def _known(c: Any) -> dict[str, list[Any]]:
    """The tensors that an input may be, by its name."""
    channels = _first(c, "in_channels latent_channels in_chans num_channels input_dim", 4)
    text = _first(
        c,
        "joint_attention_dim text_dim caption_channels cross_attention_dim "
        "cross_attention_input_dim text_embed_dim text_in_dim cap_feat_dim context_dim hidden_size",
        WIDTH,
    )
    image = [
        _normal(BATCH, channels, SIDE, SIDE),
        _normal(BATCH, channels, 2, SIDE, SIDE),
        _normal(BATCH, 16, channels),
        _normal(BATCH, 2, channels, SIDE, SIDE),
        _normal(BATCH, channels, 32),
        _normal(BATCH, 3, 32, 32),
        _normal(BATCH, 3, 5, 32, 32),
        _normal(BATCH, channels, 1, SIDE, SIDE),
        _normal(BATCH, channels, 1600),
    ]
    steps = [torch.tensor([10, 10]), torch.tensor([0.5, 0.5]), torch.tensor(10)]
    pooled = [_normal(BATCH, _first(c, "pooled_projection_dim embedding_dim", WIDTH))]
    ids = [torch.randint(0, 40, (BATCH, WORDS), generator=torch.Generator().manual_seed(1))]
    words = [_normal(BATCH, WORDS, n) for n in dict.fromkeys((text, WIDTH, 768))]
    return {
        "hidden_states": image, "sample": image, "x": image, "latents": image, "z": image,
        "timestep": steps, "t": steps,
        "encoder_hidden_states": words, "text_hidden_states": words,
        "encoder_attention_mask": [torch.ones(BATCH, WORDS)],
        "encoder_hidden_states_mask": [torch.ones(BATCH, WORDS)],
        "encoder_mask": [torch.ones(BATCH, WORDS)],
        "pooled_projections": pooled, "proj_embedding": pooled, "pooled_text_emb": pooled,
        "img_ids": [torch.zeros(16, 3), torch.zeros(16, 4)],
        "txt_ids": [torch.zeros(WORDS, 3), torch.zeros(WORDS, 4)],
        "guidance": [torch.tensor([3.0, 3.0])],
        "img_shapes": [[[(1, 4, 4)]] * BATCH],
        "txt_seq_lens": [[WORDS] * BATCH],
        "position_ids": [torch.arange(WORDS).expand(BATCH, -1), torch.zeros(16, 3)],
        "input_ids": ids, "attention_mask": [torch.ones(BATCH, WORDS, dtype=torch.long)],
        "controlnet_cond": [_normal(BATCH, 3, 8 * SIDE, 8 * SIDE), *image],
        "conditioning_scale": [1.0], "controlnet_mode": [torch.zeros(BATCH, 1, dtype=torch.long)],
        "added_time_ids": [_normal(BATCH, 3)],
        "target_size": [torch.tensor([[64.0, 64.0]] * BATCH)],
        "original_size": [torch.tensor([[64.0, 64.0]] * BATCH)],
        "crop_coords": [torch.zeros(BATCH, 2)],
        "padding_mask": [torch.zeros(1, 1, SIDE, SIDE), torch.zeros(BATCH, WORDS)],
        "fps": [torch.tensor([8, 8]), torch.tensor(8)],
        "image_latents": image[1:2], "r_timestep": steps, "timestep_ratio": steps[1:2],
        "clip_text_pooled": [_normal(BATCH, 1, _first(c, "clip_text_pooled_in_channels", WIDTH))],
        "image_embeds": [_normal(BATCH, _first(c, "image_embed_dim", WIDTH))],
        "micro_conds": [_normal(BATCH, 6)],
        "inputs_embeds": words, "global_hidden_states": [_normal(BATCH, 1, _first(
            c, "global_states_input_dim", WIDTH))],
        "num_frames": [1, 2], "height": [4], "width": [4],
        "class_labels": [torch.tensor([1, 2])],
    }  # fmt: skip


# --- processors ---------------------------------------------------------------------------------


def _hosts(kind: Any) -> Iterator[Callable[[], Built]]:
    """`diffusers.models.attention_processor.Attention` in the forms that processors ask for."""
    plain: dict[str, Any] = {"query_dim": WIDTH, "heads": 4, "dim_head": HEAD, "bias": True}
    forms: list[dict[str, Any]] = [
        plain,
        plain | {"qk_norm": "layer_norm"},
        plain | {"cross_attention_dim": WIDTH},
        plain | {"added_kv_proj_dim": WIDTH, "norm_num_groups": 4},
        plain | {"added_kv_proj_dim": WIDTH, "context_pre_only": False},
        plain | {"added_kv_proj_dim": WIDTH, "context_pre_only": False, "qk_norm": "rms_norm"},
        plain | {"kv_heads": 2, "qk_norm": "layer_norm_across_heads", "cross_attention_dim": WIDTH},
        plain | {"pre_only": True, "qk_norm": "rms_norm"},
    ]
    for form in forms:
        yield functools.partial(_host, kind, form)


def _host(kind: Any, form: dict[str, Any]) -> Built:
    from diffusers.models.attention_processor import Attention

    names = inspect.signature(kind.__init__).parameters
    known: dict[str, Any] = {
        "slice_size": 2, "hidden_size": WIDTH, "cross_attention_dim": WIDTH, "num_tokens": (4,),
        "scale": 1.0, "ip_hidden_states_dim": WIDTH, "ip_encoder_hidden_states_dim": WIDTH,
        "head_dim": HEAD, "timesteps_emb_dim": WIDTH,
    }  # fmt: skip
    processor = kind(**{n: known[n] for n in names if n in known})
    attention = Attention(**form)
    if "Fused" in kind.__name__:
        attention.fuse_projections()
    attention.set_processor(processor)
    return attention, _calls()


def _calls() -> Iterator[dict[str, Any]]:
    """What a call of `Attention` may be given."""
    image, words = _normal(BATCH, 16, WIDTH), _normal(BATCH, WORDS, WIDTH)
    rotary = (torch.ones(23, HEAD), torch.zeros(23, HEAD))
    adapters = [_normal(BATCH, 1, 4, WIDTH)]
    for more in (
        {}, {"encoder_hidden_states": words},
        {"encoder_hidden_states": words, "image_rotary_emb": rotary},
        {"encoder_hidden_states": (words, adapters)},
        {"encoder_hidden_states": words, "ip_hidden_states": adapters,
         "temb": _normal(BATCH, WIDTH)},
        {"encoder_hidden_states": words, "ip_hidden_states": adapters},
        {"encoder_hidden_states": words, "attention_mask": torch.ones(BATCH, WORDS).bool()},
        {"query_rotary_emb": None, "key_rotary_emb": None, "encoder_hidden_states": words},
    ):  # fmt: skip
        yield {"hidden_states": image, **more}
    for x in (_normal(BATCH, WIDTH, 4, 4), _normal(3 * BATCH // 2 * 2, 16, WIDTH)):
        yield {"hidden_states": x}
        yield {"hidden_states": x, "encoder_hidden_states": words}
