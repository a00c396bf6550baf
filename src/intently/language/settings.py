"""The options of a language model's run, in its own words, and the file that may hold them.

A language model is trained as a translator is, by `TrainingOptions`; but it is a decoder alone, and
says ``layers``, ``tokenizer``, ``size`` and ``window`` where a translator has two sides::

    [model]
    layers = 4
    kv_heads = 2

    [text]
    window = 256
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from intently.errors import ArgumentError, DataError, KindError, build
from intently.foundation.checks import check_word, whole_number
from intently.foundation.files import File
from intently.training.options import TrainingOptions

LARGE = 10_000_000
"""Characters from which on a text is cut into subwords unless one says otherwise."""

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
"""Where a language model's options differ from a translator's: a run of some minutes.

So short a run reads a text of millions of characters about once: dropout would only slow it down.
"""

WARMUP = 100
"""Steps of the warm-up of a long run; a shorter one rises in a fifth of its steps."""

WORDS = {
    "layers": "decoder_layers",
    "tokenizer": "target_tokenizer",
    "size": "target_size",
    "window": "max_length",
}
"""A language model's word for an option, and the option of `TrainingOptions` that it is."""


@dataclass(frozen=True)
class Variant:
    """How a language model attends: with how many key/value heads, and by which positions.

    ``kv_heads`` is a divisor of the heads, None for as many. ``positions`` are "rotary", which know
    no end, or "learned", a table as long as the window. Raises `ArgumentError` and `KindError`.

    >>> Variant(positions="absolute")
    Traceback (most recent call last):
    ...
    intently.errors.ArgumentError: positions: expected "rotary" or "learned"; got 'absolute'.
    """

    kv_heads: int | None = None
    positions: Literal["rotary", "learned"] = "rotary"

    def __post_init__(self) -> None:
        check_word(self.positions, "positions", ("rotary", "learned"))
        if self.kv_heads is not None:
            whole_number(self.kv_heads, "kv_heads", 1)


USUAL = Variant()
"""As many key/value heads as heads, and rotary positions."""

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
"""What a file of options may say."""


def language_options(text: str, **given: Any) -> TrainingOptions:
    """Return `DEFAULTS` with options replaced: characters, or subwords where the text is large.

    ``given`` are options by name, None where not given. The feed-forward is four times as wide as
    the model unless ``inner`` says otherwise. Raises as `TrainingOptions.with_flags` does.

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
    options = DEFAULTS
    for name, value in wanted.items():
        if name not in WORDS:
            continue
        try:
            options = options.with_flags(**{WORDS[name]: value})
        except (ArgumentError, KindError) as error:
            raise type(error)(str(error).replace(WORDS[name], name, 1)) from None
    return options.with_flags(**{n: value for n, value in wanted.items() if n not in WORDS})


def read_config(path: Path | str) -> dict[str, Any]:
    """Return the options in a TOML file by name: those of `language_options` and of `Variant`.

    Raises `DataError` where the file cannot be read, `ArgumentError` and `KindError` that name the
    file for sections and options that a language model does not have, and for bad values.
    """
    where = str(path)
    sections = File(Path(path), "a TOML file of options", DataError).toml()
    found: dict[str, Any] = {}
    for section, entries in sections.items():
        if section not in SECTIONS:
            expected = f"one of the sections {', '.join(SECTIONS)}"
            raise build(ArgumentError, f"{where}: {section}", expected, repr(section))
        if not isinstance(entries, Mapping):
            raise build(KindError, f"{where}: {section}", "a section of options", repr(entries))
        for name, value in entries.items():
            if name not in SECTIONS[section]:
                expected = f"one of the options {', '.join(SECTIONS[section])}"
                raise build(ArgumentError, f"{where}: [{section}] {name}", expected, repr(name))
            found[name] = value
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
