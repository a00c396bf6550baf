"""A kernel's window_left counts keys before the query's own; it is given the size of the window, which counts that one too. Source: github.com/zml/zml/pull/763"""
import intently as it
import jax
import jax.numpy as jnp
import numpy as np

expect = ["window-off-by-one"]
words = "each query sees one key more than the window holds"

C, HEADS, WINDOW = 24, 3, 3


def asks():
    x = np.random.default_rng(4).normal(size=(2, 8, C)).astype("float32")
    return dict(inputs=dict(x=x), mask=it.window(WINDOW - 1, 0))


def flash_with_kv(q, k, v, *, window_size_left=-1, window_size_right=0):
    """(b, t, h, d); a query sees keys from its position - left to its position + right, all included."""
    row, column = jnp.arange(q.shape[1])[:, None], jnp.arange(k.shape[1])[None]
    row = row + k.shape[1] - q.shape[1]
    seen = column <= row + window_size_right
    if window_size_left >= 0:
        seen &= column >= row - window_size_left
    logits = jnp.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    p = jax.nn.softmax(jnp.where(seen, logits, -jnp.inf), axis=-1)
    return jnp.einsum("bhij,bjhd->bihd", p, v)


def make(left):
    keys = jax.random.split(jax.random.PRNGKey(2), 2)
    fused = jax.random.normal(keys[0], (C, 3 * C)) / C ** 0.5
    out = jax.random.normal(keys[1], (C, C)) / C ** 0.5

    def local_attention(x):
        b, t, _ = x.shape
        q, k, v = (part.reshape(b, t, HEADS, -1) for part in jnp.split(x @ fused, 3, axis=-1))
        y = flash_with_kv(q, k, v, window_size_left=left)
        return y.reshape(b, t, C) @ out

    return local_attention


def wrong():
    return make(WINDOW)


def right():
    return make(WINDOW - 1)


def proof():
    x = asks()["inputs"]["x"]
    a, b = wrong()(x), right()(x)
    return bool(jnp.abs(a - b)[:, :WINDOW].max() < 1e-6 and jnp.abs(a - b)[:, WINDOW:].max() > 1e-2)
