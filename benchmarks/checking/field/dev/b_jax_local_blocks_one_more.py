"""A local mask whose left reach is inclusive gets the window size, so each query keeps one key too many. Source: github.com/AI-Hypercomputer/maxtext/pull/4289"""
import jax
import jax.numpy as jnp
import numpy as np
import intently as it

expect = ["window-off-by-one"]
words = "a sliding window of 4 tokens keeps 5"
SIZE, BLOCK = 4, 3


def local(rows, columns, reach):
    gap = rows[:, None] - columns[None, :]
    return (gap >= 0) & (gap <= reach)


def sliding_attention(q, k, v, reach):
    """Keys block by block with a running maximum, q, k, v of shape (b, h, t, d)."""
    b, h, t, d = q.shape
    q = q * d**-0.5
    rows = jnp.arange(t)
    top = jnp.full((b, h, t), -1e30)
    total = jnp.zeros((b, h, t))
    out = jnp.zeros((b, h, t, v.shape[-1]))
    for start in range(0, k.shape[2], BLOCK):
        kb, vb = k[:, :, start : start + BLOCK], v[:, :, start : start + BLOCK]
        allowed = local(rows, start + jnp.arange(kb.shape[2]), reach)
        z = jnp.where(allowed, jnp.einsum("bhtd,bhsd->bhts", q, kb), -jnp.inf)
        new = jnp.maximum(top, z.max(-1))
        p = jnp.exp(z - new[..., None])
        keep = jnp.exp(top - new)
        total = total * keep + p.sum(-1)
        out = out * keep[..., None] + jnp.einsum("bhts,bhsd->bhtd", p, vb)
        top = new
    return out / total[..., None]


def asks():
    a, b, c = jax.random.split(jax.random.PRNGKey(0), 3)
    shape = (2, 2, 9, 16)
    return dict(
        inputs=dict(q=jax.random.normal(a, shape), k=jax.random.normal(b, shape), v=jax.random.normal(c, shape)),
        mask=it.window(SIZE - 1, 0),
    )


def wrong():
    def attention(q, k, v):
        return sliding_attention(q, k, v, reach=SIZE)

    return attention


def right():
    def attention(q, k, v):
        return sliding_attention(q, k, v, reach=SIZE - 1)

    return attention


def proof():
    i = asks()["inputs"]
    gap = np.arange(9)[:, None] - np.arange(9)[None]
    z = np.einsum("bhtd,bhsd->bhts", i["q"], i["k"]) / 4
    z = np.where((gap >= 0) & (gap < SIZE), z, -np.inf)
    w = np.exp(z - z.max(-1, keepdims=True))
    ref = (w / w.sum(-1, keepdims=True)) @ np.asarray(i["v"])
    return bool(np.abs(right()(**i) - ref).max() < 1e-5) and bool(np.abs(wrong()(**i) - ref).max() > 1e-2)
