"""Attention to a cached prefix and to the new chunk is merged by exp of log-sums that a kernel gives in base 2. Source: github.com/sgl-project/sglang/pull/35045"""
import intently as it
import jax
import jax.numpy as jnp
import numpy as np

expect = ["scores-other"]
words = "the share of prefix and chunk is wrong: e^lse of a log2 in place of 2^lse; weights within each part are right"

PREFIX = 5


def asks():
    rng = np.random.default_rng(9)
    draw = lambda n: rng.normal(size=(2, 3, n, 8)).astype("float32")
    return dict(inputs=dict(q=draw(4), k=draw(PREFIX + 4), v=draw(PREFIX + 4)), mask=it.causal())


def ragged_prefill(q, k, v, causal):
    """Output and log2 of the sum of exponentials, as the kernel returns them."""
    logits = jnp.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    if causal:
        logits = jnp.where(jnp.tril(jnp.ones(logits.shape[-2:], bool)), logits, -jnp.inf)
    lse = jax.nn.logsumexp(logits, axis=-1)
    return jnp.exp(logits - lse[..., None]) @ v, lse / jnp.log(2.0)


def merge_state(a, lse_a, b, lse_b):
    """Natural logarithms."""
    top = jnp.maximum(lse_a, lse_b)
    wa, wb = jnp.exp(lse_a - top)[..., None], jnp.exp(lse_b - top)[..., None]
    return (a * wa + b * wb) / (wa + wb)


def make(to_natural):
    def chunked_prefix_attention(q, k, v):
        old, lse_old = ragged_prefill(q, k[:, :, :PREFIX], v[:, :, :PREFIX], causal=False)
        new, lse_new = ragged_prefill(q, k[:, :, PREFIX:], v[:, :, PREFIX:], causal=True)
        return merge_state(old, to_natural(lse_old), new, to_natural(lse_new))

    return chunked_prefix_attention


def wrong():
    return make(lambda lse: lse)


def right():
    return make(lambda lse: lse * jnp.log(2.0))


def proof():
    call = asks()["inputs"]
    q, k, v = call["q"], call["k"], call["v"]
    z = jnp.einsum("bhid,bhjd->bhij", q, k) / 8 ** 0.5
    z = jnp.where(jnp.tril(jnp.ones((4, 9), bool), 5), z, -jnp.inf)
    exact = jax.nn.softmax(z, axis=-1) @ v
    return bool(jnp.abs(right()(**call) - exact).max() < 1e-5 and jnp.abs(wrong()(**call) - exact).max() > 1e-2)
