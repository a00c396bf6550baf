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

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

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
    cut = Regex(rf" ?(?:{WORD})|\s")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(cut, behavior="isolated")
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
