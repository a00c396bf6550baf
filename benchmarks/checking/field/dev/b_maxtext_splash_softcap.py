"""The blockwise (splash) path of the attention op is not handed the soft cap that the dot-product path applies. Source: github.com/AI-Hypercomputer/maxtext/pull/4305"""
import numpy as np
import jax
import jax.numpy as jnp
from jax import lax
import intently as it

expect = ["softcap-missing"]
words = "attn_logits_soft_cap is set, and the flash path never caps the scores"

CAP = 5.0


def flash_block_masked(q, k, v, cap, block=4):
    """(b, n, t, d) attention with a running maximum over blocks of keys, causal."""
    b, n, t, d = q.shape
    s = k.shape[2]
    while s % block:
        block -= 1
    rows = jnp.arange(t)[:, None]

    def step(carry, at):
        top, total, acc = carry
        kb = lax.dynamic_slice_in_dim(k, at, block, 2)
        vb = lax.dynamic_slice_in_dim(v, at, block, 2)
        z = jnp.einsum("bntd,bnsd->bnts", q, kb)
        if cap is not None:
            z = jnp.tanh(z / cap) * cap
        z = jnp.where(rows >= at + jnp.arange(block)[None], z, -1e30)
        new = jnp.maximum(top, z.max(-1))
        e = jnp.exp(z - new[..., None])
        keep = jnp.exp(top - new)
        acc = acc * keep[..., None] + jnp.einsum("bnts,bnsd->bntd", e, vb)
        return (new, total * keep + e.sum(-1), acc), None

    start = (jnp.full((b, n, t), -1e30), jnp.zeros((b, n, t)), jnp.zeros((b, n, t, d)))
    (_, total, acc), _ = lax.scan(step, start, jnp.arange(0, s, block))
    return acc / total[..., None]


def make(pass_cap):
    def attention_op(query, key, value):
        q = jnp.swapaxes(query, 1, 2) / np.sqrt(query.shape[-1])
        k, v = jnp.swapaxes(key, 1, 2), jnp.swapaxes(value, 1, 2)
        y = flash_block_masked(q, k, v, CAP if pass_cap else None)
        return jnp.swapaxes(y, 1, 2)

    return attention_op


def dot_product(query, key, value):
    t = query.shape[1]
    z = jnp.einsum("btnd,bsnd->bnts", query, key) / np.sqrt(query.shape[-1])
    z = CAP * jnp.tanh(z / CAP)
    z = jnp.where(jnp.tril(jnp.ones((t, t), bool)), z, jnp.finfo(z.dtype).min)
    return jnp.einsum("bnts,bsnd->btnd", jax.nn.softmax(z, -1), value)


def asks():
    g = np.random.default_rng(3)
    x = lambda c: jnp.asarray(c * g.standard_normal((2, 8, 2, 16)), jnp.float32)
    return dict(inputs=dict(query=x(4.0), key=x(2.0), value=x(1.0)), mask=it.causal(), like=dot_product)


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    i = asks()["inputs"]
    d = lambda f: float(jnp.abs(f(**i) - dot_product(**i)).max())
    return d(wrong()) > 1e-2 and d(right()) < 1e-5
