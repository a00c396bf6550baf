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
    text = rf"^{library}: expected {library}, which .*; got an environment without it\. Install it"
    with pytest.raises(
        MissingLibraryError, match=text + rf" by pip install 'intently\[{library}\]'"
    ):
        importlib.import_module(f"intently.interop.{library}")
