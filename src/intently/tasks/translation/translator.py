"""The translator: a model, two tokenizers and a search, saved in a `model_folder`."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple, overload

import torch

from intently.core.matrix import Dense, LazyMatrix, Merged
from intently.errors import ArgumentError, IntentlyError, KindError, build
from intently.foundation.checks import check_word
from intently.nn.models.kinds import (
    EncoderDecoder,
    cross_heads,
    kind_of,
    new_model,
    options_of,
    path_of,
    source_heads,
)
from intently.nn.models.shared import weights
from intently.tasks.decoding import Hypothesis, SearchOptions, search
from intently.tasks.decoding.options import checked
from intently.tasks.text import UNK, Tokenizer, word_spans, words
from intently.tasks.translation import model_folder
from intently.tasks.translation.lines import ReadLine, WordSide, read_line
from intently.tasks.translation.states import States

KIND = "intently translator"
ABOUT, TOKENIZERS = "translator.json", ("source.json", "target.json")
FORMAT_1 = {
    "kind": {KIND},
    "architecture?": str,
    "model": {str: object},
    "max_length": range(1, 2**31),
    "alignment_head": ([str, range(2**31)], None),
    "sha256?": (model_folder.SHA256, None),
    "guided?": ([str, range(2**31)], None),
}
SHAPE = {
    name if name == "guided?" else name.strip("?"): shape
    for name, shape in FORMAT_1.items()
    if name != "sha256?"
}
"""The shape of ``translator.json``; see `intently.foundation.files.fault`."""

EMBEDDED = Path(str(files("intently") / "tasks" / "embedded"))
RECURRENT = {"additive": "bahdanau", "general": "luong"}
"""Folders of the embedded recurrent translators, by the score of their attention."""

CHUNK = 256
"""Sentences translated together; their queries and keys live as long as their translations."""


class TranslationWarning(UserWarning):
    """A line was cut, or has words that the model does not know."""


class AlignmentHead(NamedTuple):
    """The head whose weights serve as word alignment, such as ("decoder.1.cross_attention", 2)."""

    layer: str
    head: int


@dataclass(frozen=True)
class Translation:
    """One translation, with the attention of its search.

    ``score`` is the log-probability in nats under the length penalty, ``alternatives`` are the
    other translations of an n-best search, and ``notes`` are the warnings: a cut line, words that
    the model does not know. ``read`` is the line as the model read it: stripped, and cut.
    """

    source: str
    text: str
    score: float
    hypothesis: Hypothesis
    translator: Translator
    sides: tuple[WordSide, WordSide] = (WordSide(), WordSide())
    notes: tuple[str, ...] = ()
    alternatives: tuple[Translation, ...] = ()
    read: str = ""

    @cached_property
    def attention(self) -> dict[str, LazyMatrix]:
        """The attention of every layer by name: lazy matrices (h, rows, columns) over tokens.

        Rows of a decoder are labelled with the token they produce, the last one ``</s>``. An empty
        line has none.
        """
        if not self.sides[0].ids:
            return {}
        source = [*self.translator.source_tokenizer.tokens(self.sides[0].ids), "</s>"]
        produced = self.translator.target_tokenizer.tokens(self.hypothesis.ids)
        if self.hypothesis.ended:
            produced.append("</s>")
        inputs = ["<s>", *produced[:-1]]
        found, cross = {}, cross_heads(self.translator.model.options)
        for name, matrix in self.hypothesis.attention.items():
            encoder = name.startswith("encoder")
            rows = source if encoder else produced
            found[name] = matrix.label(rows, source if encoder or name in cross else inputs)
        return found

    @cached_property
    def words(self) -> dict[str, LazyMatrix]:
        """The attention of every layer, merged to words (h, words, words), without the final token.

        Weights are summed over the tokens of the key word and averaged over the tokens of the query
        word. The first column of decoder self-attention is the start token.
        """
        (_, s_words, s_groups), (_, y_words, y_groups) = self.sides
        found: dict[str, LazyMatrix] = {}
        cross = cross_heads(self.translator.model.options)
        for name, matrix in self.attention.items():
            if name in cross:
                merged = Merged(matrix, y_groups, s_groups).label(y_words, s_words)
            elif name.startswith("encoder"):
                merged = Merged(matrix, s_groups, s_groups).label(s_words, s_words)
            else:
                last = matrix.shape[-1]  # an output that was cut never read its last token
                before = [[0], *([i + 1 for i in group if i + 1 < last] for group in y_groups)]
                merged = Merged(matrix, y_groups, before).label(y_words, ["<s>", *y_words])
            found[name] = merged
        return found

    @property
    def alignment(self) -> LazyMatrix:
        """The source words that each produced word attends to: (words, words), by the alignment
        head.

        Without a measured head: the mean over heads of the penultimate cross-attention
        (Garg et al. 2019, "Jointly Learning to Align and Translate", section 5.2). Raises
        `ArgumentError` if the model has no attention.
        """
        if not self.sides[0].ids:
            return Dense(torch.zeros(0, 0))
        return self.translator.align(self.words)


class Translator:
    """A trained model with its tokenizers.

    >>> translator = Translator.load()
    >>> print(translator.translate(["The road was too wide."])[0].text)
    La route était trop large.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        alignment_head: AlignmentHead | None = None,
        guided: AlignmentHead | None = None,
        max_length: int = 128,
    ) -> None:
        if max_length < 1:
            raise build(ArgumentError, "max_length", "an int ≥ 1", max_length)
        self.model = model.eval()
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.alignment_head, self.guided = alignment_head, guided
        self.max_length = max_length

    # --- folders -------------------------------------------------------------------------------

    @classmethod
    def load(cls, folder: Path | str | None = None) -> Translator:
        """Read a translator from its folder, or from a run's folder that holds one in ``model``.

        Without a folder: the embedded English–French Transformer. Raises `CheckpointError` if the
        folder is missing, foreign, damaged or of a newer format.
        """
        path = EMBEDDED if folder is None else model_folder.find(Path(folder), ABOUT)
        about = model_folder.about(path / ABOUT, SHAPE, FORMAT_1)
        described = model_folder.file(path / ABOUT)
        try:
            options = options_of(about.get("architecture", "transformer"), about["model"])
        except (IntentlyError, TypeError) as error:
            raise described.damaged(f"no description of a model ({error})") from None
        checks = {model_folder.WEIGHTS: about.get("sha256"), **about["files"]}
        tokenizers = []
        for name, size in zip(TOKENIZERS, (options.source_vocabulary, options.target_vocabulary)):
            tokenizers.append(model_folder.tokenizer(path / name, checks.get(name)))
            if tokenizers[-1].size != size:
                got = f"{tokenizers[-1].size} entries where the model has {size}"
                raise model_folder.file(path / name).damaged(got)
        weights, make = path / model_folder.WEIGHTS, partial(new_model, options)
        layers = options.encoder_layers + options.decoder_layers
        model = model_folder.model(weights, checks[model_folder.WEIGHTS], make, layers)
        heads = {}
        for name, of in {"alignment_head": cross_heads, "guided": source_heads}.items():
            heads[name] = head = None
            if about.get(name):
                layer, number = about[name]
                heads[name] = head = AlignmentHead(path_of(layer, options), number)
            if head and not 0 <= head.head < of(options).get(head.layer, 0):
                kind = name.removesuffix("_head")
                raise described.damaged(f"no {kind} head {head.layer}, {head.head}")
        return cls(model, *tokenizers, **heads, max_length=about["max_length"])

    @classmethod
    def recurrent(cls, attention: Literal["additive", "general"]) -> Translator:
        """Return a small recurrent English–French translator that the package includes.

        "additive" attends as Bahdanau et al. (2015), "general" as Luong et al. (2015). Both were
        trained on the built-in language in minutes: to look at, not to translate with.

        >>> made, = Translator.recurrent("general").translate(["I drink milk."])
        >>> print(made.text)
        Je bois du lait.
        """
        check_word(attention, "attention", RECURRENT)
        return cls.load(EMBEDDED / RECURRENT[attention])

    def save(self, folder: Path | str, *, half: bool = False) -> Path:
        """Write the translator into ``folder``; ``half`` stores float16 weights, at half the size.

        A full disk or a kill leaves the old translator, the new one, or a folder that `load`
        refuses, but never a mixture. Raises `WriteError` if the files cannot be written.
        """
        from safetensors.torch import save

        path = Path(folder)
        tensors = {
            name: (x.half() if half else x).cpu().contiguous()
            for name, x in weights(self.model).items()
        }
        both = self.source_tokenizer.content(), self.target_tokenizer.content()
        about = {
            "kind": KIND,
            "architecture": kind_of(self.model.options),
            "model": dataclasses.asdict(self.model.options),
            "max_length": self.max_length,
            "alignment_head": self.alignment_head,
            "guided": self.guided,
        }
        contents = {model_folder.WEIGHTS: save(tensors), **dict(zip(TOKENIZERS, both))}
        model_folder.write(path, ABOUT, about, contents)
        return path

    # --- translating ---------------------------------------------------------------------------

    def translate(
        self, sentences: Sequence[str], options: SearchOptions | None = None
    ) -> list[Translation]:
        """Translate sentences; results keep the order given, empty sentences stay empty.

        Lines with more than ``max_length`` tokens are cut, and unknown words are copied where the
        model writes an unknown token; in both cases a `TranslationWarning` names the line and
        ``notes`` holds the text.

        Raises `KindError` for anything but a list of strings, `ArgumentError` for a string that is
        not Unicode text.

        A model without attention cannot copy, and writes no unknown tokens.

        Every translation keeps the queries and keys of its search; for long texts use `stream`.
        """
        return list(self._stream(sentences, options, CHUNK, stacklevel=3))

    def stream(
        self, sentences: Iterable[str], options: SearchOptions | None = None, *, chunk: int = CHUNK
    ) -> Iterator[Translation]:
        """Translate sentences as they come, ``chunk`` at a time; yields a `Translation` each.

        Memory is bounded by one chunk unless the caller keeps translations.
        """
        return self._stream(sentences, options, chunk, stacklevel=2)

    @overload
    def states(self, text: str, output: str | None = None) -> States: ...
    @overload
    def states(self, text: list[str], output: list[str] | None = None) -> list[States]: ...
    def states(
        self, text: str | list[str], output: str | list[str] | None = None
    ) -> States | list[States]:
        """Return the states of every layer for a text and its translation; a list for a list.

        The decoder reads ``output``, by default what `translate` writes. Warns as `translate` does.
        Raises `KindError` for anything but strings, `ArgumentError` for a text without words and
        lists of different lengths.

        >>> Translator.load().states("The road was too wide.", "La route")["decoder.1"].shape
        torch.Size([3, 128])
        """
        if isinstance(text, bytes) or not isinstance(text, Iterable):
            raise build(KindError, "text", "a string, or a list of them", text)
        texts = [text] if isinstance(text, str) else text
        outputs = [output] if isinstance(output, str) else output
        if outputs is None:
            made = list(self._stream(texts, None, CHUNK, stacklevel=3))
            sides = [translation.sides for translation in made]
        elif len(outputs) == len(texts):
            both = zip(self._read(texts, "text", 0, 3), self._read(outputs, "output", 0, 3))
            sides = [(one.side, two.side) for one, two in both]
        else:
            raise build(ArgumentError, "output", f"{len(texts)}, one for each text", len(outputs))
        tokenizers = self.source_tokenizer, self.target_tokenizer
        found = [States.of(self.model, tokenizers, *pair) for pair in sides]
        return found[0] if isinstance(text, str) else found

    def _stream(
        self, sentences: Iterable[str], options: SearchOptions | None, chunk: int, stacklevel: int
    ) -> Iterator[Translation]:
        if isinstance(sentences, str | bytes):
            fix = "write translate([text])"
            raise build(KindError, "sentences", "a list of strings", "one string", fix=fix)
        if not isinstance(sentences, Iterable):
            raise build(KindError, "sentences", "a list of strings", sentences)
        copies = bool(cross_heads(self.model.options))
        if self.target_tokenizer.complete or not copies:  # it never needs UNK, or cannot copy
            options = checked(options)
            options = dataclasses.replace(options, forbid=(*options.forbid, UNK))
        lines, done = iter(sentences), 0
        while batch := list(islice(lines, chunk)):
            read = self._read(batch, "sentences", done, stacklevel + 1)
            full = [line.side.ids for line in read if line.side.ids]
            found = iter(search(self.model, full, options))
            for given, line in zip(batch, read):
                if line.side.ids:
                    best, *rest = (self._translation(given, line, h) for h in next(found))
                    yield dataclasses.replace(best, alternatives=tuple(rest))
                else:
                    yield Translation(given, "", 0.0, Hypothesis([], 0.0, 0.0), self)
            done += len(batch)
            del read, full, found, batch  # free their memory before the next search

    def _read(self, lines: Sequence[str], name: str, done: int, stacklevel: int) -> list[ReadLine]:
        """Return lines ``done``, … of an argument as they are read, and warn of each note."""
        tokenizer = self.target_tokenizer if name == "output" else self.source_tokenizer
        found = [
            read_line(line, f"{name}[{i}]", tokenizer, self.max_length)
            for i, line in enumerate(lines, done)
        ]
        for i, line in enumerate(found, done + 1):
            for note in line.notes:
                warnings.warn(f"line {i}: {note}", TranslationWarning, stacklevel=stacklevel)
        return found

    def _translation(self, given: str, line: ReadLine, hypothesis: Hypothesis) -> Translation:
        tokenizer, y = self.target_tokenizer, hypothesis.ids
        if UNK in y:
            text, groups = self._copied(line, hypothesis)
        else:
            text, groups = tokenizer.decode(y), tokenizer.group_ids(y)
        sides = line.side, WordSide(y, words(text), groups)
        return Translation(
            given, text, hypothesis.score, hypothesis, self, sides, line.notes, read=line.text
        )

    def _copied(self, line: ReadLine, hypothesis: Hypothesis) -> tuple[str, list[list[int]]]:
        """Return the text, each unknown token replaced by its aligned source word, and the groups.

        A space is added before the word if the source has one, or after a letter. Source: Luong et
        al. 2015, "Addressing the Rare Word Problem in Neural Machine Translation", section 3.3.
        """
        y = hypothesis.ids
        cross = {
            name: Merged(matrix, [[i] for i in range(len(y))], line.side.groups)
            for name, matrix in hypothesis.attention.items()
            if name in cross_heads(self.model.options)
        }
        looked = self.align(cross).argmax().tolist()
        starts = [start for start, _ in word_spans(line.text)]
        text, spans = "", []
        for token, word in zip(y, looked):
            if token == UNK:
                apart = line.text[starts[word] - 1 : starts[word]].isspace() or text[-1:].isalnum()
                apart = apart and text != "" and not text.endswith(("'", "’"))
                piece = " " * apart + line.side.words[word]
            else:
                piece = self.target_tokenizer.tokens([token])[0].replace("▁", " ")
            spans.append((len(text), len(text) + len(piece)))
            text += piece if text else piece.removeprefix(" ")
            spans[-1] = (spans[-1][0], len(text))
        return text, [
            [i for i, (first, last) in enumerate(spans) if first < end and last > start]
            for start, end in word_spans(text)
        ]

    def align(self, by_layer: Mapping[str, LazyMatrix]) -> LazyMatrix:
        """Return the alignment matrix: that of the measured head, or a mean over heads.

        Raises `ArgumentError` if the model has no attention.
        """
        heads = cross_heads(self.model.options)
        if not heads:
            raise build(
                ArgumentError,
                "alignment",
                "a model with attention",
                'one with attention="none"',
                "it sees the source as one vector, and attends to no word",
            )
        if self.alignment_head is not None:
            return by_layer[self.alignment_head.layer][self.alignment_head.head]
        cross = [name for name in by_layer if name in heads]
        return by_layer[cross[-2] if len(cross) > 1 else cross[-1]].mean_heads()
