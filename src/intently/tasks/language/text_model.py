"""A language model with its tokenizer, and the options of its training under its own names.

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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from intently.core.masks import Mask, window
from intently.core.positions import Rotary
from intently.errors import ArgumentError, DataError, IntentlyError, KindError
from intently.foundation.files import File
from intently.nn.caches.window import WindowCache
from intently.nn.models.language import LanguageModel, LanguageOptions
from intently.nn.models.shared import mlp, weights
from intently.nn.options import AttentionOptions
from intently.tasks.decoding.sampling import sample
from intently.tasks.text import SOS, Tokenizer
from intently.tasks.training.options import (
    COUNT,
    Flag,
    OptimiserOptions,
    OptionGroup,
    RunOptions,
    ScheduleOptions,
    TrainingOptions,
    check_names,
    check_option,
    fields_of,
    flags_of,
    one_of,
    option,
)
from intently.tasks.translation import model_folder

ABOUT, WEIGHTS, TOKENIZER = "language.json", model_folder.WEIGHTS, "tokenizer.json"
FORMS = {"kv_heads": (range(1, 2**31), None), "positions": {"rotary", "learned"}}
SHAPE = {"options": {str: {str: object}}, "variant": FORMS}
FORMAT_1 = {"options": {str: {str: object}}, "variant?": FORMS}
"""The shape of ``language.json`` in format 1; see `intently.foundation.files.fault`."""


@dataclass(frozen=True)
class Variant(OptionGroup):
    """How a language model attends; raises `ArgumentError` and `KindError`.

    ``kv_heads`` is a divisor of the heads, None for equally many. ``positions`` are "rotary",
    without a limit, or "learned", a table of the window's length.
    """

    kv_heads: int | None = option(
        None, COUNT, "heads of keys and values (default: as many as heads)"
    )
    positions: str = option(
        "rotary",
        one_of("rotary", "learned"),
        "position encoding; learned is a table as long as the window",
    )


USUAL = Variant()
"""As many key/value heads as heads, and rotary positions."""


@dataclass(frozen=True)
class TextModel:
    """A trained language model with its tokenizer and the ``options`` of its training.

    Its layers see the last ``options.text.max_length`` tokens, the window of its training, so it
    can write beyond the window, in constant memory.
    """

    model: LanguageModel
    tokenizer: Tokenizer
    options: TrainingOptions
    variant: Variant = USUAL

    def write(self, beginning: str, steps: int, **sampling: Any) -> str:
        """Return ``beginning`` and ``steps`` more tokens; ``sampling`` as in
        `intently.tasks.decoding.sample`. Learned positions are limited to the window: a longer text
        continues from its last half.
        """
        ids = self.tokenizer.encode(beginning) or [SOS]
        written, most = list(ids), self.model.max_length
        while (left := len(ids) + steps - len(written)) > 0:
            if most is None or len(written) + left - 1 <= most:
                seen, some = written, left
            else:
                seen = written if len(written) < most else written[-max(1, most // 2) :]
                some = min(left, most + 1 - len(seen))
            cache = self.model.new_cache(partial(WindowCache, self.options.text.max_length))
            [new] = sample(self.model, [seen], steps=some, cache=cache, **sampling)
            written = written + new
            if len(new) < some:
                break
        return beginning + self.tokenizer.decode(written)[len(self.tokenizer.decode(ids)) :]

    def save(self, folder: Path | str) -> Path:
        """Write the model into ``folder`` atomically; raises `WriteError`."""
        from safetensors.torch import save

        about = {"options": self.options.to_dict(), "variant": dataclasses.asdict(self.variant)}
        contents = {WEIGHTS: save(weights(self.model)), TOKENIZER: self.tokenizer.content()}
        model_folder.write(Path(folder), ABOUT, about, contents)
        return Path(folder)

    @classmethod
    def load(cls, folder: Path | str) -> TextModel:
        """Read a model from its folder, or from a run's folder that holds one in ``model``.

        Raises `CheckpointError` if it is missing, damaged, or of a newer format.
        """
        path = model_folder.find(Path(folder), ABOUT)
        about = model_folder.about(path / ABOUT, SHAPE, FORMAT_1)
        try:
            options = TrainingOptions.from_dict(about["options"])
            variant = Variant(**about.get("variant", {}))
        except (IntentlyError, TypeError) as error:
            got = f"no description of a model ({error})"
            raise model_folder.file(path / ABOUT).damaged(got) from None
        checks = about["files"]
        tokenizer = model_folder.tokenizer(path / TOKENIZER, checks.get(TOKENIZER))
        make = partial(new_model, options, tokenizer.size, variant, sliding(options))
        layers, check = options.model.decoder_layers, checks.get(WEIGHTS)
        model = model_folder.model(path / WEIGHTS, check, make, layers)
        return cls(model.eval(), tokenizer, options, variant)


def new_model(
    options: TrainingOptions, vocabulary: int, variant: Variant = USUAL, mask: Mask | None = None
) -> LanguageModel:
    """Return an untrained language model; ``mask`` is joined with the causal one."""
    m = options.model
    return LanguageModel(
        LanguageOptions(
            vocabulary,
            m.width,
            m.heads,
            m.decoder_layers,
            kv_heads=variant.kv_heads,
            positions=Rotary if variant.positions == "rotary" else options.text.max_length,
            feed_forward=mlp(m.inner),
            dropout=m.dropout,
            attention=AttentionOptions(mask=mask),
        )
    )


def sliding(options: TrainingOptions) -> Mask:
    """Return the mask of the window that a model was trained on."""
    return window(options.text.max_length - 1, 0)


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
"""The default options of a language model: a run of some minutes, which reads a text of millions of
characters about once; dropout would only slow it down."""

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
    "schedule": fields_of(ScheduleOptions),
    "optimiser": fields_of(OptimiserOptions),
    "run": tuple(name for name in fields_of(RunOptions) if name != "best_by"),
}
"""The sections and options of a file."""


HELP = {
    "layers": "decoder layers",
    "tokenizer": f"tokenizer (default: character; subword for texts above {LARGE:,} characters)",
    "size": "largest vocabulary, in tokens",
    "window": "tokens read at once",
    "batch_tokens": "tokens in a batch",
}
"""Help for options whose meaning differs from a translator's."""


def _flags() -> dict[str, Flag]:
    ours, defaults, flags = TrainingOptions.flags(), DEFAULTS.to_dict(), {}
    for names in SECTIONS.values():
        for name in names:
            known = WORDS.get(name) or name
            flag, default = ours[known], defaults[ours[known].group][known]
            flags[name] = flag._replace(default=default, help=HELP.get(name, flag.help))
    return flags | flags_of(Variant, "model")


FLAGS = _flags()
"""Every option by a language model's name, with its default and help."""


def language_options(text: str, **given: Any) -> TrainingOptions:
    """Return `DEFAULTS` with options replaced; a large text is cut into subwords.

    ``given`` are options by name, None where not given. The default of ``inner`` is four times the
    width. Raises as `TrainingOptions.with_flags` does.

    >>> options = language_options("a text", width=64, layers=3)
    >>> options.model.inner, options.model.decoder_layers
    (256, 3)
    """
    width = given.get("width")
    wanted: dict[str, Any] = {"tokenizer": "subword" if len(text) > LARGE else "character"}
    wanted["inner"] = 4 * width if isinstance(width, int) else None
    wanted |= {name: value for name, value in given.items() if value is not None}
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
    options = {name: value for entries in sections.values() for name, value in entries.items()}
    try:
        language_options("", **split(options)[1])
    except (ArgumentError, KindError) as error:
        raise type(error)(f"{where}: {error}") from None
    return options


def split(given: Mapping[str, Any]) -> tuple[Variant, dict[str, Any]]:
    """Return the `Variant` in options by name, and the other options."""
    names = fields_of(Variant)
    variant = {name: given[name] for name in names if given.get(name) is not None}
    return Variant(**variant), {name: x for name, x in given.items() if name not in names}
