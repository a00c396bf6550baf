"""A library that is not installed is named together with the extra that installs it."""

from __future__ import annotations

import importlib
import sys

import pytest

from intently.errors import MissingLibraryError


@pytest.mark.parametrize("library", ["transformers", "diffusers", "keras"])
def test_exchange_names_the_extra(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"intently.interop.{library}", raising=False)
    said = (
        rf"^{library}: expected {library}, which .*; got an environment without it\. Install it by"
    )
    with pytest.raises(MissingLibraryError, match=rf"{said} pip install 'intently\[{library}\]'"):
        importlib.import_module(f"intently.interop.{library}")
