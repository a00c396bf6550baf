"""When the fused causal softmax kernel is unavailable, the fallback is a plain scaled softmax and the causal type is ignored. Source: github.com/NVIDIA/TransformerEngine/issues/1524"""
import jax
import jax.numpy as jnp
import numpy as np

import intently as it

expect = ["mask-missing"]
words = "the fallback of the softmax ignores its causal type, no mask is applied"


def asks():
    rng = np.random.default_rng(1)
    draw = lambda: jnp.asarray(rng.standard_normal((2, 2, 6, 16)), jnp.float32)
    return dict(inputs=dict(query=draw(), key=draw(), value=draw()), mask=it.causal())


def _plain(logits, scale, kind):
    return jax.nn.softmax(logits * scale, axis=-1)


def _minding(logits, scale, kind):
    logits = logits * scale
    if kind == "scaled_upper_triang_masked":
        t, s = logits.shape[-2:]
        hidden = jnp.arange(s)[None, :] > jnp.arange(t)[:, None]
        logits = jnp.where(hidden, jnp.finfo(logits.dtype).min, logits)
    return jax.nn.softmax(logits, axis=-1)


def _make(fallback, kernel_available=False):
    def dot_product_attention(query, key, value, kind="scaled_upper_triang_masked"):
        assert not kernel_available
        logits = jnp.einsum("bhqd,bhkd->bhqk", query, key)
        weights = fallback(logits, 1.0 / jnp.sqrt(query.shape[-1]), kind)
        return jnp.einsum("bhqk,bhkd->bhqd", weights, value)
    return dot_product_attention


def wrong():
    return _make(_plain)


def right():
    return _make(_minding)


def proof():
    a = asks()["inputs"]
    return float(jnp.abs(wrong()(**a) - right()(**a)).max()) > 1e-2


if __name__ == "__main__":
    print(proof())
