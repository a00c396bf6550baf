"""A layer that shares the cache of an earlier one reads the cache's offset after it has been advanced, so its queries are rotated too far. Source: github.com/ml-explore/mlx-lm/pull/1396"""
import jax
import jax.numpy as jnp
import numpy as np
import intently as it

expect = ["rotation-off-by-one", "rotation-other", "cached-step-differs", "differs-from-reference"]
words = "queries of the sharing layer stand L positions too far (L tokens were just written): 1 too far in a step, the whole prompt in a prefill"

C, H, D = 32, 4, 8


class KVCache:
    def __init__(self):
        self.keys = self.values = None
        self.offset = 0

    def update_and_fetch(self, keys, values):
        if self.keys is None:
            self.keys, self.values = keys, values
        else:
            self.keys = jnp.concatenate([self.keys, keys], 2)
            self.values = jnp.concatenate([self.values, values], 2)
        self.offset += keys.shape[2]
        return self.keys, self.values


def rotate(u, offset):
    ang = (offset + jnp.arange(u.shape[2]))[:, None] * (10000.0 ** (-jnp.arange(D // 2) * 2 / D))
    lo, hi = u[..., :D // 2], u[..., D // 2:]
    return jnp.concatenate([lo * jnp.cos(ang) - hi * jnp.sin(ang), lo * jnp.sin(ang) + hi * jnp.cos(ang)], -1)


def sdpa(q, k, v):
    t, s = q.shape[2], k.shape[2]
    z = jnp.einsum("bhtd,bhsd->bhts", q, k) * D ** -0.5
    z = jnp.where(jnp.arange(s)[None] <= jnp.arange(t)[:, None] + s - t, z, -jnp.inf)
    return jnp.einsum("bhts,bhsd->bhtd", jax.nn.softmax(z, -1), v)


def language_model(step_back):
    rng = np.random.default_rng(8)
    w = [[jnp.asarray(rng.normal(size=(C, C)) / C ** 0.5, jnp.float32) for _ in range(4)] for _ in range(2)]

    def heads(u):
        return u.reshape(*u.shape[:2], H, D).swapaxes(1, 2)

    def join(u):
        return u.swapaxes(1, 2).reshape(u.shape[0], -1, C)

    def forward(x, cache=None):
        cache = KVCache() if cache is None else cache
        wq, wk, wv, wo = w[0]
        q, k, v = heads(x @ wq), heads(x @ wk), heads(x @ wv)
        q, k = rotate(q, cache.offset), rotate(k, cache.offset)
        k, v = cache.update_and_fetch(k, v)
        x = x + join(sdpa(q, k, v)) @ wo
        # the layer above has no keys of its own
        wq, _, _, wo = w[1]
        k, v = cache.keys, cache.values
        start = cache.offset - x.shape[1] if step_back else cache.offset
        q = rotate(heads(x @ wq), start)
        return x + join(sdpa(q, k, v)) @ wo, cache

    return forward


def asks():
    return dict(inputs=dict(x=jnp.asarray(np.random.default_rng(1).normal(size=(2, 6, C)), jnp.float32)),
                mask=it.causal(), like=right())


def wrong():
    return language_model(False)


def right():
    return language_model(True)


def proof():
    x = asks()["inputs"]["x"]
    def gap(f):
        whole, _ = f(x)
        out, cache = [], None
        for i in range(6):
            y, cache = f(x[:, i:i + 1], cache)
            out.append(y)
        return float(jnp.abs(jnp.concatenate(out, 1) - whole).max())
    return gap(wrong()) > 1e-2 and gap(right()) < 1e-4
