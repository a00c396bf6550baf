"""The three kinds of tokenizer, built from the ``tokenizers`` library.

All three cut a sentence at the boundaries of `intently.tasks.text.words`; the space before a word
belongs to it. They differ in the pieces they split words into:

    word       " L'" "animal" " dort" "."       whole words, with or without the space before them
    character  "L" "'" "a" "n" …                code points
    subword    " L'" "ani" "mal" " dort" "."    frequent pieces, and bytes for anything else

Word and subword tokenizers assume a space before the first word, so that a word is encoded the same
everywhere. The special tokens are ordinary entries of the vocabulary that no text can match,
because no word holds both "<" and a letter; a user may write "<s>".
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from intently.errors import DataError
from intently.foundation.files import SEAL, File, digest, plain
from intently.tasks.text.words import WORD

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
PAD, SOS, EOS, UNK = range(4)
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
FIRST = {
    "word": SPECIALS,
    "character": SPECIALS,
    "subword": (*SPECIALS, *BYTES),  # bytes can encode any text
}
"""The first entries of the vocabulary of each kind."""

KINDS = tuple(FIRST)
SMALLEST = {kind: len(entries) + 1 for kind, entries in FIRST.items()}
REMOVED = {
    "unigram": "unigram tokenizers were removed from Intently; subwords encode any text, too"
}


def pipeline(kind: str, model: models.Model | None = None) -> tokenizers.Tokenizer:
    """Return a tokenizer of this kind around a model, by default an empty one."""
    subword, spaced = kind == "subword", kind != "character"
    if model is None:
        empty = models.WordLevel if kind == "word" else models.BPE
        model = models.BPE(byte_fallback=True) if subword else empty(unk_token=SPECIALS[UNK])
    tokenizer = tokenizers.Tokenizer(model)
    if kind == "word":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(), normalizers.Prepend(" ")]
        )
    elif subword:
        tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(rf" ?(?:{WORD})|\s"), behavior="isolated")
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback()] * subword
        + [decoders.Fuse()]
        + [decoders.Strip(" ", left=1, right=0)] * spaced
    )
    return tokenizer


def trained(
    kind: str, sentences: Sequence[str], size: int, min_frequency: int
) -> tokenizers.Tokenizer:
    """Return a tokenizer with at most ``size`` entries, trained on the sentences."""
    if kind == "character":
        kept = _by_frequency(sentences, min_frequency)[: size - len(SPECIALS)]
        vocabulary = {token: index for index, token in enumerate((*SPECIALS, *kept))}
        return pipeline(kind, models.BPE(vocabulary, [], unk_token=SPECIALS[UNK]))
    if kind == "subword":
        sentences = _without_rare_characters(sentences, (size - SMALLEST[kind]) // 2, min_frequency)
    trainer = (trainers.WordLevelTrainer if kind == "word" else trainers.BpeTrainer)(
        vocab_size=size,
        min_frequency=min_frequency,
        special_tokens=list(FIRST[kind]),
        show_progress=False,
    )
    tokenizer = pipeline(kind)
    tokenizer.train_from_iterator(sentences, trainer, length=len(sentences))
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = []  # else user text could match special tokens
    return tokenizers.Tokenizer.from_str(json.dumps(document, ensure_ascii=False))


def _by_frequency(sentences: Sequence[str], min_frequency: int) -> list[str]:
    counts = Counter(chain.from_iterable(sentences))
    return sorted(
        (character for character, count in counts.items() if count >= min_frequency),
        key=lambda character: (-counts[character], character),
    )


def _without_rare_characters(
    sentences: Sequence[str], most: int, min_frequency: int
) -> Sequence[str]:
    """Leave room for merges: characters beyond the ``most`` frequent become spaces.

    They are encoded as bytes, so no piece joins them to their neighbours. The library has a limit
    of its own, but breaks ties by chance.
    """
    kept = {" ", *_by_frequency(sentences, min_frequency)[:most]}
    rare = {ord(character): " " for character in set().union(*sentences) - kept}
    return [sentence.translate(rare) for sentence in sentences] if rare else sentences


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
