"""Language models trained on any text: options, runs, and the model that generates text."""

from intently.foundation.on_demand import listed
from intently.tasks.language.text_model import TextModel, Variant

__all__ = ["TextModel", "Variant"]

__dir__ = listed(__name__)
