"""A language model with its tokenizer: generates text, and is saved in a `model_folder`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from intently.core.masks import Mask, window
from intently.core.positions import Rotary
from intently.errors import IntentlyError
from intently.foundation.checks import check_word, whole_number
from intently.nn.caches.window import WindowCache
from intently.nn.models.language import LanguageModel, LanguageOptions
from intently.nn.models.seq2seq import mlp, weights
from intently.nn.options import AttentionOptions
from intently.tasks.decoding.sampling import sample
from intently.tasks.text import SOS, Tokenizer
from intently.tasks.training.options import TrainingOptions
from intently.tasks.translation import model_folder

ABOUT, WEIGHTS, TOKENIZER = "language.json", model_folder.WEIGHTS, "tokenizer.json"
FORMS = {"kv_heads": (range(1, 2**31), None), "positions": {"rotary", "learned"}}
SHAPE = {"options": {str: {str: object}}, "variant": FORMS}
FORMAT_1 = {"options": {str: {str: object}}, "variant?": FORMS}
"""The shape of ``language.json`` in format 1; see `intently.foundation.files.fault`."""


@dataclass(frozen=True)
class Variant:
    """How a language model attends: its key/value heads and its positions.

    ``kv_heads`` is a divisor of the heads, None for equally many. ``positions`` are "rotary",
    without a limit, or "learned", a table of the window's length. Raises `ArgumentError` and
    `KindError`.

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

    def write(self, beginning: str, steps: int, **how: Any) -> str:
        """Return ``beginning`` and ``steps`` more tokens; ``how`` as in
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
            [new] = sample(self.model, [seen], steps=some, cache=cache, **how)
            written = written + new
            if len(new) < some:
                break
        return beginning + self.tokenizer.decode(written)[len(self.tokenizer.decode(ids)) :]

    def save(self, folder: Path | str) -> Path:
        """Write the model into ``folder`` atomically; raises `WriteError`."""
        from safetensors.torch import save

        path = Path(folder)
        about = {"options": self.options.to_dict(), "variant": dataclasses.asdict(self.variant)}
        contents = {WEIGHTS: save(weights(self.model)), TOKENIZER: self.tokenizer.content()}
        model_folder.write(path, ABOUT, about, contents)
        return path

    @classmethod
    def load(cls, folder: Path | str) -> TextModel:
        """Read a model from its folder, or from a run's folder that holds one in ``model``.

        Raises `CheckpointError` if it is missing, damaged, or of a newer format.
        """
        path = model_folder.find(Path(folder), ABOUT)
        about = model_folder.about(path / ABOUT, SHAPE, FORMAT_1)
        described = model_folder.file(path / ABOUT)
        try:
            options = TrainingOptions.from_dict(about["options"])
            variant = Variant(**about.get("variant", {}))
        except (IntentlyError, TypeError) as error:
            raise described.damaged(f"no description of a model ({error})") from None
        checks = about["files"]
        tokenizer = model_folder.tokenizer(path / TOKENIZER, checks.get(TOKENIZER))
        make = partial(new_model, options, tokenizer.size, variant, sliding(options))
        layers = options.model.decoder_layers
        model = model_folder.model(path / WEIGHTS, checks.get(WEIGHTS), make, layers)
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
