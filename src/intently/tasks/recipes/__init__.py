"""Recipes: sets of options, tested on public corpora and shipped with the package.

A recipe is a TOML file in this folder: a section ``[recipe]`` with corpus and direction, then the
sections of `intently.tasks.training.TrainingOptions`.
"""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from importlib.resources import files

from intently.errors import ArgumentError, build
from intently.foundation.on_demand import listed
from intently.tasks.training import TrainingOptions

__all__ = ["Recipe", "recipe", "recipe_text", "recipes"]

__dir__ = listed(__name__)


@dataclass(frozen=True)
class Recipe:
    """A corpus, a direction, and the options of a training.

    ``result`` is the measured result, "" if there is none.

    >>> recipe("language-bahdanau").options.architecture.attention
    'additive'
    """

    name: str
    about: str
    corpus: str
    source: str
    target: str
    options: TrainingOptions
    result: str = ""


def recipe(name: str) -> Recipe:
    """Return the recipe of that name.

    Raises `ArgumentError`, listing the known names, for any other.

    >>> recipe("multi30k-en-de").corpus
    'multi30k'
    """
    sections = tomllib.loads(recipe_file(name))
    head = sections.pop("recipe")
    return Recipe(name, options=TrainingOptions.from_dict(sections, name), **head)


def recipes() -> list[Recipe]:
    """Return all recipes, by name.

    >>> [each.name for each in recipes() if each.corpus == "tatoeba"]
    ['tatoeba-en-fr']
    """
    return [recipe(name) for name in _names()]


def recipe_text(name: str) -> str:
    """Return a recipe's options as TOML, as a template; its description becomes comments.

    Raises `ArgumentError`, listing the known names, for any other.

    >>> text = recipe_text("tatoeba-en-fr")
    >>> text.splitlines()[2]
    '# corpus = "tatoeba"'
    >>> TrainingOptions.from_dict(tomllib.loads(text)) == recipe("tatoeba-en-fr").options
    True
    """
    head, options = recipe_file(name).split("\n\n", 1)
    about = "".join(f"# {line}\n" for line in head.splitlines()[1:])
    return f"# {name}\n{about}\n{options}"


def recipe_file(name: str) -> str:
    """Return the file of a recipe."""
    names = _names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        raise build(
            ArgumentError,
            "recipe",
            f"one of {', '.join(names)}",
            repr(name),
            fix=f"Did you mean {near[0]}?" if near else None,
        )
    return (files(__name__) / f"{name}.toml").read_text(encoding="utf-8")


def _names() -> list[str]:
    found = (file.name for file in files(__name__).iterdir())
    return sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml"))
