"""Masked keys are marked by a negative position, and -0 is not below 0: the first key is never masked. Source: github.com/google/trax/issues/820"""
import jax
import jax.numpy as jnp
import numpy as np
import intently as it

expect = ["padding-attended", "lengths-off-by-one", "mask-other"]
words = "padding at the first position is attended to"


def _one_text(head, first, x, real):
    """One head on one text; `first` is the number of the first position."""
    wq, wk, wv, wo = head
    q, k, v = x @ wq, x @ wk, x @ wv
    k = k / jnp.sqrt(k.shape[-1])
    where = jnp.arange(first, first + x.shape[0])
    kv_info = (where * jnp.where(real, 1, -1)).astype(jnp.float32)
    dots = q @ k.T
    dots = dots - 1e9 * (kv_info < 0)[None, :].astype(jnp.float32)
    dots = jnp.exp(dots - jax.nn.logsumexp(dots, axis=-1, keepdims=True))
    return (dots @ v) @ wo


def _build(first):
    r = np.random.default_rng(6)
    heads, width, d = 2, 24, 12
    w = [jnp.asarray(r.normal(size=(heads, width, d)).astype("float32") * width**-0.5) for _ in range(3)]
    w.append(jnp.asarray(r.normal(size=(heads, d, width)).astype("float32") * width**-0.5))
    over_heads = jax.vmap(lambda head, x, real: _one_text(head, first, x, real), in_axes=(0, None, None))
    over_texts = jax.vmap(over_heads, in_axes=(None, 0, 0))

    def self_attention(x, mask):
        return over_texts(tuple(w), x, mask).sum(1)

    return self_attention


REAL = np.array([[True] * 7, [False, False, False] + [True] * 4])  # padded on the left


def _inputs():
    r = np.random.default_rng(7)
    return dict(x=jnp.asarray(r.normal(size=(2, 7, 24)).astype("float32")), mask=jnp.asarray(REAL))


def asks():
    return dict(inputs=_inputs(), mask=it.padding(REAL.tolist()))


def wrong():
    return _build(0)


def right():
    return _build(1)


def proof():
    x = _inputs()
    d = jnp.abs(wrong()(**x) - right()(**x)).max(axis=(1, 2))
    return bool(d[0] < 1e-6) and bool(d[1] > 1e-2)
