"""Heads are folded into the batch, then the softmax runs over axis 1, which is queries. Source: github.com/daniallegue/numpy-transformer/transformer_architecture.py"""
import jax, jax.numpy as jnp
expect = ["softmax-over-queries"]
words = "softmax(axis=1) of scores (b*h, t, s): columns sum to 1"
H = 4
def norm_exp(z, axis):
    e = jnp.exp(z - z.max(axis=axis, keepdims=True)); return e / e.sum(axis=axis, keepdims=True)
def build(axis):
    ks = jax.random.split(jax.random.PRNGKey(1), 4)
    wq, wk, wv, wo = (jax.random.normal(k, (32, 32)) / 32 ** 0.5 for k in ks)
    def fold(y):
        b, t, c = y.shape
        return jnp.swapaxes(y.reshape(b, t, H, c // H), 1, 2).reshape(b * H, t, c // H)
    def mha(q, k, v):
        b, t, c = q.shape
        a, m, u = fold(q @ wq), fold(k @ wk), fold(v @ wv)
        z = a @ jnp.swapaxes(m, -1, -2) / jnp.sqrt(m.shape[-1])
        o = (norm_exp(z, axis) @ u).reshape(b, H, t, c // H)
        return jnp.swapaxes(o, 1, 2).reshape(b, t, c) @ wo
    return mha
def asks():
    x = jax.random.normal(jax.random.PRNGKey(0), (2, 6, 32))
    return dict(inputs=dict(q=x, k=x, v=x))
def wrong(): return build(1)
def right(): return build(-1)
def proof():
    a = asks()["inputs"]; return bool(jnp.abs(wrong()(**a) - right()(**a)).max() > 1e-2)
