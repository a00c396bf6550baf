"""From sentence pairs to a translator: runs, the folder of a model, evaluation."""

from intently.translation.translator import AlignmentHead, Translation, Translator

__all__ = ["AlignmentHead", "Translation", "Translator"]
