"""Models of transformers that write their attention out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from intently.observe import watch

from .attending import close, watched
from .decoders import T, drawn

DEBERTA: dict[str, Any] = {
    "hidden_size": 16,
    "num_attention_heads": 4,
    "vocab_size": 50,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 8,
}


GPT: dict[str, Any] = {
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 50,
    "n_positions": 32,
    "rotary_dim": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


MODELS: dict[str, Callable[[], nn.Module]] = {
    "bloom": lambda: T.BloomModel(
        T.BloomConfig(hidden_size=16, n_layer=2, n_head=4, vocab_size=50)
    ),
    "gpt-j": lambda: T.GPTJModel(T.GPTJConfig(**GPT)),
    "codegen": lambda: T.CodeGenModel(T.CodeGenConfig(**GPT)),
    "deberta": lambda: T.DebertaV2Model(T.DebertaV2Config(**DEBERTA)),
    "xlnet": lambda: T.XLNetModel(
        T.XLNetConfig(d_model=16, n_layer=2, n_head=4, d_inner=32, vocab_size=50)
    ),
    "mpt": lambda: T.MptModel(T.MptConfig(d_model=16, n_layers=2, n_heads=4, vocab_size=50)),
}


NAMES = {
    "bloom": "h.{}.self_attention",
    "gpt-j": "h.{}.attn",
    "codegen": "h.{}.attn",
    "deberta": "encoder.layer.{}.attention.self",
    "xlnet": "layer.{}.rel_attn",
    "mpt": "blocks.{}.attn",
}


def spread(made: Callable[[], Any], std: float) -> Any:
    """The same model at each call, with uneven attention."""
    torch.manual_seed(0)
    model = made().eval()
    for p in model.parameters():
        nn.init.normal_(p, std=std)
    model.set_attn_implementation("eager")  # the only one of some; newer releases have others
    return model


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_models_that_write_their_attention_out(name: str, rows: int) -> None:
    model = spread(MODELS[name], 0.4)
    given = {
        "input_ids": torch.randint(3, 50, (rows, 7)),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 0, 0], [1] * 7])[:rows],
    }
    expected = model(**given, output_attentions=True).attentions
    for seen in (watched(model, **given), watched(model, deep=True, **given)):
        assert seen.layers == tuple(NAMES[name].format(n) for n in range(2))
        for entry, weights in zip(seen.calls, expected, strict=True):
            close(entry, weights, given["attention_mask"])


def test_gradients_of_a_llama_are_as_without() -> None:
    model, ids = drawn("llama"), torch.randint(3, 20, (2, 9))
    weights = list(model.parameters())
    expected = torch.autograd.grad(model(ids).logits.pow(2).sum(), weights)
    with watch(model, deep=True):
        found = torch.autograd.grad(model(ids).logits.pow(2).sum(), weights)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("std", [0.1, 0.4])
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", ["gpt-j", "codegen"])
def test_generation_with_a_cache(name: str, cache: str | None, std: float) -> None:
    """A static one has columns without keys yet, whose scores are hidden before they are scaled."""
    kind = {"gpt-j": T.GPTJForCausalLM, "codegen": T.CodeGenForCausalLM}[name]
    model = spread(lambda: kind(kind.config_class(**GPT | {"n_embd": 64})), std)
    ids = torch.randint(3, 50, (2, 5))
    options: dict[str, Any] = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    if cache is not None:
        options |= {"cache_implementation": cache, "disable_compile": True}
    with torch.no_grad():
        made = model.generate(ids, attention_mask=ids > 0, **options)
        with watch(model, deep=True) as seen:
            again = model.generate(ids, attention_mask=ids > 0, **options)
        expected = model(made[:, :-1], output_attentions=True).attentions
    assert torch.equal(made, again) and len(seen.calls) == 2, seen.coverage()
    for entry, weights in zip(seen.calls, expected):
        assert entry.verified, entry.why
        close(entry, weights, gap=1e-4)
