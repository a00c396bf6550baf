"""A decoding step adds the causal mask of one query and all cache slots to the mask of filled slots: only key 0 is left. Source: github.com/google/flax/issues/5591"""
import numpy as np
import jax
import jax.numpy as jnp
import torch

expect = ["mask-top-left"]
words = "tril of shape (1, length) keeps the first column only"

def asks():
    r = np.random.default_rng(0)
    k, v = r.normal(size=(2, 2, 8, 4, 8))
    k[:, 5:] = v[:, 5:] = 0
    return dict(inputs=dict(x=jnp.asarray(r.normal(size=(2, 1, 32)), jnp.float32), cached_key=jnp.asarray(k, jnp.float32),
                            cached_value=jnp.asarray(v, jnp.float32), index=jnp.asarray(5)), mask=(torch.arange(8) <= 5)[None])

def decoder(causal_too):
    r = np.random.default_rng(8)
    wq, wk, wv = (jnp.asarray(r.normal(size=(32, 4, 8)) / 4, jnp.float32) for _ in range(3))
    wo = jnp.asarray(r.normal(size=(4, 8, 32)) / 4, jnp.float32)

    def step(x, cached_key, cached_value, index):
        q, k, v = (jnp.einsum("btc,chd->bthd", x, w) for w in (wq, wk, wv))
        keys = jax.lax.dynamic_update_slice(cached_key, k, (0, index, 0, 0))
        values = jax.lax.dynamic_update_slice(cached_value, v, (0, index, 0, 0))
        seen = (jnp.arange(keys.shape[1]) <= index)[None, :]
        if causal_too:
            seen = seen & jnp.tril(jnp.ones((x.shape[1], keys.shape[1]), bool))
        z = jnp.einsum("bthd,bshd->bhts", q / jnp.sqrt(q.shape[-1]), keys)
        p = jax.nn.softmax(jnp.where(seen, z, jnp.finfo(z.dtype).min))
        return jnp.einsum("bhts,bshd,hdc->btc", p, values, wo)

    return step

def wrong():
    return decoder(True)

def right():
    return decoder(False)

def proof():
    i = asks()["inputs"]
    other = dict(i, cached_value=i["cached_value"].at[:, 1:].set(9.))
    return bool(jnp.allclose(wrong()(**i), wrong()(**other), atol=1e-5) and jnp.abs(wrong()(**i) - right()(**i)).max() > .1)
