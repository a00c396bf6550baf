"""The child of ``intently check``: it alone runs the code that is examined.

The code may end its process, hang, or change what other modules hold. The parent writes a line of
JSON, the arguments of `examined`, to the standard input, which stays open as long as it waits; it
reads one file, `Answer` as JSON, which is there completely or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypedDict

from intently.cli.app import show_warning
from intently.cli.expressions import bias_of, keywords, mask_of
from intently.cli.targets import made, target
from intently.errors import ArgumentError, DataError, IntentlyError, build, one_line
from intently.foundation.process import late_bar


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
