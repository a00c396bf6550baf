"""The version stands in two places, which must agree."""

from __future__ import annotations

import re
from pathlib import Path

import intently

CITATION = Path(__file__).resolve().parents[1] / "CITATION.cff"


def test_the_citation_names_the_version() -> None:
    [cited] = re.findall(r'^version: "?([^"\s]+)"?$', CITATION.read_text("utf-8"), re.MULTILINE)
    assert cited == intently.__version__
