"""Diagrams: every part is drawn, with its shape and parameters; nothing that is not there."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib.colors import to_rgb
from torch import nn

from intently import show
from intently.errors import ArgumentError, KindError
from intently.foundation.parts import Part
from intently.models import (
    LanguageModel,
    LanguageOptions,
    RecurrentOptions,
    RecurrentSeq2Seq,
    Transformer,
    TransformerOptions,
    VisionOptions,
    VisionTransformer,
)
from intently.modules import (
    AttentionHead,
    AttentionOptions,
    DecoderLayer,
    FeedForward,
    ImageAttention,
    MultiHeadAttention,
    SpatialTransformer,
)

from .drawing import quiet as quiet

SMALL = TransformerOptions(20, 30, width=16, heads=4, inner=24)
CELLS = RecurrentOptions(20, 30, width=16)
MODELS = {
    "transformer": lambda: Transformer(SMALL),
    "post": lambda: Transformer(replace(SMALL, norm="post", positions="learned")),
    "gated": lambda: Transformer(
        replace(SMALL, feed_forward="gated", kv_heads=1, positions="rotary")
    ),
    "no layers": lambda: Transformer(replace(SMALL, encoder_layers=0)),
    "recurrent": lambda: RecurrentSeq2Seq(CELLS),
    "luong": lambda: RecurrentSeq2Seq(replace(CELLS, attention="general", decoder_layers=2)),
    "fixed": lambda: RecurrentSeq2Seq(replace(CELLS, attention="none", cell="lstm")),
    "language": lambda: LanguageModel(LanguageOptions(20, width=16)),
    "vision": lambda: VisionTransformer(VisionOptions((8, 8), 4, 3, width=16)),
    "image": lambda: ImageAttention(16, 4),
    "spatial": lambda: SpatialTransformer(16, 2, 8, context_width=8, depth=2),
    "layer": lambda: DecoderLayer(16, 4, 24),
    "attention": lambda: MultiHeadAttention(16, 4, context_width=8),
    "normed": lambda: MultiHeadAttention(16, 4, attention=AttentionOptions(qk_norm=nn.RMSNorm)),
    "head": lambda: AttentionHead(16, 4),
    "feed-forward": lambda: FeedForward(16, 24),
}


def texts(figure) -> list[str]:
    return [text.get_text() for text in (*figure.axes[0].texts, *figure.texts)]


@pytest.mark.parametrize("name", MODELS)
def test_every_part_is_drawn(name):
    tree = MODELS[name]().tree()
    said = texts(show.architecture(tree))
    composite = [part for part in tree.walk() if part.kind in ("attention", "feed-forward")]
    hidden = {
        id(inner)
        for part in composite
        if len(composite) > 1 or any(p.kind == "cell" for p in tree.walk())
        for inner in part.parts
    }
    drawn = " ".join(said).lower().replace("\n", " ")
    for part in tree.leaves():
        if id(part) not in hidden:
            assert part.title.lower() in drawn, part.title
    for part in composite if len(composite) > 1 else []:
        assert part.title in said, part.title
    assert tree.takes in drawn and tree.gives in drawn
    assert f"{tree.total:,} in all" in drawn


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_drawn_over_anything(name):
    """No two texts overlap, and everything lies on the sheet."""
    figure = show.architecture(MODELS[name]())
    figure.canvas.draw()
    boxes = [
        text.get_window_extent().padded(-1)
        for text in (*figure.axes[0].texts, *figure.texts)
        if text.get_text()
    ]
    width, height = figure.canvas.get_width_height()
    for n, box in enumerate(boxes):
        assert box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height
        for other in boxes[:n]:
            assert not box.overlaps(other)


def test_layers_alike_are_drawn_once():
    said = texts(show.architecture(Transformer(replace(SMALL, encoder_layers=6))))
    assert "6 ×" in said and "2 ×" in said
    assert said.count("Self-attention") == 1 and said.count("Cross-attention") == 1
    model = Transformer(replace(SMALL, encoder_layers=3))
    model.encoder[1].feed_forward = FeedForward(16, 25)
    assert texts(show.architecture(model)).count("Self-attention") == 3


def test_post_norm_adds_and_norms_in_one_box():
    pre, post = (
        texts(show.architecture(Transformer(replace(SMALL, norm=norm)))) for norm in ("pre", "post")
    )
    assert post.count("Add & layer norm") == 5 and post.count("Layer norm") == 0
    assert pre.count("Layer norm") == 7 and pre.count("Add & layer norm") == 0


def test_what_attention_reads_is_written():
    assert "memory (b, s, 16)" in texts(show.architecture(Transformer(SMALL)))
    assert "states\n(b, s, 16)" in texts(show.architecture(DecoderLayer(16, 4, 24)))
    assert "query" in texts(show.architecture(RecurrentSeq2Seq(CELLS)))
    fixed = texts(show.architecture(RecurrentSeq2Seq(replace(CELLS, attention="none"))))
    assert "context: the last state" in fixed and "query" not in fixed


def test_input_feeding_is_drawn_where_it_is():
    luong = replace(CELLS, attention="dot")
    for feeding in (True, False):
        said = texts(show.architecture(RecurrentSeq2Seq(replace(luong, input_feeding=feeding))))
        assert ("input\nfeeding" in said) == feeding


def test_a_tree_of_ones_own_is_drawn(tmp_path):
    part = Part("module", "<b>Mine</b> $x$", "mine", "(b, t)", "(b, t, 3)", 12)
    tree = Part("model", "My model", takes="(b, t)", gives="(b, t, 3)", parts=(part,))
    path = tmp_path / "mine.svg"
    figure = show.architecture(tree, title="Ours", save=path)
    assert "<b>Mine</b> $x$" in texts(figure) and texts(figure)[-2] == "Ours"
    first = path.read_bytes()
    show.architecture(tree, title="Ours", save=path)
    assert path.read_bytes() == first


@pytest.mark.parametrize("wrong", [3, "transformer", None, Transformer, FeedForward.forward])
def test_what_has_no_tree_is_refused(wrong):
    with pytest.raises(
        KindError, match="model: expected a model or block with a tree of its parts"
    ):
        show.architecture(wrong)
    with pytest.raises(ArgumentError, match="save"):
        show.architecture(FeedForward(2, 2), save="a.gif")


def test_an_svg_has_real_text_and_says_what_it_shows(tmp_path):
    path = tmp_path / "model.svg"
    show.architecture(Transformer(SMALL), save=path)
    root = ElementTree.parse(path).getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert "Cross-attention" in [text.text for text in root.iter(f"{space}text")]
    assert root.findtext(f"{space}title") == "Transformer"
    told = root.findtext(f"{space}desc") or ""
    assert "Cross-attention: (b, t, 16) → (b, t, 16), 1,088 parameters" in told
    assert "reads encoder (b, s, 16)" in told


def test_dark_paper_is_obeyed():
    with matplotlib.rc_context({"figure.facecolor": "black"}):
        figure = show.architecture(FeedForward(4, 8))
    paper = figure.get_facecolor()[:3]
    assert max(paper) < 0.2
    assert all(min(to_rgb(text.get_color())) > 0.5 for text in figure.axes[0].texts)
