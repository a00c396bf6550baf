"""A mask (b, 1, t, s) is broadcast against grouped scores (b, g, r, t, s): batch rows become key heads. Source: github.com/ml-explore/mlx-lm/pull/1903"""
import numpy as np
import jax
import jax.numpy as jnp

expect = ["mask-of-other-rows", "mask-other", "padding-attended"]
words = "head group g of every text has the mask of text g, since the batch is as large as the groups are many"

def asks():
    r = np.random.default_rng(0)
    q = r.normal(size=(2, 4, 6, 8))
    k, v = r.normal(size=(2, 2, 2, 6, 8))
    i = np.arange(6)
    keep = (i >= np.array([[0], [2]]))[:, None, None, :] & (i[:, None] >= i) | (i[:, None] == i)
    return dict(inputs=dict(q=jnp.asarray(q, jnp.float32), k=jnp.asarray(k, jnp.float32), v=jnp.asarray(v, jnp.float32),
                            mask=jnp.asarray(keep)), mask=np.asarray(keep))

def grouped(room):
    def attend(q, k, v, mask):
        b, h, t, d = q.shape
        g = k.shape[1]
        q = (q * d ** -0.5).reshape(b, g, h // g, t, d)
        z = q @ k[:, :, None].swapaxes(-1, -2)
        if room:
            mask = mask[:, :, None]
        z = jnp.where(mask, z, jnp.finfo(z.dtype).min)
        y = jax.nn.softmax(z, axis=-1) @ v[:, :, None]
        return y.reshape(b, h, t, d)

    return attend

def wrong():
    return grouped(False)

def right():
    return grouped(True)

def proof():
    i = asks()["inputs"]
    a, b = wrong()(**i), right()(**i)
    return bool(jnp.allclose(a[0, :2], b[0, :2], atol=1e-5) and jnp.allclose(a[1, 2:], b[1, 2:], atol=1e-5)
                and jnp.abs(a - b).max() > .1)
