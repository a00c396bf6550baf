"""From sentence pairs to a translator: runs, the folder of a model, evaluation."""

from intently.foundation.on_demand import listed
from intently.tasks.translation.states import States
from intently.tasks.translation.translator import AlignmentHead, Translation, Translator

__all__ = ["AlignmentHead", "States", "Translation", "Translator"]

__dir__ = listed(__name__)
