"""Folders that save_pretrained wrote: read without network or code, and refused in our words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from intently.errors import CheckpointError, DataError, IntentlyError, build, lacks_memory
from intently.foundation.files import File
from intently.foundation.on_demand import require
from intently.interop.weights import listed

HERE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
LAYERS = re.compile(r"(^|_)(n_layers?|num_layers)$|hidden_layers$|(en|de)coder_layers$")
"""Options of a config that count layers."""


@contextmanager
def quiet() -> Iterator[Any]:
    """Yield transformers with its warnings and progress bars off."""
    require("transformers", "reads such folders")
    import transformers

    logging = transformers.utils.logging
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield transformers
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def reading(folder: Path, expected: str) -> Iterator[Any]:
    """Yield transformers, quiet; any error that is not ours becomes a `DataError`."""
    with quiet() as transformers:
        try:
            yield transformers
        except IntentlyError:
            raise
        except Exception as error:
            if lacks_memory(error):
                raise
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            fix = "save it again with model.save_pretrained(folder)"
            raise build(DataError, str(folder), expected, first, fix=fix) from None


def kind_of(transformers: Any, folder: Path, expected: str) -> Any:
    """Return the class that the config of a folder names, if its weights can have its layers."""
    file = File(folder / "config.json", "the config of a transformers model", DataError)
    config = file.json({str: object})
    if "configuration_files" in config:
        raise file.refusal("one that names other files", fix="remove its configuration_files")
    name = next(iter(config.get("architectures") or ()), None)
    kind = getattr(transformers, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise build(DataError, str(folder), expected, f"one of class {name}")
    files = list(folder.glob("*.safetensors"))
    if not files:
        raise build(DataError, str(folder), expected, "no file of weights")
    tensors = sum(len(_header(path).tensors) for path in files)
    for option, layers in _counts(config):
        if layers > tensors:
            wanted = f"{option} up to {tensors:,}, the number of tensors in the folder"
            raise build(DataError, str(file.path), wanted, f"{layers:,}", "it is damaged")
    transformers.AutoConfig.from_pretrained(folder, **HERE)  # refuses what is wrong with the rest
    return kind


def loaded(kind: Any, folder: Path, spare: str = "(?!)") -> Any:
    """Return the model of a folder; its tensors must be those of its class.

    Only tensors whose names match ``spare`` may be missing or left over. Raises `CheckpointError`.
    """
    model, found = kind.from_pretrained(
        folder, use_safetensors=True, output_loading_info=True, **HERE
    )
    wrong = [
        f"{listed(names)} {what}"
        for key, what in (
            ("missing_keys", "missing"),
            ("unexpected_keys", "left over"),
            ("mismatched_keys", "of a different shape"),
        )
        if (names := [x for x in map(str, found.get(key, ())) if not re.fullmatch(spare, x)])
    ]
    if wrong:
        raise build(
            CheckpointError,
            str(folder),
            f"the tensors of {kind.__name__}",
            ", ".join(wrong),
            "the folder holds another model than its config says",
        )
    return model


def _counts(config: Any) -> Iterator[tuple[str, int]]:
    """Yield the options that count layers, at any depth, and their values."""
    if isinstance(config, dict):
        for name, value in config.items():
            if isinstance(value, int) and LAYERS.search(name):
                yield name, value
    if isinstance(config, dict | list):
        for value in config.values() if isinstance(config, dict) else config:
            yield from _counts(value)


def _header(path: Path) -> Any:
    return File(path, "a safetensors file", DataError).header(most=2**28)
