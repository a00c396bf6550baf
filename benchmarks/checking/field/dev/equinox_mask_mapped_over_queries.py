"""vmap over heads maps the mask (heads, t, s) over its second axis, so each head gets one row of it for all queries. Source: github.com/patrick-kidger/equinox/pull/190"""
import functools

import jax
import jax.numpy as jnp
import numpy as np

expect = ["mask-other"]
words = "head i masks each query by row i of the masks of all heads"


def _one_head(q, k, v, mask):
    logits = q @ k.T / jnp.sqrt(q.shape[-1])
    logits = jnp.where(mask, logits, -jnp.inf)
    return jax.nn.softmax(logits, axis=-1) @ v


def _multihead(params, query, key, value, mask, mapped):
    heads = mask.shape[0]
    split = lambda w, x: (x @ w).reshape(x.shape[0], heads, -1)
    q, k, v = split(params["q"], query), split(params["k"], key), split(params["v"], value)
    out = jax.vmap(_one_head, in_axes=(1, 1, 1, mapped), out_axes=1)(q, k, v, mask)
    return out.reshape(query.shape[0], -1) @ params["o"]


def _params(width=30):
    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    return {n: jax.random.normal(key, (width, width)) / width**0.5 for n, key in zip("qkvo", keys)}


def asks():
    import intently as it

    r = np.random.default_rng(1)
    x = lambda n: jnp.asarray(r.standard_normal((n, 30)), dtype=jnp.float32)
    mask = np.ones((6, 6, 6), dtype=bool) & np.tril(np.ones((6, 6), dtype=bool))
    h = x(6)
    return dict(inputs=dict(query=h, key=h, value=h, mask=jnp.asarray(mask)), mask=it.causal())


def wrong():
    params = _params()

    def attention(query, key, value, mask):
        return _multihead(params, query, key, value, mask, mapped=1)

    return attention


def right():
    params = _params()

    def attention(query, key, value, mask):
        return _multihead(params, query, key, value, mask, mapped=0)

    return attention


def proof():
    x = asks()["inputs"]
    return not bool(jnp.allclose(wrong()(**x), right()(**x), atol=1e-3))
