"""A class token pools a set; the mask of the set is set into rows that are thrown away, and the token's own row sees everything. Source: github.com/theislab/CellFlow/issues/226"""
import numpy as np
import jax
import jax.numpy as jnp
import intently as it

expect = ["padding-attended", "mask-missing"]
words = "the row of the class token stays all ones, so the mask changes nothing"

def asks():
    r = np.random.default_rng(0)
    keep = np.arange(6) < np.array([[6], [3]])
    mask = keep[:, None, :, None] & keep[:, None, None, :]
    with_token = np.concatenate((np.ones((2, 1), bool), keep), 1)
    return dict(inputs=dict(x=jnp.asarray(r.normal(size=(2, 6, 16)), jnp.float32), mask=jnp.asarray(mask)),
                mask=it.padding(with_token.tolist()))

def pooling(masked):
    r = np.random.default_rng(4)
    token = jnp.asarray(r.normal(size=(1, 1, 16)), jnp.float32)
    wq, wk, wv = (jnp.asarray(r.normal(size=(16, 2, 8)) / 4, jnp.float32) for _ in range(3))
    wo = jnp.asarray(r.normal(size=(2, 8, 16)) / 4, jnp.float32)

    def pool(x, mask):
        b, n, c = x.shape
        z = jnp.concatenate((jnp.broadcast_to(token, (b, 1, c)), x), axis=1)
        full = jnp.ones((b, 1, n + 1, n + 1), bool)
        full = full.at[:, :, 1:, 1:].set(mask)
        if masked:
            full = full.at[:, :, 0, 1:].set(mask.any(axis=-2))
        q, k, v = (jnp.einsum("bnc,chd->bhnd", z, w) for w in (wq, wk, wv))
        s = jnp.einsum("bhnd,bhmd->bhnm", q, k) / jnp.sqrt(8.0)
        p = jax.nn.softmax(jnp.where(full, s, jnp.finfo(s.dtype).min), axis=-1)
        y = jnp.einsum("bhnm,bhmd,hdc->bnc", p, v, wo)
        return y[:, 0]

    return pool

def wrong():
    return pooling(False)

def right():
    return pooling(True)

def proof():
    i = asks()["inputs"]
    a, b = wrong()(**i), right()(**i)
    none = wrong()(i["x"], jnp.ones_like(i["mask"]))
    return bool(jnp.allclose(a, none) and jnp.allclose(a[0], b[0], atol=1e-5) and jnp.abs(a[1] - b[1]).max() > .02)
