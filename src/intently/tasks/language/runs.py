"""From any text to a language model: tokenizer, windows, training, and the folder of the run.

A run's folder holds ``tokenizer.json``, ``checkpoints/``, ``options.json``, ``variant.json`` and,
at the end or when interrupted, ``model/``: the `TextModel` itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from intently.errors import ArgumentError, DataError, build
from intently.foundation.files import File, replace_file, sealed
from intently.nn.models.language import LanguageModel
from intently.nn.models.weights import load_weights, weights
from intently.tasks.corpora.files import TextFile
from intently.tasks.corpora.stories import stories
from intently.tasks.language.text_model import (
    FORMS,
    TOKENIZER,
    USUAL,
    WARMUP,
    WORDS,
    TextModel,
    Variant,
    new_model,
    sliding,
)
from intently.tasks.text import Tokenizer
from intently.tasks.training import Checkpoints, History, TrainingOptions, train
from intently.tasks.training.batches import Batch, Sentences, fingerprint
from intently.tasks.training.loss import smoothed_cross_entropy
from intently.tasks.training.optimiser import settled
from intently.tasks.training.processes import current, sole_writer
from intently.tasks.training.progress import Listener

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


class Windows:
    """Windows of a text, half overlapping, to train a language model on.

    >>> windows = Windows(list(range(4, 14)), window=4)
    >>> len(windows), windows.batch(np.array([1])).target_in.tolist()
    (3, [[6, 7, 8, 9]])
    """

    words: ClassVar[Mapping[str, str]] = {option: word for word, option in WORDS.items()}

    def __init__(self, ids: Sequence[int], window: int) -> None:
        self.tokens = cut(torch.tensor(ids, dtype=torch.int32), window, max(1, window // 2))
        self.lengths = np.full(len(self), window)
        self.sort_keys = (self.lengths,)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def fingerprint(self) -> str:
        """A checksum of all tokens, as of pairs with empty sources, for older checkpoints."""
        n, steps = self.tokens.shape
        tokens = Sentences(self.tokens.flatten().numpy(), np.arange(n + 1) * steps)
        return fingerprint(Sentences.of([[]] * n), tokens)

    def batch(self, which: np.ndarray) -> Batch:
        """Return the windows ``which`` (b,) as a batch without sources."""
        rows = self.tokens[torch.from_numpy(which)].long()
        return Batch(None, None, rows[:, :-1].contiguous(), rows[:, 1:].contiguous())


def window_loss(net: Any, batch: Batch, smoothing: float) -> tuple[Tensor, int]:
    """Return the summed loss in nats of a batch of windows, and its number of tokens.

    ``net`` is a ModuleDict that holds the model as "language".
    """
    model = net["language"]
    hidden = model.hidden(batch.target_in)
    return smoothed_cross_entropy(hidden, model.output_weight, batch.target_out, smoothing)


@torch.no_grad()
def losses_of_windows(
    model: LanguageModel, ids: Int[Tensor, " n"], window: int
) -> Float[Tensor, "windows window"]:
    """Return the cross-entropy (windows, window) in nats of each token of a text.

    The text ``ids`` is read in adjacent windows, so the token at position i is preceded by i + 1
    tokens. The mode of the model does not change. Raises `DataError` for a text without a window.

    >>> from intently.nn.models.language import LanguageOptions
    >>> model = LanguageModel(LanguageOptions(vocabulary=8, width=16))
    >>> _ = torch.nn.init.zeros_(model.embedding.weight)
    >>> losses_of_windows(model, torch.arange(5), window=2)  # log 8
    tensor([[2.0794, 2.0794],
            [2.0794, 2.0794]])
    """
    windows = cut(ids, window, window).long()
    device = next(model.parameters()).device
    found = []
    for batch in windows.split(max(1, 8192 // window)):
        batch = batch.to(device)
        logits = model(batch[:, :-1]).mT
        found.append(F.cross_entropy(logits, batch[:, 1:], reduction="none").float().cpu())
    return torch.cat(found)


def contexts(*windows: int) -> list[tuple[int, int]]:
    """Return ranges of tokens of context: 1, 2, 3–4, 5–8, 9–16, …, cut at the end of each window.

    >>> contexts(5)
    [(1, 1), (2, 2), (3, 4), (5, 5)]
    >>> contexts(5, 3)
    [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]
    """
    largest = max(windows)
    ends = sorted({*windows, *(2**n for n in range(largest.bit_length()))})
    return [(before + 1, end) for before, end in pairwise([0, *ends])]


def cut(ids: Tensor, window: int, step: int) -> Tensor:
    """Return windows (n, window + 1) of a text, one every ``step`` tokens."""
    if len(ids) <= window:
        raise build(
            DataError,
            "text",
            f"more tokens than the window of {window}",
            len(ids),
            fix="give a longer text or a smaller window",
        )
    return ids.unfold(0, window + 1, step)
