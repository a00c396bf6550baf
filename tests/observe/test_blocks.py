"""Scores that are gathered in blocks: one matrix over the positions of the text."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as T
from torch import Tensor, nn

import intently as it
from intently.observe.watching.unseen import LAST_BITS

from .attending import Softmaxes

HEADS = 2
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": HEADS}
DECODER = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "init_std": 0.5,
}
SMALL = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def longformer(window: int = 4) -> nn.Module:
    return T.LongformerModel(
        T.LongformerConfig(
            **SMALL,
            **SIZES,
            sep_token_id=3,
            intermediate_size=16,
            attention_window=window,
            max_position_embeddings=100,
            initializer_range=0.5,
        )
    ).eval()


def bigbird() -> nn.Module:
    return T.BigBirdModel(
        T.BigBirdConfig(
            **SMALL,
            **SIZES,
            sep_token_id=3,
            intermediate_size=16,
            block_size=4,
            num_random_blocks=2,
            max_position_embeddings=100,
            attention_probs_dropout_prob=0.0,
            hidden_dropout_prob=0.0,
            initializer_range=0.5,
        )
    ).eval()


def bigbird_pegasus() -> nn.Module:
    config = T.BigBirdPegasusConfig(**SMALL, **DECODER, block_size=4, num_random_blocks=2)
    return T.BigBirdPegasusModel(config).get_encoder().eval()


def led() -> nn.Module:
    return T.LEDModel(T.LEDConfig(**SMALL, **DECODER, attention_window=4)).get_encoder().eval()


def pegasus_x() -> nn.Module:
    config = T.PegasusXConfig(**SMALL, **DECODER, block_size=4, num_global_tokens=3)
    return T.PegasusXModel(config).get_encoder().eval()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def texts(padded: bool, t: int = 48) -> dict[str, Tensor]:
    ids, mask = torch.randint(4, 50, (2, t)), torch.ones(2, t, dtype=torch.long)
    if padded:
        ids[1, 30:], mask[1, 30:] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def watched(model: nn.Module, inputs: dict[str, Any], calls: int = 1, **options: Any) -> Any:
    """A recording with so many calls of each layer, all of them verified."""
    with torch.no_grad():
        expected = model(**inputs)[0]
        with it.watch(model, **options) as seen:
            got = model(**inputs)[0]
    assert torch.equal(got, expected)
    assert all(entry.verified for entry in seen.calls), seen.coverage()
    assert Counter(x.name for x in seen.calls) == dict.fromkeys(seen.layers, calls), seen.coverage()
    assert not seen.covered.unseen, seen.coverage()
    notes = set(seen.covered.notes) - {LAST_BITS}
    assert all("the weights themselves are kept" in x for x in notes), seen.coverage()
    return seen


def from_windows(made: Any, layer: int, marked: Tensor) -> Tensor:
    """The weights (b, h, t, t) that Longformer returns as windows and global keys."""
    local = made.attentions[layer]
    b, h, t, _ = local.shape
    most = int(marked.sum(-1).max())
    w = (local.shape[-1] - most) // 2
    dense = torch.zeros(b, h, t, t)
    for i, c in itertools.product(range(t), range(-w, w + 1)):
        if 0 <= i + c < t:
            dense[:, :, i, i + c] += local[:, :, i, most + w + c]
    for row in range(b):
        for n, key in enumerate(marked[row].nonzero().flatten().tolist()):
            dense[row, :, :, key] += local[row, :, :, n]
    return dense


def returned(model: nn.Module, inputs: dict[str, Any]) -> Any:
    """What a model returns with its own weights."""
    with torch.no_grad():
        return model(**inputs, output_attentions=True)


def compare(found: Tensor, expected: Tensor, rows: Tensor | None = None) -> None:
    """Compare weights, of texts without padding or of the rows (b, t) that are none."""
    if rows is not None:
        keep = rows.bool()[:, None, :, None]
        found, expected = found * keep, expected * keep
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("padded", [False, True])
def test_longformer_is_one_matrix_of_positions(padded: bool) -> None:
    model, inputs = longformer(), texts(padded)
    seen, made = watched(model, inputs), returned(model, inputs)
    for layer, name in enumerate(seen.layers):
        assert seen[name].shape == (2, HEADS, 48, 48)
        compare(seen[name].dense(), from_windows(made, layer, torch.zeros(2, 48)))


@pytest.mark.parametrize("padded", [False, True])
def test_global_tokens_are_keys_of_all_rows_and_attend_in_calls_of_their_own(padded: bool) -> None:
    model, marked = longformer(), torch.zeros(2, 48, dtype=torch.long)
    marked[:, [0, 7]] = 1
    inputs = {**texts(padded), "global_attention_mask": marked}
    seen, made = watched(model, inputs, calls=2), returned(model, inputs)
    for layer, name in enumerate(seen.layers):
        local, rows = (seen[name, n].dense() for n in (0, 1))
        compare(
            local, from_windows(made, layer, marked), marked == 0
        )  # the model returns no others
        compare(rows, made.global_attentions[layer].mT)


@pytest.mark.parametrize("padded", [False, True])
def test_global_tokens_of_each_text_leave_blocks(padded: bool) -> None:
    model, marked = longformer(), torch.zeros(2, 48, dtype=torch.long)
    marked[0, [0, 7]] = marked[1, 0] = 1
    inputs = {**texts(padded), "global_attention_mask": marked}
    seen, made = watched(model, inputs, calls=2), returned(model, inputs)
    for layer, name in enumerate(seen.layers):
        local, rows = (seen[name, n].dense() for n in (0, 1))
        own = made.attentions[layer].unflatten(2, (24, 2))  # 2 global keys, 5 of the window
        expected = torch.zeros(2, HEADS, 24, 2, 8)
        expected[..., :2] = own[..., :2]
        expected[..., 0, 2:7], expected[..., 1, 3:8] = own[..., 0, 2:], own[..., 1, 2:]
        shown = (marked == 0).view(2, 24, 1, 2, 1)
        compare(local * shown, expected.transpose(1, 2) * shown)
        compare(rows[0], made.global_attentions[layer][0].mT)
        compare(rows[1, :, :1], made.global_attentions[layer][1].mT[:, :1])


@pytest.mark.parametrize("padded", [False, True])
def test_leds_encoder(padded: bool) -> None:
    model, inputs = led(), texts(padded)
    seen, made = watched(model, inputs), returned(model, inputs)
    for layer, name in enumerate(seen.layers):
        compare(seen[name].dense(), from_windows(made, layer, torch.zeros(2, 48)))


def by_blocks(n: int) -> list[list[int]]:
    """The blocks of keys of each block of queries in BigBird, outside of training.

    All random blocks are the first then.
    """
    near = [[i - 1, i, i + 1] for i in range(2, n - 2)]
    middle = [[*x, 0, 0, 0, n - 1] for x in near]
    second, before_last = [0, 1, 2, n - 1, 0, 0], [0, n - 3, n - 2, n - 1, 0, 0]
    return [[*range(n)], second, *middle, before_last, [*range(n)]]


def projected(model: nn.Module, inputs: dict[str, Tensor], name: str, parts: str) -> list[Tensor]:
    """What layers such as ``query`` and ``key`` of a module return, as (b, h, t, d)."""
    found: list[Tensor] = []

    def keep(_: nn.Module, __: Any, out: Tensor) -> None:
        found.append(out.unflatten(-1, (HEADS, -1)).transpose(1, 2))

    module = model.get_submodule(name)
    hooks = [getattr(module, x).register_forward_hook(keep) for x in parts.split()]
    with torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("make", [bigbird, bigbird_pegasus])
@pytest.mark.parametrize("padded", [False, True])
def test_each_softmax_of_bigbird_is_a_call(
    make: Callable[[], nn.Module], deep: bool, padded: bool
) -> None:
    """A key that comes several times in a row of blocks in their places is counted so often."""
    model, inputs = make(), texts(padded)
    seen, known = watched(model, inputs, 5, deep=deep), inputs["attention_mask"].bool()
    for name in seen.layers:
        q, k = (x.unflatten(2, (12, 4)) for x in projected(model, inputs, name, "query key"))
        shown = known.view(2, 1, 12, 4)
        made: list[Tensor] = []
        for i, blocks in enumerate(by_blocks(12)):
            z = q[:, :, i] @ k[:, :, blocks].flatten(2, 3).mT / q.shape[-1] ** 0.5
            z = z.masked_fill(~shown[:, :, None, blocks].flatten(-2), -10000)
            made.append(z.softmax(-1) * shown[:, :, i, :, None])
        middle = torch.zeros(2, HEADS, 8, 4, 48)
        for i, blocks in enumerate(by_blocks(12)[2:-2]):
            at = (torch.tensor(blocks)[:, None] * 4 + torch.arange(4)).flatten()
            middle[:, :, i].index_add_(-1, at, made[i + 2])
        expected = [*made[:2], middle.flatten(2, 3), *made[-2:]]
        rows = [known[:, i : i + n] for i, n in ((0, 4), (4, 4), (8, 32), (40, 4), (44, 4))]
        for n in range(5):
            compare(seen[name, n].dense(), expected[n], rows[n])


def test_random_blocks_of_bigbird_differ_from_head_to_head() -> None:
    model, inputs = bigbird().train(), texts(True, 64)
    with torch.no_grad(), it.watch(model) as seen, Softmaxes() as real:
        model(**inputs)
    assert len(seen.calls) == len(real.found) == 10, seen.coverage()
    for entry, expected in zip(seen.calls, real.found, strict=True):
        assert entry.verified
        five = expected.ndim == 5
        compare(entry.matrix().dense(), expected.transpose(1, 2) if five else expected)


@pytest.mark.parametrize("padded", [False, True])
def test_pegasus_x_attends_from_global_and_from_local_rows(padded: bool) -> None:
    model, inputs = pegasus_x(), texts(padded)
    seen = watched(model, inputs, calls=2)
    name, keys = "layers.0.self_attn", inputs["attention_mask"].bool()
    q, k, global_q, global_k = projected(model, inputs, name, "q_proj k_proj")[:4]
    hidden = ~F.pad(keys, (3, 0), value=True)[:, None, None]  # global tokens come first
    scores = global_q @ torch.cat([global_k, k], -2).mT / 8**0.5
    compare(seen[name, 0].dense(), scores.masked_fill(hidden, -torch.inf).softmax(-1))
    q, k = (x.unflatten(2, (12, 4)) for x in (q, k))
    local = (q @ k.mT).masked_fill(~keys.view(2, 1, 12, 1, 4), torch.finfo().min)
    scores = torch.cat([q @ global_k[:, :, None].mT, local], -1) / 8**0.5
    compare(seen[name, 1].dense(), scores.softmax(-1).transpose(1, 2))
    assert seen["layers.1.self_attn", 1].shape == (2, 13, HEADS, 4, 7)  # half a block at both ends


class Chunks(nn.Module):
    """Local attention over the own chunk and the one before, causal: keys padded, then gathered."""

    def __init__(self, how: str, width: int = 4) -> None:
        super().__init__()
        self.how, self.width = how, width
        self.to_q, self.to_k, self.to_v = (nn.Linear(16, 16) for _ in range(3))

    def around(self, x: Tensor) -> Tensor:
        """Chunks (b, h, n, 2 w, d) of x (b, h, t, d)."""
        w = self.width
        b, h, t, d = x.shape
        if self.how == "cat":
            blocks = x.unflatten(2, (-1, w))
            before = torch.cat([torch.zeros_like(blocks[:, :, :1]), blocks[:, :, :-1]], 2)
            return torch.cat([before, blocks], 3)
        padded = F.pad(x, (0, 0, w, 0))
        if self.how == "unfold":
            return padded.unfold(2, 2 * w, w).transpose(-1, -2)
        padded = padded.contiguous()
        steps = padded.stride()
        return padded.as_strided((b, h, t // w, 2 * w, d), (*steps[:2], w * d, d, 1))

    def qkv(self, x: Tensor) -> list[Tensor]:
        layers = self.to_q, self.to_k, self.to_v
        return [f(x).unflatten(-1, (HEADS, 8)).transpose(1, 2) for f in layers]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)
        w = self.width
        scores = (q.unflatten(2, (-1, w)) * 8**-0.5) @ self.around(k).mT
        i, j = torch.arange(w)[:, None] + w, torch.arange(2 * w)
        first = torch.arange(scores.shape[2])[:, None, None] == 0
        scores = scores.masked_fill((j > i) | (first & (j < w)), -torch.inf)
        y = scores.softmax(-1) @ self.around(v)
        return y.flatten(2, 3).transpose(1, 2).flatten(2)


class Slices(Chunks):
    """The same, with scores joined from two products, those of the chunk before first."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(2, (-1, self.width)) for y in self.qkv(x))
        before = [F.pad(y, (0, 0, 0, 0, 1, 0))[:, :, :-1] for y in (k, v)]
        some = torch.cat([q @ before[0].mT, q @ k.mT], -1) / 8**0.5
        i, j = torch.arange(4)[:, None] + 4, torch.arange(8)
        first = torch.arange(some.shape[2])[:, None, None] == 0
        weights = some.masked_fill((j > i) | (first & (j < 4)), -torch.inf).softmax(-1)
        y = weights[..., :4] @ before[1] + weights[..., 4:] @ v
        return y.flatten(2, 3).transpose(1, 2).flatten(2)


HAND = {
    "cat": lambda: Chunks("cat"),
    "unfold": lambda: Chunks("unfold"),
    "as_strided": lambda: Chunks("as_strided"),
    "two products": lambda: Slices("unfold"),
}


@pytest.mark.parametrize("how", HAND)
@pytest.mark.parametrize("b", [1, 2])
def test_local_attention_by_hand(how: str, b: int) -> None:
    model, x = nn.Sequential(HAND[how]()), torch.randn(b, 24, 16)
    seen = watched(model, {"input": x})
    q, k, _ = model[0].qkv(x)
    i = torch.arange(24)
    sees = (i <= i[:, None]) & (i // 4 >= i[:, None] // 4 - 1)
    expected = (q @ k.mT * 8**-0.5).masked_fill(~sees, -torch.inf).softmax(-1)
    assert seen["0"].shape == (b, HEADS, 24, 24)
    compare(seen["0"].dense(), expected)


class Rotated(Chunks):
    """Keys that are turned by their place in the block: other keys in every block."""

    def around(self, x: Tensor) -> Tensor:
        blocks = super().around(x)
        return blocks * torch.linspace(0.5, 1.5, blocks.shape[-2])[:, None]


def test_values_that_differ_from_block_to_block_leave_blocks() -> None:
    model, x = nn.Sequential(Rotated("unfold")), torch.randn(2, 24, 16)
    seen = watched(model, {"input": x})
    q, k, _ = model[0].qkv(x)
    z = q.unflatten(2, (6, 4)) @ model[0].around(k).mT * 8**-0.5
    j = torch.arange(8)
    hidden = j > torch.arange(4)[:, None] + 4
    hidden = hidden | ((torch.arange(6) == 0)[:, None, None] & (j < 4))
    compare(seen["0"].dense(), z.masked_fill(hidden, -torch.inf).softmax(-1).transpose(1, 2))


class Relative(Chunks):
    """A number added to the scores by their place in the block: no mask explains it."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)
        scores = q.unflatten(2, (-1, 4)) @ self.around(k).mT + torch.arange(8.0)
        return (scores.softmax(-1) @ self.around(v)).flatten(2, 3).transpose(1, 2).flatten(2)


def test_padding_that_is_attended_is_no_key() -> None:
    model, x = nn.Sequential(Relative("unfold")), torch.randn(2, 24, 16)
    seen = watched(model, {"input": x})
    q, k, _ = model[0].qkv(x)
    weights = (q.unflatten(2, (6, 4)) @ model[0].around(k).mT + torch.arange(8.0)).softmax(-1)
    expected = torch.zeros(2, HEADS, 24, 28)  # with four keys of padding
    for n in range(6):
        expected[:, :, 4 * n : 4 * n + 4, 4 * n : 4 * n + 8] = weights[:, :, n]
    assert bool((expected[..., :4] > 0.01).any())
    compare(seen["0"].dense(), expected[..., 4:])


class Whole(nn.Module):
    """Two plain attentions and an unused gather: nothing is in blocks."""

    def forward(self, x: Tensor) -> Tensor:
        x.gather(1, torch.zeros(1, 1, 1, dtype=torch.long))
        first = (x @ x.mT).softmax(-1) @ x
        return (first @ F.pad(x, (0, 0, 1, 0)).mT).softmax(-1)[..., 1:] @ x


def test_plain_attention_in_a_module_that_gathers_stays_as_it_is() -> None:
    model, x = nn.Sequential(Whole()), torch.randn(2, 6, 4)
    seen = watched(model, {"input": x}, calls=2)
    first = (x @ x.mT).softmax(-1)
    compare(seen["0", 0].dense(), first)
    compare(seen["0", 1].dense(), (first @ x @ F.pad(x, (0, 0, 1, 0)).mT).softmax(-1)[..., 1:])


def test_rows_are_labelled_saved_and_drawn(tmp_path: Any) -> None:
    words = [f"w{i}" for i in range(48)]
    seen = watched(longformer(), {"input_ids": texts(False)["input_ids"][:1]}, tokens=words)
    matrix = seen[seen.layers[0]]
    assert matrix.labels == (tuple(words), tuple(words))
    table = seen.summary()
    assert len(table) == 2 * HEADS and all(row["self"] > 0 for row in table.rows)
    for name, make, calls in (("long", longformer, 1), ("bird", bigbird, 5)):
        seen = watched(make(), texts(True), calls)
        seen.save(tmp_path / f"{name}.safetensors")
        again = it.load_recording(tmp_path / f"{name}.safetensors")
        for one, other in zip(seen.calls, again.calls, strict=True):
            assert torch.equal(one.matrix().dense(), other.matrix().dense())
        assert seen.page(tmp_path / f"{name}.html").stat().st_size > 1000


def test_a_long_window_takes_no_memory_of_t_times_s() -> None:
    model, t = longformer(16), 4096
    model.embeddings.position_embeddings = nn.Embedding(t + 2, 16)
    marked = torch.zeros(1, t, dtype=torch.long)
    marked[0, 0] = 1
    ids = torch.randint(4, 50, (1, t))
    seen = watched(model, {"input_ids": ids, "global_attention_mask": marked}, calls=2)
    for name in seen.layers:
        matrix = seen[name, 0]
        assert matrix.shape[-2:] == (t, t)
        assert sum(x.numel() for x in (matrix.weights, matrix.rows, matrix.columns)) < 100 * t


def test_calls_that_are_alike_may_hide_other_scores_and_have_other_global_tokens() -> None:
    model = longformer()
    plain, padded = texts(False), texts(True)
    first, last = torch.zeros(2, 48, dtype=torch.long), torch.zeros(2, 48, dtype=torch.long)
    first[:, 0], last[:, 9] = 1, 1
    given = [
        plain,
        padded,
        {**plain, "global_attention_mask": first},
        {**plain, "global_attention_mask": last},
        plain,
    ]
    with torch.no_grad(), it.watch(model) as together:
        for inputs in given:
            model(**inputs)
    assert all(entry.verified for entry in together.calls), together.coverage()
    alone = [watched(model, x, 1 + ("global_attention_mask" in x)) for x in given]
    for name in together.layers:
        found = [x for x in together.calls if x.name == name]
        own = [x for one in alone for x in one.calls if x.name == name]
        for one, other in zip(found, own, strict=True):
            assert torch.equal(one.matrix().dense(), other.matrix().dense())


def test_indices_of_gathered_keys_are_compared() -> None:
    class Chosen(nn.Module):
        """Queries see keys that are chosen by indices."""

        def forward(self, x: Tensor, index: Tensor) -> Tensor:
            keys = x[:, index]  # (b, t, m, d)
            weights = (x.unsqueeze(-2) @ keys.mT).softmax(-1)
            return F.pad((weights @ keys).squeeze(-2), (0, 0))

    model, x = nn.Sequential(Chosen()), torch.randn(1, 6, 4)
    i = torch.arange(6)[:, None]
    steps = [(i + torch.arange(n, n + 3)) % 6 for n in (0, 2)]
    with torch.no_grad(), it.watch(model) as seen:
        for index in steps:
            model[0](x, index)
    for number, index in enumerate(steps):
        sees = torch.zeros(6, 6, dtype=torch.bool).scatter_(1, index, True)
        expected = (x @ x.mT).masked_fill(~sees, -torch.inf).softmax(-1)
        compare(seen["0", number].dense().view(1, 6, 6), expected)
