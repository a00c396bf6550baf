"""The translator: copying, cutting, labels, and folders that are refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from intently.decoding import SearchOptions
from intently.errors import ArgumentError, CheckpointError, KindError
from intently.foundation.files import sealed
from intently.models.transformer import Transformer, TransformerOptions
from intently.text import UNK, Tokenizer, words
from intently.translation.translator import AlignmentHead, TranslationWarning, Translator

BECAUSE = "The animal didn't cross the road because it was too wide."


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator.load()


@pytest.fixture
def folder(translator: Translator, tmp_path: Path) -> Path:
    return translator.save(tmp_path / "model")


def untrained(kind: str, share: str = "output") -> Translator:
    """A small translator with random weights over a vocabulary of a few sentences."""
    text = ["the cat sat on the mat", "L'animal dort.", "déjà-vu ☃"]
    tokenizer = Tokenizer.train(text, kind, 300)
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        size = tokenizer.size
        options = TransformerOptions(size, size, width=16, heads=2, inner=16, share=share)  # type: ignore[arg-type]
        return Translator(Transformer(options), tokenizer, tokenizer, max_length=20)


# --- translating ----------------------------------------------------------------------------------


def test_the_embedded_translator_reads_the_adjective(translator: Translator) -> None:
    tired, wide = translator.translate([BECAUSE.replace("wide", "tired"), BECAUSE])
    assert tired.text == "L'animal n'a pas traversé la route parce qu'il était trop fatigué."
    assert wide.text == "L'animal n'a pas traversé la route parce qu'elle était trop large."


def test_results_come_in_order_and_empty_lines_stay_empty(translator: Translator) -> None:
    given = ["I drink milk.", "", " \t", BECAUSE, "I drink milk.\r"]
    found = translator.translate(given)
    assert [one.source for one in found] == given
    assert [one.text for one in found][1:3] == ["", ""]
    assert found[0].text == found[4].text == "Je bois du lait."
    assert translator.translate([]) == []


def test_an_empty_line_has_no_attention(translator: Translator) -> None:
    (empty,) = translator.translate([""])
    assert empty.attention == empty.words == {}
    assert empty.alignment.shape == (0, 0)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("Mary saw Zxqv.", "Mary a vu Zxqv."),
        (
            "The Zxqv drank milk because it was tired.",
            "Le Zxqv a bu du lait parce qu'il était fatigué.",
        ),
        ("Does Zxqv drink milk?", "Est-ce que Zxqv boit du lait ?"),
    ],
)
def test_unknown_words_are_copied(translator: Translator, sentence: str, expected: str) -> None:
    with pytest.warns(TranslationWarning, match=r"line 1: not in the model's vocabulary: Zxqv"):
        (made,) = translator.translate([sentence])
    assert made.text == expected
    assert made.notes == ("not in the model's vocabulary: Zxqv",)
    assert made.alignment.labels == (tuple(words(expected)), tuple(words(sentence)))
    row, column = words(expected).index("Zxqv"), words(sentence).index("Zxqv")
    assert int(made.alignment.argmax()[row]) == column


def test_control_characters_do_not_reach_a_warning(translator: Translator) -> None:
    with pytest.warns(TranslationWarning) as told:
        translator.translate(["I \x1b[31m drink\x07 milk."])
    assert str(told[0].message).isprintable()


def test_cut_lines_are_named_by_their_number_over_chunks(translator: Translator) -> None:
    lines = ["I drink milk."] * 300
    lines[280] = "I drink milk. " * 20
    with pytest.warns(TranslationWarning) as told:
        found = list(translator.stream(iter(lines), SearchOptions(beam=1), chunk=64))
    assert [str(w.message) for w in told] == ["line 281: 80 tokens, cut after 48"]
    assert told[0].filename == __file__
    assert len(found) == 300
    assert found[280].notes == ("80 tokens, cut after 48",)
    assert len(found[280].sides[0].words) == 48


def test_a_warning_points_to_the_caller(translator: Translator) -> None:
    with pytest.warns(TranslationWarning) as told:
        translator.translate(["Zxqv."])
    assert told[0].filename == __file__


def test_a_very_long_line_costs_little(translator: Translator) -> None:
    with pytest.warns(TranslationWarning, match="200,000 tokens, cut after 48"):
        translator.translate(["The road " * 100_000], SearchOptions(beam=1))


def test_a_stream_reads_one_chunk_ahead_at_most(translator: Translator) -> None:
    read = []

    def lines() -> Any:
        for i in range(100):
            read.append(i)
            yield "I drink milk."

    stream = translator.stream(lines(), SearchOptions(beam=1), chunk=5)
    assert read == []
    next(stream)
    assert len(read) == 5


@pytest.mark.parametrize("given", ["one text", b"bytes"])
def test_one_string_is_refused(translator: Translator, given: Any) -> None:
    with pytest.raises(KindError, match=r"sentences: expected a list of strings; got one string"):
        translator.translate(given)


def test_a_beam_in_place_of_options_is_refused(translator: Translator) -> None:
    options: Any = 3
    with pytest.raises(KindError, match=r"options: expected SearchOptions or None; got 3\."):
        translator.translate(["The road was too wide."], options)


def test_what_is_no_text_is_named(translator: Translator) -> None:
    with pytest.raises(KindError, match=r"sentences\[1\]: expected a string; got int\."):
        translator.translate(["I drink milk.", 3])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match=r"sentences\[0\]: .*lone surrogate U\+D800"):
        translator.translate(["\ud800"])


def test_alternatives(translator: Translator) -> None:
    (made,) = translator.translate([BECAUSE], SearchOptions(beam=4, n_best=3))
    scores = [made.score, *(one.score for one in made.alternatives)]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)
    for one in made.alternatives:
        assert one.alternatives == ()
        assert one.alignment.labels[0] == tuple(words(one.text))


# --- attention ------------------------------------------------------------------------------------


def test_labels_are_the_produced_tokens(translator: Translator) -> None:
    (made,) = translator.translate(["I drink milk."])
    cross, own = made.attention["decoder.0.cross"], made.attention["decoder.0.self"]
    assert cross.labels == (
        ("▁Je", "▁bois", "▁du", "▁lait", ".", "</s>"),
        ("▁I", "▁drink", "▁milk", ".", "</s>"),
    )
    assert own.labels[1] == ("<s>", "▁Je", "▁bois", "▁du", "▁lait", ".")
    assert cross.shape == (4, 6, 5) and own.shape == (4, 6, 6)


def test_words_of_a_word_model_are_its_tokens(translator: Translator) -> None:
    (made,) = translator.translate([BECAUSE])
    for name, matrix in made.words.items():
        whole = made.attention[name].dense()
        t, s = matrix.shape[-2:]
        assert torch.equal(matrix.dense(), whole[:, :t, :s])
    layer, head = translator.alignment_head or ("", 0)
    assert torch.equal(made.alignment.dense(), made.words[layer].dense()[head])


@pytest.mark.parametrize("kind", ["subword", "character", "word"])
def test_words_sum_columns_and_average_rows(kind: str) -> None:
    translator = untrained(kind)
    (made,) = translator.translate(["L'animal sat on ☃"], SearchOptions(beam=1, max_length=9))
    (_, s_words, s_groups), (y, y_words, y_groups) = made.sides
    assert s_words == ["L'", "animal", "sat", "on", "☃"]
    assert list(y_words) == words(made.text)
    assert not made.hypothesis.ended or made.hypothesis.ids == y
    for name, matrix in made.words.items():
        if name.endswith("cross"):
            whole = made.attention[name].dense()
            for i, row in enumerate(y_groups):
                for j, column in enumerate(s_groups):
                    expected = whole[:, row][..., column].sum(-1).mean(-1)
                    assert torch.allclose(matrix[:, i, j], expected, atol=1e-6)
        assert matrix.labels[0] is not None and len(matrix.labels[0]) == matrix.shape[-2]
    assert made.alignment.shape == (len(y_words), 5)


def test_subwords_never_say_unknown() -> None:
    translator = untrained("subword")
    translator.model.target_embedding.weight.data[UNK] *= 50
    found = translator.translate(["the cat"] * 3, SearchOptions(beam=3, n_best=3, max_length=12))
    assert all(UNK not in one.hypothesis.ids for made in found for one in made.alternatives)


def test_a_cut_falls_between_characters() -> None:
    translator = untrained("subword")
    with pytest.warns(TranslationWarning, match="line 1: .* tokens, cut after 20"):
        (made,) = translator.translate(["漢" * 30], SearchOptions(beam=1, max_length=3))
    assert made.sides[0].words == ["漢"] * 6  # three bytes each, and the space before them


# --- folders --------------------------------------------------------------------------------------


def test_saving_and_loading_changes_nothing(translator: Translator, folder: Path) -> None:
    loaded = Translator.load(folder)
    assert loaded.alignment_head == translator.alignment_head
    assert loaded.max_length == translator.max_length
    for name, x in translator.model.state_dict().items():
        assert torch.equal(x, loaded.model.state_dict()[name])
    one, other = (t.translate([BECAUSE])[0] for t in (translator, loaded))
    assert one.text == other.text and one.score == other.score
    assert sorted(os.listdir(folder)) == [
        "model.safetensors",
        "source.json",
        "target.json",
        "translator.json",
    ]


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
    cross = found.attention["decoder.1.cross"]
    assert cross.shape == (4, len(found.hypothesis.ids) + found.hypothesis.ended, 4)
    if not half:
        (expected,) = made.translate(["the cat sat"], search)
        assert found.text == expected.text and found.score == expected.score


def test_a_description_from_before_there_were_variants_means_the_same(folder: Path) -> None:
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
    assert after.translate([BECAUSE])[0].text == before.translate([BECAUSE])[0].text


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


@pytest.mark.parametrize("moment", range(5))
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
    if moment < 4:
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
        ({"alignment_head": ["encoder.0.self", 0]}, "no alignment head encoder.0.self, 0"),
        ({"alignment_head": ["decoder.1.cross", 4]}, "no alignment head decoder.1.cross, 4"),
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
    about = json.loads((folder / "translator.json").read_text())
    change(folder, model={**about["model"], "source_vocabulary": 300})
    assert "477 entries where the model has 300. It is damaged or was changed." in refused(folder)
    change(folder, model={**about["model"], "inner": 300})
    assert "the weights are of a model with other options" in refused(folder).lower()


@pytest.mark.parametrize("layers", [3, 10_000_000, 2**63 - 1])
def test_a_model_is_not_built_before_its_weights_are_there(folder: Path, layers: int) -> None:
    about = json.loads((folder / "translator.json").read_text())
    change(folder, model={**about["model"], "decoder_layers": layers})
    assert f"{folder / 'model.safetensors'}: " in refused(folder)
    change(folder, model={**about["model"], "width": 2**40})
    assert f"{folder / 'model.safetensors'}: " in refused(folder)


def test_a_hand_that_changes_what_shapes_do_not_tell_is_seen(folder: Path) -> None:
    """Weights of four heads fit one head as well; the checksum says that it was not so."""
    path = folder / "translator.json"
    path.write_text(path.read_text().replace('"heads": 4', '"heads": 1'))
    assert f"{path}: expected a file as `save` wrote it; got another checksum" in refused(folder)


def test_a_head_that_was_not_measured_is_a_mean(translator: Translator, folder: Path) -> None:
    loaded = Translator.load(folder)
    loaded.alignment_head = None
    (made,) = loaded.translate(["I drink milk."])
    expected = made.words["decoder.0.cross"].dense().mean(0)
    assert torch.allclose(made.alignment.dense(), expected)
    loaded.alignment_head = AlignmentHead("decoder.1.cross", 2)
    expected = made.words["decoder.1.cross"].dense()[2]
    assert torch.equal(made.alignment.dense(), expected)


def test_a_translator_reads_at_least_one_token(translator: Translator) -> None:
    with pytest.raises(ArgumentError, match="max_length: expected an int ≥ 1; got 0"):
        Translator(translator.model, *[translator.source_tokenizer] * 2, max_length=0)
