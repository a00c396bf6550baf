"""``intently check``: what something computes that attends, and which mistake it makes."""

from __future__ import annotations

import json as plain
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

import intently
from intently.cli.arguments import plain_console
from intently.cli.examining import EXPECTED
from intently.errors import DataError, IntentlyError, build
from intently.foundation import files

STATUS = {True: 0, False: 1, None: 3}
"""How the command ends, by ``ok`` of the report; 2 where there is none."""

CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
import intently
del sys.path[0]
from intently.cli.examining import main
main()
"""
"""The code of the child: this package, and no module of the folder that it runs in."""


def check(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help=EXPECTED)],
    with_: Annotated[
        str, typer.Option("--with", metavar="ARGS", help='of a class: "dim=64, heads=8"')
    ] = "",
    causal: Annotated[
        bool, typer.Option("--causal", help="a query should see no later key")
    ] = False,
    window: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="it should see N keys up to its own, and no more"),
    ] = None,
    mask: Annotated[
        str | None, typer.Option(metavar="EXPR", help='in attend\'s values: "prefix(3) | causal()"')
    ] = None,
    bias: Annotated[
        str | None, typer.Option(metavar="EXPR", help='"alibi(8)", for 8 heads')
    ] = None,
    like: Annotated[
        str | None, typer.Option(metavar="OTHER", help="another SUBJECT that should be the same")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="NAME=SHAPE", help="a random input, x=2,6,64; may be given again"
        ),
    ] = None,
    argument: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=MEANING",
            help="what an argument means, attn_mask=ignore; again for others",
        ),
    ] = None,
    json: Annotated[str | None, typer.Option(metavar="FILE", help="as JSON; - prints it")] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="as JUnit XML")] = None,
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="as a page to open")] = None,
    timeout: Annotated[
        int, typer.Option(metavar="SECONDS", min=1, help="for the whole examination")
    ] = 300,
) -> None:
    """Say which mistake an attention makes, if any.

    The code named runs in a process of its own; from a transformers folder only safetensors are
    read. Ends with 0 if no mistake is found, 1 if one is, 2 if it could not be examined. 3 is
    reserved for what could not be measured.
    """
    for path, option in ((junit, "--junit"), (page, "--page")):
        if path is not None:
            files.destination(path, option, (".xml",) if path is junit else (".html",), "check")
    options = {
        **{"subject": subject, "with_": with_, "causal": causal, "window": window, "mask": mask},
        **{"bias": bias, "like": like, "inputs": inputs or [], "arguments": argument or []},
    }
    places = {"json": json, "junit": junit, "page": page}
    wanted = {form: path for form, path in places.items() if path is not None}
    answer = answer_of_child(options, ["text", *wanted], timeout)
    if "error" in answer:
        raise IntentlyError(answer["error"])
    forms = answer["forms"]
    if json == "-":
        print(forms["json"])
        del wanted["json"]
    else:
        plain_console().print(forms["text"])
    for form, path in wanted.items():
        files.make_folder(Path(path).parent)
        files.replace_file(Path(path), forms[form].encode(errors="backslashreplace"))
    status = STATUS[answer["ok"]]
    raise typer.Exit(status if status or answer["examined"] else 2)


def answer_of_child(options: dict[str, Any], forms: list[str], timeout: int) -> dict[str, Any]:
    """What a child answers that runs the code; raises `DataError` if it ends without an answer."""
    with TemporaryDirectory(prefix="intently-") as folder:
        path = Path(folder, "answer.json")
        with _child() as process:
            assert process.stdin is not None
            request = {"options": options, "forms": forms, "answer": str(path)}
            with suppress(BrokenPipeError):
                process.stdin.write(plain.dumps(request).encode() + b"\n")
                process.stdin.flush()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout)
            ended = process.poll()
        if path.exists():
            return plain.loads(path.read_bytes())
    how, fix = _end(ended, timeout)
    if sys.stderr.isatty():
        print("\r\x1b[K\x1b[?25h", end="", file=sys.stderr)  # the bar of a child that was killed
    raise build(DataError, options["subject"], "a report", how, fix=fix)


@contextmanager
def _child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs `examining.main` and is killed at the end, with all that it started.

    It has a session of its own, so that Ctrl-C reaches the parent alone, and ends when its
    standard input is closed: then its parent was killed. What the code prints is no report, and
    goes to the standard error.
    """
    command = [sys.executable, "-P", "-c", CHILD, str(Path(intently.__file__).parents[1])]
    process = subprocess.Popen(command, stdin=-1, stdout=2, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            if os.name == "posix":
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        process.wait()
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()


def _end(status: int | None, timeout: int) -> tuple[str, str]:
    """How a child ended without a report, and what to do."""
    if status is None:
        fix = "give more with --timeout, or pass smaller inputs"
        return f"none within {timeout} s", f"if it does end, {fix}"
    if status == -9:
        return "none: the process was killed", "perhaps it took all memory: pass smaller inputs"
    if status < 0:
        how = f"none: the process was ended by {signal.Signals(-status).name}"
        return how, "the code crashes outside of Python: run it alone, with python -X faulthandler"
    return f"none: the code ended its process, with status {status}", "let it return instead"
