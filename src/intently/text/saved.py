"""Tokenizers as files: written, read, and verified."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import tokenizers

from intently.errors import DataError
from intently.foundation.files import SEAL, File, digest, plain
from intently.text.vocabularies import BYTES, COMPLETE, SPECIALS, pipeline

FOREIGN = "it was made by another program or a later version"

LONGEST = 2**26
"""Largest file, in bytes: enough for a vocabulary of a million entries."""


def content(tokenizer: tokenizers.Tokenizer) -> bytes:
    """Return the JSON of the ``tokenizers`` library, with a checksum.

    The checksum is an entry of the model, where the library ignores unknown entries.
    """
    document = json.loads(tokenizer.to_str())
    document["model"][SEAL] = digest(plain(document))
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def read(path: Path) -> tuple[tokenizers.Tokenizer, str]:
    """Return the tokenizer in a file and its kind; raises DataError for a bad file."""
    file = File(path, "a tokenizer saved with Tokenizer.save", DataError)
    document = file.json(content=file.read(LONGEST))
    kind = _kind(document)
    sealed = bool(kind) and SEAL in document["model"]  # earlier versions wrote no checksum
    if sealed and document["model"].pop(SEAL) != digest(plain(document)):
        raise file.damaged("another checksum than it was written with")
    fault = _foreign(document, kind)
    if kind is None or fault:
        raise file.refusal(fault or "JSON without the model of a tokenizer", FOREIGN)
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(document, ensure_ascii=False)), kind
    except Exception as error:  # the library raises nothing narrower
        raise file.damaged(f"what the tokenizers library refuses: {error}") from None


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
    """Describe what `Tokenizer.save` would not have written, None if nothing."""
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
    """Whether an entry of a unigram vocabulary is a text with a log-probability."""
    match pair:
        case [str(), int() | float() as score]:
            return -math.inf < score <= 0
    return False


def _frame(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document without the parts that training or earlier versions change."""
    learned = {"vocab", "merges"}
    model = {key: value for key, value in document["model"].items() if key not in learned}
    match document.get("pre_tokenizer"):
        case {"pattern": {"Regex": str()}} as cut:
            return {**document, "model": model, "pre_tokenizer": {**cut, "pattern": "any"}}
    return {**document, "model": model}


def _difference(given: Any, ours: Any) -> str | None:
    """Return the top-level key whose value differs; a missing one equals None and False."""
    for key in sorted({*given, *ours}):
        one, other = (None if d.get(key) is False else d.get(key) for d in (given, ours))
        nested = isinstance(one, dict) and isinstance(other, dict)
        if _difference(one, other) if nested else (one != other or type(one) is not type(other)):
            return key
    return None
