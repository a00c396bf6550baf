"""`intently watch`: our folders and those of transformers, tables, recordings, refusals."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import intently as it
from intently.nn.models import Transformer, TransformerOptions
from intently.observe.generation.joining import Rows
from intently.observe.recording.recording import Entry, Recording
from intently.observe.saving import files
from intently.observe.storage.stores import Held, KeptSpec
from intently.observe.watching.call import AttentionSpec
from intently.tasks.decoding import SearchOptions
from intently.tasks.runners import translated
from intently.tasks.text import Tokenizer
from intently.tasks.translation.translator import Translator

from ..command_line import Command, refused
from .conftest import save_language_model, save_recurrent

TEXT = "The cat sat on the mat"
GREEDY = SearchOptions(beam=1)


@pytest.fixture
def watched(intently: Command) -> Command:
    return partial(intently, "watch")


def table(out: str) -> list[list[str]]:
    """The cells of the rows that name a layer and a head, below the line that names columns."""
    rows = [line.split() for line in out.splitlines()]
    start = next(n for n, row in enumerate(rows) if row[:2] == ["layer", "head"])
    return [row for row in rows[start:] if len(row) > 4 and row[1].isdigit()]


# --- what runs ------------------------------------------------------------------------------------


def test_the_embedded_translator(watched: Command) -> None:
    outcome = watched("The road was too wide.", "--save", "run.safetensors")
    assert outcome.status == 0
    assert outcome.out.startswith("La route était trop large.\n\n")
    assert len(table(outcome.out)) == 24
    lines = outcome.out.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("layer "))
    assert sum(line.startswith("layer ") for line in lines) == 1
    assert max(map(len, lines[start:])) <= 80
    assert "In Python: it.load_recording('run.safetensors')" in outcome.err
    seen = it.load_recording("run.safetensors")
    assert all(entry.verified for entry in seen.calls)
    (made,) = Translator.load().translate(["The road was too wide."], GREEDY)
    for name in (
        "encoder.1.self_attention",
        "decoder.0.self_attention",
        "decoder.1.cross_attention",
    ):
        want = made.attention[name]
        found = seen[name][0]
        torch.testing.assert_close(found.dense(), want.dense(), rtol=0, atol=1e-5)
        assert found.labels == want.labels


def test_one_text_names_no_heads(watched: Command) -> None:
    out = watched("The road was too wide.").out
    assert out.splitlines()[2].startswith("layer ") and "induction" not in out.split("no room")[0]
    assert "in Python, print(seen.summary())" in out


def test_beams_are_labelled_with_the_source_alone(watched: Command) -> None:
    assert watched("I drink milk.", "--beam", "3", "--save", "run.safetensors").status == 0
    seen = it.load_recording("run.safetensors")
    source = seen["encoder.0.self_attention"].labels[1]
    assert source is not None and source[-1] == "</s>"
    for entry in seen.calls:
        want = {"enc": (source, source), "dec": (None, None)}[entry.name[:3]]
        assert entry.matrix().labels == ((None, source) if "cross" in entry.name else want)


def test_a_translation_that_was_cut_is_labelled() -> None:
    """No model ends that is not trained: it writes as many tokens as it may."""
    tokenizer = Tokenizer.train(["I drink milk."], "character")
    torch.manual_seed(0)
    model = Transformer(TransformerOptions(tokenizer.size, tokenizer.size, width=8, heads=2))
    made = Translator(model, tokenizer, tokenizer)
    [greedy] = made.translate(["I drink milk."], GREEDY)
    assert not greedy.hypothesis.ended
    seen = translated(made, "I drink milk.").seen
    for part in ("self", "cross"):
        want = greedy.attention[f"decoder.0.{part}_attention"].labels
        found = seen[f"decoder.0.{part}_attention"][0].labels
        assert want is not None and found == want


def test_a_translator_of_a_run_and_some_layers(watched: Command, tmp_path: Path) -> None:
    folder = Translator.load().save(tmp_path / "run" / "model").parent
    some = ("--layers", "encoder.0", "--layers", "decoder.*.self_attention*")
    outcome = watched(folder, "I drink milk.", *some)
    assert outcome.out.startswith("Je bois du lait.")
    layers = {row[0] for row in table(outcome.out)}
    assert layers == {f"{x}.self_attention" for x in ("encoder.0", "decoder.0", "decoder.1")}


def test_luongs_vector_is_no_attention(watched: Command) -> None:
    save_recurrent("luong", "dot")
    outcome = watched("luong", "I drink milk.")
    assert outcome.status == 0 and "not seen" not in outcome.out


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_our_language_model(watched: Command, tmp_path: Path, positions: Any) -> None:
    made = save_language_model(tmp_path / "lm", TEXT, positions)
    outcome = watched(tmp_path / "lm", TEXT, "--save", "run.safetensors")
    assert outcome.status == 0 and len(table(outcome.out)) == 4
    cut = positions == "learned"
    assert outcome.out.startswith("22 tokens, cut after 16, all the model takes") == cut
    seen = it.load_recording("run.safetensors")
    assert len(seen.tokens or ()) == (16 if cut else 22)
    ids = torch.tensor([made.tokenizer.encode(TEXT)[: len(seen.tokens or ())]])
    for n in range(2):
        want = made.model.attentions(ids)[f"decoder.{n}.self_attention"]
        found = seen.calls[n].matrix()
        torch.testing.assert_close(found.dense(), want.dense(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_transformers_folders(watched: Command, folders: Path, name: str) -> None:
    """The weights are those that the model's own plain attention puts out."""
    import transformers

    outcome = watched(folders / name, TEXT, "--save", "run.safetensors")
    assert outcome.status == 0, outcome.err
    assert outcome.err.count("\n") == 1  # and nothing that the library has to say
    kind: Any = {"bert": transformers.AutoModel}.get(name, transformers.AutoModelForCausalLM)
    model = kind.from_pretrained(folders / name, attn_implementation="eager").eval()
    with torch.no_grad():
        want = model(torch.tensor([[3, 4, 5, 6, 7, 8]]), output_attentions=True).attentions
    seen = it.load_recording("run.safetensors")
    assert seen.tokens == TEXT.split()
    assert len(table(outcome.out)) == sum(x.shape[1] for x in want)
    for entry, weights in zip(seen.calls, want, strict=True):
        assert entry.verified
        torch.testing.assert_close(entry.matrix().dense(), weights, rtol=0, atol=1e-5)
    if name == "gpt2":
        outcome = watched(folders / name, f"{TEXT} {TEXT}")
        assert outcome.out.startswith("12 tokens, cut after 8, all the model takes\n\nlayer ")


def test_what_writes_is_watched_while_it_writes(watched: Command, folders: Path) -> None:
    outcome = watched(folders / "t5", TEXT, "--save", "run.safetensors")
    assert outcome.status == 0, outcome.err
    seen = it.load_recording("run.safetensors")
    encoder, decoder, cross = (
        next(entry.shape for entry in seen.calls if part in entry.name)
        for part in ("encoder.block.0.layer.0", "decoder.block.0.layer.0", "EncDecAttention")
    )
    written = decoder[-1]
    assert encoder[-2:] == (6, 6) and decoder[-2] == written and cross[-2:] == (written, 6)
    source, target = seen.tokens or ((), ())
    assert source == TEXT.split() and len(target) == written + 1
    across = next(entry for entry in seen.calls if "EncDecAttention" in entry.name).matrix()
    assert across.labels == (tuple(target[1:]), tuple(source))
    listed = watched("--list", "run.safetensors").out.splitlines()
    assert listed[1] == f"6 tokens: {TEXT}"
    assert listed[2].startswith(f"{written + 1} tokens: <pad> ")
    assert watched(folders / "t5-bare", TEXT).status == 0


# --- what a recording holds -----------------------------------------------------------------------


def test_a_listing(watched: Command) -> None:
    q = torch.randn(1, 2, 3, 4)
    made = Recording(["a", "\x1b[31mb", "c" * 99])
    for name, verified, why in (("x", True, None), ("y", False, "it differs"), ("z", None, "drop")):
        rows = Rows(Held(q), Held(q), KeptSpec(AttentionSpec(mask=it.allowed(torch.eye(3) > 0))))
        entry = Entry(name, 0, "functional", rows)
        entry.verified, entry.why = verified, why
        made.calls.append(entry)
    made.covered.unseen["w"] = "it did not run"
    files.save(made, "run.safetensors")
    outcome = watched("--list", "run.safetensors")
    size = os.path.getsize("run.safetensors")
    assert outcome == (
        0,
        f"run.safetensors: 3 layers, 3 calls, {size:,} bytes\n"
        f"3 tokens: a ⟨U+001B⟩[31mb {'c' * 23}…\n"
        "layer  call  b×h×t×s  dtype    source      bytes  verified\n"
        "x         0  1×2×3×3  float32  functional    201  yes\n"
        "y         0  1×2×3×3  float32  functional    201  NO\n"
        "z         0  1×2×3×3  float32  functional    201  not compared\n"
        "\nUNVERIFIED: y: it differs\nnot compared: z: drop\nnot seen: w: it did not run\n",
        "",
    )


# --- what is refused ------------------------------------------------------------------------------


FOLDER = "expected a folder with one of translator.json, language.json, config.json; got "


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "TEXT: expected one text in quotes; got 0 arguments"),
        (("a", "b", "c"), "got 3 arguments"),
        ((".",), "TEXT: expected one text in quotes; got a folder alone"),
        ((" ",), "TEXT: expected a text of at least one token; got none"),
        (("empty", TEXT), f"{FOLDER}an empty folder"),
        (("full", TEXT), f"{FOLDER}a folder with x"),
        (("full/x", TEXT), f"{FOLDER}a file"),
        (("no", TEXT), f"{FOLDER}no such folder"),
        (("--list", "no"), "got no such file"),
        (("--list", "x", TEXT), "--list: expected a recording alone; got something to watch, too"),
        (
            (TEXT, "--layers", "decoder.0.crossattention"),
            "layers: expected names of modules.*decoder.0.cross_attention",
        ),
        (
            (TEXT, "--layers", "9"),
            r"The first are 'target_embedding', 'source_embedding', 'encoder'\.\n$",
        ),
        (
            (TEXT, "--layers", "encoder.0.self_norm"),
            "watch: expected attention to be seen; got none. No module of it attended",
        ),
    ],
)
def test_what_is_refused(
    watched: Command, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    for name in ("empty", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "x").touch()
    outcome = watched(*arguments)
    assert re.search(said, refused(outcome)) and outcome.out == ""


def test_files_that_cannot_be_read_or_written(watched: Command) -> None:
    message = refused(watched("I drink milk.", "--save", "no/run.safetensors"))
    assert message.startswith("intently: no/run.safetensors: expected a place where the file can")
    assert "got No such file or directory" in message
    assert not os.listdir()
    Path("x").write_bytes(b"\x80\x04\x95 something pickled .")
    assert "x: expected a recording saved with Recording.save; got no header" in refused(
        watched("--list", "x")
    )


def edited(folder: Path, to: Path, **changed: Any) -> Path:
    """A transformers folder with another config."""
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, **changed}))
    return to


def test_transformers_folders_that_are_none(
    watched: Command, folders: Path, tmp_path: Path
) -> None:
    expected = "expected a transformers model in safetensors, and its tokenizer; got "
    gpt2 = folders / "gpt2"
    for n, name in enumerate(("Trainer", "no_such_class", None)):
        folder = edited(gpt2, tmp_path / f"class{n}", architectures=name and [name])
        assert f"{expected}one of class {name}" in refused(watched(folder, TEXT))
    folder = edited(gpt2, tmp_path / "cut")
    (folder / "model.safetensors").write_bytes(b"x" * 100)
    assert "expected a safetensors file; got no header" in refused(watched(folder, TEXT))
    folder = edited(gpt2, tmp_path / "mute")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    assert f"{expected}no vocabulary of a tokenizer" in refused(watched(folder, TEXT))
    (folder / "config.json").write_text("{")
    assert "config.json: expected the config of a transf" in refused(watched(folder, TEXT))


def test_nothing_is_unpickled_and_no_code_is_run(
    watched: Command, folders: Path, tmp_path: Path
) -> None:
    import transformers

    folder = edited(folders / "gpt2", tmp_path / "pickled")
    (folder / "model.safetensors").unlink()
    torch.save({"x": torch.zeros(1)}, folder / "pytorch_model.bin")
    assert "model in safetensors" in refused(watched(folder, TEXT))
    code = edited(
        folders / "gpt2",
        tmp_path / "code",
        model_type="mine",
        auto_map={"AutoConfig": "mine.Config", "AutoModel": "mine.Model"},
    )
    (code / "mine.py").write_text("import pathlib; pathlib.Path('ran').touch()")
    assert "model in safetensors" in refused(watched(code, TEXT))
    assert not (tmp_path / "ran").exists()
    assert transformers.utils.logging.is_progress_bar_enabled()


def test_help_does_not_load_what_is_foreign() -> None:
    code = (
        "import sys; from intently.cli.app import app\n"
        "app(['watch', '--help'], standalone_mode=False)\n"
        "print(*(name for name in ('transformers', 'matplotlib') if name in sys.modules))"
    )
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    assert "PATTERN" in outcome.stdout and outcome.stdout.splitlines()[-1] == ""


def test_without_transformers_its_folders_say_what_to_install(
    watched: Command, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    folder = next(path for path in folders.iterdir() if path.is_dir())
    message = refused(watched(folder, TEXT))
    assert "transformers: expected transformers, which reads such folders; got an" in message
    assert "pip install 'intently[transformers]'" in message
