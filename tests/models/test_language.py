"""The language model: cached steps, causality, options as values, and parity with transformers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intently as it
from intently.errors import ArgumentError, KindError
from intently.models.language import LanguageCache, LanguageModel, LanguageOptions
from intently.models.layers import mlp
from intently.modules.caches.key_value import FixedCache, KeyValueCache
from intently.modules.feed_forward import FeedForward, GatedFeedForward
from intently.modules.options import AttentionOptions
from intently.modules.projected import Projections

from ..messages import refused

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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunks", [[10], [1] * 10, [3, 1, 4, 2]])
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


def test_a_window_forgets() -> None:
    net, ids = model("window"), torch.randint(17, (1, 10))
    other = ids.clone()
    other[0, 0] = (other[0, 0] + 1) % 17
    same = (net(ids) == net(other)).all(-1)[0]
    assert not same[:5].any() and same[5:].all()  # two layers of two steps back


@pytest.mark.parametrize("kind", KINDS)
def test_attentions_are_the_matrices_of_the_pass(kind: str) -> None:
    net, ids = model(kind), torch.randint(17, (2, 7))
    found = net.attentions(ids)
    assert {name: A.shape for name, A in found.items()} == {
        f"decoder.{i}.self": (2, 4, 7, 7) for i in (0, 1)
    }
    for A in found.values():
        dense = A.dense()
        torch.testing.assert_close(dense.sum(-1), torch.ones(2, 4, 7))
        assert not dense.triu(1).any()


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


def test_bad_input(as_users_call: None) -> None:
    net = model("learned")
    with pytest.raises(ArgumentError, match=r"ids: expected ids from 0 to 16; got 3 to 17"):
        net(torch.tensor([[3, 17]]))
    with pytest.raises(ArgumentError, match=r"ids: expected integer token ids \(b, steps\)"):
        net(torch.tensor([3, 4]))
    with pytest.raises(ArgumentError, match=r"positions: expected positions in a table of n=12"):
        net(torch.zeros(1, 13, dtype=torch.long))
    with pytest.raises(ArgumentError, match=r"positions: expected None beside attention=Attention"):
        LanguageOptions(9, attention=AttentionOptions(positions=it.Rotary(32)))
    with pytest.raises(ArgumentError, match=r"heads: expected a divisor of width=128; got 3"):
        LanguageModel(LanguageOptions(9, heads=3))


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
]


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(("options", "kind", "text"), WRONG, ids=[case[2][:50] for case in WRONG])
def test_options_that_cannot_be(options: dict[str, Any], kind: Any, text: str) -> None:
    refused(lambda: LanguageModel(LanguageOptions(**{"vocabulary": 9, **options})), kind, text)


@pytest.mark.usefixtures("as_users_call")
def test_caches_of_other_models() -> None:
    net, ids, one = model("rotary"), torch.tensor([[3, 4]]), KeyValueCache()
    given: Any
    for given, kind, text in (
        (
            one,
            KindError,
            "cache: expected a LanguageCache; got KeyValueCache. A model has a "
            "cache for every layer. Make one: model.new_cache().",
        ),
        (
            LanguageCache(3),
            ArgumentError,
            "cache: expected one of 2 layers; got 3. It belongs to another model.",
        ),
    ):
        refused(lambda cache=given: net(ids, cache), kind, text)
    other, cache = model("grouped"), net.new_cache()
    net(ids, cache)
    refused(lambda: other(ids, cache), ArgumentError, "k: expected keys (b, g, n, d) that continue")
    assert [layer.length for layer in cache.layers] == [2, 2]
    for make, kind, text in (
        (lambda: one, ArgumentError, "make: expected a new cache for every layer; got the same"),
        (
            FixedCache,
            KindError,
            "make: expected a function that makes a KeyValueCache or "
            "WindowCache; got one that makes FixedCache.",
        ),
        (one, KindError, "make: expected a function that makes a cache; got KeyValueCache."),
    ):
        refused(lambda make=make: net.new_cache(make), kind, text)  # type: ignore[misc]


transformers = pytest.importorskip("transformers")


def consume(net: nn.Module, theirs: dict[str, Tensor], names: dict[str, str]) -> None:
    """Load ``theirs`` by name, (in, out) weights of GPT-2 turned; every tensor is consumed."""
    left, own = dict(theirs), net.state_dict()
    state = {}
    for mine, yours in names.items():
        tensor = left.pop(yours)
        turned = "attn.c" in yours or "mlp.c" in yours
        state[mine] = tensor.T if turned and tensor.ndim == 2 else tensor
        assert state[mine].shape == own[mine].shape, mine
    assert not left, sorted(left)
    net.load_state_dict(state)


@pytest.mark.parametrize("train", [False, True])
def test_gpt2_is_one_setting_of_the_options(train: bool) -> None:
    config = transformers.GPT2Config(
        vocab_size=23,
        n_positions=16,
        n_embd=12,
        n_layer=2,
        n_head=3,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    theirs = transformers.GPT2LMHeadModel(config).train(train)
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.2)
    gelu = partial(F.gelu, approximate="tanh")
    ours = LanguageModel(
        LanguageOptions(23, 12, 3, 2, positions=16, feed_forward=mlp(48, gelu))
    ).train(train)
    names = {"embedding.weight": "transformer.wte.weight", "positions": "transformer.wpe.weight"}
    for kind in ("weight", "bias"):
        names[f"norm.{kind}"] = f"transformer.ln_f.{kind}"
        for i in range(2):
            mine, yours = f"decoder.{i}", f"transformer.h.{i}"
            names |= {
                f"{mine}.self_norm.{kind}": f"{yours}.ln_1.{kind}",
                f"{mine}.self_attention.qkv_{kind}": f"{yours}.attn.c_attn.{kind}",
                f"{mine}.self_attention.out_{kind}": f"{yours}.attn.c_proj.{kind}",
                f"{mine}.feed_norm.{kind}": f"{yours}.ln_2.{kind}",
                f"{mine}.feed_forward.up.{kind}": f"{yours}.mlp.c_fc.{kind}",
                f"{mine}.feed_forward.down.{kind}": f"{yours}.mlp.c_proj.{kind}",
            }
    state = {n: x for n, x in theirs.state_dict().items() if n != "lm_head.weight"}
    consume(ours, state, names)
    compare(ours, theirs, torch.randint(23, (2, 9)))


@pytest.mark.parametrize("tied", [False, True])
def test_llama_is_one_setting_of_the_options(tied: bool) -> None:
    config = transformers.LlamaConfig(
        vocab_size=23,
        hidden_size=12,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=4,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_theta": 500.0, "rope_type": "default"},
        tie_word_embeddings=tied,
        max_position_embeddings=64,
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.2)
    ours = LanguageModel(
        LanguageOptions(
            23,
            12,
            6,
            2,
            kv_heads=2,
            head_width=4,
            positions=partial(it.Rotary, base=500.0),
            norm=partial(nn.RMSNorm, eps=1e-6),
            tied=tied,
            projections=Projections(False, False, False),
            feed_forward=partial(GatedFeedForward, inner=20, activation=F.silu, bias=False),
        )
    ).eval()
    names = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    if not tied:
        names["output.weight"] = "lm_head.weight"
    for i in range(2):
        mine, yours = f"decoder.{i}", f"model.layers.{i}"
        names[f"{mine}.self_norm.weight"] = f"{yours}.input_layernorm.weight"
        names[f"{mine}.feed_norm.weight"] = f"{yours}.post_attention_layernorm.weight"
        for x in "qkv":
            names[f"{mine}.self_attention.{x}_weight"] = f"{yours}.self_attn.{x}_proj.weight"
        names[f"{mine}.self_attention.out_weight"] = f"{yours}.self_attn.o_proj.weight"
        names[f"{mine}.feed_forward.gate_up.weight"] = f"gate_up.{i}"
        names[f"{mine}.feed_forward.down.weight"] = f"{yours}.mlp.down_proj.weight"
    state = {n: x for n, x in theirs.state_dict().items() if not (tied and n == "lm_head.weight")}
    for i in range(2):
        both = [state.pop(f"model.layers.{i}.mlp.{part}_proj.weight") for part in ("gate", "up")]
        state[f"gate_up.{i}"] = torch.cat(both)
    consume(ours, state, names)
    compare(ours, theirs, torch.randint(23, (2, 9)))


def compare(ours: LanguageModel, theirs: Any, ids: Tensor) -> None:
    """Logits, and greedy tokens of both caches."""
    from intently.decoding.sampling import sample

    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, atol=1e-5, rtol=1e-5)
    theirs.eval()
    wanted = theirs.generate(
        ids,
        max_new_tokens=6,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        attention_mask=torch.ones_like(ids),
    )
    assert sample(ours, ids.tolist(), steps=6, top_k=1) == wanted[:, ids.shape[1] :].tolist()
    ours.eval()
    with torch.no_grad():
        half, expected = ours.bfloat16()(ids).float(), theirs.bfloat16()(ids).logits.float()
    assert float((half - expected).abs().max() / expected.abs().max()) < 2e-2
