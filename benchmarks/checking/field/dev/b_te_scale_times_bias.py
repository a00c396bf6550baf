"""A fused softmax in JAX multiplies scores and bias together by the scale. Source: github.com/NVIDIA/TransformerEngine/pull/236"""
import jax
import jax.numpy as jnp
import numpy as np

expect = ["bias-scaled"]
words = "softmax(scale * (q k + bias)) for softmax(scale * q k + bias)"


def _attention(fixed):
    def dot_product_attention(query, key, value, bias):
        """(batch, length, heads, d); bias (1, heads, t, s)"""
        scale = query.shape[-1] ** -0.5
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key)
        if fixed:
            weights = jax.nn.softmax(scores * scale + bias)
        else:
            weights = jax.nn.softmax((scores + bias) * scale)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, value)
    return dot_product_attention


def asks():
    r = np.random.default_rng(1)
    q, k, v = (jnp.asarray(r.standard_normal((2, n, 2, 16)), jnp.float32) for n in (5, 7, 7))
    bias = jnp.asarray(r.standard_normal((1, 2, 5, 7)), jnp.float32)
    return dict(inputs=dict(query=q, key=k, value=v, bias=bias), like=right())


def wrong():
    return _attention(False)


def right():
    return _attention(True)


def proof():
    a = asks()["inputs"]
    return not jnp.allclose(wrong()(**a), right()(**a), atol=1e-2)
