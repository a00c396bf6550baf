"""What the configuration of a module states: sizes, widths of windows, scales."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

HOLDERS = ("config", "options", "cfg", "args")


def configurations(subject: Any) -> list[Any]:
    """A module, what it and its parts hold as their configuration, and those inside it."""
    found = [subject]
    for part in subject.modules() if isinstance(subject, nn.Module) else (subject,):
        for name in HOLDERS:
            config = getattr(part, name, None)
            if config is not None and all(config is not x for x in found):
                found.append(config)
                found += [x for x in vars_of(config).values() if hasattr(x, "to_dict")]
    return found


def vars_of(config: Any) -> Mapping[str, Any]:
    """The fields of a configuration: a mapping, or an object."""
    return config if isinstance(config, Mapping) else getattr(config, "__dict__", {})


def numbers_named(subject: Any, *names: str) -> Iterator[int]:
    """The whole numbers of some names, or the first of several, in its configurations."""
    for config in configurations(subject):
        for name in names:
            x = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
            if isinstance(x, (list, tuple)) and x:
                x = x[0]
            if type(x) is int and x > 0:
                yield x


def stated(subject: Any, *parts: str) -> dict[str, float]:
    """The numbers in its configurations whose names contain one of some words."""
    found: dict[str, float] = {}
    for config in configurations(subject)[1:]:
        for name, x in vars_of(config).items():
            if type(x) in (int, float) and any(p in name for p in parts):
                found.setdefault(name, x)
    return found
