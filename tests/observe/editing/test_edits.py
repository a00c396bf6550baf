"""What each edit means, what it refuses, and what it leaves alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intently as it
from intently import edits
from intently.errors import ArgumentError, KernelError, KindError
from intently.observe import load_recording

from ...observe.decoders import drawn

pytestmark = pytest.mark.usefixtures("undone")
H, T, D = 4, 5, 4
TOKENS = ["the", "Ġcat", "Ġsat", "Ġthe", "Ġcat"]


class Attend(nn.Module):
    """Causal attention of q, k and v (b, h, t, d)."""

    dropout = 0.0

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)


class Two(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Attend(), Attend()

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.second(q, k, self.first(q, k, v))


def qkv() -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(3, 2, H, T, D, generator=torch.Generator().manual_seed(1))
    return q, k, v


def scores() -> Tensor:
    q, k, _ = qkv()
    return (q @ k.mT / 2).masked_fill(~torch.ones(T, T).tril().bool(), -torch.inf)


def weights(edit: edits.Edit, **options: Any) -> Tensor:
    """The weights of an edited run, which give its output."""
    attend, given = Attend(), qkv()
    with it.edit(attend, edit, **options), it.watch(attend) as seen:
        y = attend(*given)
    found = seen.calls[0].matrix().dense()
    torch.testing.assert_close(found @ given[2], y)
    return found


def changed(change: Callable[[Tensor], Any]) -> Tensor:
    z = scores()
    change(z)
    return z.softmax(-1).nan_to_num(0)


def hide(z: Tensor, heads: Any, rows: Any, keys: Any) -> None:
    """Hide cells from the softmax."""
    over = torch.zeros(z.shape, dtype=torch.bool)
    h, t, s = (
        torch.arange(n)[x] if isinstance(x, slice) else torch.tensor(x)
        for n, x in zip(z.shape[1:], (heads, rows, keys))
    )
    over[:, h[:, None, None], t[:, None], s] = True
    z.masked_fill_(over, -torch.inf)


ALL = slice(None)
VALUES: list[tuple[edits.Edit, Callable[[Tensor], Any]]] = [
    (edits.off(heads=2), lambda z: hide(z, [2], ALL, ALL)),
    (edits.off(heads=[-1], rows=-1), lambda z: hide(z, [3], [4], ALL)),
    (edits.off(heads=slice(1, 3)), lambda z: hide(z, [1, 2], ALL, ALL)),
    (
        edits.off(heads=torch.tensor([True, False, False, True])),
        lambda z: hide(z, [0, 3], ALL, ALL),
    ),
    (edits.forbid([1], rows=[2, 4], heads=0), lambda z: hide(z, [0], [2, 4], [1])),
    (edits.forbid("cat", rows="sat"), lambda z: hide(z, ALL, [2], [1, 4])),
    (edits.forbid("the"), lambda z: hide(z, ALL, ALL, [0, 3])),
    (edits.forbid(["sat", 0], rows=slice(-2, None)), lambda z: hide(z, ALL, [3, 4], [0, 2])),
    (edits.forbid(torch.arange(T) > 2), lambda z: hide(z, ALL, ALL, [3, 4])),
    (
        edits.forbid(it.window(1, 0) & ~it.window(0, 0)),
        lambda z: [hide(z, ALL, [i], [i - 1]) for i in range(1, T)],
    ),
    (edits.look_only_at([0, 2]), lambda z: hide(z, ALL, ALL, [1, 3, 4])),
    (
        edits.look_only_at(it.window(1, 0), heads=1),
        lambda z: [hide(z, [1], [i], slice(0, i - 1)) for i in range(2, T)],
    ),
    (edits.favour([1], 3.0, heads=[1]), lambda z: z[:, 1, :, 1].add_(torch.tensor(3.0).log())),
    (edits.sharpen(2.0, rows=[3]), lambda z: z[..., 3, :].mul_(2)),
    (edits.uniform(heads=[0]), lambda z: z[:, 0].copy_(torch.where(z[:, 0].isinf(), z[:, 0], 0))),
    (
        edits.previous(heads=[3]),
        lambda z: z[:, 3].copy_(
            torch.full((T, T), -torch.inf).index_put(
                (torch.arange(T), torch.tensor([0, 0, 1, 2, 3])), torch.zeros(T)
            )
        ),
    ),
    (
        edits.sharpen(2.0) & edits.forbid([0], rows=[4]),
        lambda z: [z.mul_(2), hide(z, ALL, [4], [0])],
    ),
]


@pytest.mark.parametrize(("edit", "change"), VALUES, ids=[repr(x) for x, _ in VALUES])
def test_values(edit: edits.Edit, change: Callable[[Tensor], Any]) -> None:
    torch.testing.assert_close(weights(edit, tokens=TOKENS), changed(change))


def test_functions_of_the_weights() -> None:
    """Rows may sum to less than 1; a later edit leaves them so where it names other rows."""
    plain = scores().softmax(-1)
    found = weights(edits.weights(lambda w: w / 2, rows=[2, 3]) & edits.forbid([0], rows=[4]))
    torch.testing.assert_close(found[:, :, 2:4], plain[:, :, 2:4] / 2)
    torch.testing.assert_close(found[:, :, 4].sum(-1), torch.ones(2, H))
    torch.testing.assert_close(found[:, :, :2], plain[:, :, :2])


@pytest.mark.parametrize("rows", [None, slice(1, None), [2]])
def test_functions_of_the_weights_of_heads_that_share_keys(rows: Any) -> None:
    class Grouped(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    attend, (q, k, v) = Grouped(), qkv()
    k, v = k[:, :2], v[:, :2]
    with it.edit(attend, edits.weights(lambda w: w.flip(-1), rows=rows)):
        y = attend(q, k, v)
    plain = (q @ k.repeat_interleave(2, 1).mT / 2).softmax(-1)
    flipped = plain.clone()
    at = slice(None) if rows is None else rows
    flipped[:, :, at] = plain.flip(-1)[:, :, at]
    torch.testing.assert_close(y, flipped @ v.repeat_interleave(2, 1))


@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -1.0, 0.0, 2.0])])
@pytest.mark.parametrize("softcap", [None, 0.7])
def test_a_power_acts_on_all_that_makes_the_weights(
    softcap: float | None, sinks: Tensor | None
) -> None:
    class Ours(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            given: Any = {"bias": it.alibi(H), "softcap": softcap, "sinks": sinks}
            return it.attention(q, k, v, mask=it.causal(), **given)

    def squared(w: Tensor) -> Tensor:
        rest = 0 if sinks is None else (1 - w.sum(-1, True)).square()
        return w.square() / (w.square().sum(-1, True) + rest)

    found = []
    for edit in (edits.sharpen(2.0, heads=[0, 3]), edits.weights(squared, heads=[0, 3])):
        attend = Ours()
        with it.edit(attend, edit):
            found.append(attend(*qkv()))
    torch.testing.assert_close(*found)


def test_weights_that_are_no_shares_act_and_are_kept() -> None:
    attend, given = Attend(), qkv()
    with it.edit(attend, edits.weights(lambda w: -3 * w)), it.watch(attend) as seen:
        y = attend(*given)
    torch.testing.assert_close(y, -3 * attend(*given))
    torch.testing.assert_close(seen.calls[0].matrix() @ given[2], y)
    assert "an edit made them" in str(seen.coverage()) and seen.calls[0].verified


def test_a_run_replaces_parts_of_another() -> None:
    attend, (q, k, v) = Attend(), qkv()
    with it.watch(attend, gradients=True) as seen:
        y = attend(q.flip(0), k.flip(0), v.flip(0))
    for part in ("weights", "queries", "keys", "values", "outputs"):
        with it.edit(attend, edits.replace(seen, part)):  # type: ignore[arg-type]
            found = attend(q, k, v)
        a, b, c = (
            x.flip(0) if part == name else x
            for name, x in (("queries", q), ("keys", k), ("values", v))
        )
        if part == "weights":
            a, b = q.flip(0), k.flip(0)
        torch.testing.assert_close(found, y if part == "outputs" else attend(a, b, c))
    with it.edit(attend, edits.replace(seen, "mean", heads=[1])):
        found = attend(q, k, v)
    torch.testing.assert_close(found[:, 1], y[:, 1].mean((0, 1)).expand_as(found[:, 1]))
    torch.testing.assert_close(found[:, 0], attend(q, k, v)[:, 0])


REFUSED: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (edits.off(heads=[4]), {}, ArgumentError, "heads: expected numbers below 4; got 4"),
    (edits.off(heads=["one"]), {}, ArgumentError, "heads: expected numbers below 4"),
    (edits.off(heads=torch.ones(3).bool()), {}, ArgumentError, r"heads: expected booleans \(4,\)"),
    (edits.forbid("dog"), {"tokens": TOKENS}, ArgumentError, "keys: expected the text of a token"),
    (edits.forbid("cat"), {}, ArgumentError, "since the tokens are not known here"),
    (edits.forbid(1.5), {}, KindError, "keys: expected positions"),  # type: ignore[arg-type]
    (
        edits.forbid([0], rows=torch.ones(2, 2, 2).bool()),
        {},
        ArgumentError,
        r"rows: expected booleans",
    ),
    (edits.forbid([0], rows=[9]), {}, KernelError, "first: call 0 has 4 heads, 5 queries"),
    (edits.forbid([0], rows=slice("a", 2)), {}, KindError, "rows: expected positions"),
    (edits.forbid([0], rows=[]), {}, KernelError, "got none for '\\*'"),
    (edits.weights(lambda w: w[..., :2]), {}, ArgumentError, "expected weights of shape"),
    (edits.weights(lambda w: None), {}, ArgumentError, "expected weights of shape"),  # type: ignore[arg-type, return-value]
    ({"third": edits.off()}, {}, ArgumentError, "layers: expected names of modules"),
    ({}, {}, KindError, "edits: expected an edit"),
    ({"first": 3}, {}, KindError, "edits: expected an edit"),
    ("off", {}, KindError, "edits: expected an edit"),
]


@pytest.mark.parametrize(("edit", "options", "error", "text"), REFUSED)
def test_refused(edit: Any, options: dict[str, Any], error: type[Exception], text: str) -> None:
    model = Two()
    with pytest.raises(error, match=text), it.edit(model, edit, **options):
        model(*qkv())


@pytest.mark.parametrize("make", [lambda: edits.favour([0], 0.0), lambda: edits.sharpen(-1.0)])
def test_factors(make: Callable[[], edits.Edit]) -> None:
    with pytest.raises(ArgumentError, match="a positive number"):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: edits.favour([0], "3"), "factor: expected a positive number; got '3'"),
        (lambda: edits.sharpen(None), "power: expected a positive number; got None"),
        (lambda: edits.weights(3), "function: expected a function of the dense weights"),
        (lambda: edits.replace(None), "recording: expected what it.watch"),
        (lambda: it.effects(Two(), 3, float), "run: expected a function; got int"),
        (lambda: it.path_effects(Two(), print, print, 3), "score: expected a function; got int"),
    ],
)
def test_arguments_of_another_kind(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((ArgumentError, KindError), match=message):
        make()


def test_recordings_that_do_not_fit() -> None:
    attend, (q, k, v) = Attend(), qkv()
    with it.watch(attend) as short:
        attend(q[:, :, :3], k[:, :, :3], v[:, :, :3])
    for part in ("weights", "queries", "keys"):
        edit = edits.replace(short, part)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="recording: expected"), it.edit(attend, edit):
            attend(q, k, v)
    with it.watch(attend) as plain:
        attend(q, k, v)
    outputs = edits.replace(plain, "outputs")
    with pytest.raises(ArgumentError, match="gradients=True"), it.edit(attend, outputs):
        attend(q, k, v)
    with pytest.raises(ArgumentError, match='part: expected one of "weights"'):
        edits.replace(plain, "scores")  # type: ignore[arg-type]


def test_patterns_name_layers() -> None:
    model, given = Two(), qkv()
    plain = model(*given)
    with it.edit(model, {"second": edits.off(heads=[1])}) as done:
        y = model(*given)
    assert list(done) == ["second"] and str(done).startswith("second  1 call  off(heads=[1])")
    assert torch.equal(y[:, [0, 2, 3]], plain[:, [0, 2, 3]]) and not y[:, 1].any()
    with it.edit(model, {"first": edits.off(), "*": edits.off(heads=[0])}):
        assert not model(*given).any()
    assert torch.equal(model(*given), plain)


def test_edits_within_edits_and_watches() -> None:
    """The outer edit acts first; every watch keeps what came out in the end."""
    attend, given = Attend(), qkv()
    one, other = edits.sharpen(2.0), edits.weights(lambda w: w.flip(-1), heads=[0])
    with it.edit(attend, one & other):
        expected = attend(*given)
    both = it.edit(attend, one), it.edit(attend, other)
    with it.watch(attend) as around, both[0], both[1], it.watch(attend) as within:
        y = attend(*given)
    torch.testing.assert_close(y, expected)
    for seen in (around, within):
        torch.testing.assert_close(seen.calls[0].matrix().dense() @ given[2], y)
        said = str(seen.coverage())
        assert "sharpen(power=2.0)" in said and "weights(" in said


def test_recordings_of_edited_weights_are_saved_and_drawn(tmp_path: Path) -> None:
    model = drawn("gpt2", "sdpa")
    ids = torch.randint(2, 64, (1, T))
    edit = edits.previous(heads=[1]) & edits.off(heads=[0]) & edits.uniform(rows=[3])
    with torch.no_grad(), it.edit(model, edit), it.watch(model, tokens=TOKENS) as seen:
        model(ids)
    seen.save(tmp_path / "edited.safetensors")
    again = load_recording(tmp_path / "edited.safetensors")
    name = "transformer.h.1.attn"
    torch.testing.assert_close(again[name].dense(), seen[name].dense())
    assert "these are the weights after" in str(again.coverage())
    previous = again[name].dense()[0, 1]
    assert torch.equal(previous.argmax(-1)[[0, 1, 2, 4]], torch.tensor([0, 0, 1, 3]))
    assert not again[name].dense()[0, 0, :3].any()
    assert len(seen.summary()) == 8
    seen.page(tmp_path / "page.html")
    assert "<html" in (tmp_path / "page.html").read_text()[:300].lower()


def test_any_exception_undoes_an_edit() -> None:
    model, given = Two(), qkv()
    plain = model(*given)

    def fails(w: Tensor) -> Tensor:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"), it.edit(model, edits.weights(fails)):
        model(*given)
    with pytest.raises(KeyboardInterrupt), it.edit(model, edits.off()):
        raise KeyboardInterrupt
    assert torch.equal(model(*given), plain)


def test_blocks_are_entered_once() -> None:
    block = it.edit(Two(), edits.off())
    with pytest.raises(KernelError, match="got none for"), block:
        pass
    with pytest.raises(KernelError, match="one that was entered before"), block:
        pass
    with pytest.raises(KernelError, match="one that was not entered"):
        it.edit(Two(), edits.off()).__exit__(None, None, None)


def test_models_of_other_threads_are_not_edited() -> None:
    model, other, given = Two(), Two(), qkv()
    plain, found = model(*given), []
    with it.edit(model, edits.off(heads=[1])):
        thread = threading.Thread(target=lambda: found.extend([model(*given), other(*given)]))
        thread.start()
        thread.join()
        assert torch.equal(other(*given), plain)
        assert not model(*given)[:, 1].any()
    assert all(torch.equal(y, plain) for y in found)


def test_compiled_models_are_refused() -> None:
    model = torch.compile(Two(), backend="eager")
    with (
        pytest.raises(KernelError, match=r"compiled by torch\.compile"),
        it.edit(model, edits.off()),
    ):
        model(*qkv())


@pytest.mark.parametrize("name", ["gpt2", "t5"])
@torch.no_grad()
def test_weights_that_a_model_returns_are_the_edited_ones(name: str) -> None:
    model, ids = drawn(name, "eager"), torch.randint(2, 64, (2, T))
    given = {"decoder_input_ids": ids} if name == "t5" else {}
    edit = edits.forbid([0], rows=[2, 3], heads=[1])
    with it.edit(model, edit), it.watch(model) as seen:
        out = model(ids, **given, output_attentions=True)
    returned = out.decoder_attentions if name == "t5" else out.attentions
    kept = [x for x in seen.layers if x.endswith("attn") or ("decoder" in x and "Self" in x)]
    for layer, w in zip(kept, returned, strict=True):
        assert not w[:, 1, 2:4, 0].any() and bool(w[:, 0, 2:4, 0].any())
        torch.testing.assert_close(seen[layer].dense(), w)


@pytest.mark.parametrize("rows", [[4], None])
def test_dropout_acts_on_rows_that_no_edit_names(rows: list[int] | None) -> None:
    attend, (q, k, _) = Attend(), qkv()
    attend.dropout, v = 0.5, torch.ones(2, H, T, D)
    with it.edit(attend, edits.uniform(rows=rows)):
        y = attend(q, k, v)
    torch.testing.assert_close(y[..., 4, :], torch.ones(2, H, D))
    assert float(y[..., :4, :].std()) > 0.2 or rows is None
