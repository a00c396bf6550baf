"""Grouped queries: key heads are tiled (0, 1, 0, 1) where each should serve consecutive query heads (0, 0, 1, 1). Source: github.com/ekzhang/jax-js/pull/180"""
import jax
import jax.numpy as jnp
import numpy as np

expect = ["key-heads-tiled"]
words = "query head 1 reads key head 1 instead of key head 0"

B, T, C, HEADS, GROUPS = 2, 6, 32, 4, 2
WIDTH = C // HEADS


def asks():
    return dict(inputs=dict(x=np.random.default_rng(0).normal(size=(B, T, C)).astype("float32")))


def weights():
    rng = np.random.default_rng(1)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape) / shape[0] ** 0.5, jnp.float32)
    return dict(q=draw(C, C), kv=draw(C, 2 * GROUPS * WIDTH), out=draw(C, C))


def dot_product_attention(query, key, value, spread):
    """(b, t, heads, width) each, fewer heads of keys and values allowed."""
    times = query.shape[2] // key.shape[2]
    key, value = spread(key, times), spread(value, times)
    logits = jnp.einsum("bqhd,bkhd->bhqk", query, key) / jnp.sqrt(query.shape[-1])
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits, axis=-1), value)


def make(spread):
    w = weights()

    def grouped_attention(x):
        b, t, _ = x.shape
        query = (x @ w["q"]).reshape(b, t, HEADS, WIDTH)
        key, value = jnp.split((x @ w["kv"]).reshape(b, t, 2 * GROUPS, WIDTH), 2, axis=2)
        y = dot_product_attention(query, key, value, spread)
        return y.reshape(b, t, C) @ w["out"]

    return grouped_attention


def wrong():
    return make(lambda heads, times: jnp.tile(heads, (1, 1, times, 1)))


def right():
    return make(lambda heads, times: jnp.repeat(heads, times, axis=2))


def proof():
    x = asks()["inputs"]["x"]
    return bool(jnp.abs(wrong()(x) - right()(x)).max() > 1e-2)
