"""What users may rely on: public names with their parameters, and commands with their options.

``tests/public.txt`` holds the list. A change of it is a decision, which the CHANGELOG names;
``python tests/test_public.py`` writes it anew.
"""

import inspect
import types
from importlib import import_module
from pathlib import Path

from typer.main import get_command

import intently as it
from intently.observe import Recording

MATRICES = (it.LazyMatrix, Recording)
"""Classes whose methods are public: users get their values from calls."""

LISTED = Path(__file__).with_name("public.txt")

PACKAGES = {
    "it": "intently",
    "show": "intently.show",
    "edits": "intently.observe.edits",
    "observe": "intently.observe",
    "kernels": "intently.core.kernels",
    "positions": "intently.core.positions",
    "scores": "intently.core.scores",
    "interop.torch": "intently.interop.torch",
    "interop.diffusers": "intently.interop.diffusers",
    "interop.keras": "intently.interop.keras",
    "interop.transformers": "intently.interop.transformers",
}


def parameters(value: object) -> str:
    """The names of what a function or a class takes, defaults as ``=``."""
    try:
        signature = inspect.signature(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        return ""
    prefix = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    names, starred = [], False
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
        elif parameter.kind is parameter.KEYWORD_ONLY and not starred:
            names.append("*")
            starred = True
        given = "" if parameter.default is parameter.empty else "="
        names.append(prefix.get(parameter.kind, "") + name + given)
    return f"({', '.join(names)})"


def methods(kind: type) -> list[str]:
    """The public methods and properties that a class does not inherit from elsewhere."""
    lines = []
    for name in sorted(dir(kind)):
        owner = next((base for base in kind.__mro__ if name in vars(base)), object)
        if name.startswith("_") or not owner.__module__.startswith("intently"):
            continue
        value = inspect.getattr_static(kind, name)
        value = getattr(value, "__func__", value)
        lines.append(name + (parameters(value) if callable(value) else ""))
    return lines


def own(value: object, module: types.ModuleType) -> bool:
    """Whether a module defines a value, not imports it."""
    return getattr(value, "__module__", None) == module.__name__


def public() -> list[str]:
    """One line for each name, method, command and option."""
    lines = []
    for short, package in PACKAGES.items():
        module = import_module(package)
        for name in sorted(getattr(module, "__all__", vars(module))):
            value = getattr(module, name)
            if name.startswith("_") or (not hasattr(module, "__all__") and not own(value, module)):
                continue
            if isinstance(value, types.ModuleType):
                lines.append(f"{short}.{name}")
                continue
            lines.append(f"{short}.{name}{parameters(value)}")
            if isinstance(value, type) and issubclass(value, MATRICES):
                lines += [f"{short}.{name}.{method}" for method in methods(value)]
    return lines + commands()


def commands() -> list[str]:
    """The commands of the command line, with their arguments and options."""
    from intently.cli.app import COMMANDS, app

    group = get_command(app)
    lines = []
    for name in COMMANDS:
        command = group.get_command(None, name)  # pyright: ignore
        for parameter in command.params:
            spelled = parameter.opts if parameter.opts[0].startswith("-") else [parameter.name]
            lines.append(f"intently {name} {' '.join([*spelled, *parameter.secondary_opts])}")
    return lines


def test_public_names_are_those_that_are_listed():
    assert public() == LISTED.read_text("utf-8").splitlines()


if __name__ == "__main__":
    LISTED.write_text("\n".join(public()) + "\n", "utf-8")
