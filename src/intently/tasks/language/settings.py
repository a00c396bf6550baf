"""The options of a language model's run, under its own names, and in a file.

A language model is trained by `TrainingOptions`, like a translator; but as a decoder alone it has
``layers``, ``tokenizer``, ``size`` and ``window`` where a translator has two sides::

    [model]
    layers = 4
    kv_heads = 2

    [text]
    window = 256
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intently.errors import ArgumentError, DataError, KindError
from intently.foundation.files import File
from intently.tasks.language.text_model import Variant
from intently.tasks.training.options import Flag, TrainingOptions, check_names, check_option

LARGE = 10_000_000
"""Longer texts, in characters, are cut into subwords by default."""

DEFAULTS = TrainingOptions().with_flags(
    source_tokenizer="character",
    target_tokenizer="character",
    max_length=128,
    steps=2000,
    cooldown=0.2,
    learning_rate=3e-3,
    label_smoothing=0.0,
    dropout=0.0,
    batch_tokens=1536,
    best_by="loss",
    evaluate_every=250,
    save_every=250,
)
"""The default options of a language model: a run of some minutes.

So short a run reads a text of millions of characters about once; dropout would only slow it down.
"""

WARMUP = 100
"""Default warm-up of a long run, in steps; a short one takes a fifth of its steps."""

WORDS = {
    "layers": "decoder_layers",
    "tokenizer": "target_tokenizer",
    "size": "target_size",
    "window": "max_length",
}
"""A language model's name of an option: its name in `TrainingOptions`."""


SECTIONS = {
    "model": ("width", "heads", "kv_heads", "layers", "inner", "positions", "dropout"),
    "text": ("tokenizer", "size", "min_frequency", "window"),
    **{
        group: tuple(
            name
            for name, flag in TrainingOptions.flags().items()
            if flag.group == group and name != "best_by"
        )
        for group in ("schedule", "optimiser", "run")
    },
}
"""The sections and options of a file."""


HELP = {
    "kv_heads": "heads of keys and values (default: as many as heads)",
    "positions": "position encoding: rotary, or learned (a table as long as the window)",
    "layers": "decoder layers",
    "dropout": "share of activations dropped in training",
    "tokenizer": f"tokenizer (default: character; subword for texts above {LARGE:,} characters)",
    "size": "largest vocabulary, in tokens",
    "window": "tokens read at once",
    "batch_tokens": "tokens in a batch",
}
"""Help for options whose meaning differs from a translator's."""


def language_flags() -> dict[str, Flag]:
    """Return every option by a language model's name, with its default and help.

    >>> language_flags()["window"].default, language_flags()["steps"].default
    (128, 2000)
    """
    variant = {"kv_heads": int, "positions": str}
    found, ours, defaults = {}, TrainingOptions.flags(), DEFAULTS.to_dict()
    for section, names in SECTIONS.items():
        for name in names:
            if name in variant:
                flag = Flag(section, variant[name], getattr(Variant, name), "")
            else:
                option = WORDS.get(name) or name
                flag = ours[option]._replace(default=defaults[ours[option].group][option])
            found[name] = flag._replace(help=HELP.get(name, flag.help))
    return found


FLAGS = language_flags()


def language_options(text: str, **given: Any) -> TrainingOptions:
    """Return `DEFAULTS` with options replaced; a large text is cut into subwords.

    ``given`` are options by name, None where not given. The default of ``inner`` is four times the
    width. Raises as `TrainingOptions.with_flags` does.

    >>> options = language_options("a text", width=64, layers=3)
    >>> options.model.inner, options.model.decoder_layers
    (256, 3)
    """
    width = given.get("width")
    usual = {
        "tokenizer": "subword" if len(text) > LARGE else "character",
        "inner": 4 * width if isinstance(width, int) else None,
    }
    wanted = usual | {name: value for name, value in given.items() if value is not None}
    for name in WORDS.keys() & wanted.keys():
        flag = FLAGS[name]
        check_option(name, wanted[name], flag.type, flag.rule)  # errors use its name here
    return DEFAULTS.with_flags(**{WORDS.get(name) or name: x for name, x in wanted.items()})


def read_config(path: Path | str) -> dict[str, Any]:
    """Return the options in a TOML file by name: those of `language_options` and of `Variant`.

    Raises `DataError` if the file cannot be read, `ArgumentError` and `KindError`, naming the
    file, for unknown sections and options and for bad values.
    """
    where = str(path)
    sections = File(Path(path), "a TOML file of options", DataError).toml()
    check_names(sections, SECTIONS, where)
    found = {name: value for entries in sections.values() for name, value in entries.items()}
    try:
        variant, rest = split(found)
        language_options("", **rest)
    except (ArgumentError, KindError) as error:
        raise type(error)(f"{where}: {error}") from None
    return rest | {n: v for n, v in dataclasses.asdict(variant).items() if n in found}


def split(given: Mapping[str, Any]) -> tuple[Variant, dict[str, Any]]:
    """Return the `Variant` in options by name, and the other options."""
    names = {field.name for field in dataclasses.fields(Variant)}
    own = {name: value for name, value in given.items() if name in names and value is not None}
    return Variant(**own), {name: value for name, value in given.items() if name not in names}
