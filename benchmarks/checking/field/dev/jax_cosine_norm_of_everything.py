"""The norm of cosine attention is taken over the whole array instead of each vector. Source: github.com/lucidrains/flash-attention-jax/flash_attention_jax/attention.py"""
import numpy as np
import jax
import jax.numpy as jnp

expect = ['batch-mixed', 'setting-matters', 'other-scale', 'scores-other']
words = 'queries and keys are divided by the norm of the whole array, so texts of a batch influence each other and scores are tiny'


def _attend(axis):
    @jax.jit
    def cosine(q, k, v, keep):
        unit = lambda t: t / (jnp.linalg.norm(t, axis=axis, keepdims=axis is not None) + 1e-10)
        s = jnp.einsum('...id,...jd->...ij', unit(q), unit(k)) * 10
        s = jnp.where(keep[:, None, None, :], s, -1e10)
        return jnp.einsum('...ij,...jd->...id', jax.nn.softmax(s, axis=-1), v)
    return cosine


def asks():
    import intently as it
    r = np.random.default_rng(1)
    keep = np.ones((2, 8), bool); keep[1, 5:] = False
    a = lambda n: jnp.asarray(r.normal(size=(2, 2, n, 16)).astype("float32"))
    return dict(inputs=dict(q=a(5), k=a(8), v=a(8), keep=jnp.asarray(keep)), mask=it.padding(keep.tolist()))


def wrong():
    return _attend(None)


def right():
    return _attend(-1)


def proof():
    x = asks()["inputs"]
    return not np.allclose(wrong()(**x), right()(**x), atol=1e-2)
