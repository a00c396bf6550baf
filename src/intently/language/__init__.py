"""Language models of any text: options, runs, and the model that writes."""

from intently.language.text_model import TextModel, Variant

__all__ = ["TextModel", "Variant"]
