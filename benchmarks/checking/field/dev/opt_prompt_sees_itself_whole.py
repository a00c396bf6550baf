"""An OPT decoder with a cache hides only slots that are not yet filled, by a bias (1, 1, 1, slots): tokens of a prompt that is fed at once see each other's future. Source: github.com/alpa-projects/alpa/pull/608"""
import numpy as np
import jax
import jax.numpy as jnp

expect = ["mask-in-cache", "mask-missing", "cached-step-differs"]
words = "with more than one new token, the bias does not depend on the query: no causal mask among them"

WIDTH, HEADS, WORDS, SLOTS = 32, 4, 20, 12


def norm(x):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def bias(index, count):
    filled = jnp.arange(SLOTS) < index + count
    return jnp.where(filled, 0.0, -1e10)[None, None, None, :]


def bias_mended(index, count):
    seen = jnp.arange(SLOTS)[None, :] <= index + jnp.arange(count)[:, None]
    return jnp.where(seen, 0.0, -1e10)[None, None]


def empty_cache(batch, depth=2):
    room = jnp.zeros((batch, SLOTS, HEADS, WIDTH // HEADS))
    return [dict(key=room, value=room) for _ in range(depth)]


def forward(make_bias, params, ids, cache, index):
    b, t = ids.shape
    x = params["words"][ids] + params["places"][index + jnp.arange(t)]
    grown = []
    for layer, old in zip(params["layers"], cache):
        h = norm(x)
        q, k, v = (jnp.reshape(h @ layer[n], (b, t, HEADS, -1)) for n in ("q", "k", "v"))
        k = jax.lax.dynamic_update_slice(old["key"], k, (0, index, 0, 0))
        v = jax.lax.dynamic_update_slice(old["value"], v, (0, index, 0, 0))
        grown.append(dict(key=k, value=v))
        z = jnp.einsum("bthd,bshd->bhts", q, k) / np.sqrt(WIDTH // HEADS)
        w = jax.nn.softmax(z + make_bias(index, t), axis=-1)
        x = x + jnp.einsum("bhts,bshd->bthd", w, v).reshape(b, t, WIDTH) @ layer["o"]
        x = x + jax.nn.relu(norm(x) @ layer["up"]) @ layer["down"]
    return norm(x) @ params["words"].T, grown


def parameters():
    r = np.random.default_rng(0)
    w = lambda *s: jnp.asarray(r.standard_normal(s) * 0.2, jnp.float32)
    layer = lambda: dict(q=w(WIDTH, WIDTH), k=w(WIDTH, WIDTH), v=w(WIDTH, WIDTH), o=w(WIDTH, WIDTH), up=w(WIDTH, 64), down=w(64, WIDTH))
    return dict(words=w(WORDS, WIDTH), places=w(SLOTS, WIDTH), layers=[layer(), layer()])


def model(make_bias):
    params = parameters()

    def opt(ids, cache=None, index=0):
        cache = empty_cache(ids.shape[0]) if cache is None else cache
        return forward(make_bias, params, jnp.asarray(ids), cache, index)
    return opt


def asks():
    import intently as it
    return dict(inputs=dict(ids=np.random.default_rng(1).integers(0, WORDS, (2, 7))), mask=it.causal(0))


def wrong():
    return model(bias)


def right():
    return model(bias_mended)


def proof():
    ids = asks()["inputs"]["ids"]

    def differs(opt):
        whole, _ = opt(ids)
        cache, steps = None, []
        for i in range(ids.shape[1]):
            y, cache = opt(ids[:, i:i + 1], cache, i)
            steps.append(y)
        return not np.allclose(whole, jnp.concatenate(steps, 1), atol=1e-3)
    return differs(wrong()) and not differs(right())


if __name__ == "__main__":
    print(proof())
