"""What `test_keras.py` runs in a process of its own for every backend of Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch
from keras import ops

import intently as it
from intently.errors import ArgumentError, CheckpointError, IntentlyError, KindError
from intently.interop.keras import SelfAttention, dump, load
from intently.modules import AttentionOptions, MultiHeadAttention, Projections

B, T, S, C, K, H, D = 2, 5, 6, 16, 7, 4, 3
LENGTHS = torch.tensor([3, 6])
SEEN = np.arange(S) < LENGTHS.numpy()[:, None]
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}
TORCH = keras.backend.backend() == "torch"
DTYPES = list(TOLERANCE) if TORCH else ["float32"]


def drawn(layer: Any) -> Any:
    """The layer with every weight drawn, biases too."""
    draw = np.random.default_rng(0)
    layer.set_weights([draw.normal(size=w.shape, scale=0.3) for w in layer.weights])
    return layer


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype("float32")


def array(x: Any) -> np.ndarray:
    return ops.convert_to_numpy(ops.cast(x, "float32"))


def close(found: Any, expected: Any, dtype: str = "float32") -> None:
    limit = TOLERANCE[dtype]
    np.testing.assert_allclose(found, expected, atol=limit, rtol=limit)


def as_ours(layer: Any) -> MultiHeadAttention:
    """Our block with the weights of `SelfAttention`, whose layout is "3 h d"."""
    pairs = []
    for dense in (layer.in_proj, layer.out_proj):
        kernel = torch.tensor(array(dense.kernel)).T
        pairs.append((kernel, torch.tensor(array(dense.bias))) if dense.use_bias else kernel)
    joint, out = pairs
    return MultiHeadAttention.from_weights(
        joint, None, None, out, layout="3 h d", heads=layer.n_heads
    )


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("biases", [(True, True), (False, True), (True, False), (False, False)])
def test_it_is_multi_head_attention(biases: tuple[bool, bool], causal: bool) -> None:
    layer = SelfAttention(H, C, *biases)
    x = normal(B, T, K)
    layer.build(x.shape)
    assert len(layer.weights) == 2 + sum(biases)
    found = drawn(layer)(x, causal_mask=causal)
    ours = as_ours(layer)(torch.tensor(x), mask=it.causal() if causal else None)
    close(array(found), ours.detach())
    assert tuple(found.shape) == (B, T, C)
    assert tuple(layer.compute_output_shape((None, T, K))) == (None, T, C)


def weights_of(layer: Any) -> dict[str, np.ndarray]:
    return {v.path.split("/", 1)[1]: array(v) for v in layer.weights}


def same(ours: MultiHeadAttention, layer: Any) -> None:
    """Weight for weight, bit for bit: theirs are stored (in, out)."""
    theirs = weights_of(layer)
    names = {"qkv": "in_proj", "out": "out_proj"}
    for letter, name in names.items():
        weight, bias = getattr(ours, f"{letter}_weight"), getattr(ours, f"{letter}_bias")
        np.testing.assert_array_equal(weight.detach().float(), theirs.pop(f"{name}/kernel").T)
        if bias is not None:
            np.testing.assert_array_equal(bias.detach().float(), theirs.pop(f"{name}/bias"))
    assert not theirs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [C, K])
@pytest.mark.parametrize("biases", [(True, True), (False, True), (True, False), (False, False)])
def test_our_layer_loads_weight_for_weight_and_back(
    biases: tuple[bool, bool], width: int, dtype: str
) -> None:
    layer = SelfAttention(H, C, *biases, dtype=dtype)
    x = normal(B, T, width)
    layer.build(x.shape)
    ours = load(drawn(layer))
    assert not ours.training
    same(ours, layer)
    again = dump(ours)
    assert type(again) is SelfAttention
    same(ours, again)
    given = torch.tensor(x).to(getattr(torch, dtype))
    for causal in (True, False):
        y = ours(given, mask=it.causal() if causal else None).detach().float()
        close(y, array(layer(x, causal_mask=causal)), dtype)
        np.testing.assert_array_equal(
            array(again(x, causal_mask=causal)), array(layer(x, causal_mask=causal))
        )


def test_what_is_frozen_stays_frozen_in_our_layer() -> None:
    layer = SelfAttention(H, C)
    layer.build((B, T, K))
    layer.in_proj.kernel.trainable = False
    ours = load(layer)
    assert [name for name, p in ours.named_parameters() if not p.requires_grad] == ["qkv_weight"]
    frozen = [v.path.split("/", 1)[1] for v in dump(ours).weights if not v.trainable]
    assert frozen == ["in_proj/kernel"]


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_it_shows_its_weights(causal: bool, padded: bool) -> None:
    layer = SelfAttention(H, C)
    x, seen = normal(B, T, K), np.arange(T) < np.array([[3], [5]])
    options: dict[str, Any] = {"causal_mask": causal, "mask": seen if padded else None}
    layer.build(x.shape)
    drawn(layer)
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


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16"])
def test_the_weights_it_shows_are_of_its_policy(policy: str) -> None:
    layer = SelfAttention(H, C, dtype=policy)
    A = layer.attend(normal(B, T, K))
    assert A.dtype == torch.bfloat16 and A.dense().sum(-1).sub(1).abs().max() < 2e-2


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
    layer = SelfAttention(H, C)
    layer.build((None, T, C))
    drawn(layer)
    theirs = keras.layers.MultiHeadAttention(H, C // H)
    theirs.build((None, T, C), (None, T, C))
    kernel, bias = layer.in_proj.get_weights()
    out, out_bias = layer.out_proj.get_weights()
    weights: list[np.ndarray] = []
    for i in range(3):
        weights += [kernel[:, i * C : (i + 1) * C].reshape(C, H, -1)]
        weights += [bias[i * C : (i + 1) * C].reshape(H, -1)]
    theirs.set_weights([*weights, out.reshape(H, -1, C), out_bias])
    x = normal(B, T, C)
    close(array(layer(x, causal_mask=causal)), array(theirs(x, x, use_causal_mask=causal)))


def test_masks_that_keras_carries_along_hide_keys() -> None:
    ids = np.array([[1, 2, 3, 0, 0], [1, 2, 3, 4, 5]])
    embed, layer = keras.layers.Embedding(6, C, mask_zero=True), SelfAttention(H, C)
    model = keras.Sequential([embed, layer])
    found = model(ids)
    drawn(model)
    found = array(model(ids))
    x = torch.tensor(array(embed(ids)))
    close(found, as_ours(layer)(x, mask=it.padding(torch.tensor([3, 5]))).detach())


def test_a_row_without_keys_is_the_output_bias() -> None:
    layer = SelfAttention(H, C)
    x = normal(B, T, C)
    layer.build(x.shape)
    found = drawn(layer)(x, mask=np.zeros((B, T), dtype=bool))
    close(array(found), np.broadcast_to(array(layer.out_proj.bias), found.shape))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("causal", [True, False])
def test_padded_steps_may_hold_anything(causal: bool, bad: float) -> None:
    layer = SelfAttention(H, C)
    x, seen = normal(B, T, K), np.arange(T) < np.array([[3], [5]])
    layer.build(x.shape)
    expected = array(drawn(layer)(x, causal_mask=causal, mask=seen))
    x[~seen] = bad
    found = array(layer(x, causal_mask=causal, mask=seen))
    close(found[seen], expected[seen])


@pytest.mark.parametrize("shape", [(0, T, K), (B, 0, K), (0, 0, K)])
@pytest.mark.parametrize("masked", [True, False])
def test_nothing_gives_nothing(shape: tuple[int, ...], masked: bool) -> None:
    layer = SelfAttention(H, C)
    mask = np.ones(shape[:2], bool) if masked else None
    found = layer(np.zeros(shape, "float32"), causal_mask=masked, mask=mask)
    assert tuple(found.shape) == (*shape[:2], C)


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16"])
def test_policies(policy: str) -> None:
    layer = SelfAttention(H, C, dtype=policy)
    x = normal(B, T, C)
    layer.build(x.shape)
    found = drawn(layer)(x, causal_mask=True)
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    close(array(found), as_ours(layer)(torch.tensor(x), mask=it.causal()).detach(), "bfloat16")


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
    close(again.predict(x, verbose=0), model.predict(x, verbose=0))
    assert type(again.get_layer("attention")) is SelfAttention
    model.save_weights(tmp_path / "model.weights.h5")
    fresh = copying()
    fresh.load_weights(tmp_path / "model.weights.h5")
    close(fresh.predict(x, verbose=0), model.predict(x, verbose=0))
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    close(copy.predict(x, verbose=0), model.predict(x, verbose=0))


def test_its_config_makes_it_again() -> None:
    layer = SelfAttention(H, C, in_proj_bias=False, name="mine")
    config = layer.get_config()
    again = SelfAttention.from_config(config)
    assert again.get_config() == config and (again.name, again.in_proj_bias) == ("mine", False)
    assert keras.saving.get_registered_name(SelfAttention) == "intently>SelfAttention"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: SelfAttention(3, 16), "n_heads: expected a divisor of d_embd=16; got 3."),
        (lambda: SelfAttention("2", 4), "n_heads: expected an int ≥ 1; got '2'."),
        (lambda: SelfAttention(2.0, 4), "n_heads: expected an int ≥ 1; got 2.0."),
        (lambda: SelfAttention(0, 4), "n_heads: expected an int ≥ 1; got 0."),
        (lambda: SelfAttention(2, 0), "d_embd: expected an int ≥ 1; got 0."),
        (lambda: SelfAttention(2, 4)(normal(2, 3)), "inputs: expected shape (b, t, c); got shape"),
        (
            lambda: SelfAttention(2, 4).attend(keras.Input((3, 4))),
            "inputs: expected numbers; got KerasTensor. A symbolic model has no weights to show.",
        ),
        (
            lambda: SelfAttention(2, 4).attend(normal(2, 3)),
            "inputs: expected shape (b, t, c); got shape (2, 3).",
        ),
        (
            lambda: SelfAttention(2, 4)(normal(2, 3, 4), mask=np.ones((3, 2), bool)),
            "mask: expected shape (b, t) = (2, 3), True at real steps; got shape (3, 2).",
        ),
        (
            lambda: SelfAttention(2, 4)(normal(2, 3, 4), mask=np.ones((2, 3, 3), bool)),
            "mask: expected shape (b, t) = (2, 3), True at real steps; got shape (2, 3, 3).",
        ),
    ],
)
def test_bad_input(call: Any, text: str) -> None:
    with pytest.raises((ArgumentError, KindError)) as caught:
        call()
    assert text in str(caught.value)


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
WIDTHS = [C, K] if TORCH else [K]
MASKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "none": (None, {}),
    "padding": (it.padding(LENGTHS), {"value_mask": SEEN}),
    "causal": (it.causal(offset=0), {"use_causal_mask": True}),
    "allowed": (
        it.padding(LENGTHS) & it.causal(offset=0),
        {"attention_mask": SEEN[:, None] & np.tri(T, S, dtype=bool)},
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("masked", MASKS)
@pytest.mark.parametrize("form", FORMS)
def test_keras_layers_load(form: str, masked: str, width: int, dtype: str) -> None:
    theirs = FORMS[form](dtype=dtype)
    theirs.build((B, T, C), (B, S, width))
    ours = load(drawn(theirs))
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
    ours, x = load(drawn(theirs)), normal(B, T, C)
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
    with pytest.raises(ArgumentError) as caught:
        load(theirs)
    assert str(caught.value) == (
        "MultiHeadAttention.qkv_bias: expected all or none of q_bias, k_bias, v_bias frozen; got "
        "v_bias frozen alone. They become one tensor, which learns or does not. Freeze, or let "
        "learn, all of them there and load again."
    )


def test_keras_passes_over_an_explicit_query_mask() -> None:
    theirs, x = built(mha(), (B, T, C), (B, T, C)), normal(B, T, C)
    nobody = np.zeros((B, T), bool)
    close(array(theirs(x, x, query_mask=nobody)), array(theirs(x, x)))


def built(layer: Any, *shapes: tuple[int, ...]) -> Any:
    layer.build(*(shapes or ((B, T, C), (B, S, K))))
    return layer


ERRORS: dict[str, tuple[Any, type[IntentlyError], str]] = {
    "not built": (
        mha,
        CheckpointError,
        "MultiHeadAttention: expected a layer with weights; got "
        "one that was not built. Call it once, or",
    ),
    "gate": (
        lambda: built(mha(use_gate=True)),
        CheckpointError,
        "MultiHeadAttention: expected "
        "every parameter to have a place; got 'gate/bias', 'gate/kernel' left over.",
    ),
    "gated groups": (lambda: built(gqa(use_gate=True)), CheckpointError, "'gate/bias', 'gate/k"),
    "axes": (
        lambda: built(mha(attention_axes=(1, 2)), (B, 2, 3, C), (B, 2, 3, C)),
        ArgumentError,
        "MultiHeadAttention.attention_axes: expected (1,), the steps of (b, t, c); got (1, 2).",
    ),
    "keys": (
        lambda: built(mha(), (B, T, C), (B, S, 7), (B, S, 8)),
        ArgumentError,
        "MultiHeadAttention.key: expected keys as wide as values, 7; got 8.",
    ),
    "output": (
        lambda: built(mha(output_shape=(2, 3))),
        ArgumentError,
        "MultiHeadAttention.output_shape: expected one width; got (2, 3).",
    ),
    "kind": (
        lambda: keras.layers.Dense(2),
        KindError,
        "load: expected a module of type MultiHeadAttention or GroupedQueryAttention or "
        "SelfAttention; got Dense.",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_is_not_known_is_refused(case: str) -> None:
    make, kind, text = ERRORS[case]
    theirs = make()
    before = theirs.get_weights()
    with pytest.raises(kind) as caught:
        load(theirs)
    assert text in str(caught.value)
    assert all(np.array_equal(a, b) for a, b in zip(before, theirs.get_weights()))


REFUSED: dict[str, tuple[Any, type[IntentlyError], str]] = {
    "kind": (
        lambda: torch.nn.Linear(2, 2),
        KindError,
        "dump: expected a module of type MultiHeadAttention; got Linear.",
    ),
    "context": (
        lambda: MultiHeadAttention(8, 2, context_width=4),
        ArgumentError,
        "MultiHeadAttention.context_width: expected width=8; got 4. SelfAttention has one input.",
    ),
    "groups": (
        lambda: MultiHeadAttention(8, 2, kv_heads=1),
        ArgumentError,
        "MultiHeadAttention.kv_heads: expected kv_heads=heads=2; got 1. Heads share no keys in "
        "SelfAttention.",
    ),
    "widths": (
        lambda: MultiHeadAttention(8, 2, head_widths=(4, 3)),
        ArgumentError,
        "MultiHeadAttention.head_widths: expected d = e = out_width/heads; got d=4, e=3, "
        "out_width=8. SelfAttention has one width, d_embd.",
    ),
    "output": (
        lambda: MultiHeadAttention(8, 2, projections=Projections(out_width=6)),
        ArgumentError,
        "MultiHeadAttention.head_widths: expected d = e = out_width/heads; got d=4, e=4, "
        "out_width=6.",
    ),
    "dropout": (
        lambda: MultiHeadAttention(8, 2, dropout=0.1),
        ArgumentError,
        "MultiHeadAttention.dropout: expected 0; got 0.1. There is none in SelfAttention.",
    ),
    "mask": (
        lambda: MultiHeadAttention(8, 2, attention=AttentionOptions(mask=it.causal())),
        ArgumentError,
        "MultiHeadAttention.attention.mask: expected None; got causal(). There is none in "
        "SelfAttention.",
    ),
    "scale": (
        lambda: MultiHeadAttention(8, 2, attention=AttentionOptions(scale=1.0)),
        ArgumentError,
        "MultiHeadAttention.attention.scale: expected 1/√d; got 1.0. SelfAttention knows no other.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_our_layer_cannot_compute_is_not_dumped(case: str) -> None:
    make, kind, text = REFUSED[case]
    with pytest.raises(kind) as caught:
        dump(make())
    assert text in str(caught.value)


def test_separate_maps_are_dumped() -> None:
    block = MultiHeadAttention(C, H, projections=Projections(fused=False))
    x = normal(B, T, C)
    close(array(dump(block)(x)), block(torch.tensor(x)).detach())
