"""Folders that save_pretrained wrote: read without network or code, and refused in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from intently.errors import DataError, IntentlyError, build
from intently.foundation.files import File
from intently.foundation.on_demand import require

HERE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
LAYERS = ("num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers")
"""Options of a config that count layers; those of GPT-2 and its like go by the first name, too."""


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
        except (IntentlyError, MemoryError):
            raise
        except Exception as error:
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise build(DataError, str(folder), expected, first) from None


def kind_of(transformers: Any, folder: Path, expected: str) -> Any:
    """Return the class that the config of a folder names, if its weights can have its layers."""
    config = transformers.AutoConfig.from_pretrained(folder, **HERE)
    name = next(iter(config.architectures or ()), None)
    kind = getattr(transformers, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise build(DataError, str(folder), expected, f"one of class {name}")
    files = list(folder.glob("*.safetensors"))
    if not files:
        raise build(DataError, str(folder), expected, "no file of weights")
    tensors = sum(len(_header(path).tensors) for path in files)
    for part in (config, *(x for x in vars(config).values() if hasattr(x, "to_dict"))):
        for option in LAYERS:
            layers = getattr(part, option, 0)
            if isinstance(layers, int) and layers > tensors:
                wanted = f"{option} up to {tensors:,}, the number of tensors in the folder"
                where = str(folder / "config.json")
                raise build(DataError, where, wanted, f"{layers:,}", "it is damaged")
    return kind


def _header(path: Path) -> Any:
    return File(path, "a safetensors file", DataError).header(most=2**28)
