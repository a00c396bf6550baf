"""The marks that tokenizers put on pieces of words."""

from __future__ import annotations

WORD_BEGINS = ("▁", "Ġ", " ")
"""What tokenizers write before the first piece of a word (SentencePiece, byte-level BPE)."""

WORD_GOES_ON = "##"
"""What WordPiece writes before every other piece."""

WORD_ENDS = "</w>"
"""What byte-pair encoding writes after the last piece of a word."""


def bare(token: str) -> str:
    """Return a token without the marks of where words begin, go on and end.

    >>> bare("▁road"), bare("Ġroad"), bare("##ing"), bare("road</w>")
    ('road', 'road', 'ing', 'road')
    >>> bare("▁"), bare("##"), bare("</w>")
    ('▁', '##', '</w>')
    """
    for mark in (*WORD_BEGINS, WORD_GOES_ON):
        if token.startswith(mark) and len(token) > len(mark):
            token = token.removeprefix(mark)
            break
    return token.removesuffix(WORD_ENDS) if len(token) > len(WORD_ENDS) else token
