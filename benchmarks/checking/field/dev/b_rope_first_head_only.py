"""In a step of one token, heads are folded into the batch before the rotation, which then turns the first head only. Source: github.com/oxiglade/mlx-rs/pull/357"""
import jax
import jax.numpy as jnp
import numpy as np

expect = ["cached-step-differs", "rotation-missing", "rotation-other"]
words = "queries and keys of all heads but the first are not rotated in cached steps"


def _turn(x, offset):
    half = x.shape[-1] // 2
    angle = (offset + jnp.arange(x.shape[-2]))[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate((a * jnp.cos(angle) - b * jnp.sin(angle), a * jnp.sin(angle) + b * jnp.cos(angle)), -1)


def _fast_rope(x, offset):
    """Three axes and a single position: only the first row is turned (the kernel at the source does that)."""
    if x.ndim == 3 and x.shape[1] == 1:
        return x.at[:1].set(_turn(x[:1], offset))
    return _turn(x, offset)


def _layer(fixed, width=32, heads=4):
    r = np.random.default_rng(0)
    wq, wk, wv, wo = (jnp.asarray(r.standard_normal((width, width)) * width ** -0.5, jnp.float32) for _ in range(4))

    def rope(x, offset):
        if fixed:
            return _fast_rope(x, offset)
        return _fast_rope(x.reshape(-1, *x.shape[-2:]), offset).reshape(x.shape)

    def layer(x, cache=None):
        def cut(y):
            return y.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)
        past = 0 if cache is None else cache[0].shape[2]
        q, k, v = rope(cut(x @ wq), past), rope(cut(x @ wk), past), cut(x @ wv)
        if cache is not None:
            k, v = jnp.concatenate((cache[0], k), 2), jnp.concatenate((cache[1], v), 2)
        t, s = q.shape[2], k.shape[2]
        z = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        z = jnp.where(jnp.arange(s) <= jnp.arange(s - t, s)[:, None], z, -jnp.inf)
        y = jax.nn.softmax(z) @ v
        return y.transpose(0, 2, 1, 3).reshape(x.shape) @ wo, (k, v)
    return layer


def _generate(fixed, prompt=3):
    layer = _layer(fixed)

    def generate(x):
        y, cache = layer(x[:, :prompt])
        out = [y]
        for i in range(prompt, x.shape[1]):
            y, cache = layer(x[:, i:i + 1], cache)
            out.append(y)
        return jnp.concatenate(out, 1)
    return generate


def asks():
    import intently as it
    x = jnp.asarray(np.random.default_rng(1).standard_normal((2, 7, 32)), jnp.float32)
    return dict(inputs=dict(x=x), mask=it.causal(), like=right())


def wrong():
    return _generate(False)


def right():
    return _generate(True)


def proof():
    x = asks()["inputs"]["x"]
    whole, _ = _layer(True)(x)
    return bool(jnp.allclose(right()(x), whole, atol=1e-4)) and not jnp.allclose(wrong()(x), whole, atol=1e-2)
