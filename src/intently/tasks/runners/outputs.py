"""What a model writes for a text, and how likely it holds that output, again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from intently.errors import ArgumentError, build
from intently.tasks.decoding import SearchOptions
from intently.tasks.decoding.options import EOS, SOS
from intently.tasks.language import TextModel
from intently.tasks.runners.pretrained import PRODUCED, open_reader
from intently.tasks.runners.watched import fitting, in_folder
from intently.tasks.translation.translator import Translator


@dataclass(frozen=True)
class Output:
    """The output of a model for a text, token by token.

    ``logits()`` runs the model on the text and the output, and returns those (n, V) of the steps
    that produce ``ids`` (n,). ``write()`` lets the model write anew. ``source`` are the tokens of
    the text; ``target`` those of the output where a decoder of its own writes them, else None: then
    the model reads both as one text.
    """

    model: nn.Module
    text: str
    ids: Tensor
    logits: Callable[[], Tensor]
    write: Callable[[], str]
    source: Sequence[str]
    target: Sequence[str] | None = None

    def log_probability(self, logits: Tensor) -> Tensor:
        """The log-probability of the output, in nats."""
        chosen = self.ids.to(logits.device)[:, None]
        return logits.float().log_softmax(-1).gather(-1, chosen).sum()


def output(folder: Path | None, text: str, wanted: str | None = None) -> Output:
    """The output of the model in a folder (of the embedded translator if None).

    A translator translates, a language model writes the next token. ``wanted`` is a text that
    stands for the model's own output. Raises `DataError` for a folder without a model.
    """
    if folder is None:
        return _translation(None, text, wanted)
    kinds: dict[str, Callable[..., Output]] = {
        "translator.json": _translation,
        "language.json": _language,
        "config.json": _pretrained,
    }
    return in_folder(folder, kinds)(folder, text, wanted)


def _translation(folder: Path | None, text: str, wanted: str | None) -> Output:
    translator = Translator.load(folder)
    greedy = SearchOptions(beam=1)

    def write() -> Any:
        return translator.translate([text], greedy)[0]

    made = write()
    fitting(made.sides[0].ids, None)
    source = [*made.sides[0].ids, EOS]
    own = made.hypothesis.ids if wanted is None else translator.target_tokenizer.encode(wanted)
    ended = made.hypothesis.ended or wanted is not None
    ids = [*own, EOS] if ended else own

    def logits() -> Tensor:
        memory = translator.model.encode(torch.tensor([source]))
        return translator.model.decode(torch.tensor([[SOS, *ids[:-1]]]), memory)[0]

    tokens = [*translator.source_tokenizer.tokens(made.sides[0].ids), "</s>"]
    target = [*translator.target_tokenizer.tokens(own), *["</s>"] * ended]
    said = made.text if wanted is None else wanted
    again = lambda: write().text  # noqa: E731
    return Output(translator.model, said, torch.tensor(ids), logits, again, tokens, target)


def _language(folder: Path, text: str, wanted: str | None) -> Output:
    made = TextModel.load(folder)
    ids, _ = fitting(made.tokenizer.encode(text), made.model.max_length)
    run = lambda given: made.model(given)[0]  # noqa: E731
    encode, decode = made.tokenizer.encode, made.tokenizer.decode
    return _next(made.model, run, ids, encode, decode, made.tokenizer.tokens, wanted)


def _pretrained(folder: Path, text: str, wanted: str | None) -> Output:
    model, tokenizer, limit = open_reader(folder)
    ids, _ = fitting(tokenizer(text)["input_ids"], limit)

    def encode(said: str) -> list[int]:
        return tokenizer(said, add_special_tokens=False)["input_ids"]

    def tokens(ids: Sequence[int]) -> list[str]:
        return [tokenizer.decode([x]) for x in ids]

    if getattr(model.config, "is_encoder_decoder", False):
        return _pair(model, tokenizer, ids, tokens, wanted)
    run = lambda given: model(given, use_cache=False).logits[0]  # noqa: E731
    if not model.can_generate():
        expected = "a model that writes text"
        raise build(ArgumentError, "MODEL", expected, type(model).__name__)
    return _next(model, run, ids, encode, tokenizer.decode, tokens, wanted)


def _next(
    model: nn.Module,
    run: Callable[[Tensor], Tensor],
    ids: Sequence[int],
    encode: Callable[[str], list[int]],
    decode: Callable[[list[int]], str],
    tokens: Callable[[Sequence[int]], list[str]],
    wanted: str | None,
) -> Output:
    """The output of a language model: its next token, or the text that is wanted."""

    def write() -> int:
        with torch.no_grad():
            return int(run(torch.tensor([ids]))[-1].argmax())

    made = [write()] if wanted is None else encode(wanted)
    fitting(made, None)
    whole = torch.tensor([[*ids, *made[:-1]]])
    return Output(
        model,
        decode(made) if wanted is None else wanted,
        torch.tensor(made),
        lambda: run(whole)[-len(made) :],
        lambda: decode([write()]),
        tokens(whole[0].tolist()),
    )


def _pair(
    model: Any, tokenizer: Any, ids: Sequence[int], tokens: Callable[..., list[str]], wanted: Any
) -> Output:
    """The output of an encoder and decoder of transformers."""
    given = torch.tensor([ids])
    mask = torch.ones_like(given)

    def generated() -> list[int]:
        how = {"max_new_tokens": PRODUCED, "num_beams": 1, "do_sample": False}
        with torch.no_grad():
            return model.generate(given, attention_mask=mask, **how)[0].tolist()

    def decode(said: Sequence[int]) -> str:
        return tokenizer.decode(said, skip_special_tokens=True)

    start, *made = generated()
    made = made if wanted is None else tokenizer(text_target=wanted)["input_ids"]
    fitting(made, None)
    before = torch.tensor([[start, *made[:-1]]])

    def logits() -> Tensor:
        return model(given, attention_mask=mask, decoder_input_ids=before).logits[0]

    said = decode(made) if wanted is None else wanted
    write = lambda: decode(generated())  # noqa: E731
    return Output(model, said, torch.tensor(made), logits, write, tokens(ids), tokens(made))
