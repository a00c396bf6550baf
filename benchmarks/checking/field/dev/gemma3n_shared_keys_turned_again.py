"""Layers that take over keys and values of an earlier layer normalise and rotate them once more. Source: github.com/google-deepmind/gemma/issues/368"""
import numpy as np
import jax
import jax.numpy as jnp

expect = ["cache-rotated-twice", "rotation-other", "cached-step-differs", "projection-other", "differs-from-reference"]
words = "shared keys come out of the cache already rotated, and the later layer rotates (and normalises) them again"

HEADS, GROUPS, SIZE, WIDTH, WORDS = 4, 2, 8, 32, 20


def rms(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def rope(x, position):
    rate = 10_000.0 ** -(jnp.arange(SIZE // 2) * 2 / SIZE)
    angle = position[:, None, None] * rate
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate((a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)), axis=-1)


def keys_of(layer, h, position, shared):
    if shared is None:
        k, v = jnp.einsum("btd,cdgh->cbtgh", h, layer["kv"])
    else:
        k, v = shared
    return rope(rms(k), position), rms(v)


def keys_of_mended(layer, h, position, shared):
    if shared is not None:
        return shared
    k, v = jnp.einsum("btd,cdgh->cbtgh", h, layer["kv"])
    return rope(rms(k), position), rms(v)


def attention(keys, layer, h, position, shared):
    q = rope(rms(jnp.einsum("btd,dnh->btnh", h, layer["q"])), position)
    k, v = keys(layer, h, position, shared)
    b, t = h.shape[:2]
    q = q.reshape(b, t, GROUPS, HEADS // GROUPS, SIZE)
    z = jnp.einsum("btgnh,bsgh->bgnts", q, k) * SIZE ** -0.5
    z = jnp.where(jnp.tril(jnp.ones((t, t), bool)), z, -2.4e38)
    y = jnp.einsum("bgnts,bsgh->btgnh", jax.nn.softmax(z, axis=-1), v).reshape(b, t, HEADS, SIZE)
    return jnp.einsum("btnh,nhd->btd", y, layer["out"]), (k, v)


def forward(keys, params, ids):
    x = params["embed"][ids] * WIDTH ** 0.5
    position = jnp.arange(ids.shape[1])
    shared = None
    for number, layer in enumerate(params["layers"]):
        y, kv = attention(keys, layer, rms(x), position, shared)
        if number == 0:
            shared = kv
        x = x + y
        gate, up = jnp.split(rms(x) @ layer["up"], 2, axis=-1)
        x = x + (jax.nn.gelu(gate) * up) @ layer["down"]
    return rms(x) @ params["embed"].T


def parameters():
    r = np.random.default_rng(0)
    w = lambda *shape: jnp.asarray(r.standard_normal(shape) * 0.15, jnp.float32)
    layers = [dict(q=w(WIDTH, HEADS, SIZE), kv=w(2, WIDTH, GROUPS, SIZE), out=w(HEADS, SIZE, WIDTH), up=w(WIDTH, 96), down=w(48, WIDTH))
              for _ in range(2)]
    return dict(embed=w(WORDS, WIDTH), layers=layers)


def asks():
    import intently as it
    return dict(inputs=dict(ids=np.random.default_rng(1).integers(0, WORDS, (2, 8))), mask=it.causal())


def wrong():
    params = parameters()

    def model(ids):
        return forward(keys_of, params, ids)
    return model


def right():
    params = parameters()

    def model(ids):
        return forward(keys_of_mended, params, ids)
    return model


def proof():
    ids = asks()["inputs"]["ids"]
    return not np.allclose(wrong()(ids), right()(ids), atol=1e-3)


if __name__ == "__main__":
    print(proof())
