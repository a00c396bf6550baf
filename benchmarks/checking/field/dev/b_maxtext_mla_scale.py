"""Multi-head latent attention divides the queries by qk_head_dim ** -0.5 instead of multiplying. Source: github.com/AI-Hypercomputer/maxtext/issues/1370"""
import numpy as np
import jax
import jax.numpy as jnp
import intently as it

expect = ["scale-inverted"]
words = "the minus sign of the exponent is there although the code divides: scores are multiplied by sqrt(d)"

HEADS, NOPE, ROPE, V, RANK, WIDTH = 4, 8, 4, 8, 12, 32


def weights():
    g = np.random.default_rng(4)
    w = lambda *s: jnp.asarray(g.standard_normal(s) / np.sqrt(s[0]), jnp.float32)
    return dict(query=w(WIDTH, HEADS, NOPE + ROPE), down=w(WIDTH, RANK + ROPE), up=w(RANK, HEADS, NOPE + V),
                gain=jnp.ones(RANK), out=w(HEADS * V, WIDTH).reshape(HEADS, V, WIDTH))


def rope(x, positions):
    half = x.shape[-1] // 2
    angle = positions[:, None] / 10000.0 ** (jnp.arange(half) / half)
    cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def make(divisor):
    p = weights()

    def mla(inputs):
        t = inputs.shape[1]
        at = jnp.arange(t)
        q = jnp.einsum("btc,chd->bthd", inputs, p["query"])
        q = jnp.concatenate([q[..., :NOPE], rope(q[..., NOPE:], at)], -1) / divisor
        low = inputs @ p["down"]
        latent, shared = low[..., :RANK], low[..., RANK:]
        latent = latent * jax.lax.rsqrt((latent ** 2).mean(-1, keepdims=True) + 1e-6) * p["gain"]
        kv = jnp.einsum("btr,rhd->bthd", latent, p["up"])
        shared = rope(shared[:, :, None], at)
        k = jnp.concatenate([kv[..., :NOPE], jnp.broadcast_to(shared, (*kv.shape[:3], ROPE))], -1)
        z = jnp.einsum("bthd,bshd->bhts", q, k)
        z = jnp.where(jnp.tril(jnp.ones((t, t), bool)), z, jnp.finfo(z.dtype).min)
        y = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(z, axis=-1), kv[..., NOPE:])
        return jnp.einsum("bthd,hdc->btc", y, p["out"])

    return mla


def asks():
    x = np.random.default_rng(1).standard_normal((2, 7, WIDTH))
    return dict(inputs=dict(inputs=jnp.asarray(x, jnp.float32)), mask=it.causal())


def wrong():
    return make((NOPE + ROPE) ** -0.5)


def right():
    return make((NOPE + ROPE) ** 0.5)


def proof():
    i = asks()["inputs"]
    return bool(jnp.abs(wrong()(**i) - right()(**i)).max() > 1e-2)
