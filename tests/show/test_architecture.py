"""Diagrams: every module that runs is drawn, with its shapes and parameters; nothing else is."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import matplotlib
import pytest
import torch
from matplotlib.colors import to_rgb
from torch import nn

from intently import show
from intently.errors import ArgumentError, KindError
from intently.nn import (
    DecoderLayer,
    FeedForward,
    ImageAttention,
    MultiHeadAttention,
    SpatialTransformer,
)
from intently.nn.models import (
    LanguageModel,
    LanguageOptions,
    RecurrentOptions,
    RecurrentSeq2Seq,
    Transformer,
    TransformerOptions,
    VisionOptions,
    VisionTransformer,
)
from intently.show.diagram.walk import columns

from .drawing import boxes, extents
from .drawing import quiet as quiet

SMALL = TransformerOptions(20, 30, width=16, heads=4, inner=24)
CELLS = RecurrentOptions(20, 30, width=16)
IDS, WORDS = torch.arange(7)[None], torch.arange(5)[None]
IMAGE, X, STATES = torch.randn(1, 16, 4, 6), torch.randn(1, 5, 16), torch.randn(1, 7, 8)


class ByHand(nn.Module):
    """Attention and a residual that no class of ours knows."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return x + self.out((q @ k.mT).softmax(-1) @ v)


def changed(**options):
    return lambda: Transformer(replace(SMALL, **options))


MODELS = {
    "transformer": (changed(), (IDS, WORDS)),
    "post": (changed(norm="post", positions="learned"), (IDS, WORDS)),
    "gated": (changed(feed_forward="gated", kv_heads=1, positions="rotary"), (IDS, WORDS)),
    "shared": (changed(share="all", source_vocabulary=30), (IDS, WORDS)),
    "no layers": (changed(encoder_layers=0), (IDS, WORDS)),
    "recurrent": (lambda: RecurrentSeq2Seq(CELLS), (IDS, WORDS)),
    "luong": (
        lambda: RecurrentSeq2Seq(replace(CELLS, attention="general", decoder_layers=2)),
        (IDS, WORDS),
    ),
    "fixed": (
        lambda: RecurrentSeq2Seq(replace(CELLS, attention="none", cell="lstm")),
        (IDS, WORDS),
    ),
    "language": (lambda: LanguageModel(LanguageOptions(20, width=16)), (IDS,)),
    "vision": (
        lambda: VisionTransformer(VisionOptions((8, 8), 4, 3, width=16)),
        (torch.zeros(1, 3, 8, 8),),
    ),
    "image": (lambda: ImageAttention(16, 4), (IMAGE,)),
    "spatial": (lambda: SpatialTransformer(16, 2, 8, context_width=8, depth=2), (IMAGE, STATES)),
    "layer": (lambda: DecoderLayer(16, 4, 24), (X, torch.zeros(1, 7, 16))),
    "attention": (lambda: MultiHeadAttention(16, 4, context_width=8), (X, STATES)),
    "feed-forward": (lambda: FeedForward(16, 24), (X,)),
    "by hand": (ByHand, (X,)),
    "torch": (
        lambda: nn.Transformer(16, 4, 2, 2, 24, batch_first=True),
        (X, torch.randn(1, 3, 16)),
    ),
    "nothing ran": (changed(), ()),
}


def texts(figure) -> list[str]:
    return [text.get_text() for text in (*figure.axes[0].texts, *figure.texts)]


def drawn(name: str):
    make, inputs = MODELS[name]
    return show.architecture(make(), *inputs)


def parts(model: nn.Module, *inputs):
    return [part for stack in columns(model, inputs) for part in stack.walk()]


@pytest.mark.parametrize("name", MODELS)
def test_every_part_is_drawn(name):
    make, inputs = MODELS[name]
    model = make()
    said = texts(show.architecture(model, *inputs))
    all_said = " ".join(said).lower().replace("\n", " ")
    for part in parts(model, *inputs):
        if not part.parts:
            assert part.title.lower() in all_said, part.title
    for stack in columns(model, inputs) if inputs else []:
        assert stack.takes in all_said
    assert f"{sum(p.numel() for p in model.parameters()):,} in all" in all_said


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_drawn_over_anything(name):
    """No two texts overlap, and everything lies on the sheet."""
    figure = drawn(name)
    boxes = [box.padded(-1) for box in extents(figure)]
    width, height = figure.canvas.get_width_height()
    for n, box in enumerate(boxes):
        assert box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height
        assert not any(box.overlaps(other) for other in boxes[:n])


@pytest.mark.parametrize("name", [name for name in MODELS if name != "nothing ran"])
def test_shapes_and_parameters_are_those_of_the_modules(name):
    """Hooks of the test's own see the same shapes; every parameter counts once."""
    make, inputs = MODELS[name]
    model = make().eval()
    seen = {}
    for path, module in model.named_modules(remove_duplicate=False):

        def note(_, given, output, path=path):
            out = output[0] if isinstance(output, tuple) else output
            if isinstance(out, torch.Tensor):
                seen.setdefault(path, set()).add(f"({', '.join(map(str, out.shape))})")

        module.register_forward_hook(note)
    model(*inputs)
    found = parts(make(), *inputs)
    for part in found:
        if part.kind not in ("residual", "parallel", "positions", "stack", "cell") and part.name:
            assert part.gives in seen[part.name] or part.title == "Output", part
    own = sum(p.numel() for n, p in model.named_parameters() if n in ("class_token",))
    assert sum(part.parameters for part in found) + own == sum(
        p.numel() for p in model.parameters()
    )


def test_a_run_changes_nothing():
    model = Transformer(SMALL)
    model.encoder[0].eval()
    before, state = model.state_dict(), torch.get_rng_state()
    show.architecture(model, IDS, WORDS)
    assert model.training and model.decoder[0].training and not model.encoder[0].training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with pytest.raises(ArgumentError, match="ids from 0 to 19"):
        show.architecture(model, IDS + 90, WORDS)
    assert model.training and not any(m._forward_hooks for m in model.modules())


def test_residuals_are_where_the_numbers_add_up():
    pre, post = (parts(Transformer(replace(SMALL, norm=n)), IDS, WORDS) for n in ("pre", "post"))
    for found in (pre, post):
        assert sum(part.kind == "residual" for part in found) == 10
    inside = {part.parts[0].kind for part in pre if part.kind == "residual"}
    assert inside == {"norm"}
    hand = parts(ByHand(), X)
    assert [part.kind for part in hand if part.parts] == ["stack", "residual", "parallel"]
    alone = ImageAttention(16, 4, residual=False)
    assert not any(part.kind == "residual" for part in parts(alone, IMAGE))


def test_sums_in_place_are_sums():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x):
            x = x.clone()
            x += self.first(x)
            x += self.second(x)
            return x

    assert [part.kind for part in parts(InPlace(), X) if part.parts] == [
        "stack",
        "residual",
        "residual",
    ]


def test_layers_alike_are_drawn_once():
    said = texts(show.architecture(Transformer(replace(SMALL, encoder_layers=6)), IDS, WORDS))
    assert "6 ×" in said and "2 ×" in said
    assert said.count("Self-attention") == 1 and said.count("Cross-attention") == 1
    model = Transformer(replace(SMALL, encoder_layers=3))
    model.encoder[1].feed_forward = FeedForward(16, 25)
    assert texts(show.architecture(model, IDS, WORDS)).count("Self-attention") == 3


def test_post_norm_adds_and_norms_in_one_box():
    pre, post = (
        texts(show.architecture(Transformer(replace(SMALL, norm=norm)), IDS, WORDS))
        for norm in ("pre", "post")
    )
    assert post.count("Add & layer norm") == 5 and post.count("Layer norm") == 0
    assert pre.count("Layer norm") == 7 and pre.count("Add & layer norm") == 0


def test_what_attention_reads_is_written():
    assert "memory (1, 7, 16)" in texts(drawn("transformer"))
    assert "memory (1, 7, 16)" in texts(drawn("recurrent"))
    assert "memory (1, 5, 16)" in texts(drawn("torch"))
    assert "states\n(1, 7, 16)" in texts(drawn("layer"))
    assert "context\n(1, 7, 8)" in texts(drawn("attention"))
    assert not any("memory" in text for text in texts(drawn("fixed")))


def test_masked_means_masked():
    """What is called masked gives no weight to later steps, and nothing else does so."""
    model = Transformer(SMALL).eval()
    matrices = model.attentions(IDS, WORDS)
    for part in parts(model, IDS, WORDS):
        if part.kind == "attention" and not part.reads:
            later = float(matrices[part.name].dense().triu(1).sum())
            assert (later == 0) == part.title.startswith("Masked")


def test_shared_weights_count_once():
    found = parts(Transformer(replace(SMALL, share="all", source_vocabulary=30)), IDS, WORDS)
    embeddings = [part for part in found if part.kind == "embedding"]
    assert [part.title for part in embeddings] == ["Source embedding", "Target embedding"]
    assert embeddings[1].tied and not embeddings[1].parameters
    assert found[-1].title == "Output" and found[-1].tied == "target_embedding"


def test_models_of_transformers():
    transformers = pytest.importorskip("transformers")
    options = dict(n_layer=2, n_embd=16, n_head=4, vocab_size=20, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**options))
    found = parts(model, {"input_ids": IDS})
    assert [part.kind for part in found if part.kind == "positions"] == ["positions"]
    assert sum(part.kind == "residual" for part in found) == 4
    assert found[-1].tied == "transformer.wte"
    assert "2 ×" in texts(show.architecture(model, IDS))


@pytest.mark.parametrize("wrong", [3, "transformer", None, Transformer, FeedForward.forward])
def test_what_is_no_module_is_refused(wrong):
    with pytest.raises(KindError, match=r"model: expected a torch\.nn\.Module"):
        show.architecture(wrong)
    with pytest.raises(ArgumentError, match="save"):
        show.architecture(FeedForward(2, 2), save="a.gif")


def test_an_svg_has_real_text_and_says_what_it_shows(tmp_path):
    path = tmp_path / "model.svg"
    model = Transformer(SMALL)
    show.architecture(model, IDS, WORDS, save=path, title="<b>Mine</b> $x$")
    first = path.read_bytes()
    show.architecture(model, IDS, WORDS, save=path, title="<b>Mine</b> $x$")
    assert path.read_bytes() == first
    root = ElementTree.parse(path).getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert "Cross-attention" in [text.text for text in root.iter(f"{space}text")]
    assert root.findtext(f"{space}title") == "<b>Mine</b> $x$"
    told = root.findtext(f"{space}desc") or ""
    assert "Cross-attention: (1, 5, 16) → (1, 5, 16), 1,088 parameters" in told
    assert "reads encoder_norm (1, 7, 16)" in told


def test_dark_paper_is_obeyed():
    with matplotlib.rc_context({"figure.facecolor": "black"}):
        figure = show.architecture(FeedForward(4, 8))
    paper = figure.get_facecolor()[:3]
    assert max(paper) < 0.2
    assert all(min(to_rgb(text.get_color())) > 0.5 for text in figure.axes[0].texts)


def test_a_title_of_any_script_and_length_stays_in_its_box():
    named = type("注意層", (nn.Sequential,), {})
    figure = show.architecture(named(type("Projection" * 9, (nn.Linear,), {})(4, 4)))
    assert len(figure.texts[0].get_fontfamily()) > 1
    [title] = [text for text in figure.axes[0].texts if text.get_text().endswith("…")]
    [box] = boxes(figure)
    assert title.get_window_extent().width < box.get_window_extent().width
