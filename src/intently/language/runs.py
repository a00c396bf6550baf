"""From any text to a language model: tokenizer, windows, training, and the folder of the run.

A run's folder holds ``tokenizer.json``, ``checkpoints/``, ``options.json``, ``variant.json`` and,
at the end or when interrupted, ``model/``: the `TextModel` itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from intently.corpora.files import TextFile
from intently.decoding.sampling import sample
from intently.errors import ArgumentError, DataError, IntentlyError, build
from intently.foundation.files import File, replace_file, sealed
from intently.foundation.memory import check_fits
from intently.language.settings import USUAL, WARMUP, WORDS, Variant
from intently.masks import Mask, window
from intently.models.language import LanguageModel, LanguageOptions
from intently.models.layers import mlp
from intently.modules.caches.key_value import WindowCache
from intently.modules.options import AttentionOptions
from intently.positions import Rotary
from intently.text import SOS, Tokenizer
from intently.training import (
    Checkpoints,
    History,
    Pairs,
    TrainingOptions,
    load_weights,
    train,
    weights,
)
from intently.training.batches import Sentences
from intently.training.events import Listener
from intently.training.fits import check_model
from intently.training.processes import current
from intently.training.resuming import settled
from intently.training.writer import Writer, sole_writer
from intently.translation import model_folder

ABOUT, WEIGHTS, TOKENIZER = "language.json", model_folder.WEIGHTS, "tokenizer.json"
VARIANT = "variant.json"
FORMS = {"kv_heads": (range(1, 2**31), None), "positions": {"rotary", "learned"}}
SHAPE = {"options": {str: {str: object}}, "variant": FORMS}
FORMAT_1 = {"options": {str: {str: object}}, "variant?": FORMS}
"""What a folder says of a language model, as `intently.foundation.files.fault` describes it."""

WRITES = ("checkpoints/", "model/", TOKENIZER, VARIANT, "options.json")
"""What a run writes into its folder."""

HELD_OUT = 0.1
"""Share of the text, its end, that is not learned from."""

EVALUATED = 2**15
"""Held-out tokens whose loss is measured at each evaluation while training; at least a window."""

TOLD = 2
"""Problems of a file that a message tells."""

MEASURED = 2**18
"""Held-out tokens whose loss by position is measured at the end: seconds, however long the text."""


class Windows(Pairs):
    """Windows of a text, half overlapping: targets for which no source is read.

    >>> windows = Windows(list(range(4, 14)), window=4)
    >>> len(windows), windows.batch(np.array([1])).target_in.tolist()
    (3, [[6, 7, 8, 9]])
    """

    words: ClassVar[Mapping[str, str]] = {option: word for word, option in WORDS.items()}

    def __init__(self, ids: Sequence[int], window: int) -> None:
        self.empty = self.too_long = 0
        cut = _cut(torch.tensor(ids, dtype=torch.int32), window, max(1, window // 2))
        n, steps = cut.shape
        self.sources = Sentences.of([[]] * n)
        self.targets = Sentences(cut.flatten().numpy(), np.arange(n + 1) * steps)


class Unprompted(nn.Module):
    """A language model as `train` knows a translator: it reads nothing, and writes."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.language = model

    def encode(self, source: Tensor, lengths: Tensor | None) -> None:
        """Return nothing, which is what there is to read."""

    def hidden(self, target: Int[Tensor, "b t"], memory: None) -> Float[Tensor, "b t c"]:
        """Return the states (b, t, c) of the language model."""
        return self.language.hidden(target)

    @property
    def output_weight(self) -> Tensor:
        """The output projection (V, c)."""
        return self.language.output_weight


@dataclass(frozen=True)
class TextModel:
    """A trained language model with its tokenizer; ``options`` are those it was trained with.

    Its layers see the last ``options.text.max_length`` tokens, the window it was trained on, so
    that it can write on beyond it, in memory that does not grow.
    """

    model: LanguageModel
    tokenizer: Tokenizer
    options: TrainingOptions
    variant: Variant = USUAL

    def write(self, beginning: str, steps: int, **how: Any) -> str:
        """Return ``beginning`` and ``steps`` tokens more; ``how`` as `intently.decoding.sample`.

        Learned positions end with the window: a text that outgrows it goes on from its last half.
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
        """Write the model into ``folder``, all files or none; raises `WriteError`."""
        from safetensors.torch import save

        path = Path(folder)
        about = {"options": self.options.to_dict(), "variant": dataclasses.asdict(self.variant)}
        contents = {WEIGHTS: save(weights(self.model)), TOKENIZER: self.tokenizer.content()}
        model_folder.write(path, ABOUT, about, contents)
        return path

    @classmethod
    def load(cls, folder: Path | str) -> TextModel:
        """Read a model from its folder, or from a run's folder that holds one in ``model``.

        Raises `CheckpointError` where it is missing, damaged, or of a newer format.
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
        make = partial(new_model, options, tokenizer.size, variant, _sliding(options))
        layers = options.model.decoder_layers
        model = model_folder.model(path / WEIGHTS, checks.get(WEIGHTS), make, layers)
        return cls(model.eval(), tokenizer, options, variant)


@dataclass(frozen=True)
class LanguageRun:
    """What `fit` made: the model, the history of its training, and the text that was held out."""

    text_model: TextModel
    history: History
    held_out: str
    held_ids: Tensor
    folder: Path

    @cached_property
    def losses(self) -> Float[Tensor, " window"]:
        """Mean held-out cross-entropy (window,) in nats of a token that 1, 2, … tokens precede."""
        window = self.text_model.options.text.max_length
        some = self.held_ids[: max(MEASURED, window + 1)]
        return losses_by_position(self.text_model.model, some, window)


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
    ``tokenizer`` is trained on the whole text unless given. ``resume`` goes on with the run in
    ``out``, from its latest checkpoint or the one named.

    Raises `DataError` where the text is too short for the window, `ArgumentError` where a run goes
    on as another ``variant`` or many processes were started, and what `intently.training.train`
    raises; a run already in ``out`` stays as it is.
    """
    here = current()
    if here.count > 1:
        raise build(
            ArgumentError,
            "processes",
            "one: language models are not trained by many",
            f"{here.count}",
            fix="start the command without torchrun",
        )
    with sole_writer(out, WRITES) as writer:
        assert writer is not None
        return _fit(writer, text, options, Path(out), variant, tokenizer, progress, resume)


def _fit(
    writer: Writer,
    text: str,
    options: TrainingOptions,
    folder: Path,
    variant: Variant,
    tokenizer: Tokenizer | None,
    progress: Listener | None,
    resume: bool | str,
) -> LanguageRun:
    """Do what `fit` says as the writer of the folder."""
    device = current().device(options.machine.device)
    checkpoints = Checkpoints(folder / "checkpoints")
    begun = checkpoints.begun(resume)
    t = options.text
    stored = folder / "options.json"
    before = TrainingOptions.from_json(stored) if begun and stored.is_file() else None
    options = settled(options, before, WARMUP)
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
    _check_fits(options, tokenizer.size, variant, device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.run.seed)
        model = new_model(options, tokenizer.size, variant).to(device)
    replace_file(folder / TOKENIZER, tokenizer.content())
    replace_file(folder / VARIANT, sealed(dataclasses.asdict(variant)))

    def validate(_: Any) -> dict[str, float]:
        some = held[: max(EVALUATED, t.max_length + 1)]
        return {"loss": losses_by_position(model, some, t.max_length).mean().item()}

    net: Any = Unprompted(model)
    history = train(
        net,
        Windows(learned, t.max_length),
        options,
        folder,
        validate=validate,
        progress=progress,
        resume=resume,
    )
    if history.best is not None:
        load_weights(net, checkpoints.load(history.best.name).model)
    final = new_model(options, tokenizer.size, variant, _sliding(options)).eval()
    load_weights(final, weights(model))
    text_model = TextModel(final, tokenizer, options, variant)
    writer.check()
    with checkpoints.surviving():
        text_model.save(folder / "model")
    return LanguageRun(text_model, history, tokenizer.decode(held.tolist()), held, folder)


def _check_fits(
    options: TrainingOptions, vocabulary: int, variant: Variant, device: torch.device
) -> None:
    """Raise where memory does not hold the model, or the logits of one window."""

    def make(_: int, layers: int) -> LanguageModel:
        return new_model(options.with_flags(decoder_layers=layers), vocabulary, variant)

    check_model(make, options, device)
    window = options.text.max_length
    check_fits(
        "window",
        8 * window * vocabulary,
        f"one of {window:,} tokens with a vocabulary of {vocabulary:,}",
        "choose a smaller window",
        device,
    )


def _check_variant(folder: Path, variant: Variant) -> None:
    """Raise where the run in ``folder`` began with another variant."""
    file = File(folder / VARIANT, "the variant of a run as it was written")
    for name, before in file.sealed(FORMS, old=True).items() if file.exists() else ():
        if getattr(variant, name) != before:
            raise build(
                ArgumentError,
                name,
                f"{before!r}, with which the run began",
                repr(getattr(variant, name)),
                fix=f"resume with {name}={before!r}, or start a new run in another folder",
            )


def new_model(
    options: TrainingOptions, vocabulary: int, variant: Variant = USUAL, mask: Mask | None = None
) -> LanguageModel:
    """Return an untrained language model of these options; ``mask`` beside the causal one."""
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


@torch.no_grad()
def losses_by_position(
    model: LanguageModel, ids: Int[Tensor, " n"], window: int
) -> Float[Tensor, " window"]:
    """Return the mean cross-entropy (window,) in nats of tokens that 1 … window tokens precede.

    The text ``ids`` is read in windows side by side, so that position i has seen i + 1 tokens: the
    curve says what a longer context is worth. The model is used in the mode it is in.

    >>> model = LanguageModel(LanguageOptions(vocabulary=8, width=16))
    >>> _ = torch.nn.init.zeros_(model.embedding.weight)
    >>> losses_by_position(model, torch.arange(8), window=2)  # log 8
    tensor([2.0794, 2.0794])
    """
    windows = _cut(ids, window, window).long()
    device = next(model.parameters()).device
    total = torch.zeros(window, dtype=torch.float64)
    for batch in windows.split(max(1, 8192 // window)):
        batch = batch.to(device)
        logits = model(batch[:, :-1]).mT
        total += F.cross_entropy(logits, batch[:, 1:], reduction="none").double().sum(0).cpu()
    return (total / len(windows)).float()


def by_context(losses: Float[Tensor, " window"]) -> list[tuple[int, int, float]]:
    """Return (first, last, mean loss) for 1, 2, 3–4, 5–8, 9–16, … tokens of context.

    >>> by_context(torch.tensor([3.0, 2.0, 1.5, 0.5, 0.25]))
    [(1, 1, 3.0), (2, 2, 2.0), (3, 4, 1.0), (5, 5, 0.25)]
    """
    found, last = [], 0
    while last < len(losses):
        first, last = last + 1, min(max(1, 2 * last), len(losses))
        found.append((first, last, float(losses[first - 1 : last].mean())))
    return found


def read_text(path: Path | str) -> str:
    """Return the text of a UTF-8 file, which may be gzip; line ends become LF.

    Raises `DataError` that says what is wrong with the file.
    """
    file = TextFile(Path(path))
    lines = [line.rstrip("\r\n") for _, line in file.lines() if line is not None]
    if file.problems:
        told = "; ".join(file.problems[:TOLD])
        more = f"; and {file.count - TOLD:,} more" if file.count > TOLD else ""
        raise build(DataError, str(path), "a text in UTF-8", told + more)
    return "\n".join(lines) + "\n"


def _sliding(options: TrainingOptions) -> Mask:
    return window(options.text.max_length - 1, 0)


def _cut(ids: Tensor, window: int, step: int) -> Tensor:
    """Windows (n, window + 1) of a text, one every ``step`` tokens."""
    if len(ids) <= window:
        raise build(
            DataError,
            "text",
            f"more tokens than the window of {window}",
            len(ids),
            fix="give a longer text or a smaller window",
        )
    return ids.unfold(0, window + 1, step)
