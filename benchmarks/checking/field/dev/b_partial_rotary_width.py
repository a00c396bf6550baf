"""Partial rotary embeddings take frequencies and partners from the width of the head, where the checkpoint takes them from the rotated part. Source: github.com/pie-project/pie/pull/603"""
import jax
import jax.numpy as jnp
import numpy as np

expect = ["rotary-pairs", "rotation-other", "rotary-base"]
words = "pairs (i, i + d/2) with theta^(-2i/d) for pairs (i, i + r/2) with theta^(-2i/r), r being the rotated width"

WIDTH, HEADS, D, ROTARY = 32, 2, 16, 8


def _layer(fixed):
    r = np.random.default_rng(0)
    wq, wk, wv, wo = (jnp.asarray(r.standard_normal((WIDTH, WIDTH)) * WIDTH ** -0.5, jnp.float32) for _ in range(4))

    def rope_partial(x):
        pairs = ROTARY // 2
        span = ROTARY if fixed else D
        first = np.arange(pairs)
        second = first + span // 2
        angle = jnp.arange(x.shape[-2])[:, None] * 10000.0 ** (-2 * first / span)
        a, b = x[..., first], x[..., second]
        x = x.at[..., first].set(a * jnp.cos(angle) - b * jnp.sin(angle))
        return x.at[..., second].set(a * jnp.sin(angle) + b * jnp.cos(angle))

    def layer(x):
        def cut(y):
            return y.reshape(*y.shape[:2], HEADS, D).transpose(0, 2, 1, 3)
        q, k, v = rope_partial(cut(x @ wq)), rope_partial(cut(x @ wk)), cut(x @ wv)
        z = q @ k.swapaxes(-1, -2) * D ** -0.5
        t = z.shape[-1]
        z = jnp.where(jnp.tril(jnp.ones((t, t), bool)), z, -jnp.inf)
        return (jax.nn.softmax(z) @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ wo
    return layer


def asks():
    import intently as it
    x = jnp.asarray(np.random.default_rng(1).standard_normal((2, 8, WIDTH)), jnp.float32)
    return dict(inputs=dict(x=x), mask=it.causal(), like=right())


def wrong():
    return _layer(False)


def right():
    return _layer(True)


def proof():
    """Equal at the first position, different later."""
    x = asks()["inputs"]["x"]
    w, r = wrong()(x), right()(x)
    return bool(jnp.allclose(w[:, :1], r[:, :1], atol=1e-5)) and not jnp.allclose(w, r, atol=1e-2)
