"""The split-k decode attention has a default scale of 1 where the plain function has 1/sqrt(d). Source: github.com/jax-ml/jax/pull/24602"""
import jax
import jax.numpy as jnp
import numpy as np

expect = ["no-scale"]
words = "scores are not divided by sqrt(d) by default"
SPLITS = 3


def partial(q, k, v, scale):
    z = jnp.einsum("bhd,bsd->bhs", q, k) * scale
    top = z.max(-1)
    p = jnp.exp(z - top[..., None])
    return jnp.einsum("bhs,bsd->bhd", p, v), top, p.sum(-1)


def decode(q, k, v, scale):
    """All heads of one step, q (b, h, d), read one key head, k and v (b, s, d), cut in parts."""
    parts = [partial(q, a, c, scale) for a, c in zip(jnp.array_split(k, SPLITS, 1), jnp.array_split(v, SPLITS, 1))]
    out, top, total = (jnp.stack(x) for x in zip(*parts))
    share = jnp.exp(top - top.max(0))
    return (out * share[..., None]).sum(0) / (total * share).sum(0)[..., None]


def asks():
    a, b, c = jax.random.split(jax.random.PRNGKey(1), 3)
    return dict(
        inputs=dict(
            q=jax.random.normal(a, (2, 4, 32)), k=jax.random.normal(b, (2, 9, 32)), v=jax.random.normal(c, (2, 9, 32))
        )
    )


def wrong():
    def decode_attention(q, k, v, sm_scale=1.0):
        return decode(q, k, v, sm_scale)

    return decode_attention


def right():
    def decode_attention(q, k, v, sm_scale=None):
        return decode(q, k, v, q.shape[-1] ** -0.5 if sm_scale is None else sm_scale)

    return decode_attention


def proof():
    i = asks()["inputs"]
    w = jax.nn.softmax(i["q"] @ i["k"].swapaxes(1, 2) / 32**0.5, -1)
    ref = w @ i["v"]
    return bool(np.abs(right()(**i) - ref).max() < 1e-5) and bool(np.abs(wrong()(**i) - ref).max() > 1e-2)
