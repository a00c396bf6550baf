"""Sampling: a language model continues a text, one drawn token at a time.

Prompts of different lengths share a batch. They are read once, padded; the caches are then cropped
to the length of each prompt, and every row continues by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.checks import check_kind, is_number, whole_number
from intently.tasks.decoding.search import evaluating, padded, token_ids


class SampledModel(Protocol):
    """What `sample` needs of a model; `intently.nn.models.LanguageModel` is one."""

    @property
    def max_length(self) -> int | None: ...

    def new_cache(self) -> Any: ...

    def hidden(self, ids: Tensor, cache: Any) -> Tensor: ...

    @property
    def output_weight(self) -> Tensor: ...


@torch.no_grad()
def sample(
    model: SampledModel,
    prompts: Sequence[Sequence[int]],
    *,
    steps: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: int | None = None,
    generator: torch.Generator | None = None,
    cache: Any = None,
) -> list[list[int]]:
    """Return for each prompt the ``steps`` tokens that follow it, drawn from `distribution`.

    ``prompts`` are token ids, at least one each, of any lengths. With ``stop`` a row ends before
    that token. ``temperature`` 0 always takes the likeliest token. The model is in evaluation mode
    meanwhile. Keys and values are cached, so each token costs one step; ``cache``, which must be
    empty, replaces the model's own cache if that would grow too large. ``generator`` must be on the
    device of the model.

    Raises `ArgumentError` for prompts without tokens, numbers out of range, texts longer than the
    model's positions and a cache that is not empty; `KindError` for wrong types.

    >>> from intently.nn.models.language import LanguageModel, LanguageOptions
    >>> model = LanguageModel(LanguageOptions(vocabulary=20))
    >>> found = sample(model, [[5, 6, 7], [8]], steps=4, top_k=1)
    >>> [len(ids) for ids in found]
    [4, 4]
    """
    whole_number(steps, "steps", 0)
    _check(temperature, top_k, top_p)
    if stop is not None:
        whole_number(stop, "stop", 0)
    check_kind(generator, torch.Generator | None, "generator", "a torch.Generator")
    offset = getattr(cache, "offset", 0)
    if isinstance(offset, Tensor) or offset != 0:
        got = f"one of {offset.tolist() if isinstance(offset, Tensor) else offset} steps"
        cause, fix = "the prompts would continue its text", "make a new one: model.new_cache(…)"
        raise build(ArgumentError, "cache", "an empty one", got, cause, fix)
    rows = [_ids(prompt, i) for i, prompt in enumerate(prompts)]
    longest = max(map(len, rows), default=0)
    if model.max_length is not None and longest + steps - 1 > model.max_length:
        raise build(
            ArgumentError,
            "steps",
            f"prompt and steps within {model.max_length} positions",
            f"{longest} + {steps}",
            "the model has learned no more",
            "ask for fewer steps",
        )
    if not rows or not steps:
        return [[] for _ in rows]
    with evaluating(model):
        cache = model.new_cache() if cache is None else cache
        device, lengths = model.output_weight.device, [len(row) for row in rows]
        hidden = model.hidden(padded(rows).to(device), cache)
        ends = torch.tensor(lengths, device=device)
        last = hidden[torch.arange(len(rows), device=device), ends - 1]
        if min(lengths) < longest:
            cache.crop(ends)
        drawn: list[Tensor] = []
        ended = torch.zeros(len(rows), dtype=torch.bool, device=device)
        while True:
            chances = distribution(last @ model.output_weight.mT, temperature, top_k, top_p)
            drawn.append(torch.multinomial(chances, 1, generator=generator)[:, 0])
            if stop is not None:
                ended |= drawn[-1] == stop
            if len(drawn) == steps or (stop is not None and bool(ended.all())):
                break
            last = model.hidden(drawn[-1][:, None], cache)[:, 0]
    found = torch.stack(drawn, 1).tolist()
    return [ids[: ids.index(stop)] if stop in ids else ids for ids in found]


def distribution(
    logits: Float[Tensor, "*b v"],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Float[Tensor, "*b v"]:
    """Return the probabilities (…, V) that tokens are drawn with.

    softmax(logits / ``temperature``), of which the ``top_k`` likeliest tokens are kept, then the
    fewest of these whose mass is at least ``top_p``; among equals, lower ids first. The result is
    scaled to sum to 1. A ``top_k`` of at least the vocabulary, and a ``top_p`` of 1, keep every
    token. Half types are computed in float32, masses are summed in float64.

    The warpers of transformers give the same, except that their top-k keeps all tokens that equal
    the k-th, and their top-p leaves ties to an unstable sort.

    Raises `ArgumentError` for numbers out of range and for logits that leave no token (NaN, +inf,
    or −inf for all), `KindError` for values that are not numbers.

    Source: top-k of Fan et al. 2018, "Hierarchical Neural Story Generation", section 5.4; top-p of
    Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", section 3.1.

    >>> logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    >>> distribution(logits, top_p=0.7)
    tensor([0.6250, 0.3750, 0.0000, 0.0000])
    >>> distribution(logits, temperature=0)
    tensor([1., 0., 0., 0.])
    """
    _check(temperature, top_k, top_p)
    if not isinstance(logits, Tensor) or logits.is_complex() or logits.dtype is torch.bool:
        got = f"dtype {logits.dtype}" if isinstance(logits, Tensor) else type(logits).__name__
        raise build(KindError, "logits", "a tensor of numbers (…, V)", got)
    if not logits.ndim or not logits.shape[-1]:
        raise build(
            ArgumentError,
            "logits",
            "shape (…, V), a number for each token of a vocabulary",
            shape_of(logits),
        )
    if temperature == 0:
        temperature, top_k = 1.0, 1
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    z = (z - z.amax(-1, keepdim=True)) / temperature  # otherwise small temperatures overflow
    # on the CPU only, to avoid a GPU sync
    if z.device.type == "cpu" and not torch.compiler.is_compiling() and bool(z.isnan().any()):
        expected = "finite numbers, −inf for tokens that may not follow"
        got = "NaN or +inf, or −inf for every token of a row"
        cause = "the model has diverged or overflows"
        fix = "look at its weights, or compute in a wider dtype"
        raise build(ArgumentError, "logits", expected, got, cause, fix)
    ordered = z.sort(dim=-1, descending=True, stable=True)
    chances = torch.softmax(ordered.values, -1)
    if top_k is not None and top_k < chances.shape[-1]:
        chances[..., top_k:] = 0
        chances = chances / chances.sum(-1, keepdim=True)
    if top_p is not None and top_p < 1:
        mass = chances.double()
        chances = chances * (mass.cumsum(-1) - mass < top_p)
        chances = chances / chances.sum(-1, keepdim=True)
    return torch.empty_like(chances).scatter_(-1, ordered.indices, chances)


def _check(temperature: float, top_k: int | None, top_p: float | None) -> None:
    for name, value in (("temperature", temperature), ("top_p", 1 if top_p is None else top_p)):
        if not is_number(value):
            raise build(KindError, name, "a number", repr(value))
    if not (math.isfinite(temperature) and temperature >= 0):
        raise build(ArgumentError, "temperature", "a finite number ≥ 0", temperature)
    if top_k is not None:
        whole_number(top_k, "top_k", 1)
    if top_p is not None and not 0 < top_p <= 1:
        raise build(ArgumentError, "top_p", "a mass in (0, 1]", top_p)


def _ids(prompt: Sequence[int], i: int) -> list[int]:
    ids = token_ids(prompt, f"prompts[{i}]", "sample takes one list of ids for each prompt")
    if not ids:
        cause, fix = "the model says what follows a token", "begin with SOS, id 1"
        raise build(ArgumentError, f"prompts[{i}]", "at least one token id", "none", cause, fix)
    return ids
