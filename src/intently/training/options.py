"""All options of a training run, as one frozen value that is stored with the run.

A group of options is a small frozen dataclass; :class:`TrainingOptions` holds the eight groups of
`intently.training.groups`.
Option names are unique over all groups, so each is also a flag of the command line, and a TOML file
has one section per group::

    [model]
    width = 256

    [run]
    seed = 7
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from intently.decoding import SearchOptions
from intently.errors import ArgumentError, DataError, KindError, build, one_line
from intently.foundation.files import File
from intently.models.kinds import KINDS, EncoderDecoderOptions, options_of
from intently.training.groups import (
    ArchitectureOptions,
    MachineOptions,
    ModelOptions,
    OptimiserOptions,
    Rule,
    RunOptions,
    ScheduleOptions,
    TextOptions,
    VariantOptions,
)


class Flag(NamedTuple):
    """One option, as the command line needs it."""

    group: str
    type: Any
    default: Any
    help: str
    rule: Rule | None = None


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
            if name not in _fields(KINDS[kind]) and value != flags[name].default:
                [other] = (k for k, options in KINDS.items() if name in _fields(options))
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
            raise build(
                ArgumentError,
                "learned_steps",
                f"at least 2·max_length + 10 = {longest}",
                self.transformer.learned_steps,
                "the table of positions ends there, and a search may write as much",
            )

    def _shape(self) -> dict[str, Any]:
        """Return the options that may describe a model, by name."""
        groups = self.model, self.architecture, self.transformer
        values = {k: v for group in groups for k, v in dataclasses.asdict(group).items()}
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
                group, typing.get_type_hints(kind)[field.name], field.default, **field.metadata
            )
            for group, kind in typing.get_type_hints(cls).items()
            for field in dataclasses.fields(kind)
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "options") -> TrainingOptions:
        """Return the options in ``values``, a mapping of groups to mappings of options.

        Missing options take their defaults. Raises ArgumentError for unknown groups, unknown
        options and values out of range, KindError for wrong types; messages begin with ``where``.
        """
        kinds = typing.get_type_hints(cls)
        check_names(values, {group: _fields(kind) for group, kind in kinds.items()}, where)
        groups: dict[str, Any] = {}
        for group, entries in values.items():
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
        group = {str: object}
        known = dict.fromkeys(("model", "text", "schedule", "optimiser", "run"), group)
        return cls.from_dict(file.sealed({**known, str: group}, old=True), where=str(path))

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
                raise _unknown(name, name, flags, "one of the options")
            if value is not None:
                values[flags[name].group][name] = value
        groups = {
            group: kind(**values[group])
            for group, kind in typing.get_type_hints(type(self)).items()
        }
        return dataclasses.replace(self, **groups)


def _fields(kind: Any) -> tuple[str, ...]:
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
            raise _unknown(f"{where}: {section}", section, known, "one of the sections", homes)
        if not isinstance(entries, Mapping):
            raise build(KindError, f"{where}: {section}", "a section of options", repr(entries))
        for name in entries:
            if homes.get(name) != section:
                argument, valid = f"{where}: [{section}] {name}", known[section]
                raise _unknown(argument, name, valid, "one of the options", homes)


def _unknown(
    argument: str,
    name: str,
    valid: Iterable[str],
    what: str,
    homes: Mapping[str, str] | None = None,
) -> ArgumentError:
    """Return the error for an unknown name, with the nearest valid name or its section."""
    homes = homes or {}
    near = difflib.get_close_matches(name, valid, n=1)
    near_elsewhere = difflib.get_close_matches(name, homes, n=1)
    fix = None
    if near:
        fix = f"Did you mean {near[0]}?"
    elif name in homes:
        fix = f"the option {name} belongs to the section [{homes[name]}]"
    elif near_elsewhere:
        fix = f"Did you mean {near_elsewhere[0]} of [{homes[near_elsewhere[0]]}]?"
    expected = f"{what} {', '.join(valid)}"
    return one_line(build(ArgumentError, argument, expected, repr(name), fix=fix))
