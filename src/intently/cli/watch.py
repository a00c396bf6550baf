"""``intently watch``: what every head of a model does with a text, and what a recording holds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from intently.observe import Recording
    from intently.observe.recording.recording import Entry
    from intently.translation.translator import Translator

PRODUCED = 64
"""Tokens that a transformers model writes at most, where it writes."""

SHOWN = 12
"""Tokens of a recording that are listed."""


class Watched(NamedTuple):
    """What ran, and what is told of it: a translation, a text that was cut."""

    seen: Recording
    told: Sequence[str] = ()


def watch(
    model_and_text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] [TEXT]",
            help="a folder (a translator, a language model, or one of transformers; the embedded "
            "translator if left out), and what it reads",
            show_default=False,
        ),
    ] = None,
    layers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="only these modules, such as 'decoder.*'; may be given again"
        ),
    ] = None,
    beam: Annotated[
        int, typer.Option(min=1, help="of our translators: hypotheses followed at once")
    ] = 1,
    save: Annotated[Path | None, typer.Option(help="write the recording, as safetensors")] = None,
    listed: Annotated[
        Path | None, typer.Option("--list", metavar="FILE", help="say what a recording holds")
    ] = None,
) -> None:
    """Run a model on a text and print what each head attends to.

    The model runs as it always does; the table is checked against what came out.
    Of a transformers folder only safetensors are read, and no code of it is run.
    """
    from intently.errors import ArgumentError, KernelError, build

    if listed is not None:
        if model_and_text or layers or save:
            raise build(ArgumentError, "--list", "a recording alone", "something to watch, too")
        print(_listing(listed))
        return
    model, text = _model_and_text(model_and_text or [])
    found = runner(model)(model, text, layers, beam)
    if not found.seen.calls:
        raise build(
            KernelError,
            "watch",
            "attention to be seen",
            "none",
            "; ".join(unsure(found.seen)).removeprefix("; ") or "no module of it attended",
        )
    if save is not None:
        found.seen.save(save)
    table = found.seen.summary()
    for line in (*found.told, table, *unsure(found.seen, table.left_out)):
        print(line)
    if save is not None:
        again = f"it.load_recording({str(save)!r})"
        print(f"{save}: {save.stat().st_size:,} bytes. In Python: {again}", file=sys.stderr)


def _model_and_text(given: list[str]) -> tuple[Path | None, str]:
    from intently.errors import ArgumentError, build

    alone = len(given) == 1 and _is_folder(given[0])
    if not given or alone or len(given) > 2:
        got = "a folder alone" if alone else f"{len(given)} arguments"
        fix = 'write intently watch "The road was too wide.", or intently watch MODEL "a text"'
        raise build(ArgumentError, "TEXT", "one text in quotes", got, fix=fix)
    return (Path(given[0]) if len(given) == 2 else None), given[-1]


def _is_folder(name: str) -> bool:
    try:
        return name != "" and Path(name).is_dir()
    except (OSError, ValueError):  # no name of a file
        return False


def runner(folder: Path | None) -> Callable[..., Watched]:
    """The function that runs the kind of model that is in a folder."""
    from intently.errors import DataError, build

    kinds = {
        "translator.json": _translation,
        "language.json": _language,
        "config.json": _transformers,
    }
    if folder is None:
        return _translation
    for name, run in kinds.items():
        inside = () if name == "config.json" else (folder / "model",)
        if any((path / name).is_file() for path in (folder, *inside)):
            return run
    if not folder.is_dir():
        got = "a file" if folder.exists() else "no such folder"
    else:
        names = sorted(path.name for path in folder.iterdir())
        got = f"a folder with {', '.join(names[:4])}" if names else "an empty folder"
    raise build(
        DataError,
        str(folder),
        f"a folder with one of {', '.join(kinds)}",
        got,
        fix="give what `intently train`, `intently train-lm` or save_pretrained wrote",
    )


# --- what runs ------------------------------------------------------------------------------------


def _translation(folder: Path | None, text: str, layers: list[str] | None, beam: int) -> Watched:
    """The translation of a text, labelled with the tokens of both sides, of a beam's the source."""
    from intently.translation.translator import Translator

    return translated(Translator.load(folder), text, layers, beam)


def translated(
    translator: Translator, text: str, layers: list[str] | None = None, beam: int = 1
) -> Watched:
    """Watch a translator translate a text; what is labelled are the tokens of both sides."""
    from intently.decoding import SearchOptions
    from intently.observe.watching import watch
    from intently.show.labels import visible

    with watch(translator.model, layers=layers) as seen:
        (made,) = translator.translate([text], SearchOptions(beam=beam))
    _fitting(made.sides[0].ids, None)
    source = [*translator.source_tokenizer.tokens(made.sides[0].ids), "</s>"]
    produced = translator.target_tokenizer.tokens(made.hypothesis.ids)
    end = ["</s>"] * made.hypothesis.ended  # what was cut at its limit has none
    target = ["<s>", *produced, *end] if beam == 1 else []  # each beam has its own
    seen.tokens = source, target
    return Watched(seen, [visible(made.text, 100_000), ""])


def _language(folder: Path, text: str, layers: list[str] | None, beam: int) -> Watched:
    """One pass of a language model over a text, or as much of it as it has positions for."""
    import torch

    from intently.language.runs import TextModel
    from intently.observe.watching import watch

    made = TextModel.load(folder)
    ids = made.tokenizer.encode(text)
    ids, told = _fitting(ids, made.model.max_length)
    with (
        torch.inference_mode(),
        watch(made.model, layers=layers, tokens=made.tokenizer.tokens(ids)) as seen,
    ):
        made.model(torch.tensor([ids]))
    return Watched(seen, told)


def _transformers(folder: Path, text: str, layers: list[str] | None, beam: int) -> Watched:
    """One pass of a transformers model over a text; what it writes where it has a decoder apart."""
    import torch

    from intently.observe.watching import watch
    from intently.show.labels import visible

    with quiet():
        model, tokenizer = _pretrained(folder)
        config = model.config
        known = (tokenizer.model_max_length, getattr(config, "max_position_embeddings", None))
        limit = min((n for n in known if isinstance(n, int) and n > 0), default=None)
        ids, told = _fitting(tokenizer(text)["input_ids"], limit)
        given = torch.tensor([ids])
        both = getattr(config, "is_encoder_decoder", False)
        with torch.inference_mode(), watch(model, layers=layers) as seen:
            mask, made = torch.ones_like(given), given
            if both and model.can_generate():
                made = model.generate(
                    given,
                    attention_mask=mask,
                    max_new_tokens=PRODUCED,
                    num_beams=1,
                    do_sample=False,
                )
                said = tokenizer.decode(made[0], skip_special_tokens=True)
                told = [*told, visible(said, 100_000), ""]
            elif both:
                model(given, attention_mask=mask, decoder_input_ids=given)
            else:
                model(given, attention_mask=mask)
        source, target = (
            [str(x) for x in tokenizer.convert_ids_to_tokens(side[0].tolist())]
            for side in (given, made)
        )
        seen.tokens = (source, target) if both else source
    return Watched(seen, told)


def _fitting(ids: Sequence[int], limit: int | None) -> tuple[Sequence[int], list[str]]:
    """As many tokens as a model takes, and what is to be told where that is not all."""
    from intently.errors import DataError, build

    if not ids:
        raise build(DataError, "TEXT", "a text of at least one token", "none")
    if limit is None or len(ids) <= limit:
        return ids, []
    return ids[:limit], [f"{len(ids):,} tokens, cut after {limit:,}, all the model takes", ""]


def _pretrained(folder: Path) -> tuple[Any, Any]:
    """The model of a transformers folder as its config names it, and its tokenizer."""
    from intently.errors import DataError, build

    transformers = library()
    here: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    expected = "a transformers model in safetensors, and its tokenizer"
    try:
        config: Any = transformers.AutoConfig.from_pretrained(folder, **here)
        name = next(iter(config.architectures or ()), None)
        kind = getattr(transformers, str(name), None)
        if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
            raise build(DataError, str(folder), expected, f"one of class {name}")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **here)
        if len(tokenizer.get_vocab()) <= len(tokenizer.all_special_tokens):
            raise build(DataError, str(folder), expected, "no vocabulary of a tokenizer")
        model: Any = kind.from_pretrained(folder, use_safetensors=True, **here)
    except DataError:
        raise
    except Exception as error:  # the library raises all kinds for files that it cannot use
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise build(DataError, str(folder), expected, first) from None
    return model.eval(), tokenizer


def library() -> Any:
    """The library transformers; raises `MissingLibraryError` where it is not installed."""
    from intently.errors import MissingLibraryError, build

    try:
        import transformers
    except ImportError:
        raise build(
            MissingLibraryError,
            "transformers",
            "transformers, which reads such folders",
            "an environment without it",
            fix="install it by pip install transformers",
        ) from None
    return transformers


@contextmanager
def quiet() -> Iterator[None]:
    """Without what transformers has to say about its folders."""
    logging = library().utils.logging
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


# --- what is printed ------------------------------------------------------------------------------


def unsure(seen: Recording, told: Iterable[str] = ()) -> Iterator[str]:
    """What was not seen, cannot be read or does not give what came out, but for what was told."""
    from intently.show.labels import visible

    found, known = seen.coverage(), {name.partition("[")[0] for name in told}
    lines = [
        f"{'not compared' if line.verified is None else 'UNVERIFIED'}: {line.name}: {line.why}"
        for line in found.seen
        if line.verified is not True and line.name not in known
    ]
    lines += [f"not seen: {name}: {why}" for name, why in found.unseen.items()]
    lines += found.notes
    yield from ["", *(visible(line, 1000) for line in lines)] if lines else ()


def _listing(path: Path) -> str:
    """What a recording holds: one line for each call."""
    from intently.observe import load_recording
    from intently.observe.recording.labels import sides
    from intently.show.labels import visible

    seen = load_recording(path)
    said = [
        f"{path}: {_count(len(seen), 'layer')}, {_count(len(seen.calls), 'call')}, "
        f"{path.stat().st_size:,} bytes"
    ]
    for side in filter(len, sides(seen.tokens)):
        shown = " ".join(visible(token) for token in side[:SHOWN])
        said.append(f"{_count(len(side), 'token')}: {shown}{' …' * (len(side) > SHOWN)}")
    rows = [("layer", "call", "b×h×t×s", "dtype", "source", "bytes", "verified")]
    rows += [_row(entry) for entry in seen.calls]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        cells = [
            cell.rjust(width) if name in ("call", "bytes") else cell.ljust(width)
            for name, cell, width in zip(rows[0], row, widths)
        ]
        said.append("  ".join(cells).rstrip())
    return "\n".join([*said, *unsure(seen)])


def _row(entry: Entry) -> tuple[str, ...]:
    from intently.show.labels import visible

    matrix = entry.attention()
    verdict = {True: "yes", False: "NO", None: "not compared"}[entry.verified]
    size = sum(x.nbytes for x in matrix.problem.tensors())
    return (
        visible(entry.name, 200),
        str(entry.index),
        "×".join(map(str, matrix.shape)),
        str(matrix.dtype).removeprefix("torch."),
        visible(entry.source),
        f"{size:,}",
        verdict,
    )


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s' * (n != 1)}"
