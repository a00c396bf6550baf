"""The four kinds of tokenizer, built from the ``tokenizers`` library.

All four cut a sentence at the boundaries of `intently.text.words`; the space before a word belongs
to it. They differ in what they cut words into:

    word       " L'" "animal" " dort" "."       whole words, with or without the space before them
    character  "L" "'" "a" "n" …                code points
    subword    " L'" "ani" "mal" " dort" "."    frequent pieces, and bytes for what is in none
    unigram    " L'" "anim" "al" " dort" "."    likely pieces, and bytes for what is in none

All but character tokenizers assume a space before the first word, so that a word is the same there
as elsewhere. The special tokens are ordinary entries of the vocabulary that no text can
match, because no word holds both "<" and a letter; a user may write "<s>".
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import chain

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from intently.text.unigram import fitted
from intently.text.words import WORD

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
PAD, SOS, EOS, UNK = range(4)
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
KINDS = ("word", "character", "subword", "unigram")
COMPLETE = ("subword", "unigram")  # they encode any text, falling back to bytes
SMALLEST = {kind: len(SPECIALS) + (len(BYTES) if kind in COMPLETE else 0) + 1 for kind in KINDS}
LONGEST = 16
"""Characters of the longest piece of a unigram tokenizer."""

SEEDS = 4
"""Initial pieces of a unigram tokenizer, as a multiple of its size."""


def pipeline(kind: str, model: models.Model | None = None) -> tokenizers.Tokenizer:
    """Return a tokenizer of this kind around a model, by default an empty one."""
    complete, spaced = kind in COMPLETE, kind != "character"
    if model is None and kind == "unigram":
        model = models.Unigram([(entry, 0.0) for entry in (*SPECIALS, *BYTES)], UNK, True)
    elif model is None:
        empty = models.WordLevel if kind == "word" else models.BPE
        model = models.BPE(byte_fallback=True) if complete else empty(unk_token=SPECIALS[UNK])
    tokenizer = tokenizers.Tokenizer(model)
    if kind == "word":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(), normalizers.Prepend(" ")]
        )
    elif complete:
        tokenizer.normalizer = normalizers.Prepend(" ")
    cut = Regex(rf" ?(?:{WORD})|\s")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(cut, behavior="isolated")
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback()] * complete
        + [decoders.Fuse()]
        + [decoders.Strip(" ", left=1, right=0)] * spaced
    )
    return tokenizer


def trained(
    kind: str, sentences: Sequence[str], size: int, min_frequency: int
) -> tokenizers.Tokenizer:
    """Return a tokenizer with at most ``size`` entries, trained on the sentences."""
    if kind == "character":
        return _characters(sentences, size, min_frequency)
    tokenizer = pipeline(kind)
    if kind == "word":
        trainer = trainers.WordLevelTrainer(
            vocab_size=size,
            min_frequency=min_frequency,
            special_tokens=list(SPECIALS),
            show_progress=False,
        )
    else:
        sentences = _without_rare_characters(sentences, (size - SMALLEST[kind]) // 2, min_frequency)
        if kind == "unigram":
            return _unigram(sentences, size, min_frequency)
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=min_frequency,
            special_tokens=[*SPECIALS, *BYTES],
            show_progress=False,
        )
    tokenizer.train_from_iterator(sentences, trainer, length=len(sentences))
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = []  # else the library would find special tokens in a user's text
    return tokenizers.Tokenizer.from_str(json.dumps(document, ensure_ascii=False))


def _by_frequency(sentences: Sequence[str], min_frequency: int) -> list[str]:
    counts = Counter(chain.from_iterable(sentences))
    return sorted(
        (character for character, count in counts.items() if count >= min_frequency),
        key=lambda character: (-counts[character], character),
    )


def _characters(sentences: Sequence[str], size: int, min_frequency: int) -> tokenizers.Tokenizer:
    kept = _by_frequency(sentences, min_frequency)[: size - len(SPECIALS)]
    vocabulary = {token: index for index, token in enumerate((*SPECIALS, *kept))}
    return pipeline("character", models.BPE(vocabulary, [], unk_token=SPECIALS[UNK]))


def _unigram(sentences: Sequence[str], size: int, min_frequency: int) -> tokenizers.Tokenizer:
    """Return a unigram tokenizer whose seed pieces are those of a larger byte-pair encoding.

    Kudo 2018 suggests this seed. Scores are rounded so that they are read back exactly.
    """
    maker = pipeline("subword")
    room = size - len(SPECIALS) - len(BYTES)
    trainer = trainers.BpeTrainer(
        vocab_size=SEEDS * room,
        min_frequency=min_frequency,
        max_token_length=LONGEST,
        show_progress=False,
    )
    maker.train_from_iterator(sentences, trainer, length=len(sentences))
    cut = maker.pre_tokenizer
    words = Counter(word for text in sentences for word, _ in cut.pre_tokenize_str(f" {text}"))
    seed = {*maker.get_vocab(), *chain.from_iterable(words)}
    pieces = [(piece, round(score, 6)) for piece, score in fitted(words, seed, room)]
    head = [(entry, 0.0) for entry in (*SPECIALS, *BYTES)]
    return pipeline("unigram", models.Unigram([*head, *pieces], UNK, byte_fallback=True))


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
