"""The blocks that are compared: one of another library, and ours with the same weights.

Each library is as it comes, with its own fastest path: nothing of it is patched, and `Pair.theirs`
calls it as its documentation does. Weights are drawn anew, biases too, before ours are read.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks import measure
from intently.nn import MultiHeadAttention

os.environ["KERAS_BACKEND"] = "torch"

SHARED = 4
"""Query heads to one key/value head in the Llama shapes."""


class Shape(NamedTuple):
    """b texts of t tokens, c wide, h heads."""

    b: int
    t: int
    c: int
    h: int


class Pair(NamedTuple):
    """``theirs`` of an x (b, t, c), the module that holds its parameters, and our block."""

    theirs: Callable[[Tensor], Tensor]
    module: nn.Module
    ours: nn.Module


class Library(NamedTuple):
    """``package`` is what must be installed; ``note`` says what exactly is timed."""

    title: str
    package: str
    pair: Callable[[Shape], Pair]
    note: str

    def installed(self) -> bool:
        """Whether its package can be imported."""
        return importlib.util.find_spec(self.package) is not None


# --- one pair for each library ------------------------------------------------------------------


def _torch(shape: Shape) -> Pair:
    from intently.interop.torch import load

    theirs = _drawn(nn.MultiheadAttention(shape.c, shape.h, batch_first=True), shape)

    def call(x: Tensor) -> Tensor:
        return theirs(x, x, x, need_weights=False)[0]

    return Pair(call, theirs, load(theirs))


def _diffusers(shape: Shape) -> Pair:
    from diffusers.models.attention_processor import Attention

    from intently.interop.diffusers import load

    theirs = _drawn(Attention(shape.c, heads=shape.h, dim_head=shape.c // shape.h), shape)
    return Pair(theirs, theirs, load(theirs))


def _keras(shape: Shape) -> Pair:
    import keras

    from intently.interop.keras import load

    theirs: Any = keras.layers.MultiHeadAttention(shape.h, shape.c // shape.h)
    theirs.build((shape.b, shape.t, shape.c), (shape.b, shape.t, shape.c))
    _drawn(theirs, shape)
    return Pair(lambda x: theirs(x, x), theirs, load(theirs))


def _x_transformers(shape: Shape) -> Pair:
    kind = importlib.import_module("x_transformers.x_transformers").Attention
    made = kind(shape.c, dim_head=shape.c // shape.h, heads=shape.h, flash=True)
    theirs = _drawn(made, shape)
    maps = theirs.to_q, theirs.to_k, theirs.to_v, theirs.to_out
    ours = MultiHeadAttention.from_weights(*maps, layout="h d", heads=shape.h)
    return Pair(theirs, theirs, ours)


def _one_layer(shape: Shape) -> dict[str, int]:
    """Return the options of a transformers model of one layer, narrow but for its attention."""
    return {
        **{"vocab_size": 16, "num_hidden_layers": 1, "intermediate_size": 16},
        **{"hidden_size": shape.c, "num_attention_heads": shape.h},
    }


def _bert(shape: Shape) -> Pair:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        **_one_layer(shape), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    model = _drawn(BertModel(config, add_pooling_layer=False), shape)
    attention = model.encoder.layer[0].attention
    inner, out = attention.self, attention.output.dense
    return Pair(lambda x: out(inner(x)[0]), nn.ModuleList([inner, out]), _first_of(model))


def _gpt2(shape: Shape) -> Pair:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        **_one_layer(shape),
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        **{"bos_token_id": None, "eos_token_id": None, "n_positions": 16, "n_inner": 16},
    )
    model = _drawn(GPT2Model(config), shape)
    theirs = model.h[0].attn
    return Pair(lambda x: theirs(x)[0], theirs, _first_of(model))


def _llama(shape: Shape) -> Pair:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(**_one_layer(shape), num_key_value_heads=shape.h // SHARED)
    model: Any = _drawn(LlamaModel(config), shape)
    theirs = model.layers[0].self_attn
    cos, sin = model.rotary_emb(torch.empty(1, shape.t, shape.c), torch.arange(shape.t)[None])
    return Pair(lambda x: theirs(x, position_embeddings=(cos, sin))[0], theirs, _first_of(model))


def _first_of(model: nn.Module) -> nn.Module:
    """Return the attention of our first layer of a transformers model."""
    from intently.interop.transformers import load

    return load(model).stack.layers[0].self_attention  # pyright: ignore


@torch.no_grad()
def _drawn(module: Any, shape: Shape) -> Any:
    """Draw every parameter, so that no bias is zero and no row of weights is flat."""
    torch.manual_seed(measure.SEED)
    for x in module.parameters():
        x.normal_(std=shape.c**-0.5)
    return module


SDPA = "with its default attention function, scaled_dot_product_attention"
LIBRARIES = {
    "torch": Library(
        "`nn.MultiheadAttention`",
        "torch",
        _torch,
        "need_weights=False; the forward pass in eval mode without gradients, where PyTorch runs "
        "its one native function",
    ),
    "diffusers": Library(
        "diffusers `Attention`",
        "diffusers",
        _diffusers,
        "with its default processor; no biases but the output's",
    ),
    "keras": Library(
        "Keras `MultiHeadAttention`, torch backend", "keras", _keras, "as it comes, not compiled"
    ),
    "x_transformers": Library(
        "x-transformers `Attention`",
        "x_transformers",
        _x_transformers,
        "flash=True, which is scaled_dot_product_attention; no biases",
    ),
    "bert": Library(
        "transformers BERT attention",
        "transformers",
        _bert,
        f"`BertSelfAttention` {SDPA}, then the output's linear map; without residual and norm",
    ),
    "gpt2": Library(
        "transformers GPT-2 attention", "transformers", _gpt2, f"`GPT2Attention` {SDPA}; causal"
    ),
    "llama": Library(
        "transformers Llama attention",
        "transformers",
        _llama,
        f"`LlamaAttention` {SDPA}; causal, {SHARED} query heads to one key head. Its cosines and "
        "sines are made once, outside the timed call; ours come from a table that is kept",
    ),
}


# --- what is timed ------------------------------------------------------------------------------


def calls(pair: Pair, shape: Shape, train: bool) -> dict[str, measure.Call]:
    """Return "theirs" and "ours": y, or with ``train`` y and the gradients of x and parameters.

    After y and the gradient of x come the gradients of the parameters: how they are stored differs
    from library to library, the sum of their squares does not, see `comparable`.
    """
    torch.manual_seed(measure.SEED + 1)
    x = torch.randn(*shape[:3], requires_grad=train)
    dy = torch.randn(*shape[:3])
    pair.module.train(train)
    pair.ours.train(train)

    def whole(forward: Callable[[Tensor], Tensor], module: nn.Module) -> measure.Call:
        inputs = [x, *module.parameters()]

        def step() -> tuple[Tensor, ...]:
            y = forward(x)
            return (y, *torch.autograd.grad(y, inputs, dy))

        @torch.no_grad()
        def look() -> tuple[Tensor, ...]:
            return (forward(x),)

        return step if train else look

    return {"theirs": whole(pair.theirs, pair.module), "ours": whole(pair.ours, pair.ours)}


def comparable(results: Sequence[Tensor]) -> list[Tensor]:
    """Return y, and after a training step the gradient of x and the squares of all others."""
    y, *gradients = (x.detach() for x in results)
    if not gradients:
        return [y]
    dx, *others = gradients
    return [y, dx, torch.stack([x.double().square().sum() for x in others]).sum()]


# --- decoding -----------------------------------------------------------------------------------


class Decoder(NamedTuple):
    """A language model from a random config: ``family`` "GPT-2" or "Llama", batch 1."""

    family: str
    vocabulary: int
    width: int = 512
    layers: int = 6
    heads: int = 8
    prompt: int = 16
    steps: int = 128

    def calls(self) -> dict[str, measure.Call]:
        """Return "generate", "loop" (their model in a bare loop) and "ours"; each gives tokens."""
        from intently.interop.transformers import load

        torch.manual_seed(measure.SEED)
        model: Any = self._model().eval()
        ours: Any = load(model)
        ids = torch.randint(self.vocabulary, (1, self.prompt))
        seen = torch.ones_like(ids)

        def generate() -> Tensor:
            return model.generate(
                ids, attention_mask=seen, max_new_tokens=self.steps, do_sample=False, pad_token_id=0
            )

        @torch.inference_mode()
        def loop() -> Tensor:
            found, past = [ids], None
            for _ in range(self.steps):
                out = model(found[-1], past_key_values=past, use_cache=True, logits_to_keep=1)
                past = out.past_key_values
                found.append(out.logits[:, -1].argmax(-1, keepdim=True))
            return torch.cat(found, 1)

        @torch.inference_mode()
        def greedy() -> Tensor:
            found, cache = [ids], ours.new_cache()
            for _ in range(self.steps):
                logits = ours(found[-1], cache=cache)[:, -1]
                found.append(logits.argmax(-1, keepdim=True))
            return torch.cat(found, 1)

        return {"generate": generate, "loop": loop, "ours": greedy}

    def _model(self) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

        options: dict[str, Any] = {
            **{"vocab_size": self.vocabulary, "hidden_size": self.width},
            **{"num_hidden_layers": self.layers, "num_attention_heads": self.heads},
            **{"bos_token_id": None, "eos_token_id": None, "pad_token_id": None},
        }
        if self.family == "GPT-2":
            return GPT2LMHeadModel(GPT2Config(**options))
        shared, inner = self.heads // SHARED, 8 * self.width // 3
        return LlamaForCausalLM(
            LlamaConfig(**options, num_key_value_heads=shared, intermediate_size=inner)
        )
