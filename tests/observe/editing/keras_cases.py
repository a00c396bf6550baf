"""What `test_keras.py` runs in a process of its own, on the torch backend of Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import intently as it
from intently import edits
from intently.interop.keras import SelfAttention

from ...interop.keras_drawing import array, built, close, normal

X, MEMORY = normal(2, 5, 8), normal(2, 5, 8)[::-1].copy()
LAYERS = {
    "MultiHeadAttention": lambda: keras.layers.MultiHeadAttention(4, 4),
    "GroupedQueryAttention": lambda: keras.layers.GroupQueryAttention(4, 4, 2),
}


def off(layer: Any, head: int) -> Any:
    """The output of a layer whose output projection does not read a head; it is restored."""
    dense = getattr(layer, "_output_dense", None) or layer._output_dense_layer
    kernel = array(dense.kernel)
    changed = kernel.copy()
    changed[head] = 0
    dense.kernel.assign(changed)
    found = array(layer(X, MEMORY))
    dense.kernel.assign(kernel)
    return found


@pytest.mark.parametrize("head", range(4))
@pytest.mark.parametrize("name", LAYERS)
def test_heads_that_are_off(name: str, head: int) -> None:
    layer = built(LAYERS[name](), X.shape, MEMORY.shape)
    plain = array(layer(X, MEMORY))
    with it.edit(layer, edits.off(heads=[head])):
        found = array(layer(X, MEMORY))
    close(found, off(layer, head))
    assert np.abs(found - plain).max() > 1e-3
    assert np.array_equal(array(layer(X, MEMORY)), plain)


def test_keys_that_are_forbidden() -> None:
    layer = built(LAYERS["MultiHeadAttention"](), X.shape, MEMORY.shape)
    seen = np.ones((2, 5, 5), dtype=bool)
    seen[:, 2:4, [0, 1]] = False
    with it.edit(layer, edits.forbid([0, 1], rows=[2, 3])):
        found = layer(X, MEMORY)
    close(array(found), array(layer(X, MEMORY, attention_mask=seen)))


def test_layers_that_return_their_scores() -> None:
    layer = built(LAYERS["MultiHeadAttention"](), X.shape, MEMORY.shape)
    with it.edit(layer, edits.off(heads=[0])):
        found, _ = layer(X, MEMORY, return_attention_scores=True)
    close(array(found), off(layer, 0))


def test_our_layer_in_a_model() -> None:
    inputs = keras.Input((5, 8))
    model = keras.Model(inputs, SelfAttention(2, 8)(inputs))
    seen = np.ones((2, 5, 5), dtype=bool)
    with it.edit(model, edits.off(rows=[1])):
        found = array(model(X))
    plain = array(model(X))
    assert np.array_equal(found[:, [0, 2, 3, 4]], plain[:, [0, 2, 3, 4]]) and seen.all()
    assert np.abs(found[:, 1] - plain[:, 1]).max() > 1e-3
