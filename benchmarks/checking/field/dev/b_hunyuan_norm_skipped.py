"""A paged path looks for the norms of queries and keys under two names, and a model that names them otherwise runs without. Source: github.com/vllm-project/vllm-metal/issues/656"""
import jax
import jax.numpy as jnp
import numpy as np

expect = ["scores-other", "projection-other", "projection-scaled", "differs-from-reference"]
words = "queries and keys are not normalised by the RMS norms of the checkpoint (and nothing raises)"


class Inner:
    """A layer as the model file defines it."""

    def __init__(self, width=32, heads=4, groups=2):
        r = np.random.default_rng(0)
        self.heads, self.groups, self.d = heads, groups, width // heads

        def w(m, n):
            return jnp.asarray(r.standard_normal((m, n)) * m ** -0.5, jnp.float32)
        self.wq, self.wk, self.wv, self.wo = w(width, width), w(width, groups * self.d), w(width, groups * self.d), w(width, width)
        gq, gk = (jnp.asarray(1.5 + 0.3 * r.standard_normal(self.d), jnp.float32) for _ in "qk")
        self.query_layernorm = lambda x: gq * x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
        self.key_layernorm = lambda x: gk * x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def _sdpa_forward(fixed):
    inner = Inner()
    names = (("q_norm", "query_layernorm"), ("k_norm", "key_layernorm")) if fixed else (("q_norm",), ("k_norm",))

    def forward(x):
        b, t, c = x.shape
        q = (x @ inner.wq).reshape(b, t, inner.heads, inner.d)
        k = (x @ inner.wk).reshape(b, t, inner.groups, inner.d)
        v = (x @ inner.wv).reshape(b, t, inner.groups, inner.d)
        for name in names[0]:
            if hasattr(inner, name):
                q = getattr(inner, name)(q)
        for name in names[1]:
            if hasattr(inner, name):
                k = getattr(inner, name)(k)
        q = q.reshape(b, t, inner.groups, -1, inner.d)
        z = jnp.einsum("btgrd,bsgd->bgrts", q, k) * inner.d ** -0.5
        z = jnp.where(jnp.tril(jnp.ones((t, t), bool)), z, -jnp.inf)
        y = jnp.einsum("bgrts,bsgd->btgrd", jax.nn.softmax(z), v)
        return y.reshape(b, t, c) @ inner.wo
    return forward


def asks():
    import intently as it
    x = jnp.asarray(np.random.default_rng(1).standard_normal((2, 6, 32)), jnp.float32)
    return dict(inputs=dict(x=x), mask=it.causal(), like=right())


def wrong():
    return _sdpa_forward(False)


def right():
    return _sdpa_forward(True)


def proof():
    a = asks()["inputs"]
    return not jnp.allclose(wrong()(**a), right()(**a), atol=1e-2)
