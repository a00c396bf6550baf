"""Word boundaries: one pattern for tokenizers, alignments and pictures.

The pattern is matched by the regular expressions of the ``tokenizers`` library, which also cut the
text for a tokenizer, so both always agree on words.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, pre_tokenizers

from intently.errors import ArgumentError, IntentlyError, KindError, build

APOSTROPHE = "['’]"
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}ーｰ"  # scripts that put no spaces between words
LETTER = rf"[\p{{L}}\p{{M}}&&[^{UNSPACED}]]"
INNER = rf"[\w\u00AD\u200C\u200D&&[^{UNSPACED}]]"  # soft hyphens and (non-)joiners stay inside
STEM = rf"(?:(?=\w){INNER}++(?:[-‐‑](?=\w){INNER}++)*+)"
CLITIC = r"(?i:s|m|re|ve|ll|d|t)\b"

WORD = "|".join(
    (
        rf"{STEM}(?!{APOSTROPHE})",  # the ordinary word, first because most are
        rf"{LETTER}*[nN]{APOSTROPHE}[tT]\b",  # didn't
        rf"{STEM}{APOSTROPHE}(?=\w)(?!{CLITIC})",  # L' of L'animal, qu' of qu'il
        rf"(?<=\S){APOSTROPHE}{CLITIC}",  # 's of dog's
        STEM,  # dog of dog's, Est-ce
        r"\S(?:\Y\S)*",  # any other visible character, with the marks and joined parts it carries
    )
)

_CUT = pre_tokenizers.Split(Regex(WORD), behavior="removed", invert=True)


def word_spans(sentence: str) -> list[tuple[int, int]]:
    """Return where each word of a sentence starts and ends, in characters.

    Raises KindError for anything but a string, ArgumentError for a lone surrogate.

    >>> word_spans("L'animal dort.")
    [(0, 2), (2, 8), (9, 13), (13, 14)]
    """
    try:
        return [span for _, span in _CUT.pre_tokenize_str(sentence)]
    except (TypeError, UnicodeEncodeError):
        raise not_text("sentence", sentence) from None


def words(sentence: str) -> list[str]:
    """Cut a sentence into words: elided words, English clitics and punctuation stand alone.

    Chinese and Japanese, written without spaces, are cut into single characters. Every character
    but white space is in exactly one word.

    >>> words("L'animal n'a pas dormi.")
    ["L'", 'animal', "n'", 'a', 'pas', 'dormi', '.']
    >>> words("The dog's friends didn't ask: Est-ce que…")
    ['The', 'dog', "'s", 'friends', "didn't", 'ask', ':', 'Est-ce', 'que', '…']
    """
    return [sentence[start:end] for start, end in word_spans(sentence)]


def strings(sentences: Iterable[str]) -> list[str]:
    """Return the sentences as a list.

    Raises KindError for a single string and for entries that are not strings, ArgumentError for a
    string that is not Unicode text.
    """
    if isinstance(sentences, (str, bytes)):
        fix = "put it in a list: [sentence]"
        raise build(KindError, "sentences", "several strings", "one", fix=fix)
    texts = list(sentences)
    for index, text in enumerate(texts):
        if not isinstance(text, str) or (not text.isascii() and _surrogate(text) is not None):
            raise not_text(f"sentences[{index}]", text)
    return texts


def not_text(name: str, value: object) -> IntentlyError:
    """Return the error that explains why a value is not text."""
    if not isinstance(value, str):
        return build(KindError, name, "a string", type(value).__name__)
    place = _surrogate(value) or 0
    return build(
        ArgumentError,
        name,
        "Unicode text",
        f"the lone surrogate U+{ord(value[place]):04X} at character {place}",
        "the text was decoded with errors='surrogateescape' or cut inside a UTF-16 pair",
    )


def _surrogate(text: str) -> int | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None
