"""Tokens of one sequence, or of source and target: each where it belongs, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intently as it
from intently import edits
from intently.core.matrix.labelling import BLOCK, crosses
from intently.nn import MultiHeadAttention
from intently.observe import Recording, load_recording
from intently.observe.recording.labels import Labels, labels
from intently.show.page import items_of, opening

from ..combinations import each
from ..messages import refused
from ..show.refusals import refuses
from .attending import SelfAttention, Stack

SOURCE = ("the", "road", "was", "wide", "</s>")
TARGET = ("<s>", "la", "route", "était", "large", "trop", "</s>")
MADE = TARGET[1:]
PAIR = (list(SOURCE), list(TARGET))


def found(name: str, t: int, s: int, *, back: bool, tokens: Any = PAIR) -> Labels:
    return labels(tokens, name, (1, 2, t, s), lambda: back)


def test_both_sides_by_name() -> None:
    own = Labels(SOURCE, SOURCE, True)
    assert found("model.encoder.layers.0.self_attn", 5, 5, back=False) == own
    decoder = Labels(MADE, TARGET[:6], True)
    for name in (
        "decoder.layers.0.self_attn",
        "decoder.block.0.layer.0.SelfAttention",
        "decoder.bert.encoder.layer.0.attention.self",
    ):
        assert found(name, 6, 6, back=True) == decoder
    for name in (
        "decoder.0.cross_attention",
        "decoder.block.0.layer.1.EncDecAttention",
        "decoder.bert.encoder.layer.0.crossattention.self",
        "layers.0.encoder_attn",
        "decoder.layers.0.multihead_attn",
    ):
        assert found(name, 6, 5, back=False) == Labels(MADE, SOURCE)
    unread = (list(SOURCE), list(TARGET[:6]))  # what the last row produces is not known
    assert found("decoder.0.self_attention", 6, 6, back=True, tokens=unread).rows == (*MADE[:5], "")


FIVE, ALIKE = list("abcde"), (list("abcde"), list("vwxyz"))


@pytest.mark.parametrize(
    ("name", "t", "s", "back", "tokens", "expected"),
    [
        # a side that does not fit is left out
        ("encoder.0.self_attn", 6, 6, False, PAIR, Labels()),  # as long as the target
        ("decoder.0.self_attn", 5, 5, True, PAIR, Labels()),  # as long as the source
        ("decoder.0.cross_attn", 6, 7, False, PAIR, Labels(MADE, None)),
        ("decoder.0.cross_attn", 1, 5, False, PAIR, Labels(None, SOURCE)),
        ("decoder.0.cross_attn", 5, 5, False, PAIR, Labels(None, SOURCE)),
        ("encoder.0.cross_attn", 5, 5, False, PAIR, Labels()),
        # names that do not tell
        ("layers.0", 5, 5, False, PAIR, Labels(SOURCE, SOURCE, True)),
        ("layers.0", 6, 6, True, PAIR, Labels(MADE, TARGET[:6], True)),
        ("layers.0", 6, 5, False, PAIR, Labels(MADE, SOURCE)),
        ("layers.0", 6, 6, False, PAIR, Labels()),
        ("layers.0", 5, 5, True, PAIR, Labels()),
        ("layers.0", 4, 5, False, PAIR, Labels()),
        # of equal lengths: it may be any of three
        ("layers.0", 5, 5, False, ALIKE, Labels()),
        ("layers.0", 5, 5, True, ALIKE, Labels()),
        ("decoder.0.attn", 5, 5, False, ALIKE, Labels()),
        # one sequence does not label the other
        ("cross_attn", 5, 5, False, FIVE, Labels(None, tuple(FIVE))),
        ("cross_attn", 5, 4, False, FIVE, Labels()),
        ("x", 6, 4, False, FIVE, Labels()),
        ("x", 3, 5, True, FIVE, Labels(("d", "e", ""), tuple(FIVE), True)),
    ],
)
def test_sides(name: str, t: int, s: int, back: bool, tokens: Any, expected: Labels) -> None:
    assert found(name, t, s, back=back, tokens=tokens) == expected


def test_a_decoder_of_equal_lengths_that_looks_back_reads_the_target() -> None:
    read = found("decoder.0.attn", 5, 5, back=True, tokens=ALIKE)
    assert read.columns == tuple("vwxyz")


def transformer_seen(s: int, t: int, **options: Any) -> Recording:
    """A pass of an encoder that reads s steps, and a causal decoder that reads t."""
    model = nn.Transformer(16, 2, 1, 1, 32, 0.0, batch_first=True).eval()
    past = nn.Transformer.generate_square_subsequent_mask(t)
    with torch.no_grad(), it.watch(model, **options) as seen:
        model(torch.randn(1, s, 16), torch.randn(1, t, 16), tgt_mask=past)
    return seen


def test_a_whole_transformer(tmp_path: Path) -> None:
    seen = transformer_seen(5, 6, tokens=PAIR)
    seen.save(tmp_path / "run.safetensors")
    again = load_recording(tmp_path / "run.safetensors")
    for recording in (seen, again):
        assert [recording[name].labels for name in recording] == [
            (SOURCE, SOURCE),
            (MADE, TARGET[:6]),
            (MADE, SOURCE),
        ]
    assert again.tokens == PAIR and isinstance(again.tokens, tuple)
    again.tokens = None
    assert again["encoder.layers.0.self_attn"].labels == (None, None)


def test_statistics_of_tokens_are_those_of_each_side() -> None:
    seen = transformer_seen(5, 5)

    def measured(source: str, target: str) -> set[str]:
        seen.tokens = list(source), list(target)
        table = seen.summary()
        return {name for name in seen if table.filter(layer=name)["duplicate"][0] >= 0}

    assert measured("abcab", "vwxyz") == {"encoder.layers.0.self_attn"}
    assert measured("abcde", "vwvwx") == {"decoder.layers.0.self_attn"}


def test_rollout_follows_one_side() -> None:
    seen, both = transformer_seen(5, 5, layers="encoder", tokens=PAIR), transformer_seen(5, 5)
    assert torch.equal(seen.rollout("road"), seen.rollout(1))
    refuses(
        it.errors.ArgumentError,
        {
            "of an encoder and that of a decoder": lambda: both.rollout(0),
            r"It occurs 0 times in tokens=\['the'": lambda: seen.rollout("route"),
        },
    )


def test_rollout_leaves_out_what_attends_across() -> None:
    model = Stack(SelfAttention())
    model.cross_attention = nn.MultiheadAttention(32, 4, batch_first=True)
    x, other = torch.randn(1, 5, 32), torch.randn(1, 5, 32)
    with torch.no_grad(), it.watch(model) as seen:
        model(x)
        model.cross_attention(x, other, other)
    assert len(seen) == 2
    assert torch.equal(seen.rollout(2), it.rollout([seen["layers.0"]], queries=2))


@pytest.mark.parametrize(
    ("tokens", "got"),
    [
        ([["a"], [["b"]]], "list with list"),
        ((["a"], [7]), "list with int"),
        ((["a"], ["b"], ["c"]), "tuple with list"),
        (torch.tensor([1, 2]), "Tensor with Tensor"),
        (7, "int"),
        ((x for x in "ab"), "generator"),
        ({"a": 1}, "dict"),
    ],
)
def test_anything_else_is_refused(tokens: Any, got: str) -> None:
    message = "tokens: expected a list of texts, or a pair of such lists (source, target); got "
    told = f"{message}{got}. A tokenizer's"
    watch = it.watch(Stack(SelfAttention()), tokens=tokens)
    refused(watch.__enter__, it.errors.KindError, told)
    refused(lambda: setattr(Recording(), "tokens", tokens), it.errors.KindError, told)


def test_two_texts_are_one_sequence() -> None:
    made = Recording(("ab", "cd"))
    assert made.tokens == ("ab", "cd")
    assert found("x", 2, 2, back=False, tokens=made.tokens).columns == ("ab", "cd")


@pytest.mark.parametrize(
    "mask",
    [
        it.window(2, 2),
        it.segments(torch.tensor([0, 0, 0, 1, 1, 1])),
        it.causal() | it.prefix(3),
        it.allowed(torch.ones(6, 6).tril().index_fill(0, torch.tensor([3]), 1).bool()),
        it.allowed(torch.stack([torch.ones(6, 6).tril(), torch.ones(6, 6).tril(1)]).bool()),
        None,
    ],
    ids=repr,
)
@pytest.mark.parametrize("block", [BLOCK, 7])
def test_a_row_produces_only_where_no_query_sees_a_later_key(
    mask: it.Mask | None, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intently.core.matrix.labelling.BLOCK", block)
    x, texts = torch.randn(1, 2, 6, 4), tuple("abcdef")
    with it.watch(tokens=texts) as seen:
        it.attention(x, x, x, mask=mask)
        it.attention(x, x, x, mask=it.causal() if mask is None else mask & it.causal())
        it.attention(x, x, x, mask=it.allowed(torch.ones(6, 6).tril().bool()) & it.window(3, 3))
    read = [entry.matrix().labels for entry in seen.calls]
    assert read == [(texts, texts), ((*texts[1:], ""), texts), ((*texts[1:], ""), texts)]
    seen.tokens = (*texts, "g")  # one that was produced and never read, or one too many
    read = [entry.matrix().labels for entry in seen.calls]
    assert read == [(None, None), (tuple("bcdefg"), texts), (tuple("bcdefg"), texts)]


@pytest.mark.parametrize("hides", [-torch.inf, torch.finfo(torch.float32).min, -1e4])
@pytest.mark.parametrize("sum_of_two", [False, True])
def test_what_a_bias_hides_counts(hides: float, sum_of_two: bool) -> None:
    x, at = torch.randn(1, 2, 5, 4), torch.arange(5)
    near = -(at[:, None] - at).abs() * torch.tensor([0.5, 0.25])[:, None, None]
    bias: Any = near + torch.zeros(5, 5).masked_fill(at > at[:, None], hides)
    with it.watch(tokens="abcde") as seen:  # type: ignore[arg-type]
        it.attention(x, x, x, bias=it.alibi() + bias if sum_of_two else bias)
        it.attention(x, x, x, bias=it.alibi() + near if sum_of_two else near)
        it.attention(x, x, x, bias=bias, mask=it.window(1, 4))
    rows = [entry.matrix().labels[0] for entry in seen.calls]
    assert rows == [(*"bcde", ""), tuple("abcde"), (*"bcde", "")]


def test_a_list_as_long_as_the_source_labels_no_decoder(tmp_path: Path) -> None:
    encoder, decoder = "encoder.layers.0.self_attn", "decoder.layers.0.self_attn"
    six = tuple("abcdef")
    for t in (6, 5):
        seen = transformer_seen(6, t, tokens=list("abcdef"))
        seen.save(tmp_path / "run.safetensors")
        for found in (seen, load_recording(tmp_path / "run.safetensors")):
            assert found[encoder].labels == (six, six)
            assert found[decoder].labels == (None, None)
    seen = transformer_seen(7, 6, tokens=list("abcdef"))
    assert seen[encoder].labels == (None, None)
    assert seen[decoder].labels == ((*six[1:], ""), six)


class Layer(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.add_module(name, nn.MultiheadAttention(8, 2, batch_first=True))

    def forward(self, x: Tensor) -> Tensor:
        (attention,) = self.children()
        return attention(x, x, x)[0]


@pytest.mark.parametrize("name", ["attn", "enc_attn", "encoder_attention", "crossing", "src_attn"])
def test_self_attention_is_not_told_by_a_piece_of_its_name(name: str) -> None:
    model = nn.Sequential(Layer(name), Layer(name)).eval()
    words = ["a", "b", "c"]
    with torch.no_grad(), it.watch(model, tokens=words) as seen:
        model(torch.randn(1, 3, 8))
    assert seen.rollout("c").shape == (1, 3)
    assert seen[f"0.{name}"].labels == (tuple(words), tuple(words))
    with torch.no_grad(), it.edit(model, {"*": edits.forbid(["a"])}, tokens=words):
        model(torch.randn(1, 3, 8))


class Projected(nn.Module):
    """Two heads, by hand or fused, with or without rotated queries and keys."""

    def __init__(self, by_hand: bool, rotates: bool) -> None:
        super().__init__()
        self.norm, self.q, self.kv = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 16)
        self.by_hand, self.rotates = by_hand, rotates

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        x = self.norm(x)
        k, v = self.kv(x if context is None else context).chunk(2, -1)
        q, k, v = (y.unflatten(-1, (2, 4)).transpose(1, 2) for y in (self.q(x), k, v))
        if self.rotates:
            q, k = (0.6 * y + 0.8 * y.flip(-1) for y in (q, k))
        if self.by_hand:
            y = (q @ k.mT / 2).softmax(-1) @ v
        else:
            y = nn.functional.scaled_dot_product_attention(q, k, v)
        return y.transpose(1, 2).flatten(2)


class Reads(nn.Module):
    """A layer whose attention, of any name, reads its text or another one."""

    def __init__(self, name: str, attention: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.add_module(name, attention)

    def forward(self, x: Tensor, *other: Tensor) -> Tensor:
        norm, attention = self.children()
        y = attention(norm(x), *other)
        return x + (y[0] if isinstance(y, tuple) else y)


ATTENTION: dict[str, Callable[[], nn.Module]] = {
    "fused": lambda: Projected(by_hand=False, rotates=False),
    "by hand": lambda: Projected(by_hand=True, rotates=False),
    "fused, rotary": lambda: Projected(by_hand=False, rotates=True),
    "by hand, rotary": lambda: Projected(by_hand=True, rotates=True),
    "PyTorch's": lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    "ours": lambda: MultiHeadAttention(8, 2),
}


@each({"kind": ATTENTION, "name": ["mixer", "crossattention", "enc_attn", "self_attn"]})
def test_keys_that_come_from_elsewhere_make_cross_attention(
    kind: str, name: str, tmp_path: Path
) -> None:
    source, target = ["a", "b", "c"], ["x", "y", "z"]
    layer = Reads(name, ATTENTION[kind]()).eval()
    x, other = torch.randn(1, 3, 8), torch.randn(1, 3, 8)
    more = (other, other) if kind == "PyTorch's" else (other,)
    with torch.no_grad(), it.watch(layer, tokens=(source, target)) as seen:
        layer(x, *more)
    seen.save(tmp_path / "r.safetensors")
    for found in (seen, load_recording(tmp_path / "r.safetensors")):
        assert found[name].labels == (("y", "z", ""), tuple(source))
        with pytest.raises(it.errors.ArgumentError):
            found.rollout(0)
        (item,) = it.show.page.items_of(found)
        assert len(item.sides) == 2
    edit = {name: edits.forbid(["b"], rows=["x"])}
    with torch.no_grad(), it.edit(layer, edit, tokens=(source, target)), it.watch(layer) as seen:
        layer(x, *more)
    assert (seen[name].dense() == 0).nonzero()[:, 2:].unique(dim=0).tolist() == [[0, 1]]


@pytest.mark.parametrize("kind", ["fused", "by hand", "fused, rotary", "by hand, rotary"])
@pytest.mark.parametrize("name", ["crossattention", "encoder_attn", "decoder"])
def test_keys_that_come_from_the_same_text_make_self_attention(kind: str, name: str) -> None:
    words = ["a", "b", "c"]
    layer = Reads(name, ATTENTION[kind]()).eval()
    with torch.no_grad(), it.watch(layer, tokens=words) as seen:
        layer(torch.randn(1, 3, 8))
    assert seen[name].labels == (tuple(words), tuple(words))
    assert seen.rollout("c").shape == (1, 3)
    (item,) = it.show.page.items_of(seen)
    assert len(item.sides) == 1


def test_two_halves_of_one_tensor_are_two_texts_or_not() -> None:
    layer = Projected(by_hand=False, rotates=False).eval()
    x, other = torch.randn(2, 1, 3, 8)
    with torch.no_grad(), it.watch(layer) as seen:
        layer(x, other)
    assert seen.calls[0].across is None


@pytest.mark.parametrize(
    ("name", "beside", "expected"),
    [
        ("encoder.layer.0.crossattention.self", (), True),
        ("decoder.block.0.layer.1.EncDecAttention", (), True),
        ("decoder.layers.0.encoder_attn", (), True),
        ("layers.0.encoder_attn", ("layers.0.self_attn",), True),
        ("layers.0.encoder_attn", (), None),
        ("blocks.0.encoder_attention.self", (), False),
        ("x.crossformer_self", (), False),
        ("text.layers.0.crossing", (), None),
    ],
)
def test_whole_words_tell(name: str, beside: tuple[str, ...], expected: bool | None) -> None:
    assert crosses(name, beside) is expected


# --- a batch of several texts ---------------------------------------------------------------------

TEXTS = [["the", "cat", "sat", "on", "the", "mat"], ["a", "dog", "ran"]]


class Embedded(nn.Module):
    """Two self-attentions over embedded ids, with padding hidden."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 8)
        self.layers = nn.ModuleList(nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x, hidden = self.embed(input_ids), None if attention_mask is None else attention_mask == 0
        for layer in self.layers:
            x = layer(x, x, x, key_padding_mask=hidden, need_weights=False)[0]
        return x


class Words:
    """A tokenizer."""

    pad_token_id = 0

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [f"w{i}" for i in ids]


def batch(left: bool) -> tuple[Tensor, Tensor]:
    rows = [[1, 2, 3, 4, 1, 5], [0, 0, 0, 6, 7, 8] if left else [6, 7, 8, 0, 0, 0]]
    ids = torch.tensor(rows)
    return ids, (ids > 0).long()


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("way", ["lists", "later", "tokenizer", "tokenizer, no mask"])
def test_every_row_of_a_batch_has_its_own_tokens(tmp_path: Path, left: bool, way: str) -> None:
    ids, mask = batch(left)
    model = Embedded().eval()
    given: dict[str, Any] = {"tokens": Words()} if "tokenizer" in way else {}
    given |= {"tokens": TEXTS} if way == "lists" else {}
    with torch.no_grad(), it.watch(model, **given) as seen:
        model(ids, mask) if way == "tokenizer, no mask" else model(ids, attention_mask=mask)
    if way == "later":
        seen.tokens = TEXTS
    texts = [[f"w{i}" for i in row[row > 0].tolist()] for row in ids] if given else TEXTS
    texts = TEXTS if way == "lists" else texts
    pad = ["", "", ""]
    rows = [texts[0], pad + texts[1] if left else texts[1] + pad]
    seen.save(tmp_path / "rows.safetensors")
    for recording in (seen, load_recording(tmp_path / "rows.safetensors")):
        for name in recording.layers:
            A = recording[name]
            assert A.labels == (None, None)
            for n, row in enumerate(rows):
                for part in (A[n], A[n, 1], A.mean_heads()[n], A[n : n + 1][0], A.mT.mT[n]):
                    assert part.labels == (tuple(row), tuple(row))
    assert {"duplicate", "induction"} <= set(seen.summary().columns)


def test_statistics_of_a_batch_are_those_of_each_text() -> None:
    ids, mask = batch(left=False)
    model = Embedded().eval()
    with torch.no_grad(), it.watch(model, tokens=TEXTS) as both:
        model(ids, attention_mask=mask)
    with torch.no_grad(), it.watch(model, tokens=TEXTS[0]) as first:
        model(ids[:1])
    for name in ("duplicate", "induction"):  # only the first text repeats a word
        assert both.summary()[name] == pytest.approx(first.summary()[name], abs=1e-6)


def test_tokens_of_one_text_label_no_batch_of_several() -> None:
    ids, mask = batch(left=False)
    model = Embedded().eval()
    with torch.no_grad(), it.watch(model, tokens=TEXTS[0]) as seen:
        model(ids, attention_mask=mask)
    assert seen["layers.0"][1].labels == seen["layers.0"][0].labels == (None, None)
    assert "duplicate" not in seen.summary().columns
    with torch.no_grad(), it.watch(model, tokens=TEXTS[0]) as seen:
        model(ids[:1].expand(3, -1))  # beams read the same
    assert seen["layers.0"][2].labels == (tuple(TEXTS[0]),) * 2


def test_what_rows_are_refused() -> None:
    KindError, model = it.errors.KindError, Embedded()
    with pytest.raises(KindError, match=r"tokens: expected a list of texts, .*; got int\. A token"):
        it.watch(model, tokens=3).__enter__()
    with pytest.raises(KindError, match="tokens: expected the tokens of one text"):
        it.edit(model, {"*": edits.forbid(["a"])}, tokens=TEXTS).__enter__()
    with pytest.raises(KindError, match="tokens: expected a list of texts"):
        it.watch(model, tokens=[["a"], [3]]).__enter__()


def test_a_page_shows_the_words_of_each_row(tmp_path: Path) -> None:
    ids, mask = batch(left=False)
    model = Embedded().eval()
    with torch.no_grad(), it.watch(model, tokens=TEXTS) as seen:
        model(ids, attention_mask=mask)
    one, other = items_of(seen)
    assert one.sides[0].tokens == tuple(TEXTS[0])
    assert other.sides[0].tokens == (*TEXTS[1], "", "", "")
    seen.page(tmp_path / "rows.html", layers="layers.1")
    content = (tmp_path / "rows.html").read_text(encoding="utf-8")
    assert "layers.1" in content and "layers.0" not in content
    with pytest.raises(it.errors.ArgumentError, match=r"nearest are 'layers.0'"):
        seen.page(tmp_path / "none.html", layers=["layer.0"])
    assert not (tmp_path / "none.html").exists()


class FiveAxes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)


def test_axes_before_the_heads_are_rows_of_a_page(tmp_path: Path) -> None:
    model = nn.ModuleDict({"five": FiveAxes(), "four": FiveAxes()})
    with torch.no_grad(), it.watch(model) as seen:
        model["five"](torch.randn(2, 3, 2, 4, 4))
        model["four"](torch.randn(2, 2, 4, 4))
    five, four = (seen[name].dense() for name in ("five", "four"))
    items = items_of(seen)
    assert len(items) == 6
    for n, item in enumerate(items):
        assert [layer.name for layer in item.layers] == ["five", "four"]
        found = [layer.matrix.dense().reshape(2, 4, 4) for layer in item.layers]
        assert torch.equal(found[0], five[n // 3, n % 3]) and torch.equal(found[1], four[n // 3])
    seen.page(tmp_path / "p.html")


@pytest.mark.parametrize("key", [0, 2, 5])
def test_a_page_opens_on_no_sink(tmp_path: Path, key: int) -> None:
    sink = torch.zeros(6, 6)
    sink[:, key] = 1
    telling = torch.eye(6)[[3, 4, 5, 0, 1, 2]] * 0.9 + 0.1 / 6
    found = opening.telling(items_of({"a": it.Dense(torch.stack([sink, telling]))})[0])
    assert found is not None and found[:2] == (0, 1)
    assert opening.telling(items_of({"a": it.Dense(sink[None])})[0]) is None
