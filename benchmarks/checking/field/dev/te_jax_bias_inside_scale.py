"""The scale is fused into a softmax that adds a bias first: the bias shrinks by the root of d. Source: github.com/NVIDIA/TransformerEngine/pull/103"""
import numpy as np
import jax
import jax.numpy as jnp

expect = ["bias-scaled", "bias-other"]
words = "softmax(s (q k + B)) in place of softmax(s q k + B)"

def asks():
    r = np.random.default_rng(0)
    q = r.normal(size=(2, 6, 4, 16))
    k, v = r.normal(size=(2, 2, 8, 4, 16))
    bias = r.normal(size=(1, 4, 6, 8)) * 2
    names = dict(query=q, key=k, value=v, bias=bias)
    return dict(inputs={n: jnp.asarray(a, jnp.float32) for n, a in names.items()}, like=right())

def fused_softmax(z, bias, scale):
    return jax.nn.softmax(scale * (z + bias), axis=-1)

def core(bias_first):
    def attend(query, key, value, bias):
        scale = query.shape[-1] ** -0.5
        if bias_first:
            p = fused_softmax(jnp.einsum("bqhd,bkhd->bhqk", query, key), bias, scale)
        else:
            p = fused_softmax(jnp.einsum("bqhd,bkhd->bhqk", query * scale, key), bias, 1.0)
        return jnp.einsum("bhqk,bkhd->bqhd", p, value)

    return attend

def wrong():
    return core(True)

def right():
    return core(False)

def proof():
    i = asks()["inputs"]
    none = dict(i, bias=jnp.zeros_like(i["bias"]))
    return bool(jnp.allclose(wrong()(**none), right()(**none), atol=1e-5) and jnp.abs(wrong()(**i) - right()(**i)).max() > .1)
