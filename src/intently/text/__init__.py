"""Text: where words begin and end, and tokenizers that turn sentences into ids and back."""

from __future__ import annotations

from intently.text.tokenizers import Tokenizer
from intently.text.vocabularies import EOS, KINDS, PAD, SOS, SPECIALS, UNK
from intently.text.words import word_spans, words

__all__ = ["EOS", "KINDS", "PAD", "SOS", "SPECIALS", "UNK", "Tokenizer", "word_spans", "words"]
