"""``intently check``: which mistake an attention makes."""

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
from typer import Argument, Option

import intently
from intently.cli.arguments import option, plain_console
from intently.cli.examining import SUBJECT
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
    subject: Annotated[str, Argument(metavar="SUBJECT", help=SUBJECT)],
    with_: Annotated[str, option("ARGS", 'arguments of a class: "dim=64, heads=8"', "--with")] = "",
    causal: Annotated[bool, Option("--causal", help="a query should see no later key")] = False,
    window: Annotated[
        int | None, option("N", "a query should see N keys up to its own, and no more", min=1)
    ] = None,
    mask: Annotated[
        str | None, option("EXPR", 'the mask, in attend\'s values: "prefix(3) | causal()"')
    ] = None,
    bias: Annotated[str | None, option("EXPR", 'the bias: "alibi(8)", for 8 heads')] = None,
    like: Annotated[str | None, option("OTHER", "another SUBJECT that should be the same")] = None,
    inputs: Annotated[
        list[str] | None,
        option("NAME=SHAPE", "a random input, x=2,6,64; may be repeated", "--input"),
    ] = None,
    argument: Annotated[
        list[str] | None,
        option("NAME=MEANING", "meaning of an argument, attn_mask=ignore; may be repeated"),
    ] = None,
    json: Annotated[str | None, option("FILE", "write JSON; - prints it")] = None,
    junit: Annotated[Path | None, option("FILE", "write JUnit XML")] = None,
    page: Annotated[Path | None, option("FILE", "write a page to open")] = None,
    timeout: Annotated[int, option("SECONDS", "limit for the whole examination", min=1)] = 300,
) -> None:
    """Say which mistake an attention makes, if any.

    The code named runs in a process of its own; from a transformers folder only safetensors are
    read. Ends with 0 if no mistake is found, 1 if one is, 2 if it could not be examined. 3 is
    reserved for what could not be measured.
    """
    for path, name, ending in ((junit, "--junit", ".xml"), (page, "--page", ".html")):
        if path is not None:
            files.destination(path, name, (ending,), "check")
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
    """Return the answer of a child that runs the code; raise `DataError` if it ends without one."""
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
            status = process.poll()
        if path.exists():
            return plain.loads(path.read_bytes())
    if sys.stderr.isatty():
        print("\r\x1b[K\x1b[?25h", end="", file=sys.stderr)  # the bar of a child that was killed
    if status is None:
        got = f"none within {timeout} s"
        fix = "if it does end, give more with --timeout, or pass smaller inputs"
    elif status == -9:
        got, fix = "none: the process was killed", "perhaps it took all memory: pass smaller inputs"
    elif status < 0:
        got = f"none: the process was ended by {signal.Signals(-status).name}"
        fix = "the code crashes outside of Python: run it alone, with python -X faulthandler"
    else:
        got = f"none: the code ended its process, with status {status}"
        fix = "let it return instead"
    raise build(DataError, options["subject"], "a report", got, fix=fix)


@contextmanager
def _child() -> Iterator[subprocess.Popen[bytes]]:
    """Run `examining.main` in a process that is killed at the end, with all that it started.

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
