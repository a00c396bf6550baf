"""The demo: an attention model learns to translate, and shows its attention."""

from intently.foundation.on_demand import listed
from intently.tasks.demo.learning import QUICK, THOROUGH, USUAL, WRITES, Size, run
from intently.tasks.demo.report import page, table

__all__ = ["QUICK", "THOROUGH", "USUAL", "WRITES", "Size", "page", "run", "table"]

__dir__ = listed(__name__)
