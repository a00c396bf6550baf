"""The language model: cached steps, causality, options as values, and what they refuse."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import intently as it
from intently.errors import ArgumentError, KindError
from intently.nn.caches.key_value import FixedCache, KeyValueCache
from intently.nn.feed_forward import FeedForward, GatedFeedForward
from intently.nn.models.language import LanguageCache, LanguageModel, LanguageOptions
from intently.nn.models.shared import mlp
from intently.nn.options import AttentionOptions
from intently.nn.projected_attention import Projections

from ...combinations import each
from ...messages import raises, refused

BARE = Projections(bias=False, out_bias=False)
KINDS: dict[str, dict[str, Any]] = {
    "rotary": {},
    "learned": {"positions": 12},
    "none": {"positions": None},
    "alibi": {"positions": None, "attention": AttentionOptions(bias=it.alibi(4))},
    "interleaved": {"positions": partial(it.Rotary, layout="interleaved")},
    "grouped": {"kv_heads": 2, "head_width": 6},
    "window": {
        "attention": AttentionOptions(mask=it.window(2, 2))
    },  # the causal mask cuts what is after
    "llama": {
        "kv_heads": 1,
        "norm": nn.RMSNorm,
        "projections": BARE,
        "tied": False,
        "feed_forward": partial(GatedFeedForward, inner=24, activation=F.silu, bias=False),
    },
    "qk_norm, softcap": {"attention": AttentionOptions(qk_norm=nn.RMSNorm, softcap=5.0)},
}


def model(kind: str) -> LanguageModel:
    return LanguageModel(LanguageOptions(17, width=16, heads=4, **KINDS[kind])).eval()


@each({"kind": KINDS, "chunks": [[10], [1] * 10, [3, 1, 4, 2]]}, times=2)
def test_cached_steps_equal_the_whole(kind: str, chunks: list[int]) -> None:
    net, ids = model(kind), torch.randint(17, (3, 10))
    cache = net.new_cache()
    steps = [net(part, cache=cache) for part in ids.split(chunks, 1)]
    torch.testing.assert_close(torch.cat(steps, 1), net(ids), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_ragged_caches_equal_each_row_alone(kind: str) -> None:
    net, ids = model(kind), torch.randint(17, (3, 9))
    cache, lengths = net.new_cache(), [6, 2, 4]
    net(ids[:, :6], cache=cache)
    cache.crop(torch.tensor(lengths))
    cache.reorder(torch.tensor([2, 0, 1, 1]))
    order = [2, 0, 1, 1]
    new = torch.randint(17, (4, 2))
    steps = torch.cat([net(new[:, :1], cache=cache), net(new[:, 1:], cache=cache)], 1)
    for row, (old, step) in enumerate(zip(order, steps)):
        alone = net(torch.cat([ids[old, : lengths[old]], new[row]])[None])[0, -2:]
        torch.testing.assert_close(step, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_no_token_sees_what_comes_after_it(kind: str) -> None:
    net, ids = model(kind), torch.randint(17, (1, 10))
    other = ids.clone()
    other[0, 6] = (other[0, 6] + 1) % 17
    same = (net(ids) == net(other)).all(-1)[0]
    assert same[:6].all() and not same[6]


@pytest.mark.usefixtures("as_users_call")
def test_a_refused_call_leaves_the_caches_of_all_layers_alone() -> None:
    net, other, ids = model("rotary"), model("grouped"), torch.randint(17, (3, 2))
    cache = net.new_cache()
    net(ids, cache)
    refused(lambda: other(ids, cache), ArgumentError, "k: expected keys (b, g, n, d) that continue")
    assert [layer.length for layer in cache.layers] == [2, 2]


def test_a_window_forgets() -> None:
    net, ids = model("window"), torch.randint(17, (1, 10))
    other = ids.clone()
    other[0, 0] = (other[0, 0] + 1) % 17
    same = (net(ids) == net(other)).all(-1)[0]
    assert not same[:5].any() and same[5:].all()  # two layers of two steps back


def test_options_reach_the_layers() -> None:
    net = LanguageModel(LanguageOptions(9, width=8, heads=2, feed_forward=mlp(5, F.relu)))
    feed: Any = net.decoder[0].feed_forward
    x = torch.randn(1, 2, 8)
    assert isinstance(feed, FeedForward)
    torch.testing.assert_close(feed(x), feed.down(F.relu(feed.up(x))))
    assert net.output_weight is net.embedding.weight and net.max_length is None
    untied = LanguageModel(LanguageOptions(9, width=8, heads=2, tied=False, positions=5))
    assert untied.output_weight is not untied.embedding.weight and untied.max_length == 5
    assert len(list(untied.parameters())) == len(list(net.parameters())) + 2


def test_gradients_reach_every_parameter_and_dropout_acts_while_training() -> None:
    net = LanguageModel(LanguageOptions(17, width=16, heads=4, positions=8, dropout=0.3))
    ids = torch.randint(17, (2, 8))
    net(ids).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())
    assert not torch.equal(net(ids), net(ids))
    net.eval()
    assert torch.equal(net(ids), net(ids))


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"positions": "rotary"},
        KindError,
        "positions: expected it.Rotary, a number of learned positions, or None; got 'rotary'. A "
        "function makes them from the head width: partial(it.Rotary, base=500_000.0).",
    ),
    ({"positions": it.Rotary(32)}, KindError, "positions: expected it.Rotary, a number of learned"),
    ({"positions": True}, KindError, "positions: expected it.Rotary, a number of learned"),
    ({"positions": -3}, ArgumentError, "positions: expected an int ≥ 1; got -3."),
    (
        {"positions": lambda d: d},
        KindError,
        "positions: expected a function that makes it.Rotary from the head width; got one that "
        "makes int.",
    ),
    ({"vocabulary": 0}, ArgumentError, "vocabulary: expected an int ≥ 1; got 0."),
    ({"layers": -1}, ArgumentError, "layers: expected an int ≥ 0; got -1."),
    ({"heads": "a"}, KindError, "heads: expected an int ≥ 1; got 'a'."),
    ({"kv_heads": 3}, ArgumentError, "kv_heads: expected a divisor of heads=4; got 3."),
    ({"head_width": 0}, ArgumentError, "head_width: expected an int ≥ 1; got 0."),
    ({"dropout": 2.0}, ArgumentError, "dropout: expected a probability in [0, 1); got 2.0."),
    ({"norm": nn.LayerNorm(128)}, KindError, "norm: expected a function that makes the part"),
    (
        {"attention": AttentionOptions(positions=it.Rotary(32))},
        ArgumentError,
        "positions: expected None beside attention=Attention",
    ),
    ({"heads": 3}, ArgumentError, "heads: expected a divisor of width=128; got 3"),
]


def made(**options: Any) -> LanguageModel:
    return LanguageModel(LanguageOptions(**{"vocabulary": 9, **options}))


test_options_that_cannot_be = raises(
    [(partial(made, **options), kind, text) for options, kind, text in WRONG]
)


test_ids_that_do_not_fit = raises(
    {
        ArgumentError: {
            "ids: expected ids from 0 to 16; got 3 to 17": lambda: model("learned")(
                torch.tensor([[3, 17]])
            ),
            "ids: expected integer token ids (b, steps)": lambda: model("learned")(
                torch.tensor([3, 4])
            ),
            "positions: expected positions in a table of n=12": lambda: model("learned")(
                torch.zeros(1, 13, dtype=torch.long)
            ),
        }
    }
)


ONE: Any = KeyValueCache()
IDS = torch.tensor([[3, 4]])
test_caches_of_other_models = raises(
    {
        KindError: {
            "cache: expected a LanguageCache; got KeyValueCache. A model has a cache for every "
            "layer. Make one: model.new_cache().": lambda: model("rotary")(IDS, ONE),
            "make: expected a function that makes a KeyValueCache or WindowCache; got one that "
            "makes FixedCache.": lambda: model("rotary").new_cache(FixedCache),
            "make: expected a function that makes a cache; got KeyValueCache.": lambda: model(
                "rotary"
            ).new_cache(ONE),
        },
        ArgumentError: {
            "cache: expected one of 2 layers; got 3. It belongs to another model.": lambda: model(
                "rotary"
            )(IDS, LanguageCache(3)),
            "make: expected a new cache for every layer; got the same": lambda: model(
                "rotary"
            ).new_cache(lambda: ONE),
        },
    }
)
