"""A port of a causal transformer has a mask argument in each layer that no caller ever sets. Source: github.com/kyutai-labs/moshi/issues/158"""
import numpy as np
import jax
import jax.numpy as jnp
import intently as it

expect = ["mask-missing"]
words = "a pass over several frames is not causal"

def asks():
    r = np.random.default_rng(0)
    return dict(inputs=dict(frames=jnp.asarray(r.normal(size=(2, 7, 32)), jnp.float32)), mask=it.causal())

def attention(w, x, mask=None, heads=4):
    b, t, c = x.shape
    q, k, v = jnp.moveaxis((x @ w["in"]).reshape(b, t, 3, heads, c // heads), (2, 3), (0, 2))
    z = q @ k.swapaxes(-1, -2) * (c // heads) ** -0.5
    if mask is not None:
        z = z + mask
    return (jax.nn.softmax(z, axis=-1) @ v).swapaxes(1, 2).reshape(b, t, c) @ w["out"]

def layer(w, x, mask=None):
    y = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
    return x + attention(w, y, mask)

def model(causal):
    r = np.random.default_rng(9)
    w = {"in": jnp.asarray(r.normal(size=(32, 96)) / 5, jnp.float32), "out": jnp.asarray(r.normal(size=(32, 32)) / 5, jnp.float32)}

    def run(frames):
        if causal:
            t = frames.shape[1]
            return layer(w, frames, jnp.where(jnp.tril(jnp.ones((t, t), bool)), 0.0, -jnp.inf))
        return layer(w, frames)

    return run

def wrong():
    return model(False)

def right():
    return model(True)

def proof():
    x = asks()["inputs"]["frames"]
    later = x.at[:, 6].set(2.)
    w, r = wrong(), right()
    return bool(jnp.abs(w(x)[:, :6] - w(later)[:, :6]).max() > .02 and jnp.allclose(r(x)[:, :6], r(later)[:, :6], atol=1e-5))
