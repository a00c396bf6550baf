"""A port of Gemma 2 scales by its head width where the checkpoint states another number, and has no softcap. Source: github.com/ml-explore/mlx-swift-examples/pull/99"""
import jax
import jax.numpy as jnp
import numpy as np

expect = ["softcap-missing", "other-scale"]
words = "1/sqrt(d) for query_pre_attn_scalar ** -0.5, and scores are not capped by cap * tanh(z / cap)"

SCALAR, CAP = 32, 5.0


def _attention(fixed):
    def attention(queries, keys, values):
        """(b, h, t, d), with fewer heads of keys than of queries."""
        groups = queries.shape[1] // keys.shape[1]
        keys, values = jnp.repeat(keys, groups, 1), jnp.repeat(values, groups, 1)
        z = queries @ keys.swapaxes(-1, -2)
        if fixed:
            z = CAP * jnp.tanh(z * SCALAR ** -0.5 / CAP)
        else:
            z = z * queries.shape[-1] ** -0.5
        t = z.shape[-1]
        z = jnp.where(jnp.tril(jnp.ones((t, t), bool)), z, -1e9)
        return jax.nn.softmax(z, -1) @ values
    return attention


def asks():
    import intently as it
    r = np.random.default_rng(1)
    q = jnp.asarray(2 * r.standard_normal((2, 4, 6, 16)), jnp.float32)
    k, v = (jnp.asarray(2 * r.standard_normal((2, 2, 6, 16)), jnp.float32) for _ in "kv")
    return dict(inputs=dict(queries=q, keys=k, values=v), mask=it.causal(), scale=SCALAR ** -0.5, like=right())


def wrong():
    return _attention(False)


def right():
    return _attention(True)


def proof():
    a = asks()["inputs"]
    return not jnp.allclose(wrong()(**a), right()(**a), atol=1e-2)
