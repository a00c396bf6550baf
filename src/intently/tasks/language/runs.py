"""From any text to a language model: tokenizer, windows, training, and the folder of the run.

A run's folder holds ``tokenizer.json``, ``checkpoints/``, ``options.json``, ``variant.json`` and,
at the end or when interrupted, ``model/``: the `TextModel` itself.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from intently.errors import ArgumentError, DataError, build
from intently.foundation.files import File, replace_file, sealed
from intently.nn.models.seq2seq import load_weights, weights
from intently.tasks.corpora.files import TextFile
from intently.tasks.corpora.stories import stories
from intently.tasks.language.settings import WARMUP
from intently.tasks.language.text_model import (
    FORMS,
    TOKENIZER,
    USUAL,
    TextModel,
    Variant,
    new_model,
    sliding,
)
from intently.tasks.language.windows import Windows, losses_of_windows, window_loss
from intently.tasks.text import Tokenizer
from intently.tasks.training import Checkpoints, History, TrainingOptions, train
from intently.tasks.training.optimiser import settled
from intently.tasks.training.processes import current
from intently.tasks.training.progress import Listener
from intently.tasks.training.writer import sole_writer

VARIANT = "variant.json"

WRITES = ("checkpoints/", "model/", TOKENIZER, VARIANT, "options.json", "best.json")
"""The files and folders of a run."""

HELD_OUT = 0.1
"""Share of the text, at its end, that is held out."""

EVALUATED = 2**15
"""Held-out tokens scored at each evaluation; at least a window."""

TOLD = 2
"""Problems of a file listed in a message."""

MEASURED = 2**18
"""Held-out tokens scored by position at the end."""

STORIES = 8000
"""Stories of the text of that name."""


@dataclass(frozen=True)
class LanguageRun:
    """The result of `fit`: the model, the history of its training, and the held-out text."""

    text_model: TextModel
    history: History
    held_out: str
    held_ids: Tensor
    folder: Path

    @cached_property
    def losses(self) -> Float[Tensor, "windows window"]:
        """Cross-entropy (windows, window) in nats of held-out tokens after 1, 2, … tokens."""
        window = self.text_model.options.text.max_length
        some = self.held_ids[: max(MEASURED, window + 1)]
        return losses_of_windows(self.text_model.model, some, window)


def fit(
    text: str,
    options: TrainingOptions,
    out: Path | str,
    *,
    variant: Variant = USUAL,
    tokenizer: Tokenizer | None = None,
    progress: Listener | None = None,
    resume: bool | str = False,
) -> LanguageRun:
    """Train a language model on ``text`` and write it to ``out``/model.

    The last tenth of the text is held out, and its loss chooses the best checkpoint. A
    ``tokenizer`` is trained on the whole text unless given. ``resume`` continues the run in
    ``out``, from its latest checkpoint or the named one.

    Raises `DataError` if the text is too short for the window, `ArgumentError` if a resumed run has
    another ``variant`` or several processes were started, and as `intently.tasks.training.train`
    does; an existing run in ``out`` stays unchanged.
    """
    here = current()
    if here.count > 1:
        expected = "one: several cannot train a language model"
        fix = "start the command without torchrun"
        raise build(ArgumentError, "processes", expected, here.count, fix=fix)
    with sole_writer(out, WRITES):
        folder = Path(out)
        device = here.device(options.machine.device)
        checkpoints = Checkpoints(folder / "checkpoints")
        begun = checkpoints.begun(resume)
        t = options.text
        stored = folder / "options.json"
        before = TrainingOptions.from_json(stored) if begun and stored.is_file() else None
        options = settled(options, before, longest=WARMUP)
        if begun:
            _check_variant(folder, variant)
            tokenizer = Tokenizer.load(folder / TOKENIZER)
        elif tokenizer is None:
            lines = text.splitlines(keepends=True)
            tokenizer = Tokenizer.train(lines, t.target_tokenizer, t.target_size, t.min_frequency)
        ids = tokenizer.encode(text)
        split = len(ids) - int(len(ids) * HELD_OUT)
        learned, held = ids[:split], torch.tensor(ids[split:])
        if len(held) <= t.max_length:
            raise build(
                DataError,
                "text",
                f"more than {round((t.max_length + 1) / HELD_OUT):,} tokens",
                f"{len(ids):,}",
                f"a tenth is held out, and must fill a window of {t.max_length}",
                "give a longer text or a smaller window",
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.run.seed)
            model = new_model(options, tokenizer.size, variant).to(device)
        replace_file(folder / TOKENIZER, tokenizer.content())
        replace_file(folder / VARIANT, sealed(dataclasses.asdict(variant)))

        def validate(_: Any) -> dict[str, float]:
            some = held[: max(EVALUATED, t.max_length + 1)]
            return {"loss": losses_of_windows(model, some, t.max_length).mean().item()}

        net = nn.ModuleDict({"language": model})  # checkpoints use this name for its weights
        history = train(
            net,
            Windows(learned, t.max_length),
            options,
            folder,
            loss=window_loss,
            validate=validate,
            progress=progress,
            resume=resume,
        )
        if history.best is not None:
            load_weights(net, checkpoints.load(history.best.stem).model)
        final = new_model(options, tokenizer.size, variant, sliding(options)).eval()
        load_weights(final, weights(model))
        text_model = TextModel(final, tokenizer, options, variant)
        with checkpoints.surviving():
            text_model.save(folder / "model")
        return LanguageRun(text_model, history, tokenizer.decode(held.tolist()), held, folder)


def _check_variant(folder: Path, variant: Variant) -> None:
    """Raise if the run in ``folder`` began with another variant."""
    file = File(folder / VARIANT, "the variant of a run as it was written")
    for name, before in file.sealed(FORMS).items() if file.exists() else ():
        if getattr(variant, name) != before:
            raise build(
                ArgumentError,
                name,
                f"{before!r}, with which the run began",
                repr(getattr(variant, name)),
                fix=f"resume with {name}={before!r}, or start a new run in another folder",
            )


def read_text(path: Path | str) -> str:
    """Return the text of a UTF-8 file, which may be gzip; line ends become LF.

    "stories", if there is no such file, are the first `STORIES` of
    `intently.tasks.corpora.stories`, about two million tokens.

    Raises `DataError` that lists the problems of the file.
    """
    file = TextFile(Path(path))
    if str(path) == "stories" and not file.path.exists():
        return "\n".join(islice(stories(), STORIES)) + "\n"
    lines = [line.rstrip("\r\n") for _, line in file.lines() if line is not None]
    if file.problems:
        told = "; ".join(file.problems[:TOLD])
        more = f"; and {file.count - TOLD:,} more" if file.count > TOLD else ""
        raise build(DataError, str(path), "a text in UTF-8", told + more)
    return "\n".join(lines) + "\n"
