"""The child of ``intently check``: it alone runs the code that is examined.

The code may end its process, hang, or change what other modules hold. The parent writes a line of
JSON, the arguments of `examined`, to the standard input, which stays open as long as it waits; it
reads one file, `Answer` as JSON, which is there completely or not at all.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import os
import shutil
import signal
import sys
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, TypedDict

from intently.cli.app import show_warning
from intently.errors import ArgumentError, DataError, IntentlyError, build, one_line
from intently.foundation.progress import late_bar


class Answer(TypedDict, total=False):
    """What was found, or the ``error`` that came of it; ``forms`` holds the forms asked for."""

    error: str
    ok: bool | None
    examined: bool
    forms: dict[str, str]


def main() -> None:
    """Answer the request on the standard input, and end at once, whatever threads still run."""
    request = os.fdopen(os.dup(0), "rb", buffering=0)
    given = json.loads(request.readline())
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    path = Path(given["answer"])
    threading.Thread(target=_end_with_parent, args=(request, path.parent), daemon=True).start()
    warnings.showwarning = show_warning
    answer = answer_of(given["options"], given["forms"])
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(answer), encoding="utf-8")
    draft.replace(path)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0)


def _end_with_parent(request: BinaryIO, folder: Path) -> None:
    """End this process, and those that it started, when nobody waits for it any more."""
    request.read()
    shutil.rmtree(folder, ignore_errors=True)
    if os.name == "posix":
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def answer_of(options: Mapping[str, Any], forms: Sequence[str]) -> Answer:
    """Examine what the options of the command describe, whatever its code does."""
    try:
        report = examined(**options)
        answer = Answer(ok=report.ok, examined=bool(report.computes or options["like"]))
        answer["forms"] = {name: str(_rendered(report, name)) for name in forms}
        return answer
    except IntentlyError as error:
        return Answer(error=str(error))
    except BaseException as error:  # whatever the code does
        return Answer(error=str(_failed(options["subject"], error)))


def _rendered(report: Any, form: str) -> str:
    if form == "page":
        from intently.checker.report.page import parts

        return "".join(parts(report))
    return str(report) if form == "text" else getattr(report, form)()


def _failed(subject: str, error: BaseException) -> DataError:
    """The error for what the code raised, and where: the last line that is not PyTorch's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [x for x in frames if "/torch/" not in x.filename and not x.filename.startswith("<")]
    last = (own or frames)[-1]
    got = traceback.format_exception_only(error)[-1].strip()
    where = f"it was raised in {last.name}, {last.filename}, line {last.lineno}"
    return one_line(build(DataError, subject, "code that can be examined", got, where))


def examined(
    subject: str,
    with_: str,
    causal: bool,
    window: int | None,
    mask: str | None,
    bias: str | None,
    like: str | None,
    inputs: Sequence[str],
    arguments: Sequence[str],
) -> Any:
    """The report on the subject of a command."""
    from intently.checker import check
    from intently.checker.report.telling import heard

    settings: dict[str, Any] = {
        "mask": _mask(causal, window, mask),
        "bias": None if bias is None else bias_of(bias),
        "inputs": _inputs(inputs),
        "arguments": dict(_split(x, "--argument", "attn_mask=ignore") for x in arguments),
    }
    given = keywords(with_)
    found, example = target(subject)
    other = None if like is None else target(like)[0]
    if given and not any(isinstance(x, type) for x in (found, other)):
        raise build(ArgumentError, "--with", "a class that is made", f"{subject}, which is none")
    settings["inputs"] = settings["inputs"] or example
    if like is not None:
        settings["like"] = made(other, given)
    with late_bar() as hear, heard(hear):
        return check(made(found, given), **settings)


# --- what is given --------------------------------------------------------------------------------


def _mask(causal: bool, window: int | None, mask: str | None) -> Any:
    """All masks that are stated, together; None if none is."""
    import intently

    parts = [intently.causal()] if causal else []
    if window is not None:
        parts.append(intently.window(window - 1, 0))
    if mask is not None:
        parts.append(mask_of(mask))
    whole = None
    for part in parts:
        whole = part if whole is None else whole & part
    return whole


def _inputs(given: Sequence[str]) -> dict[str, Any]:
    """Random inputs of the shapes that are given; those that are called like ids are whole."""
    import torch

    from intently.checker.calling.naming import NAMES

    found = {}
    for n, text in enumerate(given):
        name, shape = _split(text, "--input", "x=2,6,64")
        try:
            sizes = [int(x) for x in shape.split(",")]
        except ValueError:
            sizes = []
        if not sizes or min(sizes) < 1:
            raise build(ArgumentError, "--input", "a name and sizes, x=2,6,64", text)
        draw = torch.Generator().manual_seed(n)
        whole = name in NAMES["ids"]
        found[name] = (
            torch.randint(3, 40, sizes, generator=draw)
            if whole
            else torch.randn(sizes, generator=draw)
        )
    return found


def _split(text: str, option: str, example: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise build(ArgumentError, option, f"a name and a value, {example}", text)
    return name, value


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


MASKS = ("causal", "window", "padding", "prefix", "segments", "dilated", "grid", "allowed")
BIASES = ("alibi", "relative_buckets")


def mask_of(text: str) -> Any:
    """The mask that an expression names.

    >>> mask_of("causal() & window(3, 0)")
    causal() & window(3, 0)
    """
    return _value(text, "--mask", MASKS, "causal() & padding([6, 4])")


def bias_of(text: str) -> Any:
    """The bias that an expression names."""
    return _value(text, "--bias", BIASES, "alibi(8)")


def keywords(text: str) -> dict[str, Any]:
    """Arguments of a call by name.

    >>> keywords("dim=64, heads=8")
    {'dim': 64, 'heads': 8}
    """
    call = _parsed(f"f({text})", "--with", 'names with plain values, "dim=64, heads=8"')
    if not isinstance(call, ast.Call) or call.args or any(x.arg is None for x in call.keywords):
        raise build(ArgumentError, "--with", 'names with plain values, "dim=64, heads=8"', text)
    return {str(x.arg): _plain(x.value, "--with", text) for x in call.keywords}


def _value(text: str, option: str, names: tuple[str, ...], example: str) -> Any:
    return _values_joined(_parsed(text, option, example), option, names, text, example)


def _values_joined(
    node: ast.expr, option: str, names: tuple[str, ...], text: str, example: str
) -> Any:
    import intently

    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
        left, right = (
            _values_joined(x, option, names, text, example) for x in (node.left, node.right)
        )
        return left & right if isinstance(node.op, ast.BitAnd) else left | right
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return ~_values_joined(node.operand, option, names, text, example)
    if isinstance(node, ast.Call) and _name(node.func) in names:
        name = _name(node.func)
        given = [_plain(x, option, text) for x in node.args]
        named = {str(x.arg): _plain(x.value, option, text) for x in node.keywords}
        try:
            return getattr(intently, name)(*given, **named)
        except IntentlyError:
            raise
        except TypeError as error:
            raise build(ArgumentError, option, example, text, str(error)) from None
    expected = f"{', '.join(names)}, called with plain values, and joined by &, | and ~"
    raise build(ArgumentError, option, expected, text, fix=f'write "{example}", for example')


def _name(node: ast.expr) -> str:
    """The name that is called: ``causal``, ``it.causal`` or ``intently.causal``."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id in ("it", "intently") else ""
    return node.id if isinstance(node, ast.Name) else ""


def _plain(node: ast.expr, option: str, text: str) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        got = ast.unparse(node)
        raise build(ArgumentError, option, "plain values: 3, [6, 4], None", got) from None


def _parsed(text: str, option: str, example: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise build(ArgumentError, option, example, text) from None
