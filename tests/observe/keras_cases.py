"""What `test_keras.py` runs in a process of its own, on the torch backend of Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import torch

import intently as it
from intently.interop.keras import SelfAttention, load
from intently.observe import watch

from ..interop.keras_drawing import array, built, close, normal
from .attending import watched

X, MEMORY = normal(2, 5, 8), normal(2, 6, 8)
SEEN = np.arange(6) < np.array([[4], [6]])


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
    layer = built(LAYERS[name](), X.shape, MEMORY.shape)
    (entry,) = watched(layer, X, MEMORY, **CALLS[call]).calls
    _, weights = layer(X, MEMORY, return_attention_scores=True, **CALLS[call])
    assert entry.source == "functional"
    close(entry.matrix().dense(), array(weights))


@pytest.mark.parametrize("call", ["plain", "padding"])
def test_layers_that_return_their_scores_are_seen_on_request(call: str) -> None:
    layer = built(LAYERS["MultiHeadAttention"](), X.shape, MEMORY.shape)
    options = {"return_attention_scores": True} | CALLS[call]
    (entry,) = watched(layer, X, MEMORY, deep=True, **options).calls
    assert entry.source == "by hand"
    close(entry.matrix().dense(), array(layer(X, MEMORY, **options)[1]))


@pytest.mark.parametrize("deep", [False, True])
def test_attention_over_two_axes(deep: bool) -> None:
    """Its softmax is over both axes of the keys, as exp(z − logsumexp(z))."""
    grid = X[:, :4].reshape(2, 2, 2, 8)
    layer = built(keras.layers.MultiHeadAttention(2, 4, attention_axes=(1, 2)), *[grid.shape] * 2)
    (entry,) = watched(layer, grid, grid, deep=deep).calls
    _, weights = layer(grid, grid, return_attention_scores=True)
    close(entry.matrix().dense(), array(weights).reshape(2, 2, 4, 4))


OWN: dict[str, tuple[dict[str, Any], Any]] = {
    "plain": ({}, None),
    "causal": ({"causal_mask": True}, it.causal()),
    "padding": ({"mask": SEEN[:, :5]}, it.allowed(torch.tensor(SEEN[:, :5])[:, None, None])),
}


@pytest.mark.parametrize("call", OWN)
def test_our_layer_is_seen_and_shows_the_same(call: str) -> None:
    layer, (options, mask) = built(SelfAttention(2, 8), X.shape), OWN[call]
    (entry,) = watched(layer, X, **options).calls
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
