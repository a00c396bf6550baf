"""Inputs to try where none are passed: by names, by the widths of parameters, by a config."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from intently.checker.calling.configured import numbers_named
from intently.checker.calling.naming import named_role, parameters_named, required

BATCH, HEADS, WIDTH = 2, 4, 8
SIDES = (4, 3, 8, 16, 32, 28, 64, 224)
MOST = 120
FEW = 12
"""Calls to try at most, of short examples and of longer ones."""


def trials(subject: Any, length: int) -> Iterator[dict[str, Any]]:
    """Example calls with so many queries, the likeliest first."""
    for names in _names(subject):
        most = MOST if length < 16 else FEW
        yield from itertools.islice(_of_names(subject, names, length), most)


def _names(subject: Any) -> Iterator[list[str]]:
    """Which arguments to give: those that are required; else those whose names tell inputs."""
    needed = required(subject)
    known = parameters_named(subject)
    if needed:
        yield needed
        if "position_embeddings" in known and "position_embeddings" not in needed:
            yield [*needed, "position_embeddings"]
        if named_role(needed[0]) is None and len(needed) == 1:
            return
    main = getattr(subject, "main_input_name", None)
    inputs = [n for n in known if named_role(n) in ("q", "k", "v", "x", "ids") and n not in needed]
    if main in known:
        inputs = [main, *(n for n in inputs if n != main)]
    if not needed and not inputs:
        yield ["x"]
    first = inputs[:1]
    for more in ("decoder_input_ids", "pixel_values"):
        if more in inputs[1:]:  # an encoder and a decoder, or two encoders
            yield [*needed, *first, more]
    for name in inputs[:6]:
        yield [*needed, name]


def _of_names(subject: Any, names: list[str], t: int) -> Iterator[dict[str, Any]]:
    module = subject if isinstance(subject, nn.Module) else None
    roles = {n: named_role(n) for n in names}
    found = set(roles.values())
    if {"q", "k", "v"} <= found or (module is None and len(names) == 3 and found <= {None, "x"}):
        yield from _heads_apart(subject, names, t)
    widths = _widths(module) or [HEADS * WIDTH]
    embeds = module is not None and any(isinstance(m, nn.Embedding) for m in module.modules())
    images = [
        (BATCH, channels, side, side) for side in _sides(subject) for channels in _channels(module)
    ]
    shapes: list[tuple[int, ...]] = [(BATCH, t, c) for c in widths]
    shapes[1:1] = images[: len(images) // 2]
    shapes += [*images[len(images) // 2 :], *_spectra(subject), (t, widths[0])]
    if embeds and found & {None, "ids", "x"}:
        yield {n: _value(subject, n, _ids(module, t), None, t) for n in names}
    for shape in shapes:
        contexts = {n for n in names if roles[n] in ("context", "k", "v")}
        for width in dict.fromkeys((shape[-1], *widths)) if contexts else (shape[-1],):
            yield {
                n: _value(subject, n, _normal(*shape, seed=i), _beside(n, i, shape, width, t), t)
                for i, n in enumerate(names, 1)
            }


def _beside(name: str, i: int, shape: tuple[int, ...], width: int, t: int) -> Tensor | None:
    """What is attended to, of its own length and width."""
    role = named_role(name)
    if role in ("k", "v", "context"):
        return _normal(BATCH, _keys(t), width, seed=i)
    return None


def _value(subject: Any, name: str, x: Tensor, beside: Tensor | None, t: int) -> Any:
    """The value of an argument to try."""
    role = named_role(name)
    module = subject if isinstance(subject, nn.Module) else None
    if role == "ids":
        return _ids(module, t + 2 * (name == "input_ids" and t < 16))
    if role == "mask":
        return None
    if name == "position_embeddings":
        return _rotations(subject, t)
    if name in ("position_ids", "positions", "input_pos"):
        return torch.arange(t).expand(BATCH, -1)
    if name in ("timestep", "timesteps", "t"):
        return torch.arange(1, BATCH + 1)
    return x if beside is None else beside


def _heads_apart(subject: Any, names: list[str], t: int) -> Iterator[dict[str, Any]]:
    """Queries, keys and values of a function, or of a module with widths of its own."""
    roles = {n: named_role(n) for n in names}
    order = [n for n in names if roles[n] in ("q", "k", "v")]
    order = order if len(order) == 3 else names
    others = {n: None for n in names if n not in order}
    if not isinstance(subject, nn.Module):
        for shape in ((BATCH, HEADS, t, WIDTH), (BATCH, t, HEADS * WIDTH)):
            yield {n: _normal(*shape, seed=i) for i, n in enumerate(order, 1)} | others
        return
    own = [w for n in ("embed_dim", "kdim", "vdim") if type(w := getattr(subject, n, None)) is int]
    if len(own) == 3:
        yield {
            n: _normal(BATCH, t if i == 1 else _keys(t), w, seed=i)
            for i, (n, w) in enumerate(zip(order, own), 1)
        } | others
    for width in _widths(subject) or [HEADS * WIDTH]:
        yield {n: _normal(BATCH, t, width, seed=i) for i, n in enumerate(order, 1)} | others
        yield {n: _normal(BATCH, HEADS, t, width, seed=i) for i, n in enumerate(order, 1)} | others


def _keys(t: int) -> int:
    """Another number of keys than of queries; a multiple of 16 where that is one."""
    return t + t // 2 if t < 16 else 2 * t


def _normal(*shape: int, seed: int = 1) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw, dtype=torch.double)


def _ids(module: nn.Module | None, length: int) -> Tensor:
    """Token ids within the vocabulary, none of them among the special ones at its ends."""
    parts = module.modules() if module is not None else ()
    sizes = [m.num_embeddings for m in parts if isinstance(m, nn.Embedding)]
    most = min(max(sizes, default=40), 40)
    draw = torch.Generator().manual_seed(length)
    return torch.randint(min(3, most - 1), most, (BATCH, length), generator=draw)


def _rotations(subject: Any, t: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines (b, t, d) of a rotation in halves."""
    width = next((w for n in ("head_dim", "head_size") if type(w := getattr(subject, n, None)) is int), WIDTH)  # noqa: E501  # fmt: skip
    rates = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.double) / width)
    angle = (torch.arange(t)[:, None] * rates).repeat(1, 2).expand(BATCH, -1, -1)
    return angle.cos(), angle.sin()


# --- sizes that a module tells ------------------------------------------------------------------


def _sides(subject: Any) -> list[int]:
    """Sides of images to try."""
    own = numbers_named(subject, "image_size", "img_size", "image", "input_size", "sample_size")
    return list(dict.fromkeys((*own, *SIDES)))[:8]


def _channels(module: nn.Module | None) -> list[int]:
    """Channels of images to try: what convolutions take, then any width."""
    if module is None:
        return []
    kinds = (nn.Conv1d, nn.Conv2d, nn.GroupNorm, nn.BatchNorm2d)
    first = [
        int(getattr(m, "in_channels", 0) or getattr(m, "num_channels", 0))
        for m in module.modules()
        if isinstance(m, kinds)
    ]
    own = numbers_named(module, "num_channels", "in_channels", "channels", "in_chans")
    found = dict.fromkeys((*own, *(n for n in first if n), *_widths(module)[:2]))
    return list(found)[:3]


def _spectra(subject: Any) -> list[tuple[int, ...]]:
    """Shapes of spectrograms that a configuration asks for."""
    bins = next(numbers_named(subject, "num_mel_bins", "input_feat_per_channel"), None)
    if bins is None:
        return []
    length = next(numbers_named(subject, "max_source_positions"), 32)
    return [(BATCH, bins, 2 * length), (BATCH, 32, bins)]


def _widths(module: nn.Module | None) -> list[int]:
    """The widths that inputs of a module may have, the likeliest first."""
    if module is None:
        return []
    names = ("embed_dim", "d_model", "hidden_size", "dim", "width", "query_dim")
    found = [x for n in names if type(x := getattr(module, n, None)) is int]
    for part in module.modules():
        for name in ("in_features", "in_channels", "embed_dim", "embedding_dim"):
            value = getattr(part, name, None)
            if type(value) is int:
                found.append(value)
        shape = getattr(part, "normalized_shape", None)
        if isinstance(shape, tuple) and shape:
            found.append(int(shape[-1]))
    for x in module.parameters():
        if x.ndim in (2, 3):
            found += [int(n) for n in (x.shape[1:2] + x.shape[:1] if x.ndim == 2 else x.shape[::2])]
    return list(dict.fromkeys(found))[:6]
