"""Runs the model in a folder on a text or a picture: watched once, or again and again.

The folder holds a translator, a language model, or a model of transformers, of which only
safetensors are read and no code is run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from intently.errors import ArgumentError, DataError, KernelError, build
from intently.interop.transfer import HERE, kind_of, loaded, quiet, reading
from intently.observe import Recording, watch
from intently.show.labels import visible
from intently.show.page import Picture
from intently.show.page.items import BEFORE, Side
from intently.tasks.decoding import SearchOptions
from intently.tasks.decoding.options import EOS, SOS
from intently.tasks.language import TextModel
from intently.tasks.text import Tokenizer
from intently.tasks.translation import model_folder
from intently.tasks.translation.translator import TranslationWarning, Translator

KINDS = ("translator.json", "language.json", "config.json")
"""The files that tell a translator, a language model, and a model of transformers."""

PRODUCED = 64
"""Tokens that a model of transformers generates at most."""

UNUSED = r"(.+\.)?(pooler|seq_relationship|sop_classifier)\..+"
"""Tensors on which no attention and no answer depends; many folders lack them."""

CLASS_NAME, OUTPUT = 80, 100_000
"""Characters shown of the name of a class, and of an output."""

MODEL = "a transformers model in safetensors"
READER = f"{MODEL}, and its tokenizer"
VISION = "a vision model of transformers in safetensors, with preprocessor_config.json"


class Watched(NamedTuple):
    """A recording, and lines to print with it, such as a translation or a note on a cut text."""

    seen: Recording
    lines: Sequence[str] = ()
    sides: Sequence[Side] = ()
    """The sides of its matrices, if they are not the tokens of the recording."""
    guided: tuple[str, int] | None = None
    """The module and the head that were taught by links, see `intently.tasks.training.loss`."""


def kind_in(folder: Path | None) -> str:
    """Return which of `KINDS` a folder holds; None is the embedded translator.

    Raises `DataError` for a folder that holds none.
    """
    if folder is None:
        return KINDS[0]
    for name in KINDS:
        holder = model_folder.holding(folder, name)
        if holder is not None and (name != "config.json" or holder == folder):
            return name
    expected = f"a folder with one of {', '.join(KINDS)}"
    fix = "give what `intently train`, `intently train-lm` or save_pretrained wrote"
    raise build(DataError, str(folder), expected, model_folder.listing(folder), fix=fix)


def fitting(ids: Sequence[int], limit: int | None = None) -> tuple[Sequence[int], list[str]]:
    """Return the tokens that fit into a model, and a note if there were more."""
    if not ids:
        raise build(DataError, "TEXT", "a text of at least one token", "none")
    if limit is None or len(ids) <= limit:
        return ids, []
    return ids[:limit], [f"{len(ids):,} tokens, cut after {limit:,}, all the model takes", ""]


def open_model(folder: Path, expected: str = MODEL) -> Any:
    """Return the model of a transformers folder, in evaluation mode."""
    with reading(folder, expected) as transformers:
        return loaded(kind_of(transformers, folder, expected), folder, UNUSED).eval()


def open_reader(folder: Path) -> tuple[Any, Any, int | None]:
    """Return the model of a transformers folder, its tokenizer, and how many tokens it takes."""
    with reading(folder, READER) as transformers:
        kind = kind_of(transformers, folder, READER)
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, **HERE)
        if len(tokenizer.get_vocab()) <= len(tokenizer.all_special_tokens):
            raise build(DataError, str(folder), READER, "no vocabulary of a tokenizer")
        model = loaded(kind, folder, UNUSED).eval()
    longest = getattr(model.config, "max_position_embeddings", None)
    limits = [n for n in (tokenizer.model_max_length, longest) if isinstance(n, int) and n > 0]
    return model, tokenizer, min(limits, default=None)


def _generated(model: Any, ids: Tensor) -> Tensor:
    """Return what an encoder-decoder of transformers writes (1, t), greedily."""
    mask = torch.ones_like(ids)
    search = {"max_new_tokens": PRODUCED, "num_beams": 1, "do_sample": False}
    with torch.no_grad():
        return model.generate(ids, attention_mask=mask, **search)


# --- watched once ---------------------------------------------------------------------------------


def watched(
    folder: Path | None, text: str, layers: list[str] | None = None, beam: int = 1
) -> Watched:
    """Watch the model in a folder (None: the embedded translator) translate or read a text."""
    kind = kind_in(folder)
    if folder is None or kind == "translator.json":
        return translated(Translator.load(folder), text, layers, beam)
    return (_read_by_ours if kind == "language.json" else _read)(folder, text, layers)


def translated(
    translator: Translator, text: str, layers: list[str] | None = None, beam: int = 1
) -> Watched:
    """Watch a translator translate a text, labelled with the tokens of both sides.

    With a ``beam`` above 1, only the source is labelled. The notes of the translation follow it.
    """
    with watch(translator.model, layers=layers) as seen, warnings.catch_warnings():
        warnings.simplefilter("ignore", TranslationWarning)  # its notes are printed
        (made,) = translator.translate([text], SearchOptions(beam=beam))
    fitting(made.sides[0].ids)
    source = [*translator.source_tokenizer.tokens(made.sides[0].ids), "</s>"]
    produced = translator.target_tokenizer.tokens(made.hypothesis.ids)
    end = ["</s>"] * made.hypothesis.ended  # an output cut at its limit has none
    seen.tokens = source, ["<s>", *produced, *end] if beam == 1 else []  # each beam has its own
    return Watched(seen, [visible(made.text, OUTPUT), *made.notes, ""], guided=translator.guided)


def _read_by_ours(folder: Path, text: str, layers: list[str] | None) -> Watched:
    """Watch one pass of a language model over a text, cut to the positions of the model."""
    language_model = TextModel.load(folder)
    model, tokenizer = language_model.model, language_model.tokenizer
    ids, notes = fitting(tokenizer.encode(text), model.max_length)
    with torch.inference_mode(), watch(model, layers=layers, tokens=tokenizer.tokens(ids)) as seen:
        model(torch.tensor([ids]))
    return Watched(seen, notes)


def _read(folder: Path, text: str, layers: list[str] | None) -> Watched:
    """Watch a transformers model read a text, or write one if it has a decoder that can."""
    model, tokenizer, limit = open_reader(folder)
    with quiet():
        ids, lines = fitting(tokenizer(text)["input_ids"], limit)
        given = torch.tensor([ids])
        both = getattr(model.config, "is_encoder_decoder", False)
        written = given
        with torch.inference_mode(), watch(model, layers=layers) as seen:
            if both and model.can_generate():
                written = _generated(model, given)
                output = tokenizer.decode(written[0], skip_special_tokens=True)
                lines = [*lines, visible(output, OUTPUT), ""]
            else:
                decoder = {"decoder_input_ids": given} if both else {}
                model(given, attention_mask=torch.ones_like(given), **decoder)
        source, target = (
            [str(x) for x in tokenizer.convert_ids_to_tokens(side[0].tolist())]
            for side in (given, written)
        )
        seen.tokens = (source, target) if both else source
    return Watched(seen, lines)


def watched_picture(image: Path, folder: Path | None, layers: list[str] | None) -> Watched:
    """Watch one pass over a picture; it is shown as the model's processor cropped it."""
    if folder is None:
        expected = "the folder of a model that reads pictures"
        why = "the embedded translator reads words"
        fix = "give a folder that save_pretrained wrote, of a ViT for example"
        raise build(ArgumentError, "--model", expected, "none", why, fix)
    with quiet():
        picture = _picture(image)
        with reading(folder, VISION) as transformers:
            kind = kind_of(transformers, folder, VISION)
            processor: Any = transformers.AutoImageProcessor.from_pretrained(folder, **HERE)
            model = loaded(kind, folder, UNUSED)
            pixels = processor(images=picture, return_tensors="pt")["pixel_values"]
        model = getattr(model, "vision_model", model).eval()
        with torch.inference_mode(), watch(model, layers=layers) as seen:
            answer = model(pixel_values=pixels)
    mean, std = (
        torch.tensor(getattr(processor, name, None) or [default] * 3)[:, None, None]
        for name, default in (("image_mean", 0.0), ("image_std", 1.0))
    )
    shown = (pixels[0] * std + mean).permute(1, 2, 0).numpy()
    size = getattr(model.config, "patch_size", None)
    if not size:
        expected = "a model that reads patches, with patch_size in its config"
        raise build(DataError, "--model", expected, f"one of type {model.config.model_type}")
    high, wide = (size, size) if isinstance(size, int) else size
    rows, columns = pixels.shape[-2] // high, pixels.shape[-1] // wide
    before = sorted({n - rows * columns for call in seen.calls for n in call.shape[-2:]})
    sides = [Picture(shown, rows, columns, n) for n in before if 0 <= n <= BEFORE]
    return Watched(seen, _class_of(model, answer), sides)


def _picture(image: Path) -> Any:
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(image) as opened:
            return ImageOps.exif_transpose(opened).convert("RGB")
    except UnidentifiedImageError:
        expected = "a picture that Pillow reads, such as PNG or JPEG"
        raise build(DataError, str(image), expected, "another file") from None


def _class_of(model: Any, answer: Any) -> Sequence[str]:
    """Return the likeliest class and its probability, if the model is a classifier."""
    logits = getattr(answer, "logits", None)
    if logits is None or logits.ndim != 2:
        return []
    share, best = logits.softmax(-1)[0].max(-1)
    label = model.config.id2label.get(int(best), str(int(best)))
    return [f"{visible(str(label), CLASS_NAME)}, {float(share):.0%}"]


def check_seen(command: str, seen: Recording) -> None:
    """Raise `KernelError` with the reason if nothing was recorded."""
    if not seen.calls:
        cause = "; ".join(unsure(seen)).removeprefix("; ") or "no module of it attended"
        raise build(KernelError, command, "attention to be seen", "none", cause)


def unsure(seen: Recording, reported: Iterable[str] = ()) -> Iterator[str]:
    """Report layers that were not seen, cannot be read or are unverified, unless ``reported``."""
    coverage, known = seen.coverage(), {name.partition("[")[0] for name in reported}
    lines = [
        f"{'not compared' if line.verified is None else 'UNVERIFIED'}: {line.name}: {line.why}"
        for line in coverage.seen
        if line.verified is not True and line.name not in known
    ]
    lines += [f"not seen: {name}: {why}" for name, why in coverage.unseen.items()]
    lines += coverage.notes
    yield from ["", *(visible(line, 1000) for line in lines)] if lines else ()


# --- again and again ------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelOutput:
    """The output of a model for a text, token by token.

    ``logits()`` runs the model on the text and the output, and returns those (n, V) of the steps
    that produce ``ids`` (n,). ``write()`` lets the model write anew, ``encode`` gives the ids of
    another output. ``source`` are the tokens of the text; ``target`` those of the output where a
    decoder of its own writes them, else None: then the model reads both as one text.
    """

    model: nn.Module
    text: str
    ids: Tensor
    logits: Callable[[], Tensor]
    write: Callable[[], str]
    encode: Callable[[str], Sequence[int]]
    source: Sequence[str]
    target: Sequence[str] | None = None

    def log_probability(self, logits: Tensor) -> Tensor:
        """Return the log-probability of the output, in nats."""
        chosen = self.ids.to(logits.device)[:, None]
        return logits.float().log_softmax(-1).gather(-1, chosen).sum()

    def over(self, other: str) -> Callable[[Tensor], Tensor]:
        """Return what tells the logit difference to another output, where the two part.

        Source: Wang et al. 2023, "Interpretability in the Wild", section 2.
        """
        ids = self.ids.tolist()
        pairs = enumerate(zip(ids, self.encode(other)))
        found = next(((n, *both) for n, both in pairs if both[0] != both[1]), None)
        if found is None:
            expected = "an output that parts from the model's"
            raise build(ArgumentError, "--against", expected, repr(other))
        n, mine, theirs = found
        return lambda logits: logits[n, mine].float() - logits[n, theirs].float()


def output(folder: Path | None, text: str, wanted: str | None = None) -> ModelOutput:
    """Return the output of the model in a folder (None: the embedded translator) for a text.

    A translator translates, a language model writes the next token. ``wanted`` is a text that
    stands for the model's own output. Raises `DataError` for a folder without a model.
    """
    kind = kind_in(folder)
    if folder is None or kind == "translator.json":
        return _translation(Translator.load(folder), text, wanted)
    if kind == "language.json":
        ours = TextModel.load(folder)
        ids, _ = fitting(ours.tokenizer.encode(text), ours.model.max_length)
        return _next(ours.model, lambda x: ours.model(x)[0], ids, ours.tokenizer, wanted)
    model, tokenizer, limit = open_reader(folder)
    ids, _ = fitting(tokenizer(text)["input_ids"], limit)
    if getattr(model.config, "is_encoder_decoder", False):
        return _pair(model, tokenizer, ids, wanted)
    if not model.can_generate():
        raise build(ArgumentError, "MODEL", "a model that writes text", type(model).__name__)
    return _next(model, lambda x: model(x, use_cache=False).logits[0], ids, tokenizer, wanted)


def _translation(translator: Translator, text: str, wanted: str | None) -> ModelOutput:
    def written() -> Any:
        return translator.translate([text], SearchOptions(beam=1))[0]

    first = written()
    fitting(first.sides[0].ids)
    source = [*first.sides[0].ids, EOS]
    chosen = first.hypothesis.ids if wanted is None else translator.target_tokenizer.encode(wanted)
    ended = first.hypothesis.ended or wanted is not None
    ids = [*chosen, EOS] if ended else chosen

    def logits() -> Tensor:
        memory = translator.model.encode(torch.tensor([source]))
        return translator.model.decode(torch.tensor([[SOS, *ids[:-1]]]), memory)[0]

    return ModelOutput(
        translator.model,
        first.text if wanted is None else wanted,
        torch.tensor(ids),
        logits,
        lambda: written().text,
        translator.target_tokenizer.encode,
        [*translator.source_tokenizer.tokens(first.sides[0].ids), "</s>"],
        [*translator.target_tokenizer.tokens(chosen), *["</s>"] * ended],
    )


def _next(
    model: nn.Module,
    run: Callable[[Tensor], Tensor],
    ids: Sequence[int],
    tokenizer: Any,
    wanted: str | None,
) -> ModelOutput:
    """Return the output of a language model: its next token, or the text that is wanted."""

    def next_token() -> int:
        with torch.no_grad():
            return int(run(torch.tensor([ids]))[-1].argmax())

    theirs = not isinstance(tokenizer, Tokenizer)

    def encode(text: str) -> Sequence[int]:
        if theirs:
            return tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokenizer.encode(text)

    written = [next_token()] if wanted is None else encode(wanted)
    fitting(written)
    whole = torch.tensor([[*ids, *written[:-1]]])
    tokens = whole[0].tolist()
    return ModelOutput(
        model,
        tokenizer.decode(written) if wanted is None else wanted,
        torch.tensor(written),
        lambda: run(whole)[-len(written) :],
        lambda: tokenizer.decode([next_token()]),
        encode,
        [tokenizer.decode([x]) for x in tokens] if theirs else tokenizer.tokens(tokens),
    )


def _pair(model: Any, tokenizer: Any, ids: Sequence[int], wanted: str | None) -> ModelOutput:
    """Return the output of an encoder and decoder of transformers."""
    given = torch.tensor([ids])

    def decoded(ids: Tensor | Sequence[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=True)

    def encode(text: str) -> Sequence[int]:
        return tokenizer(text_target=text)["input_ids"]

    start, *written = _generated(model, given)[0].tolist()
    written = written if wanted is None else encode(wanted)
    fitting(written)
    before = torch.tensor([[start, *written[:-1]]])
    return ModelOutput(
        model,
        decoded(written) if wanted is None else wanted,
        torch.tensor(written),
        lambda: model(
            given, attention_mask=torch.ones_like(given), decoder_input_ids=before
        ).logits[0],
        lambda: decoded(_generated(model, given)[0]),
        encode,
        [tokenizer.decode([x]) for x in ids],
        [tokenizer.decode([x]) for x in written],
    )
