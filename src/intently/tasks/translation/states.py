"""`States`: the vectors of a sentence's tokens after every layer."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from intently.errors import ArgumentError, build
from intently.foundation.files.writing import replace_file
from intently.foundation.tokens import bare
from intently.nn.models.kinds import EncoderDecoder
from intently.show.inputs import place
from intently.tasks.text import EOS, SOS, Tokenizer
from intently.tasks.translation.lines import WordSide


class States(Mapping[str, Tensor]):
    """The states (t, c) of a sentence by the name of their layer, in order.

    ``states[name]`` holds a row for each token: of ``source`` where the name starts with
    "encoder", of ``target`` where it starts with "decoder". A row of the decoder is labelled with
    the token that it reads, and writes the next one. ``states[name, "it"]`` is the vector (c,) of a
    token, given by its text or its position. `intently.nn.models.Transformer.states` documents the
    names.

    >>> from intently.tasks.translation import Translator
    >>> states = Translator.load().states("The road was wide.")
    >>> states["encoder.1"].shape, states["encoder.1", "road"].shape
    (torch.Size([6, 128]), torch.Size([128]))
    >>> print(states)
    source             ▁The ▁road ▁was ▁wide . </s>
    target             <s> ▁La ▁route ▁était ▁large .
    encoder.embedding  (6, 128)
    encoder.input      (6, 128)
    encoder.0          (6, 128)
    encoder.1          (6, 128)
    encoder.output     (6, 128)
    decoder.embedding  (6, 128)
    ...
    """

    def __init__(
        self,
        layers: Mapping[str, Tensor],
        source: Sequence[str],
        target: Sequence[str],
        groups: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]],
        spelled: tuple[Sequence[str], Sequence[str]],
    ) -> None:
        self._layers = dict(layers)
        self.source, self.target = tuple(source), tuple(target)
        self._groups, self._spelled = groups, (tuple(spelled[0]), tuple(spelled[1]))

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        model: EncoderDecoder,
        tokenizers: tuple[Tokenizer, Tokenizer],
        source: WordSide,
        target: WordSide,
    ) -> States:
        """Return the states of a model that reads ``source`` and writes ``target``."""
        if not source.ids:
            raise build(ArgumentError, "text", "a text with a word in it", "one without")
        ids, device = ([*source.ids, EOS], [SOS, *target.ids]), model.output_weight.device
        states = model.states(*(torch.tensor([x], device=device) for x in ids))
        after_start = [[i + 1 for i in group] for group in target.groups]
        return cls(
            {name: x[0] for name, x in states.items()},
            tokenizers[0].tokens(ids[0]),
            tokenizers[1].tokens(ids[1]),
            (source.groups, after_start),
            (source.words, target.words),
        )

    def words(self) -> States:
        """Return the states of words: each the mean over its tokens, without special tokens.

        >>> from intently.tasks.translation import Translator
        >>> Translator.load().states("The road was wide.").words().source
        ('The', 'road', 'was', 'wide', '.')
        """
        merged = {
            name: torch.stack([x[list(group)].mean(0) for group in groups])
            if (groups := self._groups[_side(name)])
            else x[:0]
            for name, x in self._layers.items()
        }
        own = tuple([[i] for i in range(len(side))] for side in self._spelled)
        return States(merged, *self._spelled, (own[0], own[1]), self._spelled)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a safetensors file: the states by name, ``source`` and ``target`` as JSON beside.

        Raises `WriteError` if the file cannot be written.
        """
        from safetensors.torch import save

        tensors = {name: x.detach().cpu().clone() for name, x in self._layers.items()}
        beside = {"source": json.dumps(self.source), "target": json.dumps(self.target)}
        replace_file(Path(path), save(tensors, beside))

    def __getitem__(self, key: str | tuple[str, str | int]) -> Tensor:
        """Return ``states[name]`` (t, c), or the vector (c,) of one token, ``states[name, token]``.

        Raises `ArgumentError` for unknown names, and for texts that no token or several tokens
        have; `RangeError` for a position outside.
        """
        name, token = key if isinstance(key, tuple) and len(key) == 2 else (key, None)
        if name not in self._layers:
            near = difflib.get_close_matches(str(name), self._layers, 3, 0.5) or self._layers
            fix = f"the names are {', '.join(map(repr, near))}"
            raise build(ArgumentError, "name", "the name of a layer", repr(name), fix=fix)
        if token is None:
            return self._layers[name]
        side = _side(name)
        tokens = (self.source, self.target)[side]
        if token in self._spelled[side] and token not in {*tokens, *map(bare, tokens)}:
            why, fix = (
                "it is a word of several tokens",
                f"write states.words()[{name!r}, {token!r}]",
            )
            raise build(ArgumentError, "token", "one token", repr(token), why, fix)
        return self._layers[name][place(token, tokens)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    def __repr__(self) -> str:
        width = next(iter(self._layers.values())).shape[-1]
        read = f"{len(self.source)} source and {len(self.target)} target"
        return f"States({len(self)} layers of {read} tokens, c={width})"

    def __str__(self) -> str:
        wide = max(map(len, self._layers))
        sides = (("source", self.source), ("target", self.target))
        lines = [f"{side:<{wide}}  {' '.join(tokens)}" for side, tokens in sides]
        return "\n".join(
            [*lines, *(f"{name:<{wide}}  {tuple(x.shape)}" for name, x in self._layers.items())]
        )


def _side(name: str) -> int:
    return int(name.startswith("decoder"))
