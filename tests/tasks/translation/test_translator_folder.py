"""The folder of a translator: saved whole, and refused where it is damaged or foreign."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import intently as it
from intently import edits
from intently.errors import CheckpointError
from intently.foundation.files import sealed
from intently.nn.models.transformer import Transformer, TransformerOptions
from intently.tasks.decoding import SearchOptions
from intently.tasks.text import Tokenizer
from intently.tasks.translation import Translator

from .tiny import BECAUSE, untrained


def test_saving_and_loading_changes_nothing(translator: Translator, folder: Path) -> None:
    loaded = Translator.load(folder)
    assert loaded.alignment_head == translator.alignment_head
    assert loaded.max_length == translator.max_length
    for name, x in translator.model.state_dict().items():
        assert torch.equal(x, loaded.model.state_dict()[name])
    one, other = (t.translate([BECAUSE])[0] for t in (translator, loaded))
    assert one.text == other.text and one.score == other.score
    written = ["model.safetensors", "source.json", "target.json", "translator.json"]
    assert sorted(os.listdir(folder)) == written


@pytest.mark.parametrize(
    "options",
    [
        {"positions": "learned", "learned_steps": 60},
        {"positions": "rotary", "kv_heads": 2, "feed_forward": "gated", "norm": "post"},
    ],
)
@pytest.mark.parametrize("half", [False, True])
def test_variants_of_the_model_are_saved_and_loaded(
    tmp_path: Path, options: dict[str, Any], half: bool
) -> None:
    tokenizer = untrained("word").source_tokenizer
    size = tokenizer.size
    model = Transformer(TransformerOptions(size, size, width=16, heads=4, inner=16, **options))
    made = Translator(model, tokenizer, tokenizer, max_length=20)
    loaded = Translator.load(made.save(tmp_path / "model", half=half))
    assert loaded.model.options == model.options
    for name, x in model.state_dict().items():
        found = loaded.model.state_dict()[name]
        assert torch.equal(found, x.half().float() if half else x), name
    search = SearchOptions(beam=2, max_length=6)
    (found,) = loaded.translate(["the cat sat"], search)
    cross = found.attention["decoder.1.cross_attention"]
    assert cross.shape == (4, len(found.hypothesis.ids) + found.hypothesis.ended, 4)
    if not half:
        (expected,) = made.translate(["the cat sat"], search)
        assert found.text == expected.text and found.score == expected.score


def test_a_description_with_the_names_of_before_names_the_modules(tmp_path: Path) -> None:
    folder = untrained("word").save(tmp_path / "model")
    about = json.loads((folder / "translator.json").read_text())
    old = {"alignment_head": ["decoder.1.cross", 1], "guided": ["encoder.0.self", 1]}
    del about["sha256"]
    (folder / "translator.json").write_bytes(sealed(about | old))
    found = Translator.load(folder)
    assert found.alignment_head == ("decoder.1.cross_attention", 1)
    assert found.guided == ("encoder.0.self_attention", 1)
    again = json.loads((found.save(tmp_path / "again") / "translator.json").read_text())
    assert again["guided"] == ["encoder.0.self_attention", 1]


def test_a_guided_head_is_watched_and_edited_by_its_name() -> None:
    translator = Translator.load()
    assert translator.guided is not None and translator.alignment_head is not None
    with it.watch(translator.model) as seen:
        (made,) = translator.translate(["I drink milk."], SearchOptions(beam=1))
    assert set(made.attention) == set(made.words) == set(seen.layers)
    off = {translator.alignment_head.layer: edits.off()}
    with it.edit(translator.model, off), it.watch(translator.model) as seen:
        translator.translate(["I drink milk."], SearchOptions(beam=1))
    assert not seen[translator.alignment_head.layer].dense().any()
    assert seen[translator.guided.layer].dense().any()


def test_a_description_from_before_there_were_variants_means_the_same(tmp_path: Path) -> None:
    folder = untrained("word").save(tmp_path / "model")
    about = json.loads((folder / "translator.json").read_text())
    before = Translator.load(folder)
    for name in ("kv_heads", "positions", "feed_forward", "learned_steps"):
        del about["model"][name]
    checks, _ = about.pop("files"), about.pop("sha256")
    about |= {"format": 1, "sha256": checks["model.safetensors"]}
    (folder / "translator.json").write_text(json.dumps(about))
    for name in ("source.json", "target.json"):  # tokenizers had no checksum either
        document = json.loads((folder / name).read_text())
        del document["model"]["sha256"]
        (folder / name).write_text(json.dumps(document))
    after = Translator.load(folder)
    assert after.model.options == before.model.options
    assert after.translate(["the cat"])[0].text == before.translate(["the cat"])[0].text


def test_the_folder_of_a_run_serves_too(folder: Path) -> None:
    assert Translator.load(folder.parent).translate(["I drink milk."])[0].text == "Je bois du lait."


def test_half_is_half_the_size(translator: Translator, tmp_path: Path) -> None:
    whole, half = (translator.save(tmp_path / str(h), half=h) for h in (False, True))
    sizes = [(path / "model.safetensors").stat().st_size for path in (whole, half)]
    assert sizes[1] < 0.55 * sizes[0]
    loaded = Translator.load(half)
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}


def test_shared_embeddings_stay_tied(tmp_path: Path) -> None:
    translator = untrained("word", share="all")
    loaded = Translator.load(translator.save(tmp_path))
    assert loaded.model.source_embedding is loaded.model.target_embedding


def test_other_files_of_a_folder_stay(translator: Translator, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    translator.save(tmp_path)
    translator.save(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert len(os.listdir(tmp_path)) == 5


def test_a_full_disk_costs_nothing(
    translator: Translator, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    fsync, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 5:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        translator.save(folder, half=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("moment", range(4))
def test_a_kill_while_saving_leaves_no_mixture(
    folder: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Of the last steps of `save`, some happen and the rest do not."""
    other = Translator.load(folder)
    with torch.no_grad():
        for p in other.model.parameters():
            p.zero_()
    replace, done, files = os.replace, [], os.listdir(folder)

    def killed(source: Path, target: Path) -> None:
        if Path(target).name in files:
            if len(done) == moment:
                raise SystemExit
            done.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed)
    if moment < 3:
        with pytest.raises(SystemExit):
            other.save(folder)
        with pytest.raises(CheckpointError, match=r"expected a folder with translator\.json"):
            Translator.load(folder)
    monkeypatch.setattr(os, "replace", replace)
    other.save(folder)
    assert not any(p.any() for p in Translator.load(folder).model.parameters())
    assert len(os.listdir(folder)) == 4


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        Translator.load(folder)
    return str(error.value)


def test_missing_and_foreign_folders_are_named(tmp_path: Path) -> None:
    looked = "expected a folder with translator.json, or a run with model/translator.json; got "
    assert f"{tmp_path / 'no'}: {looked}no such folder. Give the folder" in refused(tmp_path / "no")
    assert f"{looked}an empty folder." in refused(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    assert f"{looked}a folder with config.json. It seems to hold a model of another library." in (
        refused(tmp_path)
    )
    assert f"{looked}a file." in refused(tmp_path / "config.json")
    (tmp_path / "checkpoints").mkdir()
    assert "Its run has not ended; the command that began it ends it with --resume." in (
        refused(tmp_path)
    )


def change(folder: Path, **values: Any) -> None:
    """Change a description as another program would: with a checksum that is right."""
    path = folder / "translator.json"
    about = {**json.loads(path.read_text()), **values}
    del about["sha256"]
    path.write_bytes(sealed(about))


def change_model(folder: Path, **values: int) -> None:
    model = json.loads((folder / "translator.json").read_text())["model"]
    change(folder, model={**model, **values})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"kind": "tokenizer"}, "It was made by another program."),
        ({"format": 3}, "expected format 2 or older; got format 3. It was written by a newer"),
        ({"format": 1}, "an unknown files. It is damaged or was changed."),
        ({"format": None}, "format: null where a whole number from 1 to 2 belongs."),
        ({"format": True}, "format: true where a whole number from 1 to 2 belongs."),
        ({"model": {"width": 3}}, "got no description of a model"),
        ({"model": 7}, "model: 7 where an object belongs."),
        (
            {"alignment_head": ["encoder.0.self_attention", 0]},
            "no alignment head encoder.0.self_attention, 0",
        ),
        (
            {"alignment_head": ["decoder.1.cross_attention", 4]},
            "no alignment head decoder.1.cross_attention, 4",
        ),
        ({"alignment_head": 5}, "alignment_head: 5 where a list of 2 or null belongs."),
        ({"max_length": 0}, "max_length: 0 where a whole number from 1 to 2147483647 belongs."),
        ({"max_length": "48"}, 'max_length: "48" where a whole number from 1 to'),
        ({"files": {"model.safetensors": "0"}}, 'files.model.safetensors: "0" where text like'),
        ({"files": {"model.safetensors": "0" * 64}}, "got another checksum than the description"),
    ],
)
def test_a_changed_description_is_refused(
    folder: Path, values: dict[str, Any], expected: str
) -> None:
    change(folder, **values)
    message = refused(folder)
    assert str(folder) in message and expected in message


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_a_broken_description_is_refused(folder: Path, content: bytes) -> None:
    (folder / "translator.json").write_bytes(content)
    message = refused(folder)
    assert f"{folder / 'translator.json'}: expected" in message
    assert "damaged or was changed." in message or "It was made by another program." in message


def test_damaged_weights_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[-1000] ^= 1
    for broken in (b"", content[:-1], content[:100], b"PK\x03\x04" + content, bytes(flipped)):
        path.write_bytes(broken)
        message = refused(folder)
        assert message.startswith(f"{path}: expected a file as `save` wrote it; got ")
        assert "It is damaged or was changed. Train again, or take another copy." in message
    path.unlink()
    assert f"{path}: expected a file as `save` wrote it; got no such file." in refused(folder)


def test_weights_and_tokenizers_of_another_model_are_refused(folder: Path, tmp_path: Path) -> None:
    other = untrained("word").save(tmp_path / "other")
    for name in ("source.json", "model.safetensors"):
        kept = (folder / name).read_bytes()
        shutil.copy(other / name, folder / name)
        told = {"source.json": "another checksum than", "model.safetensors": "other options"}
        assert f"{folder / name}: " in refused(folder) and told[name] in refused(folder)
        (folder / name).write_bytes(kept[:50])
        assert f"{folder / name}: expected" in refused(folder)
        (folder / name).write_bytes(kept)
    change_model(folder, source_vocabulary=300)
    entries = Tokenizer.load(folder / "source.json").size
    assert f"{entries} entries where the model has 300. It is damaged or was" in refused(folder)
    change_model(folder, source_vocabulary=entries, inner=300)
    assert "the weights are of a model with other options" in refused(folder).lower()


@pytest.mark.parametrize("layers", [3, 10_000_000, 2**63 - 1])
def test_a_model_is_not_built_before_its_weights_are_there(folder: Path, layers: int) -> None:
    for model in ({"decoder_layers": layers}, {"width": 2**40}):
        change_model(folder, **model)
        assert f"{folder / 'model.safetensors'}: " in refused(folder)


def test_a_hand_that_changes_what_shapes_do_not_tell_is_seen(folder: Path) -> None:
    """Weights of four heads fit one head as well; the checksum says that it was not so."""
    path = folder / "translator.json"
    path.write_text(path.read_text().replace('"heads": 4', '"heads": 1'))
    assert f"{path}: expected a file as `save` wrote it; got another checksum" in refused(folder)
