"""Inputs of a model, by the names in the signature of its forward.

Each name has one or several possible tensors; the first combination with which the model runs is
taken. `INPUTS` holds what a family needs beside.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.breadth.families import of_family
from benchmarks.breadth.given import INPUTS
from benchmarks.breadth.shrink import IMAGE

BATCH, LENGTH, TARGET, PADDED = 2, 12, 7, 3
TRIALS = 40


def value(config: Any, names: str, default: Any) -> Any:
    """The first of ``names`` that a configuration has, or one of the configurations inside it."""
    inner = [x for x in vars(config).values() if hasattr(x, "to_dict")]
    for name in names.split():
        found = getattr(config, name, None)
        if found is not None:
            return found
    for part in inner:
        found = value(part, names, None)
        if found is not None:
            return found
    return default


def ids(n: int, length: int, config: Any) -> Tensor:
    """Random tokens, none of them a special one."""
    draw = torch.Generator().manual_seed(length)
    most = min(50, int(value(config, "vocab_size", 50)))
    return torch.randint(min(5, most - 1), most, (n, length), generator=draw)


def normal(*shape: int) -> Tensor:
    """Random numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def mask(side: str, n: int = BATCH, length: int = LENGTH) -> Tensor:
    """The mask of a batch whose last text is shorter, padded at a side."""
    out = torch.ones(n, length, dtype=torch.long)
    if side == "right":
        out[-1, length - PADDED :] = 0
    elif side == "left":
        out[-1, :PADDED] = 0
    return out


def _size(config: Any) -> tuple[int, int]:
    size = value(config, "image_size img_size input_size", IMAGE)
    if isinstance(size, dict):
        return size.get("height", IMAGE), size.get("width", IMAGE)
    return (size[0], size[-1]) if isinstance(size, (list, tuple)) else (size, size)


def _pixels(config: Any) -> list[Any]:
    channels = value(config, "num_channels in_channels in_chans n_channels", 3)
    channels = channels if isinstance(channels, int) else 3
    height, width = _size(config)
    frames = value(config, "num_frames frames_per_clip", 2)
    frames = frames if isinstance(frames, int) else 2
    depth = value(config, "temporal_patch_size", 1)
    patch = value(config, "patch_size spatial_patch_size", 8)
    patch = patch if isinstance(patch, int) else 8
    return [
        normal(BATCH, channels, height, width),
        normal(BATCH, frames, channels, height, width),
        normal(16, channels * depth * patch * patch),
        normal(BATCH, channels, 64, 64),
        normal(BATCH, 1, channels, height, width),
        normal(BATCH, 16, channels * patch * patch),
        normal(BATCH, channels, 224, 224),
    ]


def _features(config: Any) -> list[Any]:
    bins = value(
        config,
        "num_mel_bins input_feat_per_channel feature_size n_mels input_size "
        "input_dim num_features feature_projection_input_dim input_channels",
        16,
    )
    bins = bins if isinstance(bins, int) else 16
    length = value(config, "max_source_positions", 32)
    return [
        normal(BATCH, bins, 2 * int(length)),
        normal(BATCH, 64, bins),
        normal(BATCH, bins, 64),
        normal(BATCH, 1, 64, bins),
        normal(BATCH, bins, 200),
        normal(BATCH, 256, bins),
    ]


def _waves(config: Any) -> list[Any]:
    bins = value(config, "num_mel_bins", 16)
    length, width = (value(config, name, 64) for name in ("max_length", "num_mel_bins"))
    return [
        normal(BATCH, 4000),
        normal(BATCH, 1, 3200),
        normal(BATCH, 64, bins),
        normal(BATCH, int(length), int(width)),
        normal(BATCH, 1, 1920 * 4),
        normal(BATCH, 1, 16000),
    ]


def _boxes(_: Any) -> list[Any]:
    corner = torch.randint(0, 40, (BATCH, LENGTH, 2), generator=torch.Generator().manual_seed(1))
    return [torch.cat([corner, corner + 10], -1)]


GRID = torch.tensor([[1, 4, 4]])

FAMILIAR: dict[str, Callable[[Any], list[Any]]] = {
    "input_ids": lambda c: [ids(BATCH, LENGTH, c)],
    "decoder_input_ids": lambda c: [ids(BATCH, TARGET, c)],
    "inputs_embeds": lambda c: [normal(BATCH, LENGTH, value(c, "hidden_size d_model dim", 32))],
    "hidden_states": lambda c: [normal(16, _patch_width(c)), normal(BATCH, LENGTH, value(
        c, "hidden_size d_model", 32)), normal(BATCH, value(c, "hidden_size d_model", 32), 4, 4),
        normal(16, value(c, "hidden_size", 32))],
    "pixel_values": _pixels,
    "pixel_values_videos": lambda c: [_pixels(c)[1], *_pixels(c)],
    "input_features": _features,
    "input_values": _waves,
    "bbox": _boxes,
    "token_type_ids": lambda c: [torch.zeros(BATCH, LENGTH, dtype=torch.long)],
    "image_grid_thw": lambda c: [GRID],
    "grid_thw": lambda c: [GRID],
    "grid_hw": lambda c: [GRID[:, 1:]],
    "encoder_hidden_states": lambda c: [normal(BATCH, 9, value(
        c, "encoder_hidden_size cross_attention_hidden_size hidden_size d_model", 32))],
    "query_embeds": lambda c: [normal(BATCH, 6, value(c, "hidden_size", 32))],
    "latents": lambda c: [normal(BATCH, value(c, "hidden_size", 32), 9)],
    "visual_feats": lambda c: [normal(BATCH, 5, value(c, "visual_feat_dim", 32))],
    "visual_pos": lambda c: [normal(BATCH, 5, value(c, "visual_pos_dim", 4))],
    "visual_embeds": lambda c: [normal(BATCH, 5, value(c, "visual_embedding_dim", 32))],
    "image": lambda c: [normal(BATCH, 3, *_size(c))],
    "past_values": lambda c: [_series(c, "context_length prediction_length"), normal(BATCH, 64)],
    "past_time_features": lambda c: [normal(BATCH, _history(c), value(c, "num_time_features", 1))],
    "past_observed_mask": lambda c: [torch.ones_like(_series(c, ""))],
    "future_values": lambda c: [normal(BATCH, value(c, "prediction_length", 8))],
    "future_time_features": lambda c: [normal(BATCH, value(c, "prediction_length", 8), value(
        c, "num_time_features", 1))],
    "states": lambda c: [normal(BATCH, 5, value(c, "state_dim", 17))],
    "actions": lambda c: [normal(BATCH, 5, value(c, "act_dim", 4))],
    "rewards": lambda c: [normal(BATCH, 5, 1)],
    "returns_to_go": lambda c: [normal(BATCH, 5, 1)],
    "timesteps": lambda c: [torch.arange(5).expand(BATCH, 5), torch.tensor([1, 2])],
    "audio_codes": lambda c: [torch.randint(0, 8, (BATCH, value(
        c, "num_quantizers n_codebooks", 4), 10))],
    "input_points": lambda c: [torch.tensor([[[[8.0, 9.0]]]] * BATCH)],
    "cu_seqlens": lambda c: [torch.tensor([0, 8, 16], dtype=torch.int32)],
    "inputs": lambda c: [ids(BATCH, LENGTH, c), normal(BATCH, 3, *_size(c))],
    "keypoints": lambda c: [torch.rand(1, 2, 6, 2) * 32],
    "descriptors": lambda c: [normal(1, 2, 6, value(c, "keypoint_detector_descriptor_dim", 32))],
    "sequence_lengths": lambda c: [torch.tensor([8, 8])],
    "aatype": lambda c: [torch.randint(0, 20, (BATCH, LENGTH))],
}  # fmt: skip


def _patch_width(config: Any) -> int:
    patch = value(config, "patch_size spatial_patch_size", 8)
    depth = value(config, "temporal_patch_size patch_temporal", 1)
    channels = value(config, "in_channels in_chans num_channels", 3)
    return channels * depth * patch * patch if isinstance(patch, int) else 192


def _history(config: Any) -> int:
    length = value(config, "context_length", value(config, "prediction_length", 8))
    return int(length) + max(value(config, "lags_sequence", [0]) or [0])


def _series(config: Any, _: str) -> Tensor:
    channels = value(config, "num_input_channels", None)
    if channels is not None:
        return normal(BATCH, int(value(config, "context_length", 32)), channels)
    return normal(BATCH, _history(config))


def working(model: nn.Module, config: Any, family: str, side: str) -> dict[str, Any]:
    """The inputs with which a model runs; raises the first error if there are none."""
    errors: list[Exception] = []
    dtype = next((x.dtype for x in model.parameters() if x.is_floating_point()), torch.float32)
    for given in itertools.islice(_trials(model, config, family, side), TRIALS):
        given = {
            k: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x
            for k, x in given.items()
        }
        try:
            with torch.no_grad():
                model(**given)
            return given
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:
            errors.append(error)
    if not errors:
        raise TypeError("no input of its forward is known")
    raise next((x for x in errors if not isinstance(x, TypeError)), errors[0])


def pictured(model: nn.Module, config: Any, given: dict[str, Any]) -> dict[str, Any] | None:
    """The inputs with a picture before each text; None if the model takes none, or none fits.

    How many places a picture takes is what the model says when it gets none.
    """
    parameters = inspect.signature(model.forward).parameters
    token = value(config, "image_token_id image_token_index", None)
    wanted = "pixel_values" in parameters and "pixel_values" not in given
    if token is None or not wanted or "input_ids" not in given:
        return None
    for pixels in _pictures(config, "image_grid_thw" in parameters):
        told = re.search(r"tokens: 0,? .*?features:? (\d+)", _refused(model, given | pixels), re.S)
        if told is None:
            continue
        width = model.get_input_embeddings().embedding_dim
        for places in (int(told[1]), int(told[1]) // width):  # some count single numbers
            out = _placed(given | pixels, token, places // BATCH)
            if "mm_token_type_ids" in parameters:
                out["mm_token_type_ids"] = (out["input_ids"] == token).long()
            if not _refused(model, out):
                return out
    return None


def _pictures(config: Any, grid: bool) -> Iterator[dict[str, Any]]:
    """What pictures may look like, with or without a grid of their patches."""
    if not grid:
        yield from ({"pixel_values": x} for x in _pixels(config))
        return
    rows = normal(BATCH * int(GRID.prod()), _patch_width(config))
    patch = value(config, "patch_size spatial_patch_size", 8)
    yield {"pixel_values": rows, "image_grid_thw": GRID.repeat(BATCH, 1)}
    square = rows[:, : 3 * patch**2].view(-1, 3, patch, patch)
    yield {"pixel_values": square, "image_grid_thw": GRID.repeat(BATCH, 1)}


def _placed(given: dict[str, Any], token: int, count: int) -> dict[str, Any]:
    """The inputs with ``count`` places for pictures before each text."""
    places = torch.full((BATCH, count), token)
    out = given | {"input_ids": torch.cat([places, given["input_ids"]], 1)}
    if "attention_mask" in given:
        out["attention_mask"] = torch.cat([torch.ones_like(places), given["attention_mask"]], 1)
    return out


def _refused(model: nn.Module, given: dict[str, Any]) -> str:
    """What a model says against its inputs; nothing if it runs."""
    try:
        with torch.no_grad():
            model(**given)
    except Exception as error:  # whatever a foreign model raises
        return f"{type(error).__name__}: {error}"
    return ""


def _trials(model: nn.Module, config: Any, family: str, side: str) -> Iterator[dict[str, Any]]:
    """What to try: the main input and what has no default, then all that are known."""
    parameters = inspect.signature(model.forward).parameters
    fixed = of_family(INPUTS, family) | of_family(INPUTS, type(model).__name__)
    fixed = {name: make for name, make in fixed.items() if name in parameters}
    needed = [
        name
        for name, x in parameters.items()
        if x.default is inspect.Parameter.empty and x.kind not in (x.VAR_KEYWORD, x.VAR_POSITIONAL)
    ]
    main = getattr(model, "main_input_name", "input_ids")
    main = main if isinstance(main, str) and main in parameters else next(iter(parameters), "")
    first = dict.fromkeys([main, *needed])
    if "decoder_input_ids" in parameters and getattr(config, "is_encoder_decoder", False):
        first["decoder_input_ids"] = None
    rest = [
        ("input_ids",), ("pixel_values",), ("input_ids", "pixel_values"), ("bbox", "input_ids"),
        ("input_features", "input_ids"), ("input_values", "input_ids"),
        ("input_ids", "visual_feats", "visual_pos"), ("image", "bbox", "input_ids"),
        ("encoder_hidden_states",), ("inputs_embeds",), ("input_values",), ("input_features",),
    ]  # fmt: skip
    for names in [tuple(first), *((*first, *more) for more in rest)]:
        known = [n for n in dict.fromkeys(names) if n in parameters]
        if any(n not in FAMILIAR and n not in fixed and n != "attention_mask" for n in known):
            continue
        known = [n for n in known if n != "attention_mask" and fixed.get(n, n) is not None]
        kinds = [[fixed[n](config)] if n in fixed else FAMILIAR[n](config) for n in known]
        for tensors in itertools.product(*kinds):
            given = dict(zip(known, tensors))
            text = given.get("input_ids", given.get("inputs"))
            if text is not None and "attention_mask" in parameters and text.dim() == 2:
                if text.dtype == torch.long:
                    given["attention_mask"] = mask(side, *text.shape)
            elif given.get("inputs_embeds") is not None and "attention_mask" in parameters:
                given["attention_mask"] = mask(side)
            for name, make in fixed.items():
                if make is not None:
                    given.setdefault(name, make(config))
            yield given
