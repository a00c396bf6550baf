"""``intently look``: what a model looks at in a text, in two texts or in a picture, as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from intently.observe import Recording
    from intently.show.page import Item

NAMED = 80
"""Characters of a text that name it in a page."""


COMPARED = 512
"""Tokens of two texts up to which it is looked for where they are read most differently."""


class Looked(NamedTuple):
    """What a page shows of one run, and the lines that are printed of it."""

    items: Sequence[Item]
    told: Sequence[str]


def look(
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT] [TEXT]",
            help="what it reads; several stand side by side",
            show_default=False,
        ),
    ] = None,
    image: Annotated[
        Path | None, typer.Option(metavar="FILE", help="a picture instead of a text")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="a translator or language model of ours, or a model of transformers; the embedded "
            "translator if left out",
        ),
    ] = None,
    layers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="only these modules, such as 'decoder.*'; may be given again"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="the page")] = Path("look.html"),
    full: Annotated[
        bool, typer.Option("--full", help="queries and keys in 32 bits: twice the size")
    ] = False,
    opened: Annotated[bool, typer.Option("--open", help="open the page in the browser")] = False,
) -> None:
    """Run a model and write a page with every head of every layer.

    The page is one file that needs no network. The model runs as it always does.
    Of a transformers folder only safetensors are read, and no code of it is run.
    """
    from intently.errors import ArgumentError, build
    from intently.show.page import save_page

    if bool(texts) == (image is not None):
        got = "both" if texts else "neither"
        fix = 'write intently look "The road was too wide.", or intently look --image cat.png'
        raise build(ArgumentError, "TEXT, --image", "a text or a picture", got, fix=fix)
    if image is not None:
        looked = [_picture(image, model, layers)]
    else:
        looked = [_text(text, model, layers) for text in texts or ()]
    items = [item for one in looked for item in one.items]
    path = save_page(items, out, "full" if full else "half", start=_start(items))
    for line in (line for one in looked for line in one.told):
        print(line)
    heads = sum(layer.heads for layer in items[0].layers)
    what = f"{len(items)} texts, " if len(items) > 1 else ""
    print(f"{path}: {what}{heads:,} head{'s' * (heads != 1)}, {path.stat().st_size / 1e6:.1f} MB")
    if opened:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


def _start(items: Sequence[Item]) -> dict[str, Any]:
    """What a page opens with: all heads of a text, what CLS looks at in a picture.

    Of two texts, the first word in which their translations part, in the head that reads the words
    of the two most differently; without translations, the word that both have and that one head
    reads most differently.
    """
    from intently.show.page import Picture

    first = items[0].sides[0]
    if isinstance(first, Picture) and first.before:
        return {"view": "text", "entry": len(items[0].layers) - 1, "heads": "mean", "row": 0}
    if len(items) < 2:
        return {}
    found = [*_parting(items)] or [*_shared(items)]
    return {"view": "text", **max(found, key=lambda one: one[0], default=(0.0, {}))[1]}


def _parting(items: Sequence[Item]) -> Iterator[tuple[float, dict[str, Any]]]:
    """How far heads of cross-attention are apart where two translations part, and where."""
    import torch

    for entry, (one, other) in enumerate(zip(items[0].layers, items[1].layers)):
        if one.rows == one.columns or not one.row_labels or not other.row_labels:
            continue
        written = list(zip(one.row_labels, other.row_labels))
        row = next((n for n, (a, b) in enumerate(written) if a != b), None)
        sides = [item.sides[layer.columns] for item, layer in zip(items, (one, other))]
        if row is None or one.heads != other.heads or len(sides[0]) != len(sides[1]):
            continue
        words = [getattr(side, "tokens", ()) for side in sides]
        known = {word: n for n, word in enumerate(dict.fromkeys((*words[0], *words[1])))}
        looked = torch.zeros(2, one.heads, len(known))
        for n, layer in enumerate((one, other)):
            at = torch.tensor([known[word] for word in words[n]])
            weights = layer.matrix[..., row, :].reshape(one.heads, -1)
            looked[n].index_add_(1, at, weights.float())
        apart = (looked[0] - looked[1]).abs().sum(-1)
        head = int(apart.argmax())
        yield float(apart[head]), _compared(entry, head, row)


def _shared(items: Sequence[Item]) -> Iterator[tuple[float, dict[str, Any]]]:
    """How far heads of self-attention are apart at a word that two texts share, and where."""
    import torch

    both = zip(*(getattr(item.sides[0], "tokens", ()) for item in items[:2]))
    shared = torch.tensor([a == b for a, b in both])
    for entry, (one, other) in enumerate(zip(items[0].layers, items[1].layers)):
        t = one.matrix.shape[-2]
        if one.rows or one.columns or one.matrix.shape != other.matrix.shape or t > COMPARED:
            continue
        apart = (one.matrix.dense() - other.matrix.dense()).abs().sum(-1).reshape(-1, t) * shared
        if float(apart.max()) > 0:
            head, row = divmod(int(apart.argmax()), t)
            yield float(apart.max()), _compared(entry, head, row)


def _compared(entry: int, head: int, row: int) -> dict[str, Any]:
    return {
        "item": 1,
        "entry": entry,
        "heads": str(head),
        "row": row,
        "other": f"0.{entry}.{head}.at.{row}",
    }


def _text(text: str, model: Path | None, layers: list[str] | None) -> Looked:
    from intently.cli.watch import runner, unsure
    from intently.show.labels import visible
    from intently.show.page import items_of

    found = runner(model)(model, text, layers, 1)
    _check_seen(found.seen)
    told = [line for line in (*found.told, *unsure(found.seen)) if line]
    return Looked(items_of(found.seen, visible(text, NAMED), note="; ".join(told) or None), told)


def _check_seen(seen: Recording) -> None:
    from intently.cli.watch import unsure
    from intently.errors import KernelError, build

    if not seen.calls:
        cause = "; ".join(unsure(seen)).removeprefix("; ")
        raise build(
            KernelError, "look", "attention to be seen", "none", cause or "no module of it attended"
        )


# --- pictures -------------------------------------------------------------------------------------


def _picture(image: Path, folder: Path | None, layers: list[str] | None) -> Looked:
    """What a vision model of transformers looks at in a picture, as it was cut for it."""
    import torch

    from intently.cli.watch import quiet, unsure
    from intently.errors import ArgumentError, build
    from intently.observe.watching import watch
    from intently.show.page import Picture, items_of

    if folder is None:
        raise build(
            ArgumentError,
            "--model",
            "the folder of a model that reads pictures",
            "none",
            "the embedded translator reads words",
            "give what save_pretrained wrote, of a ViT say",
        )
    with quiet(), torch.inference_mode():
        model, pixels, shown = _read(image, folder)
        with watch(model, layers=layers) as seen:
            made = model(pixel_values=pixels)
    _check_seen(seen)
    rows, columns = _grid(model.config, pixels)
    sizes = {n for call in seen.calls for n in call.shape[-2:]}
    sides = [
        Picture(shown, rows, columns, n - rows * columns) for n in _read_as(sizes, rows * columns)
    ]
    told = [line for line in (*_named(model, made), *unsure(seen)) if line]
    return Looked(items_of(seen, image.name, sides, "; ".join(told) or None), told)


def _read_as(sizes: set[int], patches: int) -> list[int]:
    """The sizes that are all patches and some tokens before them, a few at most."""
    from intently.show.page.items import BEFORE

    return sorted(n for n in sizes if 0 <= n - patches <= BEFORE)


def _read(image: Path, folder: Path) -> tuple[Any, Any, Any]:
    """The model, the pixels (1, 3, H, W) that it reads, and the same as a picture to look at."""
    import torch
    from PIL import Image, ImageOps, UnidentifiedImageError

    from intently.cli.watch import library
    from intently.errors import DataError, build

    transformers = library()
    try:
        with Image.open(image) as opened:
            picture = ImageOps.exif_transpose(opened).convert("RGB")
    except UnidentifiedImageError:
        raise build(
            DataError,
            str(image),
            "a picture that Pillow reads, such as PNG or JPEG",
            "another file",
        ) from None
    expected = "a vision model of transformers in safetensors, with preprocessor_config.json"
    here: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        config: Any = transformers.AutoConfig.from_pretrained(folder, **here)
        kind = getattr(transformers, str(next(iter(config.architectures or ()), None)), None)
        if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
            raise build(DataError, str(folder), expected, f"a model of type {config.model_type}")
        processor: Any = transformers.AutoImageProcessor.from_pretrained(folder, **here)
        model: Any = kind.from_pretrained(folder, use_safetensors=True, **here)
        pixels = processor(images=picture, return_tensors="pt")["pixel_values"]
    except DataError:
        raise
    except Exception as error:  # the library raises all kinds for files that it cannot use
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise build(DataError, str(folder), expected, first) from None
    model = getattr(model, "vision_model", model).eval()
    mean, std = (
        torch.tensor(getattr(processor, name, None) or [given] * 3)[:, None, None]
        for name, given in (("image_mean", 0.0), ("image_std", 1.0))
    )
    shown = (pixels[0] * std + mean).permute(1, 2, 0).numpy()
    return model, pixels, shown


def _grid(config: Any, pixels: Any) -> tuple[int, int]:
    """How many patches stand below and beside each other."""
    from intently.errors import DataError, build

    size = getattr(config, "patch_size", None)
    if not size:
        raise build(
            DataError,
            "--model",
            "a model that reads patches, with patch_size in its config",
            f"one of type {config.model_type}",
        )
    high, wide = (size, size) if isinstance(size, int) else size
    return pixels.shape[-2] // high, pixels.shape[-1] // wide


def _named(model: Any, made: Any) -> Sequence[str]:
    """What a classifier says that it sees."""
    from intently.show.labels import visible

    logits = getattr(made, "logits", None)
    if logits is None or logits.ndim != 2:
        return []
    share, best = logits.softmax(-1)[0].max(-1)
    label = model.config.id2label.get(int(best), str(int(best)))
    return [f"{visible(str(label), NAMED)}, {float(share):.0%}"]
