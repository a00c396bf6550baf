"""Scores that are gathered in blocks: one matrix over the positions of the text."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as T
from torch import Tensor, nn

import intently as it
from intently.observe.watching.unseen import LAST_BITS

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


def watched(model: nn.Module, inputs: dict[str, Any], **options: Any) -> Any:
    with torch.no_grad():
        expected = model(**inputs)[0]
        with it.watch(model, **options) as seen:
            got = model(**inputs)[0]
    assert torch.equal(got, expected)
    assert all(entry.verified for entry in seen.calls), seen.coverage()
    assert len(seen.calls) == len(seen.layers) and not seen.covered.unseen, seen.coverage()
    assert set(seen.covered.notes) <= {LAST_BITS}, seen.coverage()
    return seen


def from_windows(made: Any, layer: int, marked: Tensor) -> Tensor:
    """The weights (b, h, t, t) that Longformer returns as windows, global keys and global rows."""
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
            dense[row, :, key] = made.global_attentions[layer][row, :, :, n]
    return dense


def compare(found: Tensor, expected: Tensor, rows: Tensor | None = None) -> None:
    """Compare weights, of texts without padding or of the rows (b, t) that are none."""
    if rows is not None:
        keep = rows.bool()[:, None, :, None]
        found, expected = found * keep, expected * keep
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("tokens", [(), ((0, 0), (0, 7), (1, 0))])
def test_longformer_is_one_matrix_of_positions(
    padded: bool, tokens: tuple[tuple[int, int], ...]
) -> None:
    model, inputs = longformer(), texts(padded)
    marked = torch.zeros(2, 48, dtype=torch.long)
    for place in tokens:
        marked[place] = 1
    seen = watched(model, {**inputs, "global_attention_mask": marked})
    with torch.no_grad():
        made = model(**inputs, global_attention_mask=marked, output_attentions=True)
    for layer, name in enumerate(seen.layers):
        assert seen[name].shape == (2, HEADS, 48, 48)
        compare(seen[name].dense(), from_windows(made, layer, marked), inputs["attention_mask"])


def test_longformers_window_is_a_mask_value() -> None:
    seen = watched(longformer(), texts(False))
    assert [str(seen[name].mask) for name in seen.layers] == ["window(2, 2)"] * 2
    seen = watched(longformer(), texts(True))
    assert str(seen[seen.layers[0]].mask) == "window(2, 2) & padding([48, 30])"
    marked = torch.zeros(2, 48, dtype=torch.long)
    marked[:, :2] = 1
    seen = watched(longformer(), {**texts(False), "global_attention_mask": marked})
    mask = str(seen[seen.layers[0]].mask)
    assert mask == "window(2, 2) | allowed(1×1×1×48 tensor) | allowed(1×1×48×1 tensor)"


@pytest.mark.parametrize("padded", [False, True])
def test_leds_encoder(padded: bool) -> None:
    model, inputs = led(), texts(padded)
    seen = watched(model, inputs)
    with torch.no_grad():
        made = model(**inputs, output_attentions=True)
    for layer, name in enumerate(seen.layers):
        expected = from_windows(made, layer, torch.zeros(2, 48, dtype=torch.long))
        compare(seen[name].dense(), expected, inputs["attention_mask"])


def by_blocks(n: int, side: int, random: int) -> Tensor:
    """How often BigBird multiplies each query with each key outside of training, (t, t)."""
    times = torch.zeros(n, n)
    times[[0, -1]] = 1
    for i in range(1, n - 1):
        times[i, [0, n - 1]] = 1
        times[i, i - 1 : i + 2] = 1
        times[i, 0] += random  # all random blocks are the first one
    return times.repeat_interleave(side, 0).repeat_interleave(side, 1)


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
def test_bigbird_counts_a_key_that_comes_repeatedly(
    make: Callable[[], nn.Module], deep: bool
) -> None:
    model, inputs = make(), texts(False)
    seen = watched(model, inputs, deep=deep)
    for name in seen.layers:
        q, k = projected(model, inputs, name, "query key")
        weights = (q @ k.mT / q.shape[-1] ** 0.5).exp() * by_blocks(12, 4, 2)
        compare(seen[name].dense(), weights / weights.sum(-1, keepdim=True))


def test_random_blocks_of_bigbird_differ_from_head_to_head() -> None:
    model, inputs = bigbird().train(), texts(True, 64)
    with torch.no_grad(), it.watch(model) as seen:
        made = model(**inputs, output_attentions=True)
    assert all(entry.verified for entry in seen.calls) and len(seen.calls) == 2, seen.coverage()
    for name, expected in zip(seen.layers, made.attentions):
        found = seen[name].dense()
        known = (expected.sum(-1, keepdim=True) - 1).abs() < 1e-5  # no key came repeatedly
        known = known & inputs["attention_mask"][:, None, :, None].bool()
        assert int(known.sum()) > 100
        compare(found * known, expected * known)


@pytest.mark.parametrize("padded", [False, True])
def test_pegasus_x_joins_global_and_local_rows(padded: bool) -> None:
    model, inputs = pegasus_x(), texts(padded)
    seen = watched(model, inputs)
    name = "layers.0.self_attn"
    local_q, local_k, global_q, global_k = projected(model, inputs, name, "q_proj k_proj")[:4]
    q, k = torch.cat([global_q, local_q], -2), torch.cat([global_k, local_k], -2)
    block = torch.cat([torch.full((3,), -1), torch.arange(48) // 4])  # global tokens come first
    sees = (block[:, None] == block) | (block < 0) | (block[:, None] < 0)
    keys = F.pad(inputs["attention_mask"], (3, 0), value=1).bool()
    z = (q @ k.mT / 8**0.5).masked_fill(~(sees & keys[:, None, None]), -torch.inf)
    compare(seen[name].dense(), z.softmax(-1).nan_to_num(), keys)
    assert seen["layers.1.self_attn"].shape == (2, HEADS, 55, 55)  # half a block at both ends


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


def test_keys_that_differ_from_block_to_block_leave_weights_in_tiles() -> None:
    model, x = nn.Sequential(Rotated("unfold")), torch.randn(2, 24, 16)
    with torch.no_grad(), it.watch(model) as seen:
        model(x)
    matrix = seen["0"]
    assert matrix.shape == (2, HEADS, 24, 24) and "differ from block to block" in str(
        seen.coverage()
    )
    q, k, _ = model[0].qkv(x)
    i = torch.arange(24)
    place = i - (i[:, None] // 4 - 1) * 4
    sees = (i <= i[:, None]) & (place >= 0)
    z = q @ k.mT * 8**-0.5 * torch.linspace(0.5, 1.5, 8)[place.clamp(0, 7)]
    compare(matrix.dense(), z.masked_fill(~sees, -torch.inf).softmax(-1))


class Relative(Chunks):
    """A number added to the scores by their place in the block: no mask explains it."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)
        scores = q.unflatten(2, (-1, 4)) @ self.around(k).mT + torch.arange(8.0)
        return (scores.softmax(-1) @ self.around(v)).flatten(2, 3).transpose(1, 2).flatten(2)


def test_padding_that_is_attended_is_no_key() -> None:
    model = nn.Sequential(Relative("unfold"))
    with torch.no_grad(), it.watch(model) as seen:
        model(torch.randn(2, 24, 16))
    assert seen["0"].shape == (2, HEADS, 6, 4, 8) and seen.calls[0].verified


class Whole(nn.Module):
    """Two plain attentions and an unused gather: nothing is in blocks."""

    def forward(self, x: Tensor) -> Tensor:
        x.gather(1, torch.zeros(1, 1, 1, dtype=torch.long))
        first = (x @ x.mT).softmax(-1) @ x
        return (first @ F.pad(x, (0, 0, 1, 0)).mT).softmax(-1)[..., 1:] @ x


def test_plain_attention_in_a_module_that_gathers_stays_as_it_is() -> None:
    with torch.no_grad(), it.watch(model := nn.Sequential(Whole())) as seen:
        model(torch.randn(2, 6, 4))
    assert [entry.shape for entry in seen.calls] == [(2, 6, 6), (2, 6, 7)]


def test_rows_are_labelled_saved_and_drawn(tmp_path: Any) -> None:
    words = [f"w{i}" for i in range(48)]
    seen = watched(longformer(), {"input_ids": texts(False)["input_ids"][:1]}, tokens=words)
    matrix = seen[seen.layers[0]]
    assert matrix.labels == (tuple(words), tuple(words))
    table = seen.summary()
    assert len(table) == 2 * HEADS and all(row["self"] > 0 for row in table.rows)
    for name, make in (("long", longformer), ("bird", bigbird)):
        seen = watched(make(), texts(True))
        seen.save(tmp_path / f"{name}.safetensors")
        again = it.load_recording(tmp_path / f"{name}.safetensors")
        for layer in seen.layers:
            assert torch.equal(again[layer].dense(), seen[layer].dense())
            assert type(again[layer].mask) is type(seen[layer].mask)
        assert seen.page(tmp_path / f"{name}.html").stat().st_size > 1000


def test_a_long_window_takes_no_memory_of_t_times_s() -> None:
    model, t = longformer(16), 4096
    model.embeddings.position_embeddings = nn.Embedding(t + 2, 16)
    marked = torch.zeros(1, t, dtype=torch.long)
    marked[0, 0] = 1
    ids = torch.randint(4, 50, (1, t))
    with torch.no_grad(), it.watch(model) as seen:
        model(input_ids=ids, global_attention_mask=marked)
    assert all(entry.verified for entry in seen.calls), seen.coverage()
    for name in seen.layers:
        matrix = seen[name]
        kept = [*matrix.mask.tensors(), matrix.problem.q, matrix.problem.k]
        assert matrix.shape[-2:] == (t, t) and sum(x.numel() for x in kept) < 100 * t


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
    for number, inputs in enumerate(given):
        alone = watched(model, inputs)
        for name in alone.layers:
            found = together[name, number]
            assert torch.equal(found.dense(), alone[name].dense())
            assert str(found.mask) == str(alone[name].mask)


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
