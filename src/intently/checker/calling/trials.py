"""Inputs to try where none are passed: by names, by the widths of parameters, by a config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Any

import torch
from torch import Tensor, nn

from intently.checker.calling.naming import catches_all, named_role, parameters_named

BATCH, HEADS, WIDTH = 2, 4, 8
SIDES = (4, 3, 8, 16, 32, 28, 64, 224)
MOST, FEW = 120, 12
"""Calls to try at most, of short examples and of longer ones."""


def trials(subject: Any, length: int) -> Iterator[dict[str, Any]]:
    """Example calls with so many queries, the likeliest first."""
    for names in _names(subject):
        yield from islice(_of_names(subject, names, length), MOST if length < 16 else FEW)


def _names(subject: Any) -> Iterator[list[str]]:
    """Which arguments to give: those that are required; else those whose names tell inputs."""
    known = parameters_named(subject)
    needed = [n for n, p in known.items() if p.default is p.empty and not catches_all(p)]
    if needed:
        yield needed
        if "position_embeddings" in known and "position_embeddings" not in needed:
            yield [*needed, "position_embeddings"]
        if named_role(needed[0]) is None and len(needed) == 1:
            return
    main = [n for n in known if n == getattr(subject, "main_input_name", None)]
    told = [n for n in known if named_role(n) in ("q", "k", "v", "x", "ids")]
    inputs = [*main, *(n for n in told if n not in (*main, *needed))]
    if not needed and not inputs:
        yield ["x"]
    more = [n for n in ("decoder_input_ids", "pixel_values") if n in inputs[1:]]
    yield from ([*needed, inputs[0], n] for n in more)  # with a decoder, or two encoders
    yield from ([*needed, n] for n in inputs[:6])


def _of_names(subject: Any, names: list[str], t: int) -> Iterator[dict[str, Any]]:
    parts, roles = modules_of(subject), {n: named_role(n) for n in names}
    found = set(roles.values())
    if {"q", "k", "v"} <= found or (not parts and len(names) == 3 and found <= {None, "x"}):
        yield from _heads_apart(subject, names, t)
    widths, images = _widths(subject) or [HEADS * WIDTH], _images(subject)
    shapes: list[tuple[int, ...]] = [(BATCH, t, c) for c in widths]
    shapes[1:1] = images[: len(images) // 2]
    shapes += [*images[len(images) // 2 :], *_spectra(subject), (t, widths[0])]
    if any(isinstance(m, nn.Embedding) for m in parts) and found & {None, "ids", "x"}:
        yield {n: _value(subject, n, _ids(subject, t), t) for n in names}
    beside = {n for n in names if roles[n] in ("context", "k", "v")}
    for shape in shapes:
        for width in dict.fromkeys((shape[-1], *widths)) if beside else (shape[-1],):
            sizes = [(BATCH, _keys(t), width) if n in beside else shape for n in names]
            yield {n: _value(subject, n, x, t) for n, x in zip(names, _normal(*sizes))}


def _value(subject: Any, name: str, x: Tensor, t: int) -> Any:
    """The value of an argument to try, where it is not of a kind of its own."""
    role = named_role(name)
    if role == "ids":
        return _ids(subject, t + 2 * (name == "input_ids" and t < 16))
    if role == "mask":
        return None
    if name == "position_embeddings":
        return _rotations(subject, t)
    if name in ("position_ids", "positions", "input_pos"):
        return torch.arange(t).expand(BATCH, -1)
    return torch.arange(1, BATCH + 1) if name in ("timestep", "timesteps", "t") else x


def _heads_apart(subject: Any, names: list[str], t: int) -> Iterator[dict[str, Any]]:
    """Queries, keys and values of a function, or of a module with widths of its own."""
    order = [n for n in names if named_role(n) in ("q", "k", "v")]
    order = order if len(order) == 3 else names
    sizes = [[(BATCH, HEADS, t, WIDTH)] * len(order), [(BATCH, t, HEADS * WIDTH)] * len(order)]
    if isinstance(subject, nn.Module):
        own, lengths = whole_numbers(subject, "embed_dim", "kdim", "vdim"), (t, _keys(t), _keys(t))
        sizes = [[(BATCH, n, w) for n, w in zip(lengths, own)]] if len(own) == 3 else []
        for width in _widths(subject) or [HEADS * WIDTH]:
            sizes += [[s] * len(order) for s in ((BATCH, t, width), (BATCH, HEADS, t, width))]
    for shapes in sizes:
        yield dict.fromkeys(names) | dict(zip(order, _normal(*shapes)))


def _keys(t: int) -> int:
    """Another number of keys than of queries; a multiple of 16 where that is one."""
    return t + t // 2 if t < 16 else 2 * t


def _normal(*shapes: tuple[int, ...]) -> list[Tensor]:
    """Tensors of these shapes, always the same."""
    draws = [torch.Generator().manual_seed(seed) for seed in range(1, len(shapes) + 1)]
    return [torch.randn(s, generator=g, dtype=torch.double) for s, g in zip(shapes, draws)]


def _ids(subject: Any, length: int) -> Tensor:
    """Token ids within the vocabulary, none of them among the special ones at its ends."""
    sizes = [m.num_embeddings for m in modules_of(subject) if isinstance(m, nn.Embedding)]
    most, draw = min(max(sizes, default=40), 40), torch.Generator().manual_seed(length)
    return torch.randint(min(3, most - 1), most, (BATCH, length), generator=draw)


def _rotations(subject: Any, t: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines (b, t, d) of a rotation in halves."""
    width = next(iter(whole_numbers(subject, "head_dim", "head_size")), WIDTH)
    rates = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.double) / width)
    angle = (torch.arange(t)[:, None] * rates).repeat(1, 2).expand(BATCH, -1, -1)
    return angle.cos(), angle.sin()


# --- sizes that a module tells ------------------------------------------------------------------


def modules_of(subject: Any) -> list[nn.Module]:
    """A module and those in it; nothing for a function."""
    return [*subject.modules()] if isinstance(subject, nn.Module) else []


def whole_numbers(x: Any, *names: str) -> list[int]:
    """Those of some attributes that are whole numbers."""
    return [n for name in names if type(n := getattr(x, name, None)) is int]


def _images(subject: Any) -> list[tuple[int, ...]]:
    """Shapes of images to try: of what convolutions take and a configuration states, then any."""
    if not (parts := modules_of(subject)):
        return []
    sides = numbers_named(subject, "image_size", "img_size", "image", "input_size", "sample_size")
    own = numbers_named(subject, "num_channels", "in_channels", "channels", "in_chans")
    first = [n for m in parts if isinstance(m, (nn.Conv1d, nn.Conv2d, nn.GroupNorm))
             for n in whole_numbers(m, "in_channels", "num_channels") if n]  # fmt: skip
    channels = [*dict.fromkeys((*own, *first, *_widths(subject)[:2]))][:3]
    return [(BATCH, n, x, x) for x in [*dict.fromkeys((*sides, *SIDES))][:8] for n in channels]


def _spectra(subject: Any) -> list[tuple[int, ...]]:
    """Shapes of spectrograms that a configuration asks for."""
    length = next(numbers_named(subject, "max_source_positions"), 32)
    bins = next(numbers_named(subject, "num_mel_bins", "input_feat_per_channel"), None)
    return [(BATCH, bins, 2 * length), (BATCH, 32, bins)] if bins else []


def _widths(subject: Any) -> list[int]:
    """The widths that inputs of a module may have, the likeliest first."""
    if not isinstance(subject, nn.Module):
        return []
    names = ("embed_dim", "d_model", "hidden_size", "dim", "width", "query_dim")
    found = whole_numbers(subject, *names)
    for part in subject.modules():
        found += whole_numbers(part, "in_features", "in_channels", "embed_dim", "embedding_dim")
        shape = getattr(part, "normalized_shape", None)
        found += map(int, shape[-1:] if isinstance(shape, tuple) else ())
    for x in subject.parameters():
        found += {2: [*x.shape[::-1]], 3: [*x.shape[::2]]}.get(x.ndim, [])
    return list(dict.fromkeys(found))[:6]


# --- what its configuration states ---


def configurations(subject: Any) -> list[Any]:
    """A module, what it and its parts hold as their configuration, and those inside it."""
    found = [subject]
    for part in modules_of(subject) or [subject]:
        for config in (getattr(part, n, None) for n in ("config", "options", "cfg", "args")):
            if config is not None and all(config is not x for x in found):
                found += [config, *(x for x in vars_of(config).values() if hasattr(x, "to_dict"))]
    return found


def vars_of(config: Any) -> Mapping[str, Any]:
    """The fields of a configuration: a mapping, or an object."""
    return config if isinstance(config, Mapping) else getattr(config, "__dict__", {})


def numbers_named(subject: Any, *names: str) -> Iterator[int]:
    """The whole numbers of some names, or the first of several, in its configurations."""
    for config, name in product(configurations(subject), names):
        x = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
        first = x[0] if isinstance(x, (list, tuple)) and x else x
        if type(first) is int and first > 0:
            yield first


def stated(subject: Any, *parts: str) -> dict[str, float]:
    """The numbers in its configurations whose names contain one of some words."""
    held = [pair for config in configurations(subject)[1:] for pair in vars_of(config).items()]
    found = [(n, x) for n, x in held if type(x) in (int, float) and any(p in n for p in parts)]
    return {**dict(found), **dict(found[::-1])}  # the first of each name
