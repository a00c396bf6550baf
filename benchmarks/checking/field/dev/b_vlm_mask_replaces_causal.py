"""A decoder builds its causal mask only if no mask is given, and the training loss forwards the 2-D padding mask, which then replaces causality. Source: github.com/unslothai/unsloth-zoo/pull/963"""
import jax
import jax.numpy as jnp
import numpy as np

import intently as it

expect = ["mask-missing", "mask-other"]
words = "a padding mask that is passed in replaces the causal mask in place of joining it"

C, H = 32, 4
REAL = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]], bool)


def asks():
    x = jnp.asarray(np.random.default_rng(2).standard_normal((2, 7, C)), jnp.float32)
    return dict(inputs=dict(x=x, mask=jnp.asarray(REAL)), mask=it.causal() & it.padding(REAL.tolist()))


def _params():
    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    return {n: jax.random.normal(k, (C, C)) * C ** -0.5 for n, k in zip(("q", "k", "v", "o"), keys)}


def _make(join):
    p = _params()

    def attention(x, mask=None):
        b, t, _ = x.shape
        heads = lambda u: u.reshape(b, t, H, C // H).transpose(0, 2, 1, 3)
        q, k, v = heads(x @ p["q"]), heads(x @ p["k"]), heads(x @ p["v"])
        causal = jnp.tril(jnp.ones((t, t), bool))[None, None]
        if mask is None:
            seen = causal
        else:
            seen = mask[:, None, None, :]
            if join:
                seen = seen & causal
        scores = jnp.where(seen, q @ k.swapaxes(-1, -2) * (C // H) ** -0.5, -1e9)
        y = jax.nn.softmax(scores, -1) @ v
        return y.transpose(0, 2, 1, 3).reshape(b, t, C) @ p["o"]
    return attention


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    return float(jnp.abs(wrong()(**a) - right()(**a)).max()) > 1e-2


if __name__ == "__main__":
    print(proof())
