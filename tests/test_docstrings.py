"""Every public module, class, function and method says what it does, itself or by inheritance."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import intently

NAMES = sorted(
    m.name
    for m in pkgutil.walk_packages(intently.__path__, "intently.")
    if not m.name.endswith(("__main__", "._native"))
)


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Public classes and functions defined in the module, and the public members of the classes."""
    for name, found in vars(module).items():
        if name.startswith("_") or getattr(found, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(found):
            yield name, found
            if getattr(found, "_is_protocol", False):
                continue  # the class says what it asks for
            for member in vars(found):
                raw = inspect.getattr_static(found, member)
                what = getattr(found, member, None)
                described = callable(what) or isinstance(raw, property)
                if not member.startswith("_") and described and not isinstance(what, type):
                    yield f"{name}.{member}", raw
        elif callable(found):
            yield name, found


def has_docstring(owner: str, found: Any, module: ModuleType) -> bool:
    """Whether it, or what it overrides, has one; a dataclass's generated signature is none."""
    if "." not in owner:
        own = vars(found).get("__doc__") if inspect.isclass(found) else found.__doc__
        return bool(own) and not own.startswith(f"{owner}(")
    kind, member = owner.split(".")
    for base in getattr(module, kind).__mro__:
        if member in vars(base):
            raw = vars(base)[member]
            if inspect.getdoc(getattr(raw, "__func__", raw)):
                return True
    return False


def test_everything_public_has_a_docstring() -> None:
    missing = []
    for name in ["intently", *NAMES]:
        module = importlib.import_module(name)
        missing += [] if (module.__doc__ or "").strip() else [name]
        every = public(module)
        missing += [f"{name}: {x}" for x, found in every if not has_docstring(x, found, module)]
    assert not missing


def test_every_export_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")  # the layer imports Keras when it is asked for
    for name in ["intently", *NAMES]:
        module = importlib.import_module(name)
        for export in getattr(module, "__all__", ()):
            assert hasattr(module, export), f"{name}.__all__ names {export}"
