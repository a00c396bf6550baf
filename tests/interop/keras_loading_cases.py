"""`load` of Keras layers: what `test_keras.py` runs for every backend."""

from __future__ import annotations

import re
from typing import Any

import keras
import numpy as np
import pytest
import torch

import intently as it
from intently.errors import ArgumentError, CheckpointError, KindError
from intently.interop.keras import load
from intently.nn import MultiHeadAttention

from ..messages import Refusals, refused
from . import keras_drawing as drawing
from .keras_drawing import (
    DTYPES,
    LENGTHS,
    SEEN,
    TORCH,
    B,
    C,
    D,
    H,
    K,
    S,
    T,
    array,
    close,
    drawn,
    normal,
)


def mha(**options: Any) -> Any:
    return keras.layers.MultiHeadAttention(**({"num_heads": H, "key_dim": D} | options))


def gqa(**options: Any) -> Any:
    return keras.layers.GroupQueryAttention(
        **({"head_dim": D, "num_query_heads": H, "num_key_value_heads": 2} | options)
    )


FORMS: dict[str, Any] = {
    "plain": mha,
    "no bias": lambda **o: mha(use_bias=False, **o),
    "output width": lambda **o: mha(output_shape=9, **o),
    "window": lambda **o: mha(sliding_window=3, **o),
    "groups": gqa,
    "groups, no bias": lambda **o: gqa(use_bias=False, **o),
    "one key head": lambda **o: gqa(num_key_value_heads=1, **o),
    "groups, window": lambda **o: gqa(sliding_window=3, **o),
}


if TORCH:  # Keras's fused attention on JAX wants e = d
    FORMS["value width"] = lambda **o: mha(value_dim=5, **o)


MASKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "none": (None, {}),
    "padding": (it.padding(LENGTHS), {"value_mask": SEEN}),
    "causal": (it.causal(offset=0), {"use_causal_mask": True}),
    "allowed": (
        it.padding(LENGTHS) & it.causal(offset=0),
        {"attention_mask": SEEN[:, None] & np.tri(T, S, dtype=bool)},
    ),
}


CASES = [
    *((form, "allowed", K, "float32") for form in FORMS),
    *((form, masked, K, "float32") for form in ("plain", "groups, window") for masked in MASKS),
    *((form, "padding", C, dtype) for form in ("plain", "groups") for dtype in DTYPES if TORCH),
]


@pytest.mark.parametrize(("form", "masked", "width", "dtype"), dict.fromkeys(CASES))
def test_keras_layers_load(form: str, masked: str, width: int, dtype: str) -> None:
    theirs = built(FORMS[form](dtype=dtype), (B, T, C), (B, S, width))
    ours = load(theirs)
    assert {p.dtype for p in ours.parameters()} == {getattr(torch, dtype)}
    rule, options = MASKS[masked]
    x, context = normal(B, T, C), normal(B, S, width)
    given = [torch.tensor(y).to(getattr(torch, dtype)) for y in (x, context)]
    for training in (True, False):
        expected = theirs(x, context, training=training, **options)
        found = ours.train(training)(*given, mask=rule)
        close(found.detach().float(), array(expected), dtype)


def test_a_layer_inside_a_model_loads() -> None:
    inputs = keras.Input((T, C))
    theirs = mha(dropout=0.1, name="deep")
    model = keras.Model(inputs, theirs(inputs, inputs))
    drawn(model)
    ours = load(theirs)
    assert ours.dropout == pytest.approx(0.1)
    x = normal(B, T, C)
    close(ours.eval()(torch.tensor(x)).detach(), array(model(x)))


def test_a_loaded_layer_is_in_eval_mode_and_frozen_where_theirs_is() -> None:
    theirs = built(mha(dropout=0.5))
    ours, x = load(theirs), normal(B, T, C)
    assert not ours.training and all(p.requires_grad for p in ours.parameters())
    context = normal(B, S, K)
    close(ours(torch.tensor(x), torch.tensor(context)).detach(), array(theirs(x, context)))
    theirs.trainable = False
    with torch.no_grad():
        assert not any(p.requires_grad for p in load(theirs).parameters())
    theirs.trainable = True
    theirs._value_dense.bias.trainable = False
    with torch.no_grad():
        frozen = [name for name, p in load(theirs).named_parameters() if not p.requires_grad]
    assert frozen == ["v_bias"]


def test_parts_of_one_tensor_are_frozen_together() -> None:
    theirs = built(mha(), (B, T, C), (B, S, C))
    theirs._value_dense.bias.trainable = False
    refused(
        lambda: load(theirs),
        ArgumentError,
        "MultiHeadAttention.qkv_bias: expected all or none of q_bias, k_bias, v_bias frozen; got "
        "v_bias frozen alone. They become one tensor, which learns or does not. Freeze, or let "
        "learn, all of them there and load again.",
        whole=True,
    )


def built(layer: Any, *shapes: tuple[int, ...]) -> Any:
    """The layer with drawn weights, for queries and a context of another width by default."""
    return drawing.built(layer, *(shapes or ((B, T, C), (B, S, K))))


ERRORS: Refusals = {
    CheckpointError: {
        "MultiHeadAttention: expected a layer with weights; got "
        "one not built. Call it once, or": mha,
        "MultiHeadAttention: expected "
        "every parameter to have a place; got 'gate/bias', 'gate/kernel' left over.": lambda: built(
            mha(use_gate=True)
        ),
        "'gate/bias', 'gate/k": lambda: built(gqa(use_gate=True)),
    },
    ArgumentError: {
        "MultiHeadAttention.attention_axes: expected (1,); got ": lambda: built(
            mha(attention_axes=(1, 2)), (B, 2, 3, C), (B, 2, 3, C)
        ),
        "MultiHeadAttention.key: expected 7; got 8.": lambda: built(
            mha(), (B, T, C), (B, S, 7), (B, S, 8)
        ),
        "MultiHeadAttention.output_shape: expected (2,); got (2, 3).": lambda: built(
            mha(output_shape=(2, 3))
        ),
    },
    KindError: {
        "load: expected a module of type MultiHeadAttention or GroupedQueryAttention or "
        "SelfAttention; got Dense.": lambda: keras.layers.Dense(2)
    },
}


CASES_OF_ERRORS = [(kind, text, make) for kind, of in ERRORS.items() for text, make in of.items()]


@pytest.mark.parametrize(("kind", "text", "make"), CASES_OF_ERRORS)
def test_what_is_not_known_is_refused(kind: type[Exception], text: str, make: Any) -> None:
    theirs = make()
    before = theirs.get_weights()
    with pytest.raises(kind, match=re.escape(text)):
        load(theirs)
    assert all(np.array_equal(a, b) for a, b in zip(before, theirs.get_weights()))


# --- layers that a user wrote in Keras ------------------------------------------------------------


class SelfAttention(keras.layers.Layer):
    """What posts write: the name of ours, a class of its own, and no `get_config`."""

    def __init__(self, n_heads: int, d_embd: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.joint, self.out = keras.layers.Dense(3 * d_embd), keras.layers.Dense(d_embd)

    def call(self, x: Any) -> Any:
        ops, (b, t, c) = keras.ops, x.shape
        q, k, v = (
            ops.transpose(ops.reshape(part, (b, t, self.n_heads, c // self.n_heads)), (0, 2, 1, 3))
            for part in ops.split(self.joint(x), 3, -1)
        )
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / np.sqrt(c // self.n_heads)
        y = ops.matmul(ops.softmax(scores, -1), v)
        return self.out(ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (b, t, c)))


def test_dense_layers_are_weights() -> None:
    theirs, x = SelfAttention(H, C), normal(B, T, C)
    expected = theirs(x)
    for joint, out in (
        (theirs.joint, theirs.out),
        *[tuple((part.kernel.numpy().T, part.bias.numpy()) for part in (theirs.joint, theirs.out))]
        * TORCH,
    ):
        made = MultiHeadAttention.from_weights(joint, None, None, out, layout="3 h d", heads=H)
        close(made(torch.from_numpy(x)).detach().numpy(), array(expected))
    plain = keras.layers.Dense(C, use_bias=False)
    with pytest.raises(KindError, match="out: expected a layer with weights; got one without"):
        MultiHeadAttention.from_weights(theirs.joint, None, None, plain, layout="3 h d", heads=H)
    plain(x)
    made = MultiHeadAttention.from_weights(theirs.joint, None, None, plain, layout="3 h d", heads=H)
    assert made.out_bias is None
    for given in (theirs.joint.kernel, (theirs.joint.kernel, theirs.joint.bias)):
        with pytest.raises(KindError, match=r"Pass the Dense layer itself, or q\.numpy\(\)\.T"):
            MultiHeadAttention.from_weights(given, None, None, plain, layout="3 h d", heads=H)


def test_a_class_of_the_same_name_is_told_apart() -> None:
    theirs = SelfAttention(H, C)
    theirs(normal(B, T, C))
    said = rf"got SelfAttention of {re.escape(__name__)}\. It is another class of that name"
    with pytest.raises(KindError, match=said):
        load(theirs)


@pytest.mark.skipif(not TORCH, reason="it.check follows PyTorch's operations")
def test_a_layer_that_cannot_be_copied_is_checked_in_few_words() -> None:
    told = str(it.check(SelfAttention(H, C), inputs={"x": normal(B, T, C)}))
    assert "fused as (3, h, d)" in told
    assert told.count("Could not locate class") == 1
    assert "Full object config" not in told and len(told.splitlines()) < 25
