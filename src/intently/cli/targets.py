"""What a command is asked to examine: an object of a file or a module, or the model of a folder."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from intently.errors import ArgumentError, DataError, IntentlyError, build

EXPECTED = "my_module.py:MyAttention, package.module:MyAttention, or the folder of a model"


def target(text: str) -> tuple[Any, dict[str, Any] | None]:
    """What is named: a class, a function or an object, or a model with an example call."""
    if os.path.isdir(text):
        return _model(Path(text))
    place, colon, name = text.rpartition(":")
    if not colon or not name or not place:
        raise build(ArgumentError, "SUBJECT", EXPECTED, text)
    found: Any = _imported(place)
    for part in name.split("."):
        if not hasattr(found, part):
            known = [x for x, y in vars(found).items() if callable(y) and not x.startswith("_")]
            got = f"no {part} there, but {', '.join(known[:8])}" if known else f"no {part} there"
            raise build(ArgumentError, "SUBJECT", f"a name in {place}", got)
        found = getattr(found, part)
    return found, None


def made(found: Any, given: Mapping[str, Any]) -> Any:
    """An object of a class, with the arguments ``given``; anything else is taken as it is."""
    return _made(found, given) if inspect.isclass(found) else found


def _made(kind: type, given: Mapping[str, Any]) -> Any:
    """An object of a class; a module in evaluation mode, with the same parameters every time."""
    import torch

    try:
        needed = [
            n
            for n, p in inspect.signature(kind).parameters.items()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):
        needed = []
    missing = [n for n in needed if n not in given]
    if missing:
        fix = f'add --with "{", ".join(f"{n}=…" for n in missing)}"'
        expected = f"the arguments of {kind.__name__}"
        got = ", ".join(given) or "none"
        raise build(ArgumentError, "--with", expected, got, f"it needs {', '.join(missing)}", fix)
    torch.manual_seed(0)
    try:
        made = kind(**given)
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        raise build(ArgumentError, "--with", f"what {kind.__name__} can be made of", got) from None
    return made.eval() if isinstance(made, torch.nn.Module) else made


def _imported(place: str) -> ModuleType:
    """The module of a file, or of a dotted name from the current folder on."""
    try:
        if not place.endswith(".py"):
            _look_into(Path.cwd())
            return importlib.import_module(place)
        path = Path(place).resolve()
        if not path.is_file():
            raise build(ArgumentError, "SUBJECT", EXPECTED, f"no file {place}")
        _look_into(path.parent)
        name = path.stem
        while name in sys.modules or name in sys.stdlib_module_names:
            name += "_"  # math.py stays beside Python's own
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses and pickles look it up
        spec.loader.exec_module(module)
    except IntentlyError:
        raise
    except BaseException as error:  # whatever the code does when it is imported
        got = f"{type(error).__name__}: {error}"
        raise build(DataError, place, "code that can be imported", got) from None
    return module


def _look_into(folder: Path) -> None:
    """Import from a folder before what is installed, and after Python's own modules."""
    own = sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")
    places = [n for n, path in enumerate(sys.path) if path.startswith(own)]
    inside = [n for n in places if not sys.path[n].endswith("-packages")]
    sys.path.insert(inside[-1] + 1 if inside else 0, str(folder))


def _model(folder: Path) -> tuple[Any, dict[str, Any]]:
    """The model of a transformers folder, and an example call by what its config says."""
    import torch

    from intently.tasks.runners.pretrained import open_model

    model = open_model(folder)
    config = model.config.get_text_config()
    draw = torch.Generator().manual_seed(1)
    if model.main_input_name == "pixel_values":
        vision = getattr(model.config, "vision_config", model.config)
        size = vision.image_size
        high, wide = (size, size) if isinstance(size, int) else size
        shape = (2, getattr(vision, "num_channels", 3), high, wide)
        return model, {"pixel_values": torch.randn(shape, generator=draw)}
    if model.main_input_name != "input_ids":
        expected = "a model that reads tokens or pictures"
        raise build(DataError, str(folder), expected, f"one that reads {model.main_input_name}")
    ids = torch.randint(3, max(4, config.vocab_size), (2, 6), generator=draw)
    inputs = {"input_ids": ids}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids.flip(1)
    return model, inputs
