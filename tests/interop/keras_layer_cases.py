"""`SelfAttention` in Keras: what `test_keras.py` runs for every backend."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch
from keras import ops

import intently as it
from intently.errors import ArgumentError, KindError
from intently.interop.keras import SelfAttention, load

from ..messages import raises
from .keras_drawing import DTYPES, TORCH, B, C, H, K, T, array, built, close, normal

BIASES = [(True, True), (False, True), (True, False), (False, False)]


@pytest.mark.parametrize(
    ("biases", "width", "dtype"),
    [*((biases, K, "float32") for biases in BIASES), *((BIASES[0], C, dtype) for dtype in DTYPES)],
)
def test_our_layer_loads_weight_for_weight(
    biases: tuple[bool, bool], width: int, dtype: str
) -> None:
    layer = built(SelfAttention(H, C, *biases, dtype=dtype), (B, T, width))
    x, ours = normal(B, T, width), load(layer)
    assert not ours.training and len(layer.weights) == 2 + sum(biases)
    assert sum(p.numel() for p in ours.parameters()) == layer.count_params()
    assert tuple(layer.compute_output_shape((None, T, width))) == (None, T, C)
    given = torch.tensor(x).to(getattr(torch, dtype))
    for causal in (True, False):
        expected = layer(x, causal_mask=causal)
        assert tuple(expected.shape) == (B, T, C)
        found = ours(given, mask=it.causal() if causal else None).detach().float()
        close(found, array(expected), dtype)


def test_what_is_frozen_stays_frozen_in_our_layer() -> None:
    layer = built(SelfAttention(H, C), (B, T, K))
    layer.in_proj.kernel.trainable = False
    ours = load(layer)
    assert [name for name, p in ours.named_parameters() if not p.requires_grad] == ["qkv_weight"]


@pytest.mark.parametrize(("causal", "padded"), [(True, True), (False, False)])
def test_it_shows_its_weights(causal: bool, padded: bool) -> None:
    layer = built(SelfAttention(H, C), (B, T, K))
    x, seen = normal(B, T, K), np.arange(T) < np.array([[3], [5]])
    options: dict[str, Any] = {"causal_mask": causal, "mask": seen if padded else None}
    A = layer.attend(ops.convert_to_tensor(x), **options)
    assert A.shape == (B, H, T, T)
    rule = it.allowed(torch.tensor(seen)[:, None, None]) if padded else None
    rule = (it.causal() if rule is None else rule & it.causal()) if causal else rule
    close(A.dense().detach(), load(layer).attend(torch.tensor(x), mask=rule).dense().detach())
    kernel, bias, *_ = (torch.tensor(w) for w in layer.get_weights())
    v = (torch.tensor(x) @ kernel + bias)[..., 2 * C :].unflatten(-1, (H, -1)).transpose(1, 2)
    y = (A @ v).transpose(1, 2).flatten(2).detach()
    close(array(layer.out_proj(y.numpy())), array(layer(x, **options)))
    assert np.asarray(layer.attend(x, **options)).shape == (B, H, T, T)  # arrays do, too


def test_it_shows_its_weights_before_its_first_call_and_under_a_mask_carried_along() -> None:
    ids = np.array([[1, 2, 3, 0, 0], [1, 2, 3, 4, 5]])
    vectors = keras.layers.Embedding(6, C, mask_zero=True)(ids)
    layer = SelfAttention(H, C)
    A = layer.attend(vectors)
    assert layer.built and not A.dense()[0, :, :, 3:].any()
    expected = load(layer).attend(
        torch.tensor(array(vectors)), mask=it.padding(torch.tensor([3, 5]))
    )
    close(A.dense().detach(), expected.dense().detach())


def test_what_it_shows_can_be_differentiated_on_the_torch_backend_alone() -> None:
    layer = SelfAttention(H, C)
    A = layer.attend(normal(B, T, K))
    assert A.dense().requires_grad == TORCH
    if TORCH:
        A.entropy().sum().backward()
        gradient = layer.in_proj.kernel.value.grad
        assert gradient[:, : 2 * C].any() and not gradient[:, 2 * C :].any()


@pytest.mark.parametrize("causal", [True, False])
def test_it_is_keras_own_layer(causal: bool) -> None:
    layer = built(SelfAttention(H, C), (None, T, C))
    theirs = built(keras.layers.MultiHeadAttention(H, C // H), (None, T, C), (None, T, C))
    kernels, biases, out, out_bias = layer.get_weights()
    weights: list[np.ndarray] = []
    for kernel, bias in zip(np.split(kernels, 3, 1), np.split(biases, 3)):
        weights += [kernel.reshape(C, H, -1), bias.reshape(H, -1)]
    theirs.set_weights([*weights, out.reshape(H, -1, C), out_bias])
    x = normal(B, T, C)
    close(array(layer(x, causal_mask=causal)), array(theirs(x, x, use_causal_mask=causal)))


def test_masks_that_keras_carries_along_hide_keys() -> None:
    ids = np.array([[1, 2, 3, 0, 0], [1, 2, 3, 4, 5]])
    embed, layer = keras.layers.Embedding(6, C, mask_zero=True), SelfAttention(H, C)
    model = built(keras.Sequential([embed, layer]), ids.shape)
    x = torch.tensor(array(embed(ids)))
    expected = load(layer)(x, mask=it.padding(torch.tensor([3, 5]))).detach()
    close(array(model(ids)), expected)


def test_a_row_without_keys_is_the_output_bias() -> None:
    layer = built(SelfAttention(H, C), (B, T, C))
    found = layer(normal(B, T, C), mask=np.zeros((B, T), dtype=bool))
    close(array(found), np.broadcast_to(array(layer.out_proj.bias), found.shape))


@pytest.mark.parametrize(("causal", "bad"), [(True, np.nan), (False, np.inf)])
def test_padded_steps_may_hold_anything(causal: bool, bad: float) -> None:
    layer = built(SelfAttention(H, C), (B, T, K))
    x, seen = normal(B, T, K), np.arange(T) < np.array([[3], [5]])
    expected = array(layer(x, causal_mask=causal, mask=seen))
    x[~seen] = bad
    found = array(layer(x, causal_mask=causal, mask=seen))
    close(found[seen], expected[seen])


@pytest.mark.parametrize("shape", [(0, T, K), (B, 0, K)])
def test_nothing_gives_nothing(shape: tuple[int, ...]) -> None:
    masked = shape[0] == 0
    layer = SelfAttention(H, C)
    mask = np.ones(shape[:2], bool) if masked else None
    found = layer(np.zeros(shape, "float32"), causal_mask=masked, mask=mask)
    assert tuple(found.shape) == (*shape[:2], C)


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16"])
def test_policies(policy: str) -> None:
    layer, x = built(SelfAttention(H, C, dtype=policy), (B, T, C)), normal(B, T, C)
    found = layer(x, causal_mask=True)
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    ours = load(layer).float()(torch.tensor(x), mask=it.causal()).detach()
    close(array(found), ours, "bfloat16")
    A = layer.attend(x)
    assert A.dtype == torch.bfloat16 and A.dense().sum(-1).sub(1).abs().max() < 2e-2


def copying(name: str = "model") -> Any:
    inputs = keras.Input((None, K))
    hidden = SelfAttention(H, C, name="attention")(inputs, causal_mask=True)
    return keras.Model(inputs, keras.layers.Dense(K)(hidden), name=name)


def test_it_trains_saves_and_loads(tmp_path: Path) -> None:
    model = copying()
    x = normal(32, T, K)
    y = np.concatenate([np.zeros((32, 1, K), "float32"), x[:, :-1]], 1)
    model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="mse")
    before = [w.copy() for w in model.get_weights()]
    history = model.fit(x, y, epochs=30, batch_size=16, verbose=0).history["loss"]
    assert history[-1] < 0.8 * history[0]
    assert all(not np.array_equal(a, b) for a, b in zip(before, model.get_weights()))
    file = tmp_path / "model.keras"
    model.save(file)
    again: Any = keras.saving.load_model(file)
    assert type(again.get_layer("attention")) is SelfAttention
    model.save_weights(tmp_path / "model.weights.h5")
    fresh, copy = copying(), keras.models.clone_model(model)
    fresh.load_weights(tmp_path / "model.weights.h5")
    copy.set_weights(model.get_weights())
    for other in (again, fresh, copy):
        close(other.predict(x, verbose=0), model.predict(x, verbose=0))


def test_its_config_makes_it_again() -> None:
    layer = SelfAttention(H, C, in_proj_bias=False, name="mine")
    config = layer.get_config()
    again = SelfAttention.from_config(config)
    assert again.get_config() == config and (again.name, again.in_proj_bias) == ("mine", False)
    assert keras.saving.get_registered_name(SelfAttention) == "intently>SelfAttention"


test_bad_input = raises(
    {
        ArgumentError: {
            "n_heads: expected a divisor of d_embd=16; got 3.": lambda: SelfAttention(3, 16),
            "n_heads: expected an int ≥ 1; got 0.": lambda: SelfAttention(0, 4),
            "d_embd: expected an int ≥ 1; got 0.": lambda: SelfAttention(2, 0),
            "inputs: expected shape (b, t, c); got shape": lambda: SelfAttention(2, 4)(
                normal(2, 3)
            ),
            "inputs: expected shape (b, t, c); got shape (2, 3).": lambda: SelfAttention(
                2, 4
            ).attend(normal(2, 3)),
        },
        KindError: {
            "n_heads: expected an int ≥ 1; got '2'.": lambda: SelfAttention("2", 4),
            "n_heads: expected an int ≥ 1; got 2.0.": lambda: SelfAttention(2.0, 4),
            "inputs: expected numbers; got KerasTensor. A symbolic model has": lambda: (
                SelfAttention(2, 4).attend(keras.Input((3, 4)))
            ),
        },
    }
)


@pytest.mark.parametrize("shape", [(3, 2), (2, 3, 3)])
def test_a_mask_of_another_shape(shape: tuple[int, ...]) -> None:
    """Keras puts words of its own around the message."""
    text = f"mask: expected shape (b, t) = (2, 3), True at real steps; got shape {shape}."
    with pytest.raises(ArgumentError, match=re.escape(text)):
        SelfAttention(2, 4)(normal(2, 3, 4), mask=np.ones(shape, bool))
