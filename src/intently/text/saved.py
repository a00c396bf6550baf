"""Reading a saved tokenizer, and saying what is wrong with a file that is none."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import tokenizers

from intently.errors import DataError, build
from intently.text.vocabularies import BYTES, COMPLETE, SPECIALS, pipeline

DAMAGED = "it is damaged or was cut"
FOREIGN = "it was made by another program or a later version"


def read(path: Path) -> tuple[tokenizers.Tokenizer, str]:
    """Return the tokenizer in a file and its kind; raises DataError that names file and fault."""
    document = _document(path)
    kind = _kind(document)
    fault = _foreign(document, kind)
    if kind is None or fault:
        raise _refusal(path, fault or "JSON without the model of a tokenizer", FOREIGN)
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(document, ensure_ascii=False)), kind
    except Exception as error:  # the library raises nothing narrower
        raise _refusal(path, f"what the tokenizers library refuses: {error}", DAMAGED) from None


def _refusal(path: Path, fault: str, cause: str | None = None) -> DataError:
    return build(DataError, str(path), "a tokenizer saved with Tokenizer.save", fault, cause)


def _document(path: Path) -> Any:
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise _refusal(path, "no such file") from None
    except IsADirectoryError:
        raise _refusal(path, "a folder", "the tokenizer is a JSON file inside it") from None
    except OSError as error:
        raise _refusal(path, f"a file that cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise _refusal(path, f"no UTF-8 at byte {error.start}", DAMAGED) from None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        fault = f"no JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        raise _refusal(path, fault if text else "an empty file", DAMAGED) from None
    except (RecursionError, ValueError) as error:  # nested, or a number, without end
        raise _refusal(path, f"no JSON that can be read: {error}", DAMAGED) from None


def _kind(document: Any) -> str | None:
    match document:
        case {"model": {"type": "WordLevel"}}:
            return "word"
        case {"model": {"type": "BPE", "byte_fallback": True}}:
            return "subword"
        case {"model": {"type": "BPE"}}:
            return "character"
        case {"model": {"type": "Unigram"}}:
            return "unigram"
    return None


def _foreign(document: Any, kind: str | None) -> str | None:
    """Say what of a document `Tokenizer.save` would not have written, if anything."""
    if kind is None:
        return None
    vocabulary = document["model"].get("vocab")
    if kind == "unigram":
        if not isinstance(vocabulary, list) or not all(map(_scored, vocabulary)):
            return "a vocabulary that does not give each entry a score"
        if len({entry for entry, _ in vocabulary}) < len(vocabulary):
            return "an entry twice in the vocabulary"
        vocabulary = {entry: index for index, (entry, _) in enumerate(vocabulary)}
    if not isinstance(vocabulary, dict) or any(type(i) is not int for i in vocabulary.values()):
        return "a vocabulary that does not give each entry an id"
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        return f"{len(vocabulary)} entries whose ids are not 0 to {len(vocabulary) - 1}"
    entries = sorted(vocabulary, key=vocabulary.__getitem__)
    expected = [*SPECIALS, *(BYTES if kind in COMPLETE else ())]
    for index, (entry, wanted) in enumerate(zip(entries, expected, strict=False)):
        if entry != wanted:
            return f"the entry {entry!r} at id {index} where {wanted!r} belongs"
    if len(entries) <= len(expected):
        return f"only {len(entries)} entries"
    part = _difference(_frame(document), _frame(json.loads(pipeline(kind).to_str())))
    return part and f"another {part} than that of kind {kind!r}"


def _scored(pair: Any) -> bool:
    """Whether an entry of a unigram vocabulary is a text with the logarithm of a probability."""
    match pair:
        case [str(), int() | float() as score]:
            return -math.inf < score <= 0
    return False


def _frame(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document without what training and earlier versions may make different."""
    learned = {"vocab", "merges"}
    model = {key: value for key, value in document["model"].items() if key not in learned}
    match document.get("pre_tokenizer"):
        case {"pattern": {"Regex": str()}} as cut:
            return {**document, "model": model, "pre_tokenizer": {**cut, "pattern": "any"}}
    return {**document, "model": model}


def _difference(given: Any, ours: Any) -> str | None:
    """Return the key, in the outermost dictionary, whose value differs; absent is None or False."""
    for key in sorted({*given, *ours}):
        one, other = (None if d.get(key) is False else d.get(key) for d in (given, ours))
        nested = isinstance(one, dict) and isinstance(other, dict)
        if _difference(one, other) if nested else (one != other or type(one) is not type(other)):
            return key
    return None
