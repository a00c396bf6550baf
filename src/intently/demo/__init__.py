"""The demo: an attention model learns to translate, and shows its attention."""

from intently.demo.learning import QUICK, THOROUGH, USUAL, WRITES, Size, run
from intently.demo.report import page, table
from intently.foundation.on_demand import listed

__all__ = ["QUICK", "THOROUGH", "USUAL", "WRITES", "Size", "page", "run", "table"]

__dir__ = listed(__name__)
