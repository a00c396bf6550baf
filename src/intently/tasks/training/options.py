"""All options of a training run: dataclasses that the command line and TOML files both read.

A group of options is a small frozen dataclass, every field with a rule and one line of help;
:class:`TrainingOptions` holds the groups, and is stored with the run. Option names are unique over
all groups, so each is also a flag of the command line, and a TOML file has one section per group::

    [model]
    width = 256

    [run]
    seed = 7
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from intently.errors import ArgumentError, DataError, KindError, build, one_line
from intently.foundation.files import File
from intently.nn.models.kinds import KINDS, EncoderDecoderOptions, options_of
from intently.nn.models.recurrent import ATTENTIONS
from intently.nn.models.recurrent_steps import CELLS
from intently.nn.models.transformer import FEED_FORWARDS, POSITIONS
from intently.tasks.decoding import SearchOptions
from intently.tasks.text.vocabularies import REMOVED


class OptionRule(NamedTuple):
    """A rule for a value, in words and as a test; ``choices`` where it is one of some words."""

    words: str
    test: Callable[[Any], bool]
    choices: tuple[str, ...] = ()


def one_of(*values: str) -> OptionRule:
    """Return the rule that a value is one of these words."""
    return OptionRule(
        "one of " + ", ".join(map(repr, values)), lambda value: value in values, values
    )


def whole(low: int, high: int, most: str = "") -> OptionRule:
    """Return the rule that a value is an integer in a range; ``most`` writes its upper end."""
    return OptionRule(f"an integer from {low} to {most or f'{high:,}'}", lambda n: low <= n <= high)


COUNT, COUNT_FROM_0 = (whole(low, 2**31 - 1, "2**31 - 1") for low in (1, 0))
LAYERS = whole(1, 1000)  # Wang et al. 2022, "DeepNet: Scaling Transformers to 1,000 Layers"
ENTRIES = whole(1, 10**7)
POSITIVE = OptionRule("a number above 0", lambda x: x > 0)
FROM_0 = OptionRule("a number of at least 0", lambda x: x >= 0)
SHARE = OptionRule("a number from 0 up to, but not, 1", lambda x: 0 <= x < 1)
FRACTION = OptionRule("a number from 0 to 1", lambda x: 0 <= x <= 1)
TOKENIZERS = one_of("subword", "word", "character")


class Flag(NamedTuple):
    """One option, as the command line needs it."""

    group: str
    type: Any
    default: Any
    help: str
    rule: OptionRule | None = None


def option(default: Any, rule: OptionRule | None, help: str) -> Any:
    """Return a dataclass field with a default, the rule for its value, and one line of help."""
    return dataclasses.field(default=default, metadata={"rule": rule, "help": help})


def check_option(name: str, value: Any, hint: Any, rule: OptionRule | None) -> Any:
    """Return an option's value in its type; raise KindError or ArgumentError with its name."""
    value = _typed(name, value, hint)
    if rule is not None and value is not None and not rule.test(value):
        cause = REMOVED.get(value) if rule is TOKENIZERS else None
        raise build(ArgumentError, name, rule.words, repr(value), cause)
    return value


def _typed(name: str, value: Any, hint: Any) -> Any:
    """Return ``value`` in the type ``hint``: an int serves as a float, a list as a tuple."""
    inner = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return None if value is None else _typed(name, value, inner[0])
    if inner:
        if isinstance(value, list | tuple) and len(value) == len(inner):
            return tuple(_typed(name, v, h) for v, h in zip(value, inner, strict=True))
    elif hint is float:
        if type(value) in (int, float) and abs(value) <= sys.float_info.max:
            return float(value)
    elif type(value) is hint:
        return value
    words = {int: "an integer", float: "a finite number", str: "a word in quotes"}
    expected = (words | {bool: "true or false"}).get(hint, f"{len(inner)} numbers")
    raise build(KindError, name, expected, f"{value!r} ({type(value).__name__})")


@cache
def flags_of(kind: type, group: str = "") -> dict[str, Flag]:
    """Return the options of a group by name."""
    hints = typing.get_type_hints(kind)
    return {
        field.name: Flag(group, hints[field.name], field.default, **field.metadata)
        for field in dataclasses.fields(kind)
    }


class OptionGroup:
    """A group of options: a dataclass that checks every field against its type and its rule."""

    def __post_init__(self) -> None:
        for name, flag in flags_of(type(self)).items():
            value = check_option(name, getattr(self, name), flag.type, flag.rule)
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class ModelOptions(OptionGroup):
    """The size of the model; options that recurrent models lack are the Transformer's."""

    width: int = option(128, COUNT, "model width c")
    heads: int = option(4, COUNT, "attention heads h; each has width / heads numbers")
    encoder_layers: int = option(2, LAYERS, "encoder layers")
    decoder_layers: int = option(2, LAYERS, "decoder layers")
    inner: int = option(512, COUNT, "width of the feed-forward layers")
    norm: str = option("pre", one_of("pre", "post"), "layer norm before or after each block")
    dropout: float = option(0.1, SHARE, "share of activations dropped in training")
    share: str = option(
        "output", one_of("output", "all"), "tied embeddings: target and output, or all three"
    )


@dataclass(frozen=True)
class TextOptions(OptionGroup):
    """Tokenizers and the length of texts."""

    source_tokenizer: str = option("subword", TOKENIZERS, "tokenizer of the source")
    source_size: int = option(8000, ENTRIES, "largest source vocabulary, in tokens")
    target_tokenizer: str = option("subword", TOKENIZERS, "tokenizer of the target")
    target_size: int = option(8000, ENTRIES, "largest target vocabulary, in tokens")
    min_frequency: int = option(1, COUNT, "leave rarer pieces out of the vocabularies")
    max_length: int = option(128, COUNT, "skip pairs with more tokens on a side")
    joint: bool = option(False, None, "one tokenizer for both sides; share=all implies it")
    guided: str | None = option(
        None,
        None,
        "head that --guide teaches (default: decoder.N.cross_attention.0, N the last layer but "
        "one)",
    )


@dataclass(frozen=True)
class ScheduleOptions(OptionGroup):
    """The length of the training, and the learning rate at each step."""

    steps: int = option(10_000, COUNT, "training steps")
    seconds: float | None = option(
        None, POSITIVE, "stop after this many seconds; the warm-up takes a fifth of them at most"
    )
    learning_rate: float = option(2e-3, POSITIVE, "highest learning rate")
    warmup: int | None = option(
        None,
        COUNT_FROM_0,
        "steps in which the learning rate rises (default: a fifth of the steps, at most 500)",
    )
    schedule: str = option(
        "inverse_sqrt",
        one_of("inverse_sqrt", "cosine", "constant"),
        "learning rate after the warm-up",
    )
    cooldown: float = option(0.0, FRACTION, "last share of the steps: the rate falls to zero")
    patience: int = option(
        0, COUNT_FROM_0, "stop after this many evaluations without a better one; 0: never"
    )


@dataclass(frozen=True)
class OptimiserOptions(OptionGroup):
    """The optimiser, its batches and its regularisation."""

    optimiser: str = option(
        "adamw",
        one_of("adamw", "muon"),
        "optimiser (muon: for the hidden matrices; adamw for the rest)",
    )
    batch_tokens: int = option(3000, COUNT, "target tokens in a batch, padding included")
    label_smoothing: float = option(0.1, SHARE, "probability spread over all tokens")
    accumulate: int = option(1, whole(1, 10**4), "batches whose gradients make one step")
    clip: float = option(1.0, POSITIVE, "largest norm of the gradient")
    weight_decay: float = option(0.01, FROM_0, "weight decay; embeddings and norms are exempt")
    betas: tuple[float, float] = option(
        (0.9, 0.98),
        OptionRule("two numbers from 0 up to, but not, 1", lambda b: all(0 <= x < 1 for x in b)),
        "decay of the means of gradients and of their squares",
    )
    guide_weight: float = option(
        0.05, FROM_0, "weight of a guided query in the loss; a target token weighs 1"
    )


@dataclass(frozen=True)
class RunOptions(OptionGroup):
    """Randomness, threads, evaluations and checkpoints."""

    seed: int = option(1, whole(0, 2**64 - 1, "2**64 - 1"), "random seed")
    threads: int | None = option(None, whole(1, 1024, "1024"), "PyTorch threads (default: all)")
    save_every: int = option(1000, COUNT, "steps between checkpoints")
    evaluate_every: int = option(1000, COUNT, "steps between evaluations on the dev set")
    keep: int = option(2, COUNT, "newest checkpoints to keep, besides the best")
    best_by: str | None = option(
        None,
        None,
        "dev score that chooses the best checkpoint: bleu, chrf, exact or loss; the lower "
        "loss decides between equals (default: bleu; chrf where the target has no spaces "
        "between words)",
    )


@dataclass(frozen=True)
class ArchitectureOptions(OptionGroup):
    """The kind of model; all options but the first are for recurrent models."""

    model: str = option("transformer", one_of(*KINDS), "kind of model")
    cell: str = option("gru", one_of(*CELLS), "cell of a recurrent model")
    attention: str = option(
        "additive",
        one_of(*ATTENTIONS),
        "attention of a recurrent model (none: fixed vector; additive: Bahdanau; others: Luong)",
    )
    bidirectional: bool = option(True, None, "recurrent encoder reads in both directions")
    input_feeding: bool = option(True, None, "recurrent cell also reads its last attention output")


@dataclass(frozen=True)
class VariantOptions(OptionGroup):
    """Variants of the Transformer, see `intently.nn.models.TransformerOptions`."""

    kv_heads: int | None = option(
        None, COUNT, "heads of keys and values (default: as many as heads)"
    )
    positions: str = option("sinusoidal", one_of(*POSITIONS), "position encoding")
    feed_forward: str = option(
        "relu",
        one_of(*FEED_FORWARDS),
        "feed-forward layer; gated is SwiGLU (two thirds of inner give the same size)",
    )
    learned_steps: int = option(512, COUNT, "longest text that learned positions know")


@dataclass(frozen=True)
class MachineOptions(OptionGroup):
    """Hardware: device, precision and processes."""

    device: str = option(
        "auto", one_of("auto", "cpu", "cuda"), "device to train on; auto: CUDA if available"
    )
    precision: str = option(
        "float32",
        one_of("float32", "bfloat16"),
        "precision of matrix products; bfloat16 needs hardware support",
    )
    parallel: str = option(
        "data",
        one_of("data", "sharded"),
        "several processes: a whole model in each, or a shard of one",
    )


@dataclass(frozen=True)
class TrainingOptions:
    """All options of a training run, in eight groups.

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
    transformer: VariantOptions = dataclasses.field(default_factory=VariantOptions)
    machine: MachineOptions = dataclasses.field(default_factory=MachineOptions)

    def __post_init__(self) -> None:
        kind, flags = self.architecture.model, self.flags()
        for name, value in self._shape().items():
            if name not in fields_of(KINDS[kind]) and value != flags[name].default:
                [other] = (k for k, options in KINDS.items() if name in fields_of(options))
                expected = f"the default {flags[name].default!r}, or model={other!r}"
                cause = f"a model of the kind {kind!r} has no option {name}"
                raise build(ArgumentError, name, expected, repr(value), cause)
        width, heads = self.model.width, self.model.heads
        if kind == "transformer" and (width % heads or width % 2):
            step = math.lcm(heads, 2)
            near = max(step, width // step * step)
            even = f"an even multiple of heads={heads}"
            raise build(ArgumentError, "width", even, width, fix=f"Use {near}")
        self.shape(1, 1)  # checks options against each other
        longest = SearchOptions().limit(self.text.max_length)
        if self.transformer.positions == "learned" and self.transformer.learned_steps < longest:
            expected = f"at least 2·max_length + 10 = {longest}"
            cause = "the table of positions ends there, and a search may write as much"
            got = self.transformer.learned_steps
            raise build(ArgumentError, "learned_steps", expected, got, cause)

    def _shape(self) -> dict[str, Any]:
        """Return the options that may describe a model, by name."""
        groups = self.model, self.architecture, self.transformer
        values = {k: v for group in groups for k, v in dataclasses.asdict(group).items()}
        return {name: value for name, value in values.items() if name != "model"}

    def shape(self, source_vocabulary: int, target_vocabulary: int) -> EncoderDecoderOptions:
        """Return the options of the model for vocabularies of these sizes."""
        sizes = {"source_vocabulary": source_vocabulary, "target_vocabulary": target_vocabulary}
        kind = self.architecture.model
        own = {k: v for k, v in self._shape().items() if k in fields_of(KINDS[kind])}
        return options_of(kind, sizes | own)

    @classmethod
    def flags(cls) -> dict[str, Flag]:
        """Return every option by name: its group, type, default, help and rule."""
        groups = typing.get_type_hints(cls).items()
        return {
            name: flag for group, kind in groups for name, flag in flags_of(kind, group).items()
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "options") -> TrainingOptions:
        """Return the options in ``values``, a mapping of groups to mappings of options.

        Missing options take their defaults. Raises ArgumentError for unknown groups, unknown
        options and values out of range, KindError for wrong types; messages begin with ``where``.
        """
        kinds = typing.get_type_hints(cls)
        check_names(values, {group: fields_of(kind) for group, kind in kinds.items()}, where)
        place, groups = where, {}
        try:
            for group, entries in values.items():
                place = f"{where}: [{group}]"
                groups[group] = kinds[group](**entries)
            place = f"{where}:"
            return cls(**groups)
        except (ArgumentError, KindError) as error:
            raise type(error)(f"{place} {error}") from None

    @classmethod
    def from_toml(cls, path: Path | str) -> TrainingOptions:
        """Return the options in a TOML file with a section per group.

        Raises DataError if the file cannot be read, otherwise as :meth:`from_dict`.
        """
        file = File(Path(path), "a TOML file of options", DataError)
        return cls.from_dict(file.toml(), where=str(path))

    @classmethod
    def from_json(cls, path: Path | str) -> TrainingOptions:
        """Return the options that a run stored in its ``options.json``.

        Raises DataError if the file cannot be read or was changed, otherwise as
        :meth:`from_dict`.
        """
        file = File(Path(path), "a JSON file of options", DataError)
        return cls.from_dict(file.sealed({str: {str: object}}), where=str(path))

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the options as plain values that JSON can hold."""
        return dataclasses.asdict(self)

    def with_flags(self, **overrides: Any) -> TrainingOptions:
        """Return the options with some replaced by name; None means not given.

        Raises ArgumentError for unknown names and values out of range, KindError for wrong types.
        """
        flags, values, kinds = self.flags(), self.to_dict(), typing.get_type_hints(type(self))
        for name, value in overrides.items():
            if name not in flags:
                raise _unknown(name, name, flags, "options", {})
            if value is not None:
                values[flags[name].group][name] = value
        return type(self)(**{group: kinds[group](**entries) for group, entries in values.items()})


def fields_of(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass."""
    return tuple(field.name for field in dataclasses.fields(kind))


def check_names(values: Mapping[str, Any], known: Mapping[str, Iterable[str]], where: str) -> None:
    """Raise unless ``values`` maps ``known`` sections to mappings of their options.

    Raises ArgumentError for an unknown section or option, with the nearest known one, KindError for
    a section that is not a mapping; messages begin with ``where``.
    """
    homes = {name: section for section, names in known.items() for name in names}
    for section, entries in values.items():
        if section not in known:
            raise _unknown(f"{where}: {section}", section, known, "sections", homes)
        if not isinstance(entries, Mapping):
            raise build(KindError, f"{where}: {section}", "a section of options", repr(entries))
        for name in entries:
            if homes.get(name) != section:
                argument = f"{where}: [{section}] {name}"
                raise _unknown(argument, name, known[section], "options", homes)


def _unknown(
    argument: str, name: str, valid: Iterable[str], what: str, homes: Mapping[str, str]
) -> ArgumentError:
    """Return the error for an unknown name, with the nearest valid name or its section."""
    fix = None
    if near := difflib.get_close_matches(name, valid, n=1):
        fix = f"Did you mean {near[0]}?"
    elif name in homes:
        fix = f"the option {name} belongs to the section [{homes[name]}]"
    elif near := difflib.get_close_matches(name, homes, n=1):
        fix = f"Did you mean {near[0]} of [{homes[near[0]]}]?"
    expected = f"one of the {what} {', '.join(valid)}"
    return one_line(build(ArgumentError, argument, expected, repr(name), fix=fix))
