"""Text: word boundaries, and tokenizers between sentences and ids."""

from __future__ import annotations

from intently.foundation.on_demand import listed
from intently.tasks.text.tokenizers import Tokenizer
from intently.tasks.text.vocabularies import EOS, KINDS, PAD, SOS, SPECIALS, UNK
from intently.tasks.text.words import word_spans, words

__all__ = ["EOS", "KINDS", "PAD", "SOS", "SPECIALS", "UNK", "Tokenizer", "word_spans", "words"]

__dir__ = listed(__name__)
