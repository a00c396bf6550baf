"""The page inside a notebook: the same modules, and blocks that are sent on demand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from intently.errors import MissingLibraryError, build
from intently.show.page.contents import Highlight, packed
from intently.show.page.items import Shown, items_of
from intently.show.page.numbers.stored import Precision
from intently.show.page.sides import Side

if TYPE_CHECKING:
    from anywidget import AnyWidget


def widget(
    source: Shown,
    precision: Precision = "half",
    *,
    title: str | None = None,
    sides: Sequence[Side] = (),
    highlights: Iterable[Highlight] = (),
    start: Mapping[str, Any] | None = None,
) -> AnyWidget:
    """Return the page of a recording, of matrices by name, or of one matrix, as a notebook widget.

    Arguments and errors are those of `save_page`. ``widget.address`` is the state of the page as
    an address fragment, ``"#view=text&row=7"`` say; setting it changes the view. Raises
    `MissingLibraryError` if anywidget is not installed.

    >>> import torch, intently as it
    >>> q, k = torch.randn(2, 4, 6, 8)
    >>> shown = widget({"layer.0": it.attend(q, k).label("abcdef", "abcdef")}, title="six letters")
    >>> shown.address = "#view=head&row=2"
    """
    kind = widget_class()
    from intently.show.page.numbers.packing import text
    from intently.show.page.script import source as shipped
    from intently.show.page.writing import described, style

    made = packed(
        items_of(source, sides=sides), precision, title=title, highlights=highlights, start=start
    )

    def answer(page: AnyWidget, asked: object, buffers: object) -> None:
        block = asked.get("block") if isinstance(asked, dict) else None
        if type(block) is int and 0 <= block < len(made.blocks):
            page.send({"block": block, "text": text(made.blocks[block])})

    shown = kind(meta=described(made.meta), body=shipped("body.html"), style=style())
    shown.on_msg(answer)
    return shown


@cache
def widget_class() -> type[AnyWidget]:
    """Return the widget's class; raise `MissingLibraryError` without anywidget."""
    try:
        import anywidget
        import traitlets
    except ImportError:
        raise build(
            MissingLibraryError,
            "widget",
            "anywidget, which shows pages in notebooks",
            "an environment without it",
            fix="run pip install 'intently[notebook]', or use show.save_page",
        ) from None
    from intently.show.page.script import joined

    class Page(anywidget.AnyWidget):
        _esm = joined(["widget"]) + "\nexport default { render: renderWidget };\n"
        meta = traitlets.Unicode().tag(sync=True)
        body = traitlets.Unicode().tag(sync=True)
        style = traitlets.Unicode().tag(sync=True)
        address = traitlets.Unicode().tag(sync=True)

    return Page
