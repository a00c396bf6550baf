"""Every kind of file that is read, mutated hundreds of times and forged by hand.

Each time it is refused in one line that names it, or gives to the last bit what it gave before.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import intently as it
from intently.errors import IntentlyError
from intently.foundation.files import File, digest, plain, replace_file, sealed
from intently.nn.models.shared import weights
from intently.nn.models.transformer import Transformer, TransformerOptions
from intently.observe.saving.files import load as load_recording
from intently.tasks.language.runs import VARIANT
from intently.tasks.language.text_model import (
    FORMS,
    TextModel,
    Variant,
    language_options,
    new_model,
)
from intently.tasks.recipes import Files, Origin
from intently.tasks.text import KINDS, Tokenizer
from intently.tasks.training import Checkpoints, TrainingOptions
from intently.tasks.training.checkpoint import STATE, Checkpoint
from intently.tasks.training.folder_lock import ABOUT, sole_writer
from intently.tasks.translation.translator import Translator

from .hostile import TEXTS, archives, forged, mutants, outcome, packed, parts

MUTATIONS, FORGED = 300, 60
TEXT = ["the cat sat on the mat", "L'animal dort."]


class Kind(NamedTuple):
    """A kind of file: where it lies, what is loaded, and how its checksums are made right again."""

    path: Path
    load: Callable[[], Any]
    seal: Callable[[bytes], None]
    """Puts another content there, with checksums that fit it."""


def bits(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    return {
        name: f"{tuple(x.shape)} {x.dtype} {digest(x.contiguous().numpy().tobytes())}"
        for name, x in tensors.items()
    }


# --- one small thing of each kind -----------------------------------------------------------------


def sealed_json(path: Path, key: tuple[str, ...] = ()) -> Callable[[bytes], None]:
    """How JSON is written again with the checksum that an object within it has of all the rest."""

    def seal(content: bytes) -> None:
        path.write_bytes(content)
        try:
            document = json.loads(content)
            within = document
            for each in key:
                within = within[each]
            within.pop("sha256", None)
            within["sha256"] = digest(plain(document))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return
        path.write_text(json.dumps(document))

    return seal


def sealed_archive(path: Path) -> Callable[[bytes], None]:
    """How a safetensors file is written again with the checksum of its header."""

    def seal(content: bytes) -> None:
        path.write_bytes(content)
        try:
            header, data = parts(content)
            header["__metadata__"].pop("sha256")
            header["__metadata__"]["sha256"] = digest(plain(header))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return
        path.write_bytes(packed(header, data))

    return seal


def translator(folder: Path) -> Path:
    tokenizer = Tokenizer.train(TEXT, "word", 50)
    size = tokenizer.size
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        model = Transformer(TransformerOptions(size, size, 8, 2, 1, 1, 8))
    return Translator(model, tokenizer, tokenizer, max_length=20).save(folder)


def of_translator(name: str) -> Callable[[Path], Kind]:
    def make(folder: Path) -> Kind:
        translator(folder)
        about = folder / "translator.json"

        def load() -> Any:
            x = Translator.load(folder)
            both = x.source_tokenizer.backend.to_str(), x.target_tokenizer.backend.to_str()
            options = x.model.options, x.max_length, x.alignment_head
            return bits(weights(x.model)), both, options

        def seal(content: bytes) -> None:
            sealed_json(folder / name, ("model",))(content)
            said = json.loads(about.read_bytes())
            said["files"][name] = digest((folder / name).read_bytes())
            sealed_json(about)(json.dumps(said).encode())

        return Kind(folder / name, load, sealed_json(about) if name == about.name else seal)

    return make


def of_language_model(name: str) -> Callable[[Path], Kind]:
    def make(folder: Path) -> Kind:
        tokenizer = Tokenizer.train(TEXT, "character")
        options = language_options("", width=8, heads=2, layers=1, window=8)
        model = new_model(options, tokenizer.size)
        TextModel(model, tokenizer, options).save(folder)

        def load() -> Any:
            x = TextModel.load(folder)
            return bits(weights(x.model)), x.tokenizer.backend.to_str(), x.options, x.variant

        return Kind(folder / name, load, sealed_json(folder / name))

    return make


def of_checkpoint(name: str) -> Callable[[Path], Kind]:
    def make(folder: Path) -> Kind:
        found = Checkpoints(folder)
        for step in (1, 2):
            position = {
                "step": step,
                "epoch": 0,
                "batch": 1,
                "tokens": 9,
                "seconds": 0.5,
                "evaluated": 0,
                "loss_sum": 1.5,
                "loss_steps": 1,
                "best": None,
                "warmed": None,
            }
            scores = {"step": step, "scores": {"bleu": 1.5}, "seconds": 0.25}
            state = {
                "position": position,
                "options": TrainingOptions().to_dict(),
                "data": "0123",
                "history": {"records": [[1, 1.5, 0.1, 9, 0.5]], "evaluations": [scores]},
                "dev": None,
                "threads": 1,
                "processes": 1,
                "device": "cpu",
                "versions": {"a": "1"},
            }
            tensors = {"w": torch.randn(3, 2), "b": torch.randn(4)}
            training = {"exp_avg/w": torch.zeros(3, 2), "random/cpu": torch.get_rng_state()[:64]}
            found.save(f"step-{step:06d}", Checkpoint(tensors, training, state))
        path = folder / name

        def load() -> Any:
            x = found.load(state=STATE)
            return bits(x.model), bits(x.training), x.state, x.source

        return Kind(path, load, sealed_archive(path) if path.suffix else path.write_bytes)

    return make


def of_recording(folder: Path) -> Kind:
    folder.mkdir(exist_ok=True)
    made = it.watch()
    q, k, v = torch.randn(3, 1, 2, 4, 8)
    mask = it.allowed(torch.rand(4, 4) > 0.2) & it.causal()
    with made as seen:
        it.attention(q, k, v, mask=mask)
        it.attention(q, k, v, scale=0.5)
    seen.tokens = ["a", "b", "c", "d"]
    path = folder / "run.safetensors"
    seen.save(path)

    def load() -> Any:
        x = load_recording(path)
        told = [
            (e.name, e.index, e.source, e.verified, e.why, e.compared, e.steps) for e in x.calls
        ]
        shown = [(repr(e.rows.how()), e.matrix().labels) for e in x.calls]
        numbers = {str(n): e.attention().dense() for n, e in enumerate(x.calls)}
        return told, shown, bits(numbers), x.tokens, x.covered.unseen, x.covered.notes

    return Kind(path, load, sealed_archive(path))


def of_tokenizer(kind: str) -> Callable[[Path], Kind]:
    def make(folder: Path) -> Kind:
        path = folder / "tokenizer.json"
        Tokenizer.train(TEXT, kind).save(path)
        load = lambda: Tokenizer.load(path).backend.to_str()  # noqa: E731
        return Kind(path, load, sealed_json(path, ("model",)))

    return make


def of_options(folder: Path) -> Kind:
    path = folder / "options.json"
    replace_file(path, sealed(TrainingOptions().with_flags(width=64).to_dict()))
    return Kind(path, lambda: TrainingOptions.from_json(path), sealed_json(path))


def of_origin(folder: Path) -> Kind:
    Origin.of("multi30k:de-en", Path("data")).save(folder)
    path = folder / "run.json"
    return Kind(path, lambda: Origin.load(folder), sealed_json(path))


def of_files(folder: Path) -> Kind:
    Files("a.txt", "b.txt", ["d.tsv"], pairs=9).save(folder)
    path = folder / "files.json"
    return Kind(path, lambda: Files.load(folder), sealed_json(path))


def of_variant(folder: Path) -> Kind:
    path = folder / VARIANT
    replace_file(path, sealed(dataclasses.asdict(Variant(kv_heads=2))))
    read = File(path, "the variant of a run")
    return Kind(path, lambda: read.sealed(FORMS), sealed_json(path))


def of_writer(folder: Path) -> Kind:
    with sole_writer(folder, ["options.json", "checkpoints/"]):
        (folder / "options.json").touch()
    path = folder / ABOUT

    def load() -> None:
        with sole_writer(folder, ["options.json"]):
            pass

    return Kind(path, load, sealed_json(path))


JSONS: dict[str, Callable[[Path], Kind]] = {
    "translator.json": of_translator("translator.json"),
    "source.json": of_translator("source.json"),
    "language.json": of_language_model("language.json"),
    **{f"tokenizer-{kind}": of_tokenizer(kind) for kind in KINDS},
    "options.json": of_options,
    "run.json": of_origin,
    "files.json": of_files,
    "variant.json": of_variant,
    ABOUT: of_writer,
}
ARCHIVES: dict[str, Callable[[Path], Kind]] = {
    "translator": of_translator("model.safetensors"),
    "checkpoint": of_checkpoint("step-000002.safetensors"),
    "recording": of_recording,
}
ALL = {**JSONS, **ARCHIVES, "latest": of_checkpoint("latest")}


def tried(kind: Kind, contents: Iterable[bytes], whole: Any) -> int:
    """Load the file with each of the contents; return how many were refused."""
    refused = 0
    for content in contents:
        kind.path.write_bytes(content)
        refused += outcome(kind.load, kind.path, whole)
    return refused


def tried_sealed(kind: Kind, contents: Iterable[bytes]) -> int:
    """The same with checksums that are right; what does not fit may be told of a file beside it."""
    refused = 0
    for content in contents:
        kind.seal(content)
        refused += outcome(kind.load, kind.path.parent)
    return refused


@pytest.mark.parametrize("name", ALL)
def test_hundreds_of_mutations(tmp_path: Path, name: str) -> None:
    kind = ALL[name](tmp_path)
    content, whole = kind.path.read_bytes(), kind.load()
    refused = tried(kind, mutants(content, MUTATIONS), whole)
    assert refused > MUTATIONS / 2  # else nothing was changed
    kind.path.write_bytes(content)
    assert kind.load() == whole


@pytest.mark.parametrize("name", JSONS)
def test_json_that_nobody_wrote(tmp_path: Path, name: str) -> None:
    kind = JSONS[name](tmp_path)
    assert tried(kind, TEXTS, whole="refused") == len(TEXTS) >= 60


@pytest.mark.parametrize("name", JSONS)
def test_json_with_a_checksum_that_is_right(tmp_path: Path, name: str) -> None:
    """It may say what it likes; what it says is checked all the same, and nothing is believed."""
    kind = JSONS[name](tmp_path)
    document = json.loads(kind.path.read_bytes())
    contents = [json.dumps(x).encode() for x in forged(document, FORGED)]
    assert tried_sealed(kind, [*contents, *TEXTS]) > FORGED / 2


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_that_nobody_wrote(tmp_path: Path, name: str) -> None:
    kind = ARCHIVES[name](tmp_path)
    contents = list(archives(kind.path.read_bytes()))
    whole = kind.load()
    assert len(contents) >= FORGED
    assert tried(kind, contents, whole) == len(contents)
    kind = ARCHIVES[name](tmp_path / "again")
    tried_sealed(kind, archives(kind.path.read_bytes()))


# --- files that cannot be read --------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("refused", ["EACCES", "EIO"])
def test_what_cannot_be_read_is_neither_missing_nor_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, refused: str
) -> None:
    """Whoever is told that a good file is damaged throws it away."""
    kind = ALL[name](tmp_path)
    opened = os.open
    number = getattr(errno, refused)

    def refuse(path: Any, *more: Any, **how: Any) -> int:
        if path == kind.path:
            raise OSError(number, os.strerror(number), path)
        return opened(path, *more, **how)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(IntentlyError) as caught:
            kind.load()
    told = str(caught.value)
    assert f"{kind.path}: expected" in told
    assert f"got a file that cannot be read ({os.strerror(number)})." in told
    assert "It need not be damaged: " in told and told.isprintable()
    assert "no such" not in told and "It is damaged" not in told
    kind.load()


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="asks Linux for a broken file")
@pytest.mark.parametrize("name", ["checkpoint", "translator.json", "recording", "options.json"])
def test_a_disk_that_fails_while_a_file_is_read(tmp_path: Path, name: str) -> None:
    kind = ALL[name](tmp_path)
    kind.path.unlink()
    kind.path.symlink_to("/proc/self/mem")  # which opens as any file does, and gives errors
    with pytest.raises(IntentlyError, match=r"cannot be read \(.*\)\. It need not be"):
        kind.load()


@pytest.mark.parametrize("name", ALL)
def test_what_is_no_ordinary_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    kind = ALL[name](tmp_path)
    for make, told in ((os.mkfifo, "no ordinary file"), (os.mkdir, "a folder")):
        kind.path.unlink()
        make(kind.path)
        with pytest.raises(IntentlyError, match=f"got {told}"):
            kind.load()
    missing = ("run.json", "files.json", "variant.json", "latest", ABOUT)  # not always there
    if name not in missing:
        kind.path.rmdir()
        with pytest.raises(IntentlyError, match=r"no such|a checkpoint of Intently|a folder"):
            kind.load()
