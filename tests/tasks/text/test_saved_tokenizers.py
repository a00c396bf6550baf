"""Saved tokenizers: what is written is read, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from intently.errors import DataError
from intently.tasks.text import KINDS, Tokenizer

CORPUS = ["L'animal n'a pas traversé la route.", "The animal didn't cross the road."]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def saved(kind: str, tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    Tokenizer.train(CORPUS, kind=kind).save(path)
    return path


def test_what_is_saved_is_read(saved: Path, kind: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(str(saved))
    fresh = Tokenizer.train(CORPUS, kind=kind)
    assert tokenizer.kind == kind
    assert tokenizer.size == fresh.size
    assert tokenizer.encode_batch(CORPUS) == fresh.encode_batch(CORPUS)
    tokenizer.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == saved.read_bytes()


def unsealed(path: Path) -> dict[str, Any]:
    """A saved tokenizer as earlier versions wrote it: without a checksum."""
    document = json.loads(path.read_text(encoding="utf-8"))
    del document["model"]["sha256"]
    return document


def test_files_without_a_checksum_are_read_too(saved: Path) -> None:
    tokenizer = Tokenizer.load(saved)
    document = unsealed(saved)
    saved.write_text(json.dumps(document), encoding="utf-8")
    assert Tokenizer.load(saved).backend.to_str() == tokenizer.backend.to_str()
    document["model"]["sha256"] = None
    saved.write_text(json.dumps(document), encoding="utf-8")
    assert refusal(saved).startswith("another checksum than it was written with")


def test_the_tokenizers_library_reads_the_same_file(saved: Path) -> None:
    """The checksum stands where it is passed over."""
    theirs = tokenizers.Tokenizer.from_file(str(saved))
    assert theirs.to_str() == Tokenizer.load(saved).backend.to_str()
    whole = saved.read_bytes()
    saved.write_bytes(whole[: len(whole) // 2])
    assert "It is damaged or was changed." in refusal(saved)


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        Tokenizer.load(path)
    assert str(caught.value).startswith(f"{path}: expected a tokenizer saved with Tokenizer.save; ")
    return str(caught.value).split("; got ", 1)[1]


NO_MODEL = "JSON without the model of a tokenizer."


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.json") == "no such file."
    assert refusal(tmp_path) == "a folder."


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "an empty file."),
        (b"{\xff\x00", "no UTF-8 at byte 1."),
        (b"[" * 100_000, "JSON nested more than 100 deep."),
        *((text, NO_MODEL) for text in (b"3", b"[]", b"{}", b'{"model": 3}', b"null")),
        (b'{"model": {"type": "WordPiece"}}', NO_MODEL),
    ],
    ids=lambda value: value[:20] if isinstance(value, bytes) else "",
)
def test_other_contents_are_named(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "file").write_bytes(content)
    assert refusal(tmp_path / "file").startswith(said)


def test_tokenizers_of_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign.json"
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0}, "<unk>")).save(str(path))
    assert refusal(path).startswith("the entry '<unk>' at id 0 where '<pad>' belongs.")
    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(path))
    assert refusal(path).startswith("only 0 entries.")


def test_a_unigram_tokenizer_of_earlier_versions_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizers.Tokenizer(tokenizers.models.Unigram([("<pad>", 0.0)], 0)).save(str(path))
    assert refusal(path) == (
        "a unigram tokenizer. Unigram tokenizers were removed from Intently; subwords encode any "
        "text, too. Train again with kind 'subword'; the tokenizers library still reads this file."
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: {**v, "extra": 99_999}, "entries whose ids are not 0 to"),
        (lambda v: {**v, "extra": "x"}, "does not give each entry an id"),
        (lambda v: [], "does not give each entry an id"),
    ],
)
def test_other_ids_are_refused(saved: Path, change: Any, message: str) -> None:
    document = unsealed(saved)
    document["model"]["vocab"] = change(document["model"]["vocab"])
    saved.write_text(json.dumps(document), encoding="utf-8")
    assert message in refusal(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["model"].update(unk_token="<s>"), "another model than that of kind"),
        (lambda d: d["model"].update(continuing_subword_prefix="##"), "another model than that of"),
        (lambda d: d.update(normalizer={"type": "NFC"}), "another normalizer than that of kind"),
        (lambda d: d.update(decoder=None), "another decoder than that of kind"),
        (lambda d: d.update(pre_tokenizer=None), "another pre_tokenizer than that of kind"),
        (lambda d: d.update(truncation={"max_length": 3}), "another truncation than that of kind"),
        (lambda d: d.update(added_tokens=[{"id": 0}]), "another added_tokens than that of kind"),
        (lambda d: d.update(version="9.0"), "another version than that of kind"),
        (lambda d: d.update(surprise=1), "another surprise than that of kind"),
        (lambda d: d["pre_tokenizer"]["pattern"].update(Regex="("), "tokenizers library refuses"),
    ],
)
def test_changed_files_are_refused(saved: Path, change: Any, message: str) -> None:
    document = unsealed(saved)
    change(document)
    saved.write_text(json.dumps(document), encoding="utf-8")
    assert message in refusal(saved)


def test_merges_of_nothing_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    Tokenizer.train(CORPUS).save(path)
    document = unsealed(path)
    for merge in (["zz", "a"], "a", ["a"], [["a"], "b"], [1, 2], None):
        document["model"]["merges"][0] = merge
        path.write_text(json.dumps(document), encoding="utf-8")
        assert refusal(path).startswith("what the tokenizers library refuses: ")
