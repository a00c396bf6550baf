"""What pytest does not collect here."""

from __future__ import annotations

collect_ignore = ["keras_cases.py"]
"""`test_keras` runs it in a process of its own."""
