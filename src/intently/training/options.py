"""Everything a training run can be told, in one frozen value that is stored with the run.

A group of options is a small frozen dataclass; :class:`TrainingOptions` holds the six groups.
Option names are unique over all groups, so that each is a flag of the command line too, and a TOML
file has one section per group::

    [model]
    width = 256

    [run]
    seed = 7
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from intently.errors import ArgumentError, DataError, KindError, build
from intently.models.kinds import KINDS, EncoderDecoderOptions, options_of
from intently.models.recurrent import ATTENTIONS
from intently.models.recurrent_steps import CELLS
from intently.models.transformer import TransformerOptions


class Rule(NamedTuple):
    """What a value must be, in words and as a test."""

    words: str
    test: Callable[[Any], bool]


class Flag(NamedTuple):
    """One option as the command line sees it."""

    group: str
    type: Any
    default: Any
    help: str


def one_of(*values: str) -> Rule:
    """Return the rule that a value is one of these words."""
    return Rule("one of " + ", ".join(map(repr, values)), lambda value: value in values)


COUNT = Rule("an integer of at least 1", lambda n: n >= 1)
COUNT_FROM_0 = Rule("an integer of at least 0", lambda n: n >= 0)
POSITIVE = Rule("a number above 0", lambda x: x > 0)
FROM_0 = Rule("a number of at least 0", lambda x: x >= 0)
SHARE = Rule("a number from 0 up to, but not, 1", lambda x: 0 <= x < 1)
FRACTION = Rule("a number from 0 to 1", lambda x: 0 <= x <= 1)
TOKENIZERS = one_of("subword", "word", "character")


def option(default: Any, rule: Rule | None, help: str) -> Any:
    """Return a dataclass field with its default, the rule its value keeps, and one line of help."""
    return dataclasses.field(default=default, metadata={"rule": rule, "help": help})


class _Group:
    """Checks every field of an options dataclass against its type and its rule."""

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(typing.cast(Any, self)):
            value = _typed(field.name, getattr(self, field.name), hints[field.name])
            rule: Rule | None = field.metadata["rule"]
            if rule is not None and value is not None and not rule.test(value):
                raise build(ArgumentError, field.name, rule.words, repr(value))
            object.__setattr__(self, field.name, value)


@dataclass(frozen=True)
class ModelOptions(_Group):
    """The size of the model; heads, inner and norm are those of the Transformer.

    >>> ModelOptions(width=130)
    Traceback (most recent call last):
    ...
    intently.errors.ArgumentError: width: expected an even multiple of heads=4; got 130. Use 128.
    """

    width: int = option(128, COUNT, "model width c")
    heads: int = option(4, COUNT, "attention heads h; each is width / heads wide")
    encoder_layers: int = option(2, COUNT, "layers of the encoder")
    decoder_layers: int = option(2, COUNT, "layers of the decoder")
    inner: int = option(512, COUNT, "width of the feed-forward layers")
    norm: str = option("pre", one_of("pre", "post"), "layer norm before or after each block")
    dropout: float = option(0.1, SHARE, "share of activations dropped while training")
    share: str = option("output", one_of("output", "all"), "embeddings tied: output, or all three")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads or self.width % 2:
            step = math.lcm(self.heads, 2)
            near = max(step, self.width // step * step)
            even = f"an even multiple of heads={self.heads}"
            raise build(ArgumentError, "width", even, self.width, fix=f"Use {near}")

    def transformer(self, source_vocabulary: int, target_vocabulary: int) -> TransformerOptions:
        """Return the options of the model for vocabularies of these sizes.

        >>> ModelOptions(width=64).transformer(100, 200).width
        64
        """
        return TransformerOptions(source_vocabulary, target_vocabulary, **dataclasses.asdict(self))


@dataclass(frozen=True)
class TextOptions(_Group):
    """How sentences become tokens."""

    source_tokenizer: str = option("subword", TOKENIZERS, "pieces of the source sentences")
    source_size: int = option(8000, COUNT, "largest source vocabulary, in tokens")
    target_tokenizer: str = option("subword", TOKENIZERS, "pieces of the target sentences")
    target_size: int = option(8000, COUNT, "largest target vocabulary, in tokens")
    min_frequency: int = option(1, COUNT, "a rarer piece is not taken into a vocabulary")
    max_length: int = option(128, COUNT, "pairs with more tokens on a side are skipped")


@dataclass(frozen=True)
class ScheduleOptions(_Group):
    """How long to train, and the learning rate at each step."""

    steps: int = option(10_000, COUNT, "steps of the optimiser")
    seconds: float | None = option(None, POSITIVE, "stop after that much time, finished or not")
    learning_rate: float = option(2e-3, POSITIVE, "the highest learning rate")
    warmup: int = option(500, COUNT_FROM_0, "steps in which it rises to the highest")
    schedule: str = option("inverse_sqrt", one_of("inverse_sqrt", "constant"), "what follows")
    cooldown: float = option(0.0, FRACTION, "last share of the steps, falling linearly to zero")


@dataclass(frozen=True)
class OptimiserOptions(_Group):
    """How a step is made of gradients."""

    optimiser: str = option("adamw", one_of("adamw", "muon"), "muon: for the hidden matrices")
    batch_tokens: int = option(3000, COUNT, "target tokens of a batch, padding included")
    label_smoothing: float = option(0.1, SHARE, "probability given to all tokens alike")
    clip: float = option(1.0, POSITIVE, "largest norm of the gradient of all parameters")
    weight_decay: float = option(0.01, FROM_0, "of weight matrices; not of embeddings and norms")
    betas: tuple[float, float] = option(
        (0.9, 0.98),
        Rule("two numbers from 0 up to, but not, 1", lambda b: all(0 <= x < 1 for x in b)),
        "memory of the mean and of the mean square of gradients",
    )


@dataclass(frozen=True)
class RunOptions(_Group):
    """Randomness, threads, and when to look and to save."""

    seed: int = option(1, COUNT_FROM_0, "of all that is random")
    threads: int | None = option(None, COUNT, "of PyTorch; none: as many as it finds")
    save_every: int = option(1000, COUNT, "steps between checkpoints")
    evaluate_every: int = option(1000, COUNT, "steps between evaluations on the dev set")
    keep: int = option(2, COUNT, "newest checkpoints kept, beside the best")
    best_by: str = option("bleu", None, "dev score that chooses the best checkpoint")


@dataclass(frozen=True)
class ArchitectureOptions(_Group):
    """Which model translates; all but the first are about recurrent ones."""

    model: str = option("transformer", one_of(*KINDS), "the kind of model")
    cell: str = option("gru", one_of(*CELLS), "cell of a recurrent model")
    attention: str = option(
        "additive", one_of(*ATTENTIONS),
        "of a recurrent model; none: the fixed context vector, additive: Bahdanau, others: Luong",
    )  # fmt: skip
    bidirectional: bool = option(True, None, "a recurrent encoder reads in both directions")
    input_feeding: bool = option(True, None, "a recurrent cell reads what was attended, too")


@dataclass(frozen=True)
class TrainingOptions:
    """All options of a training run, in six groups.

    >>> options = TrainingOptions().with_flags(width=64, steps=200)
    >>> options.model.width, options.schedule.steps
    (64, 200)
    >>> TrainingOptions.from_dict(options.to_dict()) == options
    True
    """

    model: ModelOptions = dataclasses.field(default_factory=ModelOptions)
    text: TextOptions = dataclasses.field(default_factory=TextOptions)
    schedule: ScheduleOptions = dataclasses.field(default_factory=ScheduleOptions)
    optimiser: OptimiserOptions = dataclasses.field(default_factory=OptimiserOptions)
    run: RunOptions = dataclasses.field(default_factory=RunOptions)
    architecture: ArchitectureOptions = dataclasses.field(default_factory=ArchitectureOptions)

    def __post_init__(self) -> None:
        kind, flags = self.architecture.model, self.flags()
        for name, value in self._shape().items():
            if name not in _fields(KINDS[kind]) and value != flags[name].default:
                [other] = (k for k, options in KINDS.items() if name in _fields(options))
                expected = f"the default {flags[name].default!r}, or model={other!r}"
                cause = f"a model of the kind {kind!r} has no {name}"
                raise build(ArgumentError, name, expected, repr(value), cause)

    def _shape(self) -> dict[str, Any]:
        """What may describe a model, by name."""
        values = dataclasses.asdict(self.model) | dataclasses.asdict(self.architecture)
        return {name: value for name, value in values.items() if name != "model"}

    def shape(self, source_vocabulary: int, target_vocabulary: int) -> EncoderDecoderOptions:
        """Return the options of the model for vocabularies of these sizes.

        >>> TrainingOptions().with_flags(model="recurrent", cell="lstm").shape(100, 200).cell
        'lstm'
        """
        sizes = {"source_vocabulary": source_vocabulary, "target_vocabulary": target_vocabulary}
        kind = self.architecture.model
        own = {k: v for k, v in self._shape().items() if k in _fields(KINDS[kind])}
        return options_of(kind, sizes | own)

    @classmethod
    def flags(cls) -> dict[str, Flag]:
        """Return every option by name: its group, type, default and help.

        >>> TrainingOptions.flags()["warmup"].group
        'schedule'
        """
        return {
            field.name: Flag(
                group,
                typing.get_type_hints(kind)[field.name],
                field.default,
                field.metadata["help"],
            )
            for group, kind in typing.get_type_hints(cls).items()
            for field in dataclasses.fields(kind)
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "options") -> TrainingOptions:
        """Return the options in ``values``, a mapping of groups to mappings of options.

        What is missing takes its default. Raises ArgumentError for unknown groups, unknown
        options and values out of range, KindError for wrong types; ``where`` begins the message.
        """
        kinds = typing.get_type_hints(cls)
        groups: dict[str, Any] = {}
        for group, entries in values.items():
            if group not in kinds:
                raise _unknown(f"{where}: {group}", group, list(kinds), "one of the sections")
            if not isinstance(entries, Mapping):
                raise build(KindError, f"{where}: {group}", "a section of options", repr(entries))
            names = [field.name for field in dataclasses.fields(kinds[group])]
            for name in entries:
                if name not in names:
                    raise _unknown(f"{where}: [{group}] {name}", name, names, "one of the options")
            try:
                groups[group] = kinds[group](**entries)
            except (ArgumentError, KindError) as error:
                raise type(error)(f"{where}: [{group}] {error}") from None
        try:
            return cls(**groups)
        except ArgumentError as error:
            raise ArgumentError(f"{where}: {error}") from None

    @classmethod
    def from_toml(cls, path: Path | str) -> TrainingOptions:
        """Return the options in a TOML file with a section per group.

        Raises DataError where the file cannot be read, otherwise as :meth:`from_dict`.
        """
        return cls._from_file(path, "TOML", tomllib.loads)

    @classmethod
    def from_json(cls, path: Path | str) -> TrainingOptions:
        """Return the options that a run stored in its ``options.json``.

        Raises DataError where the file cannot be read, otherwise as :meth:`from_dict`.
        """
        return cls._from_file(path, "JSON", json.loads)

    @classmethod
    def _from_file(cls, path: Path | str, kind: str, read: Callable[[str], Any]) -> TrainingOptions:
        try:
            values = read(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:  # broken TOML, JSON and UTF-8 are ValueErrors
            raise build(DataError, str(path), f"a {kind} file of options", str(error)) from error
        if not isinstance(values, dict):
            raise build(DataError, str(path), "sections of options", repr(values)[:80])
        return cls.from_dict(values, where=str(path))

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the options as plain values that JSON can hold."""
        return dataclasses.asdict(self)

    def with_flags(self, **overrides: Any) -> TrainingOptions:
        """Return the options with some replaced by name; None means not given.

        Raises ArgumentError for unknown names and values out of range, KindError for wrong types.
        """
        flags = self.flags()
        values = self.to_dict()
        for name, value in overrides.items():
            if name not in flags:
                raise _unknown(name, name, list(flags), "one of the options")
            if value is not None:
                values[flags[name].group][name] = value
        groups = {
            group: kind(**values[group])
            for group, kind in typing.get_type_hints(type(self)).items()
        }
        return dataclasses.replace(self, **groups)


def _fields(kind: Any) -> set[str]:
    """Return the names of the fields of a dataclass."""
    return {field.name for field in dataclasses.fields(kind)}


def _unknown(argument: str, name: str, valid: list[str], what: str) -> ArgumentError:
    """Return the error for a name that is none of the valid ones."""
    homes = {n: flag.group for n, flag in TrainingOptions.flags().items()}
    near = difflib.get_close_matches(name, valid, n=1)
    if near:
        fix = f"Did you mean {near[0]}?"
    elif name in homes:
        fix = f"the option {name} belongs to the section [{homes[name]}]"
    else:
        everywhere = difflib.get_close_matches(name, homes, n=1)
        fix = f"Did you mean {everywhere[0]} of [{homes[everywhere[0]]}]?" if everywhere else None
    return build(ArgumentError, argument, f"{what} {', '.join(valid)}", repr(name), fix=fix)


def _typed(name: str, value: Any, hint: Any) -> Any:
    """Return ``value`` as the type ``hint``: an int may stand for a float, a list for a tuple."""
    inner = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return None if value is None else _typed(name, value, inner[0])
    if typing.get_origin(hint) is tuple:
        if isinstance(value, list | tuple) and len(value) == len(inner):
            return tuple(_typed(name, v, h) for v, h in zip(value, inner, strict=True))
    elif hint is float:
        if type(value) in (int, float) and math.isfinite(value):
            return float(value)
    elif type(value) is hint:
        return value
    words = {
        int: "an integer",
        float: "a finite number",
        str: "a word in quotes",
        bool: "true or false",
    }
    expected = words.get(hint, f"{len(inner)} numbers")
    raise build(KindError, name, expected, f"{value!r} ({type(value).__name__})")
