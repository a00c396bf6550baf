"""Tokenizers as files: written, read, and verified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from intently.errors import DataError
from intently.foundation.files import SEAL, File, digest, plain
from intently.tasks.text.vocabularies import FIRST, REMOVED, pipeline

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
    kind = _kind(document, file)
    sealed = SEAL in document["model"]  # earlier versions wrote no checksum
    if sealed and document["model"].pop(SEAL) != digest(plain(document)):
        raise file.damaged("another checksum than it was written with")
    fault = _foreign(document, kind)
    if fault:
        raise file.refusal(fault, FOREIGN)
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(document, ensure_ascii=False)), kind
    except Exception as error:  # the library has no narrower exception
        raise file.damaged(f"what the tokenizers library refuses: {error}") from None


def _kind(document: Any, file: File) -> str:
    match document:
        case {"model": {"type": "WordLevel"}}:
            return "word"
        case {"model": {"type": "BPE", "byte_fallback": True}}:
            return "subword"
        case {"model": {"type": "BPE"}}:
            return "character"
        case {"model": {"type": "Unigram"}}:
            fix = "train again with kind 'subword'; the tokenizers library still reads this file"
            raise file.refusal("a unigram tokenizer", REMOVED["unigram"], fix)
    raise file.refusal("JSON without the model of a tokenizer", FOREIGN)


def _foreign(document: Any, kind: str) -> str | None:
    """Name the first part that `Tokenizer.save` cannot have written, None if there is none."""
    vocabulary = document["model"].get("vocab")
    if not isinstance(vocabulary, dict) or any(type(i) is not int for i in vocabulary.values()):
        return "a vocabulary that does not give each entry an id"
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        return f"{len(vocabulary)} entries whose ids are not 0 to {len(vocabulary) - 1}"
    entries = sorted(vocabulary, key=vocabulary.__getitem__)
    for index, (entry, wanted) in enumerate(zip(entries, FIRST[kind])):
        if entry != wanted:
            return f"the entry {entry!r} at id {index} where {wanted!r} belongs"
    if len(entries) <= len(FIRST[kind]):
        return f"only {len(entries)} entries"
    part = _difference(_frame(document), _frame(json.loads(pipeline(kind).to_str())))
    return part and f"another {part} than that of kind {kind!r}"


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
