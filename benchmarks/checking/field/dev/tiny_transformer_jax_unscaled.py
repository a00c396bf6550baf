"""A tiny decoder-only transformer, a pure function of its parameters, never divides its raw attention by the root of the key width. Source: github.com/PAIR-code/tiny-transformers/issues/71"""
import jax
import jax.numpy as jnp
import numpy as np

expect = ["no-scale"]
words = "raw attention is not divided by the root of the key width"

VOCAB, REP, HEADS, KEY, DEPTH = 30, 32, 4, 8, 2


def _params():
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[-2]), jnp.float32)
    layer = lambda: dict(
        q=jnp.asarray(rng.normal(size=(HEADS, REP, KEY)) / np.sqrt(REP), jnp.float32),
        k=jnp.asarray(rng.normal(size=(HEADS, REP, KEY)) / np.sqrt(REP), jnp.float32),
        v=jnp.asarray(rng.normal(size=(HEADS, REP, KEY)) / np.sqrt(REP), jnp.float32),
        o=jnp.asarray(rng.normal(size=(HEADS, KEY, REP)) / np.sqrt(HEADS * KEY), jnp.float32),
        ff1=draw(REP, 64), ff2=draw(64, REP))
    return dict(embed=jnp.asarray(rng.normal(size=(VOCAB, REP)), jnp.float32),
                pos=jnp.asarray(rng.normal(size=(16, REP)), jnp.float32),
                layers=[layer() for _ in range(DEPTH)], unembed=draw(REP, VOCAB))


def _norm(x):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def _attend(p, x, scale):
    q = jnp.einsum("bpr,hrk->bhpk", x, p["q"])
    k = jnp.einsum("bpr,hrk->bhpk", x, p["k"])
    v = jnp.einsum("bpr,hrk->bhpk", x, p["v"])
    raw = jnp.einsum("bhpk,bhuk->bhpu", q, k) * scale
    n = x.shape[1]
    raw = jnp.where(jnp.tril(jnp.ones((n, n), bool)), raw, -jnp.inf)
    weights = jax.nn.softmax(raw, axis=-1)
    return jnp.einsum("bhpu,bhuk,hkr->bpr", weights, v, p["o"])


def _transformer(params, tokens, scale):
    x = params["embed"][tokens] + params["pos"][: tokens.shape[1]]
    for p in params["layers"]:
        x = x + _attend(p, _norm(x), scale)
        x = x + jax.nn.relu(_norm(x) @ p["ff1"]) @ p["ff2"]
    return _norm(x) @ params["unembed"]


def asks():
    import intently as it
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, VOCAB, (2, 7)))
    return dict(inputs=dict(tokens=tokens), mask=it.causal())


def wrong():
    params = _params()

    def decoder(tokens):
        return _transformer(params, tokens, 1.0)

    return decoder


def right():
    params = _params()

    def decoder(tokens):
        return _transformer(params, tokens, KEY ** -0.5)

    return decoder


def proof():
    x = asks()["inputs"]
    return float(jnp.abs(wrong()(**x) - right()(**x)).max()) > 1e-3
