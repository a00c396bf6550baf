"""From any text to a language model: tokenizer, windows, training, and the folder of the run.

A run's folder holds ``tokenizer.json``, ``checkpoints/``, ``options.json``, ``variant.json`` and,
at the end or when interrupted, ``model/``: the `TextModel` itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from intently.errors import ArgumentError, DataError, build
from intently.foundation.files import File, replace_file, sealed
from intently.nn.models.language import LanguageModel
from intently.nn.models.shared import load_weights, weights
from intently.tasks.corpora.files import TextFile
from intently.tasks.corpora.stories import stories
from intently.tasks.language import text_model as models
from intently.tasks.language.text_model import TextModel, Variant, new_model
from intently.tasks.text import Tokenizer
from intently.tasks.training import Checkpoints, History, TrainingOptions, train
from intently.tasks.training.batches import Batch, Sentences, fingerprint
from intently.tasks.training.folder_lock import check_held, sole_writer
from intently.tasks.training.loss import batch_loss
from intently.tasks.training.optimiser import settled
from intently.tasks.training.processes import current
from intently.tasks.training.progress import Listener

TOKENIZER, VARIANT = models.TOKENIZER, "variant.json"

WRITES = ("checkpoints/", "model/", TOKENIZER, VARIANT, "options.json", "best.json")
"""The files and folders of a run."""

HELD_OUT = 0.1
"""Share of the text, at its end, that is held out."""

EVALUATED, MEASURED = 2**15, 2**18
"""Held-out tokens scored at each evaluation, and by position at the end; at least a window."""

TOLD = 2
"""Problems of a file listed in a message."""

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
    variant: Variant = models.USUAL,
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
        folder, window = Path(out), options.text.max_length
        device = here.device(options.machine.device)
        checkpoints = Checkpoints(folder / "checkpoints")
        begun, stored = checkpoints.begun(resume), folder / "options.json"
        before = TrainingOptions.from_json(stored) if begun and stored.is_file() else None
        options = settled(options, before, longest=models.WARMUP)
        if begun:
            _check_variant(folder, variant)
            tokenizer = Tokenizer.load(folder / TOKENIZER)
        elif tokenizer is None:
            lines, t = text.splitlines(keepends=True), options.text
            tokenizer = Tokenizer.train(lines, t.target_tokenizer, t.target_size, t.min_frequency)
        ids = tokenizer.encode(text)
        split = len(ids) - int(len(ids) * HELD_OUT)
        learned, held = ids[:split], torch.tensor(ids[split:])
        if len(held) <= window:
            expected = f"more than {round((window + 1) / HELD_OUT):,} tokens"
            cause = f"a tenth is held out, and must fill a window of {window}"
            fix = "give a longer text or a smaller window"
            raise build(DataError, "text", expected, f"{len(ids):,}", cause, fix)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.run.seed)
            model = new_model(options, tokenizer.size, variant).to(device)
        replace_file(folder / TOKENIZER, tokenizer.content())
        replace_file(folder / VARIANT, sealed(dataclasses.asdict(variant)))
        scored = held[: max(EVALUATED, window + 1)]
        net = nn.ModuleDict({"language": model})  # checkpoints use this name for its weights
        history = train(
            net,
            Windows(learned, window),
            options,
            folder,
            loss=lambda net, *given: batch_loss(net["language"], *given),
            validate=lambda _: {"loss": losses_of_windows(model, scored, window).mean().item()},
            progress=progress,
            resume=resume,
        )
        if history.best is not None:
            load_weights(net, checkpoints.load(history.best.stem).model)
        final = new_model(options, tokenizer.size, variant, models.sliding(options)).eval()
        load_weights(final, weights(model))
        text_model = TextModel(final, tokenizer, options, variant)
        check_held(out)
        with checkpoints.surviving():
            text_model.save(folder / "model")
        return LanguageRun(text_model, history, tokenizer.decode(held.tolist()), held, folder)


def _check_variant(folder: Path, variant: Variant) -> None:
    """Raise if the run in ``folder`` began with another variant."""
    file = File(folder / VARIANT, "the variant of a run as it was written")
    for name, before in file.sealed(models.FORMS).items() if file.exists() else ():
        now = getattr(variant, name)
        if now != before:
            expected = f"{before!r}, with which the run began"
            fix = f"resume with {name}={before!r}, or start a new run in another folder"
            raise build(ArgumentError, name, expected, repr(now), fix=fix)


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
        problems = "; ".join(file.problems[:TOLD])
        more = f"; and {file.count - TOLD:,} more" if file.count > TOLD else ""
        raise build(DataError, str(path), "a text in UTF-8", problems + more)
    return "\n".join(lines) + "\n"


class Windows:
    """Windows of a text, half overlapping, to train a language model on.

    >>> windows = Windows(list(range(4, 14)), window=4)
    >>> len(windows), windows.batch(np.array([1])).target_in.tolist()
    (3, [[6, 7, 8, 9]])
    """

    words: ClassVar[Mapping[str, str]] = {name: word for word, name in models.WORDS.items()}

    def __init__(self, ids: Sequence[int], window: int) -> None:
        self.tokens = cut(torch.tensor(ids, dtype=torch.int32), window, max(1, window // 2))
        n, steps = self.tokens.shape
        self.lengths = np.full(n, window)
        self.sort_keys = (self.lengths,)
        # as of pairs with empty sources, for older checkpoints
        tokens = Sentences(self.tokens.flatten().numpy(), np.arange(n + 1) * steps)
        self.fingerprint = fingerprint(Sentences.of([[]] * n), tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def batch(self, which: np.ndarray) -> Batch:
        """Return the windows ``which`` (b,) as a batch without sources."""
        rows = self.tokens[torch.from_numpy(which)].long()
        return Batch(None, None, rows[:, :-1].contiguous(), rows[:, 1:].contiguous())


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
    device = next(model.parameters()).device
    losses = []
    for batch in cut(ids, window, window).long().split(max(1, 8192 // window)):
        batch = batch.to(device)
        logits = model(batch[:, :-1]).mT
        losses.append(F.cross_entropy(logits, batch[:, 1:], reduction="none").float().cpu())
    return torch.cat(losses)


def cut(ids: Tensor, window: int, step: int) -> Tensor:
    """Return windows (n, window + 1) of a text, one every ``step`` tokens."""
    if len(ids) <= window:
        expected = f"more tokens than the window of {window}"
        fix = "give a longer text or a smaller window"
        raise build(DataError, "text", expected, len(ids), fix=fix)
    return ids.unfold(0, window + 1, step)
