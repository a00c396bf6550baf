"""The translator: a model, its two tokenizers and a search, in one folder.

A folder holds ``translator.json``, ``model.safetensors``, ``source.json`` and ``target.json``.
Nothing in it is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import intently
from intently.decoding import Hypothesis, SearchOptions, search
from intently.errors import ArgumentError, CheckpointError, DataError, build
from intently.matrix import LazyMatrix, Merged
from intently.models.transformer import Transformer, TransformerOptions
from intently.text import UNK, Tokenizer, words
from intently.training.checkpoint import load_weights, replace_file, weights

FORMAT = 1
"""Version of the folder's format; a folder with a higher one is refused."""

CHUNK = 256
"""Sentences translated together; their queries and keys live as long as their translations."""


class TranslationWarning(UserWarning):
    """A line that could not be translated as it stood: cut, or with words the model does not know."""


class AlignmentHead(NamedTuple):
    """The head whose weights serve as word alignment, such as ("decoder.1.cross", 2)."""

    layer: str
    head: int


@dataclass(frozen=True)
class Translation:
    """One translation, and all that was looked at while it was written.

    ``score`` is the log-probability in nats under the length penalty. ``attention`` has a lazy
    matrix (h, rows, columns) for every layer, labelled with tokens: rows of a decoder by the token
    they produce.
    """

    source: str
    text: str
    score: float
    hypothesis: Hypothesis
    translator: Translator
    alternatives: tuple[Translation, ...] = ()
    _source_ids: tuple[int, ...] = ()

    @cached_property
    def attention(self) -> dict[str, LazyMatrix]:
        """The attention of every layer by name, (h, rows, columns), labelled with tokens."""
        source = [*self.translator.source_tokenizer.tokens(self._source_ids), "</s>"]
        produced = [*self.translator.target_tokenizer.tokens(self.hypothesis.ids)]
        if self.hypothesis.ended:
            produced.append("</s>")
        inputs = ["<s>", *produced][: len(produced)]
        found = {}
        for name, matrix in self.hypothesis.attention.items():
            side = name.startswith("encoder")
            rows = source if side else produced
            columns = inputs if name.startswith("decoder") and name.endswith("self") else source
            found[name] = matrix.label(rows, columns)
        return found

    @cached_property
    def words(self) -> dict[str, LazyMatrix]:
        """The attention of every layer merged to words, (h, words, words), without the final token.

        Weights are summed over the tokens of a word that is looked at and averaged over the tokens
        of the word that looks. The first column of a decoder's own matrix is the start token.
        """
        t = self.translator
        source = self.source
        s_groups = t.source_tokenizer.group_ids(self._source_ids)
        s_words = words(t.source_tokenizer.decode(self._source_ids))
        y_groups = t.target_tokenizer.group_ids(self.hypothesis.ids)
        y_words = words(t.target_tokenizer.decode(self.hypothesis.ids))
        s_words = words(source) if len(words(source)) == len(s_words) else s_words
        y_shown = words(self.text) if len(words(self.text)) == len(y_words) else y_words
        before = [[0], *[[i + 1 for i in group] for group in y_groups]]
        found: dict[str, LazyMatrix] = {}
        for name, matrix in self.hypothesis.attention.items():
            if name.startswith("encoder"):
                merged = Merged(matrix, s_groups, s_groups).label(s_words, s_words)
            elif name.endswith("self"):
                last = matrix.shape[-1]
                fits = [[i for i in group if i < last] for group in before]
                merged = Merged(matrix, y_groups, fits).label(y_shown, ["<s>", *y_shown])
            else:
                merged = Merged(matrix, y_groups, s_groups).label(y_shown, s_words)
            found[name] = merged
        return found

    @property
    def alignment(self) -> LazyMatrix:
        """Which source words each produced word looked at: (words, words), by the alignment head.

        Where no head was measured, the mean of the heads of the last cross-attention but one
        (Garg et al. 2019, "Jointly Learning to Align and Translate", section 5.2).
        """
        return self.translator.align(self.words)


class Translator:
    """A trained model with its tokenizers.

    >>> translator = Translator.load()
    >>> print(translator.translate(["The road was too wide."])[0].text)
    La route était trop large.
    """

    def __init__(
        self,
        model: Transformer,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        alignment_head: AlignmentHead | None = None,
        max_length: int = 128,
    ) -> None:
        self.model = model.eval()
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.alignment_head = alignment_head
        self.max_length = max_length

    # --- folders -------------------------------------------------------------------------------

    @classmethod
    def load(cls, folder: Path | str | None = None) -> Translator:
        """Read a translator from its folder, or from a run's folder that holds one in ``model``.

        Without a folder, the embedded English–French translator. Raises `CheckpointError` where the
        folder is missing, foreign, damaged or of a newer format, and names what was looked for.
        """
        path = _embedded() if folder is None else _find(Path(folder))
        about = _about(path / "translator.json")
        try:
            options = TransformerOptions(**about["model"])
            head = about["alignment_head"]
            max_length = int(about["max_length"])
            model = Transformer(options)
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(path / "translator.json", f"it does not describe a model ({error})") from None
        load_weights(model, _tensors(path / "model.safetensors"))
        tokenizers = []
        for side, size in (("source", options.source_vocabulary), ("target", options.target_vocabulary)):
            try:
                tokenizer = Tokenizer.load(path / f"{side}.json")
            except DataError as error:
                raise CheckpointError(str(error)) from None
            if tokenizer.size != size:
                raise _damaged(path / f"{side}.json", f"{tokenizer.size} entries, the model has {size}")
            tokenizers.append(tokenizer)
        return cls(
            model, *tokenizers,
            alignment_head=None if head is None else AlignmentHead(*head), max_length=max_length,
        )  # fmt: skip

    def save(self, folder: Path | str, *, half: bool = False) -> Path:
        """Write the translator into ``folder``; ``half`` keeps float16 weights, half the size."""
        from safetensors.torch import save

        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        tensors = weights(self.model)
        if half:
            tensors = {name: x.half() for name, x in tensors.items()}
        replace_file(path / "model.safetensors", save({k: x.contiguous() for k, x in tensors.items()}))
        for side, tokenizer in (("source", self.source_tokenizer), ("target", self.target_tokenizer)):
            tokenizer.save(path / f"{side}.json")
        about = {
            "format": FORMAT,
            "kind": "intently translator",
            "model": dataclasses.asdict(self.model.options),
            "max_length": self.max_length,
            "alignment_head": self.alignment_head,
            "versions": {"intently": intently.__version__, "torch": torch.__version__},
        }
        replace_file(path / "translator.json", json.dumps(about, indent=1).encode())
        return path

    # --- translating ---------------------------------------------------------------------------

    def translate(
        self, sentences: Sequence[str], options: SearchOptions | None = None
    ) -> list[Translation]:
        """Translate sentences; results come in the order given, empty ones stay empty.

        Lines with more than ``max_length`` tokens are cut, and unknown words are copied where the
        model writes an unknown token; each is told by a `TranslationWarning` that names the line.
        """
        if isinstance(sentences, str):
            raise build(
                ArgumentError, "sentences", "a list of strings", "one string",
                fix="write translate([text])",
            )  # fmt: skip
        done: list[Translation] = []
        for start in range(0, len(sentences), CHUNK):
            done += self._chunk(sentences[start : start + CHUNK], start, options)
        return done

    def _chunk(
        self, sentences: Sequence[str], first: int, options: SearchOptions | None
    ) -> list[Translation]:
        ids = [self._source_ids(line, first + i + 1) for i, line in enumerate(sentences)]
        full = [i for i, line in enumerate(sentences) if line.strip()]
        found = iter(search(self.model, [ids[i] for i in full], options or SearchOptions()))
        nothing = Hypothesis([], 0.0, 0.0)
        out = []
        for i, line in enumerate(sentences):
            if not line.strip():
                out.append(Translation(line, "", 0.0, nothing, self))
                continue
            best, *rest = [self._translation(line, ids[i], h) for h in next(found)]
            out.append(dataclasses.replace(best, alternatives=tuple(rest)))
        return out

    def _source_ids(self, line: str, number: int) -> list[int]:
        text = " ".join(line.split()) if self.source_tokenizer.kind == "word" else line.strip()
        ids = self.source_tokenizer.encode(text)
        if len(ids) > self.max_length:
            _warn(f"line {number}: {len(ids)} tokens, cut after {self.max_length}")
            ids = ids[: self.max_length]
        unknown = self.source_tokenizer.unknown(text)
        if unknown:
            _warn(f"line {number}: not in the model's vocabulary: {', '.join(unknown[:8])}")
        return ids

    def _translation(self, source: str, ids: list[int], hypothesis: Hypothesis) -> Translation:
        text = self._text(source, ids, hypothesis)
        return Translation(
            source, text, hypothesis.score, hypothesis, self, _source_ids=tuple(ids)
        )

    def _text(self, source: str, ids: list[int], hypothesis: Hypothesis) -> str:
        """Decode; an unknown token becomes the source word it looked at (Luong et al. 2015)."""
        made, y = self.target_tokenizer, hypothesis.ids
        if UNK not in y:
            return made.decode(y)
        s_words = words(source)
        groups = self.source_tokenizer.group_ids(ids)
        cross = {k: Merged(m, [[i] for i in range(len(y))], groups)
                 for k, m in hypothesis.attention.items() if k.endswith("cross")}  # fmt: skip
        looked = self.align(cross).argmax().tolist()
        text, start = "", 0
        for i in [n for n, token in enumerate(y) if token == UNK] + [len(y)]:
            text += made.decode(y[start:i]) if not text else _joined(made, y[start:i])
            if i < len(y) and looked[i] < len(s_words):
                text += (" " if text and not text.endswith(("'", "’")) else "") + s_words[looked[i]]
            start = i + 1
        return text

    def align(self, by_layer: dict[str, LazyMatrix]) -> LazyMatrix:
        """Return the matrix that stands for the alignment: of the measured head, or a mean of heads."""
        if self.alignment_head is not None:
            return by_layer[self.alignment_head.layer][self.alignment_head.head]
        cross = [name for name in by_layer if name.endswith("cross")]
        return by_layer[cross[-2] if len(cross) > 1 else cross[-1]].mean_heads()


def _joined(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Decode the rest of a sentence, with the space its first token asks for."""
    text = tokenizer.decode(ids)
    spaced = bool(ids) and tokenizer.tokens(ids[:1])[0].startswith("▁") and not text.startswith(" ")
    return " " + text if spaced else text


def _warn(message: str) -> None:
    warnings.warn(message, TranslationWarning, stacklevel=5)


def _embedded() -> Path:
    return Path(str(files("intently") / "embedded"))


def _find(folder: Path) -> Path:
    for path in (folder, folder / "model"):
        if (path / "translator.json").is_file():
            return path
    what = "no such folder" if not folder.exists() else (
        "a file" if folder.is_file() else "a folder without translator.json"
    )
    raise build(
        CheckpointError, str(folder), "a folder with translator.json, or a run with model/translator.json",
        what, fix="give the folder that `intently train --out` or `intently demo --out` wrote",
    )  # fmt: skip


def _about(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from None
    if not isinstance(about, dict) or about.get("kind") != "intently translator":
        raise build(
            CheckpointError, str(path), 'JSON of kind "intently translator"', "another kind of file",
            "the folder was made by another program",
        )  # fmt: skip
    if about.get("format") != FORMAT:
        raise build(
            CheckpointError, str(path), f"format {FORMAT}", f"format {about.get('format')}",
            "the folder was written by a newer version of Intently", "upgrade intently",
        )  # fmt: skip
    return about


def _tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(path.read_bytes())
    except (OSError, SafetensorError, ValueError) as error:
        raise _damaged(path, str(error)) from None
    return {name: x.float() if x.dtype is torch.float16 else x for name, x in tensors.items()}


def _damaged(path: Path, what: str) -> CheckpointError:
    return build(CheckpointError, str(path), "a translator that `save` wrote", what, "it is damaged")
