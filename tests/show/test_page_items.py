"""What a page finds in recordings and matrices: items, sides, rows that produce, pictures."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import intently as it
from intently.core.matrix import LazyMatrix
from intently.errors import ArgumentError, DataError
from intently.observe import Recording
from intently.show.page import Item, Picture, Text, items_of
from intently.tasks.decoding import SearchOptions
from intently.tasks.translation.translator import Translator

from .page_reader import Page
from .refusals import refuses


@pytest.fixture(scope="module")
def translated() -> Recording:
    translator = Translator.load()
    with it.watch(translator.model) as seen:
        (made,) = translator.translate(["The road was too wide."], SearchOptions(beam=1))
    source = [*translator.source_tokenizer.tokens(made.sides[0].ids), "</s>"]
    produced = translator.target_tokenizer.tokens(made.hypothesis.ids)
    seen.tokens = source, ["<s>", *produced, "</s>"]
    return seen


def test_an_encoder_and_a_decoder_have_two_texts(translated: Recording) -> None:
    (item,) = items_of(translated)
    source, target = item.sides
    assert isinstance(source, Text) and isinstance(target, Text)
    assert len(source) == len(target) == 7  # sizes do not tell them apart
    assert source.tokens[1] == "▁road" and target.tokens[:2] == ("<s>", "▁La")
    assert item.name == "The road was too wide.</s>"
    at = {layer.name: (layer.rows, layer.columns) for layer in item.layers}
    assert at == {
        "encoder.0.self_attention": (0, 0),
        "encoder.1.self_attention": (0, 0),
        "decoder.0.self_attention": (1, 1),
        "decoder.0.cross_attention": (1, 0),
        "decoder.1.self_attention": (1, 1),
        "decoder.1.cross_attention": (1, 0),
    }
    assert item.layers[0].row_labels is None
    cross = item.layers[-1]
    assert cross.row_labels is not None and cross.row_labels[:2] == ("▁La", "▁route")
    assert target.produced == 1 and source.produced is None
    page = Page.of(translated)
    entry = page.entry("decoder.1.cross_attention")
    assert (entry["kind"], entry["layer"], entry["row_labels"][0]) == ("cross", 1, "▁La")
    expected = translated["decoder.1.cross_attention"].dense()[0]
    np.testing.assert_allclose(page.weights("decoder.1.cross_attention"), expected, atol=5e-3)


def test_the_same_without_tokens_has_two_texts_that_are_counted(translated: Recording) -> None:
    known, translated.tokens = translated.tokens, None
    try:
        (item,) = items_of(translated)
    finally:
        translated.tokens = known
    assert [side.tokens for side in item.sides] == [tuple("0123456")] * 2  # type: ignore[union-attr]
    assert (item.layers[-1].rows, item.layers[-1].columns) == (1, 0)
    assert item.name == "7 tokens"
    assert item.layers[0].tokens is None


def test_a_decoder_alone_still_reads_another_text() -> None:
    A = it.attend(torch.randn(2, 7, 4), torch.randn(2, 7, 4))
    (item,) = items_of({"decoder.0.self_attention": A, "decoder.0.cross_attention": A})
    assert [(layer.rows, layer.columns) for layer in item.layers] == [(0, 0), (0, 1)]


def test_statistics_of_tokens_are_there_where_tokens_are(translated: Recording) -> None:
    page = Page.of(translated)
    assert "induction" in page.meta["statistics"]
    found = page.entry("encoder.1.self_attention")["statistics"]
    table = translated.summary().filter(layer="encoder.1.self_attention")
    for name in ("entropy", "sink", "previous", "divergence"):
        np.testing.assert_allclose(found[name], table[name], atol=2e-3)
    assert "induction" not in page.entry("decoder.1.cross_attention")["statistics"]


def test_recording_page_writes_what_save_page_writes(translated: Recording, tmp_path: Path) -> None:
    path = translated.page(tmp_path / "out.html", "full", title="A road")
    meta = Page.read(path).meta
    assert path == tmp_path / "out.html"
    assert (meta["title"], meta["precision"], len(meta["items"][0]["entries"])) == (
        "A road",
        "full",
        6,
    )
    assert meta["bound"]["weights"] < 1e-5


def test_what_is_unverified_is_left_out_and_named(translated: Recording) -> None:
    entry = translated.calls[0]
    entry.verified = False
    try:
        (item,) = items_of(translated, note="A note")
    finally:
        entry.verified = True
    assert item.layers[0].name == "encoder.1.self_attention"
    assert item.note == (
        "A note. encoder.0.self_attention is left out: its weights do not give what the model put "
        "out"
    )


def test_what_was_changed_since_is_left_out_and_named() -> None:
    net = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(1, 4, 8)
    with torch.no_grad(), it.watch(net, store="reference") as seen:
        net(x, x, x)
    with torch.no_grad():
        net.in_proj_weight.mul_(2)
        x.mul_(2)
    with pytest.raises(ArgumentError, match=r"at least one attention.*is left out: .*changed"):
        items_of(seen)


def test_a_generation_marks_what_was_produced() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model: Any = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=20,
            n_embd=16,
            n_layer=1,
            n_head=2,
            n_positions=16,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    ).eval()
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad(), it.watch(model) as seen:
        made = model.generate(ids, attention_mask=ids > 0, max_new_tokens=4, do_sample=False)
    seen.tokens = [f"t{i}" for i in made[0].tolist()]
    (item,) = items_of(seen)
    side = item.sides[0]
    assert isinstance(side, Text)
    assert (len(side), side.produced) == (6, 3)
    assert item.layers[0].row_labels == tuple(seen.tokens[1:])


def test_batch_rows_are_items_of_their_own() -> None:
    q, k = torch.randn(2, 3, 2, 5, 4)
    A = it.attend(q, k, mask=it.padding(torch.tensor([5, 2, 4])))
    assert [len(item.layers) for item in items_of({"a": A, "two": A[:2]})] == [2, 2, 1]
    items = items_of({"a": A, "shared": A[:1]})
    assert [item.name for item in items] == [f"5 tokens ({n} of 3)" for n in (1, 2, 3)]
    assert [len(item.layers) for item in items] == [2, 2, 2]
    page = Page.of({"a": A, "shared": A[:1]}, "full")
    for row in range(3):
        np.testing.assert_allclose(page.weights("a", row), A[row].dense(), atol=1e-6)
        np.testing.assert_allclose(page.weights("shared", row), A[0].dense(), atol=1e-6)


def test_heads_that_share_keys_share_them_in_every_row() -> None:
    A = it.attend(torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), mask=it.causal())
    page = Page.of(A, "full")
    assert len(page.entry(item=1)["k"]) == 2 and page.entry(item=1)["group"] == 2
    np.testing.assert_allclose(page.weights(item=1), A[1].dense(), atol=1e-6)


def test_queries_after_a_cache_are_the_last_tokens() -> None:
    words = tuple("abcdef")
    A = it.attend(torch.randn(1, 2, 4), torch.randn(1, 6, 4), mask=it.causal())
    (item,) = items_of(A.label(None, words))
    layer = item.layers[0]
    assert item.sides == (Text(words),)
    assert layer.rows == layer.columns == 0


def test_layers_that_attended_again_are_numbered() -> None:
    net = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(1, 4, 8)
    with torch.no_grad(), it.watch(net) as seen:
        net(x, x, x)
        net(x, x, x)
    (item,) = items_of(seen)
    assert [layer.name.rpartition("[")[2] for layer in item.layers] == ["0]", "1]"]


# --- pictures -------------------------------------------------------------------------------------


def opened(picture: Picture) -> Image.Image:
    kind, _, data = picture.address.partition(";base64,")
    assert kind in ("data:image/png", "data:image/jpeg")
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_a_picture_stands_for_every_axis_of_its_length() -> None:
    pixels = np.random.default_rng(0).random((32, 32, 3))
    sides = [Picture(pixels, 4, 4, before=1), Text(("a", "cat"))]
    own, cross = (
        it.attend(torch.randn(2, 17, 8), torch.randn(2, 17, 8)),
        it.attend(torch.randn(2, 17, 8), torch.randn(2, 2, 8)),
    )
    (item,) = items_of({"attn1": own, "attn2": cross}, "cat.png", sides)
    assert [(layer.rows, layer.columns) for layer in item.layers] == [(0, 0), (0, 1)]
    side = Page.of({"attn1": own}, sides=sides[:1]).meta["items"][0]["sides"][0]
    assert (side["kind"], side["rows"], side["columns"], side["before"]) == ("picture", 4, 4, 1)
    found = np.asarray(opened(sides[0]))
    np.testing.assert_allclose(found / 255, pixels, atol=1 / 255)


def test_a_side_that_no_axis_is_as_long_as_is_refused() -> None:
    x, y = torch.randn(2, 17, 4), torch.randn(2, 3, 4)
    A = {"vision": it.attend(x, x), "cross": it.attend(y, x)}
    pixels = np.zeros((8, 8, 3))
    assert len(items_of(A, sides=[Picture(pixels, 4, 4, before=1)])[0].sides) == 2
    for side, got, advised in (
        (Picture(pixels, 4, 4), r"Picture of 16 \(4 × 4\)", True),
        (Picture(pixels, 4, 4, before=4), r"Picture of 20 \(4 × 4 \+ 4\)", True),
        (Picture(pixels, 5, 6), r"Picture of 30 \(5 × 6\)", False),
        (Text(("a", "cat")), "Text of 2", False),
    ):
        wanted = rf"sides\[0\]: expected as many tokens as an axis has: 3, 17; got a {got}\."
        with pytest.raises(ArgumentError, match=wanted) as caught:
            items_of(A, sides=[side])
        assert ("before=1" in str(caught.value)) == advised


def test_pictures_of_every_kind(tmp_path: Path) -> None:
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    opaque = np.stack([grey, grey, grey, np.full_like(grey, 255)], -1)
    for image in (grey, grey / 255, Image.fromarray(grey), opaque):
        assert np.asarray(opened(Picture(image, 2, 2)))[..., 0].tolist() == grey.tolist()
    file = tmp_path / "wide.png"
    Image.new("RGBA", (40, 20), (255, 0, 0, 0)).save(file)  # nothing to be seen but the paper
    assert np.asarray(opened(Picture(file, 2, 2))).tolist() == [[[255] * 3] * 40] * 20
    noise = np.random.default_rng(0).integers(0, 255, (1500, 1000, 3), dtype=np.uint8)
    large = Picture(noise, 2, 2)
    assert max(opened(large).size) == 750 and large.address.startswith("data:image/jpeg")


def test_pictures_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_text("hello")
    broken = r"picture: expected a file that holds a picture.*x\.png"
    refuses(DataError, {broken: lambda: Picture(tmp_path / "x.png", 2, 2)})
    refuses(
        ArgumentError,
        {
            r"picture: expected shape \(height, width, 3\)": lambda: Picture(
                np.zeros((2, 3, 5)), 1, 1
            ),
            "rows: expected an int ≥ 1; got 0": lambda: Picture(np.zeros((4, 4)), 0, 2),
            "before: expected an int ≥ 0; got -1": lambda: Picture(np.zeros((4, 4)), 2, 2, -1),
        },
    )


@pytest.mark.parametrize(
    ("tokens", "name"),
    [
        (("▁The", "▁cat", "."), "The cat."),
        (("The", "Ġcat", "Ġsat"), "The cat sat"),
        (("the", "cat", "##s"), "the cats"),
        (("the", "cat"), "the cat"),
        (tuple("abcdefghijklmn"), "a b c d e f g h i j k l …"),
    ],
)
def test_names_spell_tokens(tokens: tuple[str, ...], name: str) -> None:
    A: LazyMatrix = it.Dense(torch.eye(len(tokens))).label(tokens, tokens)
    found: list[Item] = items_of(A)
    assert found[0].name == name
    assert items_of(found) == found and found[0].note is None
