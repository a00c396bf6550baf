"""Falcon's ALiBi is built over the queries: in a step of one token with a cache it vanishes."""

import importlib

import torch
from torch import Tensor

from wild.program import Adapter, apart, hollow, normal, stand_in

meta = {
    "package": "keras-hub",
    "url": "https://github.com/keras-team/keras-hub/pull/2977",
    "kind": "mistake",
    "name": ("bias-offset-lost",),
    "intent": {"mask": "causal()", "same": [{"cached": True}]},
    "needs": {"affected": ("kh-0.29.0",), "mended": ("kh-0.32.0",)},
}


def make() -> Adapter:
    """A decoder layer, whole or step by step."""
    import keras

    inner = ("models", "models.falcon", "layers", "layers.modeling", "utils")
    hollow("keras_hub", "keras_hub.src", *(f"keras_hub.src.{x}" for x in inner))
    stand_in("keras_hub.src.utils.keras_utils", clone_initializer=lambda x: x)
    stand_in("keras_hub.src.api_export", keras_hub_export=lambda *args, **kwargs: lambda c: c)
    library = importlib.import_module("keras_hub.src.models.falcon.falcon_transformer_decoder")
    keras.utils.set_random_seed(0)
    layer = library.FalconTransformerDecoder(
        num_attention_heads=4,
        intermediate_dim=32,
        attention_dropout_rate=0.0,
        feedforward_dropout_rate=0.0,
    )
    layer(torch.zeros(1, 6, 32))

    def run(layer: torch.nn.Module, x: Tensor, cached: bool = False) -> Tensor:
        if not cached:
            return layer(x, training=False)
        cache, out = torch.zeros(len(x), 2, x.shape[1], 4, 8), []
        for i in range(x.shape[1]):
            y, cache = layer(
                x[:, i : i + 1],
                attention_cache=cache,
                attention_cache_update_index=i,
                training=False,
            )
            out.append(y)
        return torch.cat(out, 1)

    return Adapter(layer, run)


def inputs() -> dict[str, Tensor]:
    """Two sequences."""
    return {"x": normal(2, 6, 32)}


def wrong() -> tuple[bool, float]:
    """Steps differ from the whole pass."""
    decode, x = make(), inputs()["x"]
    off = apart(decode(x=x, cached=True), decode(x=x))
    return off > 1e-3, off
