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
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

import intently
from intently.cli.arguments import Layers, option, plain_console
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
    with_: Annotated[
        str, option("ARGS", 'arguments of a class or factory: "dim=64, heads=8"', "--with")
    ] = "",
    causal: Annotated[bool, Option("--causal", help="a query should see no later key")] = False,
    window: Annotated[
        int | None, option("N", "a query should see N keys up to its own, and no more", min=1)
    ] = None,
    mask: Annotated[
        list[str] | None,
        option(
            "[PATTERN=]EXPR",
            'the mask, in attend\'s values: "prefix(3) | causal", or one for each module: '
            '"decoder.*.self_attn=causal"; may be repeated',
        ),
    ] = None,
    bias: Annotated[str | None, option("EXPR", 'the bias: "alibi(8)", for 8 heads')] = None,
    scale: Annotated[float | None, option("X", "what scores should be multiplied by")] = None,
    layout: Annotated[
        str | None, option("AXES", "the axes of the inputs, tbc or bthd, if not btc or bhtd")
    ] = None,
    returns: Annotated[
        Literal["scores", "weights"] | None,
        option("scores|weights", "what is returned, if not the output"),
    ] = None,
    layers: Layers = None,
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
    allow_unmeasured: Annotated[
        bool, Option("--allow-unmeasured", help="end with 0 where something was not measured")
    ] = False,
    timeout: Annotated[int, option("SECONDS", "limit for the whole examination", min=1)] = 300,
) -> None:
    """Say which mistake an attention makes, if any.

    The code named runs in a process of its own; from a transformers folder only safetensors are
    read. Ends with 0 if no mistake is found, 1 if one is, 2 if it could not be examined, 3 if
    something was not measured.

    A function is called to make what is examined if it takes nothing, or if it has all arguments
    and is named make, build, create, model, get_model, or make_…, build_…, create_…, get_….
    """
    for path, name, ending in ((junit, "--junit", ".xml"), (page, "--page", ".html")):
        if path is not None:
            files.destination(path, name, (ending,), "check")
    options = {
        **{"subject": subject, "with_": with_, "causal": causal, "window": window},
        **{"mask": mask or [], "bias": bias, "like": like, "inputs": inputs or []},
        "arguments": argument or [],
        "settings": {"scale": scale, "layout": layout, "returns": returns, "layers": layers},
    }
    places = {"json": json, "junit": junit, "page": page}
    wanted = {form: path for form, path in places.items() if path is not None}
    forms: dict[str, dict[str, Any]] = {form: {} for form in ("text", *wanted)}
    if junit is not None:
        forms["junit"] = {"allow_unmeasured": allow_unmeasured}
    answer = answer_of_child(options, forms, timeout)
    if "error" in answer:
        raise IntentlyError(answer["error"])
    told = answer["forms"]
    if json == "-":
        print(told["json"])
        del wanted["json"]
    else:
        plain_console().print(told["text"])
    for form, path in wanted.items():
        files.make_folder(Path(path).parent)
        files.replace_file(Path(path), told[form].encode(errors="backslashreplace"))
    ok = answer["ok"]
    raise typer.Exit(0 if ok is None and allow_unmeasured else STATUS[ok])


def answer_of_child(
    options: dict[str, Any], forms: dict[str, dict[str, Any]], timeout: int
) -> dict[str, Any]:
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
