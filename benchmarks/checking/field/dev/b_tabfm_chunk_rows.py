"""The chunked (memory-efficient) attention slices one row of the mask for a whole chunk of queries. Source: github.com/google-research/tabfm/pull/40"""
import math
import numpy as np
import jax
import jax.numpy as jnp
from jax import lax
import intently as it

expect = ["mask-other"]
words = "every query of a chunk gets the mask row of the chunk's first query"


def make(rows_of_a_slice):
    def summarize(q, k, v, m):
        z = jnp.einsum("qnd,knd->qnk", q, k)
        z = jnp.where(m, z, -1e30)
        top = lax.stop_gradient(z.max(axis=-1, keepdims=True))
        e = jnp.exp(z - top)
        return jnp.einsum("qnk,knd->qnd", e, v), e.sum(axis=-1), top[..., 0]

    def one_example(q, k, v, mask, q_chunk, k_chunk):
        t, n, d = q.shape
        s = k.shape[0]
        q = q / math.sqrt(d)
        while t % q_chunk:
            q_chunk -= 1
        while s % k_chunk:
            k_chunk -= 1

        def rows(start):
            part = lax.dynamic_slice(q, (start, 0, 0), (q_chunk, n, d))

            def columns(at):
                kp = lax.dynamic_slice(k, (at, 0, 0), (k_chunk, n, d))
                vp = lax.dynamic_slice(v, (at, 0, 0), (k_chunk, n, v.shape[-1]))
                m = lax.dynamic_slice(mask, (0, start, at), (1, rows_of_a_slice(q_chunk), k_chunk))
                return summarize(part, kp, vp, jnp.moveaxis(m, 0, 1))

            values, sums, tops = lax.map(columns, jnp.arange(0, s, k_chunk))
            top = tops.max(axis=0, keepdims=True)
            factor = jnp.exp(tops - top)
            return (values * factor[..., None]).sum(0) / (sums * factor).sum(0)[..., None]

        return lax.map(rows, jnp.arange(0, t, q_chunk)).reshape(t, n, -1)

    def dot_product_attention(query, key, value, mask):
        run = lambda q, k, v, m: one_example(q, k, v, m, 4, 4)
        return jax.vmap(run)(query, key, value, mask)

    return dot_product_attention


def asks():
    g = np.random.default_rng(0)
    x = lambda: jnp.asarray(g.standard_normal((2, 8, 2, 16)), jnp.float32)
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((8, 8), bool)), (2, 1, 8, 8))
    return dict(inputs=dict(query=x(), key=x(), value=x(), mask=mask), mask=it.causal())


def wrong():
    return make(lambda chunk: 1)


def right():
    return make(lambda chunk: chunk)


def proof():
    i = asks()["inputs"]
    a, b = wrong()(**i), right()(**i)
    z = jnp.einsum("btnd,bsnd->bnts", i["query"], i["key"]) / 4
    full = jnp.einsum("bnts,bsnd->btnd", jax.nn.softmax(jnp.where(i["mask"], z, -jnp.inf), -1), i["value"])
    return bool(jnp.abs(a - b).max() > 1e-2 and jnp.abs(b - full).max() < 1e-5)
