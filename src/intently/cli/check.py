"""``intently check``: what something computes that attends, and which mistake it makes."""

from __future__ import annotations

import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from intently.cli.arguments import plain_console
from intently.cli.expressions import bias_of, keywords, mask_of
from intently.cli.targets import EXPECTED, made, target
from intently.errors import ArgumentError, IntentlyError, build
from intently.examiner.report.telling import heard
from intently.foundation import files
from intently.foundation.progress import late_bar


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
) -> None:
    """Say which mistake an attention makes, if any.

    The code named is imported and run; from a transformers folder only safetensors are read.
    Ends with 0 if no mistake is found, 1 if one is, 2 if it could not be examined.
    """
    for path, option in ((junit, "--junit"), (page, "--page")):
        if path is not None:
            files.destination(path, option, (".xml",) if path is junit else (".html",), "check")
    found, example = target(subject)
    other = None if like is None else target(like)[0]
    arguments = keywords(with_)
    if arguments and not any(isinstance(x, type) for x in (found, other)):
        raise build(ArgumentError, "--with", "a class that is made", f"{subject}, which is none")
    settings: dict[str, Any] = {
        "mask": _mask(causal, window, mask),
        "bias": None if bias is None else bias_of(bias),
        "inputs": _inputs(inputs or []) or example,
        "arguments": dict(_split(x, "--argument", "attn_mask=ignore") for x in argument or []),
    }
    if like is not None:
        settings["like"] = made(other, arguments)
    report = _examined(made(found, arguments), settings)
    if json == "-":
        print(report.json())
    else:
        plain_console().print(str(report))
    for path, text in ((json if json != "-" else None, report.json), (junit, report.junit)):
        if path is not None:
            files.make_folder(Path(path).parent)
            with files.replacing(Path(path)) as file:
                file.write(text().encode())
    if page is not None:
        report.page(page)
    if not report.ok:
        raise typer.Exit(1)
    if not report.computes and like is None:
        raise typer.Exit(2)


def _examined(subject: Any, settings: dict[str, Any]) -> Any:
    """The report; whatever the code of a subject raises ends with 2, not with 1."""
    from intently.examiner import check

    try:
        # what the code prints is not the report
        with late_bar() as hear, heard(hear), redirect_stdout(sys.stderr):
            return check(subject, **settings)
    except IntentlyError:
        raise
    except Exception:
        traceback.print_exc()
        raise typer.Exit(2) from None


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


def _inputs(given: list[str]) -> dict[str, Any]:
    """Random inputs of the shapes that are given; those that are called like ids are whole."""
    import torch

    from intently.examiner.calling.naming import NAMES

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
