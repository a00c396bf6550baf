"""What `test_keras.py` runs in a process of its own, on the torch backend of Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import torch

import intently as it
from intently.interop.keras import SelfAttention, load
from intently.observe import Recording, watch

X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
MEMORY = np.random.default_rng(1).normal(size=(2, 6, 8)).astype("float32")
SEEN = np.arange(6) < np.array([[4], [6]])


def drawn(layer: Any) -> Any:
    """The layer with every weight drawn, biases too."""
    draw = np.random.default_rng(2)
    layer.set_weights([draw.normal(size=w.shape, scale=0.5) for w in layer.weights])
    return layer


def close(found: torch.Tensor, expected: Any) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected), atol=1e-5, rtol=1e-5)


def watched(layer: Any, *args: Any, deep: bool = False, **kwargs: Any) -> Recording:
    """A recording of a call, whose output is the same with and without it."""
    y = layer(*args, **kwargs)
    with watch(layer, deep=deep) as seen:
        found = layer(*args, **kwargs)
    first, again = (x[0] if isinstance(x, tuple) else x for x in (y, found))
    assert torch.equal(first, again)
    assert all(entry.verified for entry in seen.calls), seen.coverage()
    return seen


LAYERS = {
    "MultiHeadAttention": lambda: keras.layers.MultiHeadAttention(2, 4),
    "GroupedQueryAttention": lambda: keras.layers.GroupQueryAttention(4, 4, 2),
}
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"use_causal_mask": True},
    "padding": {"attention_mask": SEEN[:, None]},
    "both": {"attention_mask": SEEN[:, None], "use_causal_mask": True},
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, call: str) -> None:
    layer = LAYERS[name]()
    layer(X, MEMORY)
    drawn(layer)
    seen = watched(layer, X, MEMORY, **CALLS[call])
    _, weights = layer(X, MEMORY, return_attention_scores=True, **CALLS[call])
    (entry,) = seen.calls
    assert entry.source == "functional"
    close(entry.matrix().dense(), weights)


@pytest.mark.parametrize("call", ["plain", "padding"])
def test_layers_that_return_their_scores_are_seen_on_request(call: str) -> None:
    layer = LAYERS["MultiHeadAttention"]()
    layer(X, MEMORY)
    drawn(layer)
    options = {"return_attention_scores": True} | CALLS[call]
    seen = watched(layer, X, MEMORY, deep=True, **options)
    (entry,) = seen.calls
    assert entry.source == "deep"
    close(entry.matrix().dense(), layer(X, MEMORY, **options)[1])


OWN: dict[str, tuple[dict[str, Any], Any]] = {
    "plain": ({}, None),
    "causal": ({"causal_mask": True}, it.causal()),
    "padding": ({"mask": SEEN[:, :5]}, it.allowed(torch.tensor(SEEN[:, :5])[:, None, None])),
}


@pytest.mark.parametrize("call", OWN)
def test_our_layer_is_seen_and_shows_the_same(call: str) -> None:
    layer = SelfAttention(2, 8)
    layer.build(X.shape)
    options, mask = OWN[call]
    seen = watched(drawn(layer), X, **options)
    (entry,) = seen.calls
    A = entry.matrix().dense()
    close(A, layer.attend(X, **options).dense().detach())
    close(A, load(layer).attend(torch.tensor(X), mask=mask).dense().detach())


def test_our_layer_is_seen_inside_a_model() -> None:
    inputs = keras.Input((5, 8))
    y = SelfAttention(2, 8, name="own")(inputs, causal_mask=True)
    made = keras.Model(inputs, y)
    seen = watched(made, X)
    assert [name.split(".")[0] for name in seen.layers] == ["own"]
    close(seen.calls[0].matrix().dense(), made.get_layer("own").attend(X, True).dense().detach())


def model() -> Any:
    x = keras.Input((5, 8))
    y = keras.layers.MultiHeadAttention(2, 4, name="look")(x, x, use_causal_mask=True)
    y = keras.layers.GroupQueryAttention(4, 4, 2, name="grouped")(y, y)
    return keras.Model(x, y)


def test_names_are_those_of_the_layers() -> None:
    seen = watched(model(), X)
    assert [name.split(".")[0] for name in seen.layers] == ["look", "grouped"]
    assert [entry.shape for entry in seen.calls] == [(2, 2, 5, 5), (2, 4, 5, 5)]
    assert repr(seen.calls[0].attention().mask) == "causal()"


def test_predict() -> None:
    made = model()
    plain = made.predict(X, verbose=0)
    with watch(made) as seen:
        np.testing.assert_array_equal(made.predict(X, verbose=0), plain)
    assert len(seen.calls) == 2 and all(entry.verified for entry in seen.calls)
