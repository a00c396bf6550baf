"""The child of ``intently check``: it alone runs the code that is examined.

The code may end its process, hang, or change what other modules hold. The parent writes a line of
JSON, the arguments of `answer_of`, to the standard input, which stays open as long as it waits; it
reads one file, `CheckAnswer` as JSON, which is there completely or not at all.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import os
import re
import shutil
import signal
import sys
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import and_, or_
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, TypedDict

from intently.cli.app import show_warning
from intently.errors import ArgumentError, DataError, IntentlyError, build, one_line
from intently.foundation.process import late_bar

SUBJECT = (
    "my_module.py:MyAttention, package.module:MyAttention, a factory, file.py:make, an instance, "
    "file.py:attn, or the folder of a model"
)
"""What a subject may be."""

FACTORIES = re.compile("make|build|create|model|get_model|(make|build|create|get)_.+")
"""Names of functions that make what is examined."""

MASKS = ("causal", "window", "padding", "prefix", "segments", "dilated", "grid", "allowed")
BIASES = ("alibi", "relative_buckets")
JOINS = {ast.BitAnd: and_, ast.BitOr: or_}


class CheckAnswer(TypedDict, total=False):
    """What was found, or the ``error`` that came of it; ``forms`` holds the forms asked for."""

    error: str
    ok: bool | None
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


def answer_of(options: Mapping[str, Any], forms: Mapping[str, Mapping[str, Any]]) -> CheckAnswer:
    """Examine what the options of the command describe, whatever its code does.

    ``forms`` are the forms of the report, each with its arguments.
    """
    try:
        report = _report(**options)
        told = {form: str(_rendered(report, form, given)) for form, given in forms.items()}
        return CheckAnswer(ok=report.ok, forms=told)
    except IntentlyError as error:
        return CheckAnswer(error=str(error))
    except BaseException as error:  # whatever the code does
        return CheckAnswer(error=str(_failed(options["subject"], error)))


def _report(
    subject: str,
    with_: str,
    causal: bool,
    window: int | None,
    mask: Sequence[str],
    bias: str | None,
    like: str | None,
    inputs: Sequence[str],
    arguments: Sequence[str],
    settings: Mapping[str, Any],
) -> Any:
    """Return the report on the subject of a command; ``settings`` are those of `check`."""
    from intently.checker import check
    from intently.checker.report.finding import heard

    settings = {
        **settings,
        "mask": _mask(causal, window, mask),
        "bias": None if bias is None else bias_of(bias),
        "arguments": dict(_split(x, "--argument", "attn_mask=ignore") for x in arguments),
    }
    given, own = keywords(with_), _inputs(inputs)
    value, example = _target(subject)
    other = None if like is None else _target(like)[0]
    if given and not any(_is_made(x, given) for x in (value, other)):
        expected = "a class or a factory, which is called with them"
        raise build(ArgumentError, "--with", expected, f"{subject}, which is none")
    settings["inputs"] = own or example
    if like is not None:
        settings["like"] = _instance(other, given)
    with late_bar() as hear, heard(hear):
        return check(_instance(value, given), **settings)


def _mask(causal: bool, window: int | None, given: Sequence[str]) -> Any:
    """Return the mask of all that is stated, or a mask for each pattern of names."""
    import intently

    masks = [intently.causal()] if causal else []
    masks += [] if window is None else [intently.window(window - 1, 0)]
    each: dict[str, Any] = {}
    for text in given:
        if "=" not in text or "(" in text.partition("=")[0]:
            masks.append(mask_of(text))
            continue
        name, expression = _split(text, "--mask", "decoder.*.self_attn=causal")
        mask = mask_of(expression)
        each[name] = each[name] & mask if name in each else mask
    if each and masks:
        expected = "one mask, or PATTERN=EXPR for each that is stated"
        raise build(ArgumentError, "--mask", expected, "both")
    return each or (reduce(and_, masks) if masks else None)


def _rendered(report: Any, form: str, given: Mapping[str, Any]) -> str:
    if form == "page":
        from intently.checker.report.page import parts

        return "".join(parts(report))
    return str(report) if form == "text" else getattr(report, form)(**given)


def _failed(subject: str, error: BaseException) -> DataError:
    """Return the error for what the code raised, and where: the last line not of PyTorch."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [x for x in frames if "/torch/" not in x.filename and not x.filename.startswith("<")]
    last = (theirs or frames)[-1]
    got = traceback.format_exception_only(error)[-1].strip()
    where = f"it was raised in {last.name}, {last.filename}, line {last.lineno}"
    return one_line(build(DataError, subject, "code that can be examined", got, where))


def _inputs(given: Sequence[str]) -> dict[str, Any]:
    """Return random inputs of these shapes; those that are called like ids are integers."""
    import torch

    from intently.checker.calling.naming import NAMES

    inputs = {}
    for n, text in enumerate(given):
        name, shape = _split(text, "--input", "x=2,6,64")
        try:
            sizes = [int(x) for x in shape.split(",")]
        except ValueError:
            sizes = []
        if not sizes or min(sizes) < 1:
            raise build(ArgumentError, "--input", "a name and sizes, x=2,6,64", text)
        draw = torch.Generator().manual_seed(n)
        if name in NAMES["ids"]:
            inputs[name] = torch.randint(3, 40, sizes, generator=draw)
        else:
            inputs[name] = torch.randn(sizes, generator=draw)
    return inputs


def _split(text: str, option: str, example: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise build(ArgumentError, option, f"a name and a value, {example}", text)
    return name, value


# --- the subject ----------------------------------------------------------------------------------


def _target(text: str) -> tuple[Any, dict[str, Any] | None]:
    """Return the class, function or object that is named, or a model with an example call."""
    if os.path.isdir(text):
        return _model(Path(text))
    place, colon, name = text.rpartition(":")
    if not (place and colon and name):
        raise build(ArgumentError, "SUBJECT", SUBJECT, text)
    value: Any = _imported(place)
    for part in name.split("."):
        if not hasattr(value, part):
            known = [x for x, y in vars(value).items() if callable(y) and not x.startswith("_")]
            got = f"no {part} there" + (f", but {', '.join(known[:8])}" if known else "")
            raise build(ArgumentError, "SUBJECT", f"a name in {place}", got)
        value = getattr(value, part)
    return value, None


def _parameters(value: Any) -> tuple[list[str], list[str]]:
    """Return the names of all parameters, and of those without a default."""
    try:
        parameters = inspect.signature(value).parameters
    except (TypeError, ValueError):
        return [], []
    rest = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    known = parameters.items()
    return list(parameters), [n for n, p in known if p.default is p.empty and p.kind not in rest]


def _is_made(value: Any, given: Mapping[str, Any]) -> bool:
    """Whether a value is called to make what is examined: a class, or a factory."""
    if not inspect.isfunction(value):
        return inspect.isclass(value)
    every, needed = _parameters(value)
    named = FACTORIES.fullmatch(value.__name__)
    return not every or (named is not None and bool(given or not needed))


def _instance(value: Any, given: Mapping[str, Any]) -> Any:
    """Return what a class or a factory makes, with the same parameters every time; others as is.

    A module is in evaluation mode.
    """
    import torch

    if not _is_made(value, given):
        return value
    missing = [name for name in _parameters(value)[1] if name not in given]
    if missing:
        fix = f'add --with "{", ".join(f"{name}=…" for name in missing)}", or name a factory'
        expected = f"the arguments of {value.__name__}"
        got = ", ".join(given) or "none"
        raise build(ArgumentError, "--with", expected, got, f"it needs {', '.join(missing)}", fix)
    torch.manual_seed(0)
    try:
        instance = value(**given)
    except Exception as error:
        expected, got = f"what {value.__name__} can be made of", f"{type(error).__name__}: {error}"
        raise build(ArgumentError, "--with", expected, got) from None
    if isinstance(instance, torch.nn.Module):
        return instance.eval()
    if not callable(instance):
        expected = "a factory that returns a module or a function"
        raise build(ArgumentError, "SUBJECT", expected, type(instance).__name__)
    return instance


def _imported(place: str) -> ModuleType:
    """Return the module of a file, or of a dotted name from the current folder on."""
    try:
        if not place.endswith(".py"):
            _look_into(Path.cwd())
            return importlib.import_module(place)
        path = Path(place).resolve()
        if not path.is_file():
            raise build(ArgumentError, "SUBJECT", SUBJECT, f"no file {place}")
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
    standard = sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")
    last = 0
    for n, path in enumerate(sys.path, 1):
        if path.startswith(standard) and not path.endswith("-packages"):
            last = n
    sys.path.insert(last, str(folder))


def _model(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Return the model of a transformers folder, and an example call by what its config says."""
    import torch

    from intently.tasks.runners import open_model

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


# --- expressions ----------------------------------------------------------------------------------
#
# Values of `attend` and arguments as they are written on a command line; nothing is executed. An
# expression is read as a tree: names of masks or biases, calls of them with plain values, and
# ``&``, ``|``, ``~``. Anything else is refused.


def mask_of(text: str) -> Any:
    """Return the mask that an expression names.

    >>> mask_of("causal & window(3, 0)")
    causal() & window(3, 0)
    """
    return _value(text, "--mask", MASKS, "causal() & padding([6, 4])")


def bias_of(text: str) -> Any:
    """Return the bias that an expression names."""
    return _value(text, "--bias", BIASES, "alibi(8)")


def keywords(text: str) -> dict[str, Any]:
    """Return arguments of a call by name.

    >>> keywords("dim=64, heads=8")
    {'dim': 64, 'heads': 8}
    """
    example = 'names with plain values, "dim=64, heads=8"'
    call = _parsed(f"f({text})", "--with", example)
    if not isinstance(call, ast.Call) or call.args or any(x.arg is None for x in call.keywords):
        raise build(ArgumentError, "--with", example, text)
    return {str(x.arg): _literal(x.value, "--with") for x in call.keywords}


def _value(text: str, option: str, names: tuple[str, ...], example: str) -> Any:
    """Return the mask or bias that an expression of these names describes."""
    import intently

    def evaluated(node: ast.expr) -> Any:
        if isinstance(node, ast.BinOp) and type(node.op) in JOINS:
            return JOINS[type(node.op)](evaluated(node.left), evaluated(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            return ~evaluated(node.operand)
        if isinstance(node, (ast.Name, ast.Attribute)):
            node = ast.Call(node, [], [])
        if isinstance(node, ast.Call) and _name(node.func) in names:
            given = [_literal(x, option) for x in node.args]
            named = {str(x.arg): _literal(x.value, option) for x in node.keywords}
            try:
                return getattr(intently, _name(node.func))(*given, **named)
            except TypeError as error:
                if isinstance(error, IntentlyError):
                    raise
                raise build(ArgumentError, option, example, text, str(error)) from None
        expected = f"{', '.join(names)}, called with plain values, and joined by &, | and ~"
        raise build(ArgumentError, option, expected, text, fix=f'write "{example}", for example')

    return evaluated(_parsed(text, option, example))


def _name(node: ast.expr) -> str:
    """Return the name that is called: ``causal``, ``it.causal`` or ``intently.causal``."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id in ("it", "intently") else ""
    return node.id if isinstance(node, ast.Name) else ""


def _literal(node: ast.expr, option: str) -> Any:
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
