"""While decoding, slots up to the present one are marked in a mask where 1 means hidden. Source: github.com/NVIDIA/TransformerEngine/pull/119"""
import jax
import jax.numpy as jnp
import numpy as np
import intently as it

expect = ["mask-inverted", "mask-other", "cached-step-differs"]
words = "arange <= index in place of arange > index: a step sees the empty slots only"


def init(width, heads):
    rng = np.random.default_rng(31)
    return {n: jnp.asarray(rng.standard_normal((width, heads, width // heads)) / width ** 0.5, jnp.float32) for n in ("q", "k", "v")}


def make(slip, width=32, heads=4):
    weights = init(width, heads)

    def decode(inputs):
        rows, length, _ = inputs.shape

        def step(carry, x):
            keys, values, index = carry
            q, k, v = (jnp.einsum("bc,chd->bhd", x, weights[n]) for n in ("q", "k", "v"))
            here = jax.nn.one_hot(index, length)[None, :, None, None]
            keys, values = keys + here * k[:, None], values + here * v[:, None]
            place = jnp.arange(length)
            masked_out = place <= index if slip else place > index
            logits = jnp.einsum("bhd,bshd->bhs", q, keys) / jnp.sqrt(q.shape[-1])
            logits = jnp.where(masked_out, -1e10, logits)
            y = jnp.einsum("bhs,bshd->bhd", jax.nn.softmax(logits, axis=-1), values)
            return (keys, values, index + 1), y.reshape(rows, -1)

        empty = jnp.zeros((rows, length, heads, width // heads))
        _, out = jax.lax.scan(step, (empty, empty, 0), inputs.swapaxes(0, 1))
        return out.swapaxes(0, 1)
    return decode


def asks():
    x = np.random.default_rng(0).standard_normal((2, 7, 32))
    return dict(inputs=dict(inputs=jnp.asarray(x, jnp.float32)), mask=it.causal())


def wrong(): return make(True)
def right(): return make(False)


def proof():
    x = asks()["inputs"]["inputs"]
    w = init(32, 4)
    q, k, v = (jnp.einsum("btc,chd->bthd", x, w[n]) for n in ("q", "k", "v"))
    whole = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(2, 7, 32)
    return np.allclose(right()(x), whole, atol=1e-4) and np.abs(wrong()(x)[:, :-1]).max() < 1e-6
