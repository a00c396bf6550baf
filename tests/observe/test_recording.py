"""A recording gives matrices by name, labels them, and says what it lacks."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intently as it
from intently.observe import Recording
from intently.observe.watching.unseen import LAST_BITS
from intently.show.page import items_of

from ..messages import refused
from ..show.refusals import refuses
from .attending import SelfAttention, Stack, Unnormalised, attended, close, seen_by, stack
from .test_blocks import longformer

WORDS = ["I", "drink", "cold", "milk", "."]


def seen_once(model: nn.Module | None = None, times: int = 1, **options: object) -> Recording:
    model = model or stack(2)
    with it.watch(model, **options) as seen:  # type: ignore[arg-type]
        for _ in range(times):
            model(torch.randn(1, 4, 32))
    return seen


def test_names_calls_and_counts() -> None:
    seen = seen_once()
    assert list(seen) == ["layers.0", "layers.1"] and len(seen) == 2
    assert seen.calls[1].name == "layers.1" and seen.calls[1].shape == (1, 4, 4, 4)
    assert repr(seen) == "Recording(2 layers, 2 calls)"
    assert torch.equal(seen["layers.1"].dense(), seen["layers.1", -1].dense())


def test_other_names_and_numbers_are_refused() -> None:
    seen = seen_once()
    unseen = seen_once(Stack(SelfAttention(), Unnormalised()))
    refuses(
        it.errors.ArgumentError,
        {
            r"name: expected the name of a module that attended; got 'layer.1'. The nearest are": (
                lambda: seen["layer.1"]
            ),
            r"i: expected a number from 0 to 0; got 1": lambda: seen["layers.1", 1],
            r"i: expected a number .* got True": lambda: seen["layers.1", True],
            r"got 'layers.1'. By hand: the values met scores at attending.py": (
                lambda: unseen["layers.1"]
            ),
        },
    )


def test_rows_of_a_decoder_are_labelled_with_what_they_produce() -> None:
    rows, columns = seen_once(tokens=WORDS)["layers.0"].labels
    assert columns == ("I", "drink", "cold", "milk")
    assert rows == ("drink", "cold", "milk", ".")
    assert seen_once(tokens=WORDS[:4])["layers.0"].labels[0] == ("drink", "cold", "milk", "")
    assert seen_once(tokens=WORDS[:2])["layers.0"].labels == (None, None)


def test_tokens_that_are_known_only_afterwards() -> None:
    seen = seen_once()
    seen.tokens = WORDS
    assert seen["layers.1"].labels[1] == tuple(WORDS[:4]) and seen.tokens is WORDS
    seen.tokens = None
    assert seen["layers.1"].labels == (None, None)


def test_rows_of_an_encoder_are_labelled_with_what_they_are() -> None:
    words = tuple(WORDS[:4])
    seen = seen_once(Stack(SelfAttention(is_causal=False)), tokens=words)
    assert seen["layers.0"].labels == (words, words)
    k = torch.randn(1, 2, 5, 8)
    seen = attended(k[..., :3, :], k, tokens=WORDS)
    assert seen["attention"].labels == (None, tuple(WORDS))


def test_rollout_follows_a_token() -> None:
    seen = seen_once(tokens=WORDS[:4])
    expected = it.rollout([seen["layers.0"], seen["layers.1"]], queries=1)
    assert torch.equal(seen.rollout("drink"), expected)
    assert torch.equal(seen.rollout(1), expected)
    refuses(
        it.errors.ArgumentError,
        {
            r"token: expected a position, or a token": lambda: seen.rollout("tea"),
            r"several of 'layers.0'": lambda: seen_once(stack(1), 2).rollout(0),
        },
    )


def test_a_summary_has_a_row_for_each_head() -> None:
    table = seen_once(stack(1), tokens=["a", "b", "a", "c"]).summary()
    assert table["layer"] == ["layers.0"] * 4 and table["head"] == [0, 1, 2, 3]
    assert torch.isfinite(torch.tensor(table["duplicate"])).all()
    assert set(seen_once(stack(1), 2).summary()["layer"]) == {"layers.0[0]", "layers.0[1]"}


LINE = f"attending.py:{Unnormalised.forward.__code__.co_firstlineno + 2}"


def test_coverage_lists_what_was_not_seen() -> None:
    seen = seen_once(Stack(SelfAttention(), Unnormalised()))
    assert str(seen.coverage()).splitlines() == [
        "layers.0  1 call    functional  verified on 2 of 4 rows",
        f"layers.1  not seen              by hand: the values met scores at {LINE} that nothing "
        "made a whole along the keys",
    ]


def test_what_cannot_be_kept_is_listed() -> None:
    q = torch.randn(1, 2, 3, 8)
    with it.watch() as seen:
        y = F.scaled_dot_product_attention(q.to_sparse().to_dense(), q, q)
        nested = torch.nested.nested_tensor([q[0]], layout=torch.jagged)
        F.scaled_dot_product_attention(*[nested.transpose(1, 2)] * 3)
    assert y.shape == q.shape
    assert not seen.coverage().unseen
    assert "Not every call of attention was kept" in str(seen.coverage())
    assert "NestedTensor, not plain tensors" in str(seen.coverage())


def test_autocast_is_followed() -> None:
    with torch.autocast("cpu"):
        seen = seen_by(stack(1), torch.randn(2, 5, 32))
    assert seen["layers.0"].dtype is torch.bfloat16 and seen.calls[0].verified


@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("fused", [True, False])
def test_autocast_rounds_what_is_recorded_as_it_rounds_what_runs(
    to: torch.dtype, dtype: torch.dtype, fused: bool
) -> None:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (3 * torch.randn(3, 1, 2, 9, 16, generator=draw)).to(dtype)
    bias = (10 * torch.randn(1, 2, 9, 9, generator=draw)).to(dtype)
    with torch.autocast("cpu", to), it.watch(deep=True) as seen:
        if fused:
            F.scaled_dot_product_attention(q, k, v, bias)
        else:
            (q @ k.mT * 0.25 + bias.to(to)).softmax(-1) @ v
    ran = dtype if dtype is torch.float64 else to
    (call,) = seen.calls
    A = call.attention()
    assert call.verified and A.q.dtype is ran and A.problem.bias is not None
    (added,) = A.problem.bias.tensors()
    found = it.attend(A.q.double(), A.k.double(), bias=added.double(), scale=0.25)
    rounded = bias.to(ran if fused else to).double()
    scores = q.to(ran).double() @ k.to(ran).double().mT * 0.25
    torch.testing.assert_close(found.dense(), (scores + rounded).softmax(-1), rtol=0, atol=1e-12)


def test_grouped_heads_and_top_left_masks() -> None:
    q, k = torch.randn(2, 6, 4, 8), torch.randn(2, 2, 7, 8)
    with it.watch() as seen:
        F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True, scale=0.5)
    (entry,) = seen.calls
    assert entry.verified, entry.why
    close(entry, it.attend(q, k, mask=it.causal(0), scale=0.5).dense())


def test_additive_masks_become_rules_and_other_biases_stay() -> None:
    q = torch.randn(2, 2, 5, 8)
    low = torch.finfo(torch.float32).min
    causal = torch.full((5, 5), low).triu(1)
    bias = torch.randn(2, 5, 5)
    everything = causal.clone()
    everything[2] = low  # the lowest number everywhere gives a mean, not zeros
    infinite = causal.masked_fill(causal < 0, -torch.inf)
    with it.watch() as seen:
        for mask in (causal, causal.clamp(min=-100), bias, infinite, everything):
            F.scaled_dot_product_attention(q, q, q, mask)
    hows = [entry.rows.how() for entry in seen.calls]
    assert [repr(how.mask) for how in hows] == ["causal()", "None", "None", "causal()", "None"]
    assert all(entry.verified for entry in seen.calls), str(seen.coverage())
    assert torch.allclose(seen["attention", 4].dense()[..., 2, :], torch.tensor(0.2))


def test_import_intently_does_not_load_watching() -> None:
    code = "import sys, intently; print('intently.observe' in sys.modules, intently.watch.__name__)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "watch"]
    with pytest.raises(AttributeError, match="has no attribute 'watches'"):
        it.watches  # type: ignore[attr-defined]  # noqa: B018


def test_tokens_label_only_the_side_they_belong_to() -> None:
    model = nn.Transformer(16, 2, 1, 1, 32, 0.0, batch_first=True).eval()
    seen = seen_by(model, torch.randn(1, 5, 16), torch.randn(1, 7, 16), tokens=list("abcdabc"))
    labels = {tuple(entry.shape[-2:]): entry.matrix().labels for entry in seen.calls}
    assert labels[5, 5] == labels[7, 5] == (None, None)
    assert labels[7, 7] == (tuple("abcdabc"), tuple("abcdabc"))


def test_a_recording_is_a_mapping_of_names() -> None:
    seen, empty = seen_once(times=3), seen_once(times=0)
    assert len(seen) == len(list(seen)) == len(seen.layers) == 2 and len(seen.calls) == 6
    assert "layers.1" in seen and "layers.2" not in seen
    assert not empty and len(empty) == 0


def referenced() -> tuple[Recording, Tensor]:
    """A recording of references, and a tensor that one of its two entries rests on."""
    q, k = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8)
    model = stack(1)
    with it.watch(store="reference") as seen, torch.no_grad():
        model(torch.randn(1, 4, 32))
        F.scaled_dot_product_attention(q, k, k)
    assert all(entry.verified for entry in seen.calls), str(seen.coverage())
    return seen, q


def test_an_entry_that_is_stale_is_named_and_left_out() -> None:
    seen, q = referenced()
    assert seen.calls[1].lost() is None and not seen.summary().left_out
    q.add_(1)
    reason = "store: expected the tensors and weights that the model had when it ran; got a tensor"
    (told,) = [line for line in str(seen.coverage()).splitlines() if "attention" in line[:9]]
    assert f"; cannot be read any more: {reason}" in told
    assert seen.coverage().seen[0].lost == []
    table = seen.summary()
    assert list(table.left_out) == ["attention"] and reason in table.left_out["attention"]
    assert set(table["layer"]) == {seen.layers[0]}
    for shown in (table.sort("entropy"), table.filter(head=0)):
        assert str(shown).splitlines()[-1].startswith(f"attention  left out: {reason}")
        assert repr(shown) == str(shown)
    with pytest.raises(it.errors.StaleError):
        seen["attention"]


def test_masks_and_weights_that_changed() -> None:
    mask, q = torch.randn(4, 4), torch.randn(1, 2, 4, 8)
    layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    with torch.no_grad(), it.watch(store="reference") as seen:
        F.scaled_dot_product_attention(q, q, q, mask)
        layer(q[0], q[0], q[0])
        mask.add_(1)
        layer.in_proj_weight.add_(1)
    lost = [line.lost for line in seen.coverage().seen]
    assert len(lost[0]) == len(lost[1]) == 1 and "a tensor of shape" in lost[1][0]
    table = seen.summary()
    assert len(table) == 0 and len(table.left_out) == 2


def test_all_calls_of_a_layer_count_in_its_line() -> None:
    q = [torch.randn(1, 2, n, 8) for n in (3, 4)]
    with it.watch(store="reference") as seen, torch.no_grad():
        for x in q:
            F.scaled_dot_product_attention(x, x, x)
    for entry in seen.calls:
        entry.compared = 2
    assert str(seen.coverage()) == "attention  2 calls  functional  verified on 4 of 7 rows"
    seen.calls[0].compared = 5  # of a cache that was cropped since
    assert seen.coverage().seen[0].compared == 5
    seen.calls[0].compared = 2
    q[1].add_(1)
    told = str(seen.coverage())
    assert "verified on 4 of 7 rows; 1 of 2 cannot be read any more: store: " in told


def test_what_is_unverified_is_named_below_the_table() -> None:
    seen = seen_once()
    seen.calls[0].verified, seen.calls[0].why = False, "it differs"
    table = seen.summary()
    assert table.left_out == {"layers.0": "UNVERIFIED: it differs"}
    assert str(table).endswith("\nlayers.0  left out: UNVERIFIED: it differs")


class BothWays(nn.Module):
    """Attention by PyTorch's function, and by hand on top of it."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.scaled_dot_product_attention(x, x, x)
        return (y @ x.mT).softmax(-1) @ x


@pytest.mark.parametrize("deep", [False, True])
def test_attention_by_hand_beside_a_call_is_seen(deep: bool) -> None:
    seen = seen_once(nn.Sequential(BothWays()), deep=deep)
    assert {entry.source for entry in seen.calls} == {"functional", "by hand"}
    assert len(seen.calls) == 2 and seen.coverage().notes == [LAST_BITS] * deep


OPEN = (
    'store: expected a recording in memory to copy or pickle; got store="disk". Its file '
    "goes away with it. Write one: seen.save(path), then it.load_recording(path)."
)


@pytest.mark.parametrize("store", ["copy", "disk"])
@pytest.mark.parametrize("again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_recording_is_copied_or_says_that_its_file_cannot_be(store: str, again: Any) -> None:
    q = torch.randn(1, 2, 4, 8)
    seen = attended(q, q, store=store)
    if store == "disk":
        for x in (seen, seen.calls[0]):
            refused(lambda x=x: again(x), it.errors.ArgumentError, OPEN, whole=True)
    found = again(seen) if store == "copy" else seen
    assert torch.equal(found["attention"].dense(), it.attend(q, q).dense())


def test_calls_that_share_a_tensor_may_differ_in_everything_else() -> None:
    x, seen_keys, added = torch.randn(1, 2, 6, 4), torch.rand(6, 6) < 0.6, torch.randn(6, 6)
    seen_keys |= torch.eye(6, dtype=torch.bool)
    ways: list[dict[str, Any]] = [
        {"mask": it.allowed(seen_keys)},
        {"mask": it.allowed(seen_keys) & it.causal()},
        {"mask": it.allowed(seen_keys), "bias": it.alibi()},
        {"bias": added},
        {"bias": it.alibi() + added},
        {"bias": added, "mask": it.causal()},
    ]
    with it.watch() as seen:
        for way in ways:
            it.attention(x, x, x, **way)
    for entry, way in zip(seen.calls, ways, strict=True):
        assert entry.verified, way
        close(entry, it.attend(x, x, **way).dense())


class Graded(nn.Module):
    """Attention whose weights are multiplied before they meet the values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return (torch.softmax(q @ k.mT / 4, -1) * torch.linspace(0.5, 1, x.shape[1])) @ v


@pytest.mark.parametrize("kind", ["longformer", "by hand"])
def test_weights_that_are_kept_fill_no_more_than_a_budget(kind: str) -> None:
    model: Any = longformer() if kind == "longformer" else nn.Sequential(Graded(), Graded())
    x = torch.randint(4, 50, (1, 48)) if kind == "longformer" else torch.randn(1, 6, 16)
    seen, expected = within(model, x)
    first, second = seen.layers
    size = sum(tensor.nbytes for tensor in seen.calls[0].tensors())
    assert within(model, x, budget=2 * size)[0].layers == (first, second)
    assert within(model, x, budget=size, layers=second)[0].layers == (second,)
    assert within(model, x, budget=0, store="disk")[0].layers == (first, second)
    for store in ("copy", "reference"):
        seen, found = within(model, x, budget=2 * size - 1, store=store)
        assert torch.equal(found, expected)
        assert seen.layers == (first,) and seen.calls[0].verified
        assert seen.coverage().unseen == {
            second: f"weights: expected at most the {size - 1:,} bytes that are left of "
            f"budget={2 * size - 1:,}; got {size:,} bytes. No queries and keys give them, so that "
            "each of them is kept. Raise budget=, choose fewer layers=, or keep them in a file, "
            'store="disk".'
        }
    with torch.no_grad(), it.watch(model, budget=size) as seen:
        model(x)
        model(x)
    assert f"Not every call of {first} was kept: weights: expected" in str(seen.coverage())


def within(model: nn.Module, x: Tensor, **options: Any) -> tuple[Recording, Tensor]:
    """What a watch with these options keeps, and the output."""
    with torch.no_grad(), it.watch(model, **options) as seen:
        y = model(x)
    return seen, y if isinstance(y, Tensor) else y[0]


def test_what_changed_weights_is_said_everywhere(tmp_path: Path) -> None:
    with torch.no_grad(), it.watch(model := nn.Sequential(Graded())) as seen:
        model(torch.randn(1, 6, 16))
    seen.save(tmp_path / "run.safetensors")
    for one in (seen, it.load_recording(tmp_path / "run.safetensors")):
        assert one.calls[0].changed == "aten.mul" and one.calls[0].tensors()
        assert one.summary()["changed"] == ["aten.mul"]
        assert "aten.mul changed its weights before they met the values" in str(one.coverage())
        (item,) = items_of(one)
        assert item.note == "0: aten.mul changed its weights before they met the values"
