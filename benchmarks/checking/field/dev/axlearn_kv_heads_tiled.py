"""Key heads are tiled (0, 1, 0, 1) where consecutive query heads share one (0, 0, 1, 1). Source: github.com/apple/axlearn/pull/842"""
import jax
import jax.numpy as jnp
import numpy as np

expect = ["key-heads-tiled"]
words = "query head i reads key head i mod g in place of i // (h / g)"


def _attend(q, k, v):
    d = q.shape[-1]
    logits = jnp.einsum("btnh,bsnh->bnts", q * d**-0.5, k)
    t, s = logits.shape[-2:]
    seen = jnp.arange(t)[:, None] + s - t >= jnp.arange(s)
    probs = jax.nn.softmax(jnp.where(seen, logits, -1e30), axis=-1)
    return jnp.einsum("bnts,bsnh->btnh", probs, v)


def grouped_tiled(q, k, v):
    """q (b, t, n, h), k and v (b, s, g, h)."""
    times = q.shape[2] // k.shape[2]
    return _attend(q, jnp.tile(k, (1, 1, times, 1)), jnp.tile(v, (1, 1, times, 1)))


def grouped_repeated(q, k, v):
    """q (b, t, n, h), k and v (b, s, g, h)."""
    times = q.shape[2] // k.shape[2]
    return _attend(q, jnp.repeat(k, times, axis=2), jnp.repeat(v, times, axis=2))


def asks():
    import intently as it

    r = np.random.default_rng(1)
    z = lambda heads: jnp.asarray(r.standard_normal((2, 6, heads, 8)), dtype=jnp.float32)
    return dict(inputs=dict(q=z(4), k=z(2), v=z(2)), mask=it.causal(), layout="b t h d")


def wrong():
    return grouped_tiled


def right():
    return grouped_repeated


def proof():
    x = asks()["inputs"]
    return not bool(jnp.allclose(wrong()(**x), right()(**x), atol=1e-3))
