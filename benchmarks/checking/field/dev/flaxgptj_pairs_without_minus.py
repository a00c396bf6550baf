"""A JAX port of GPT-J turns pairs without the minus sign, so queries and keys are mirrored instead of rotated. Source: github.com/huggingface/transformers/pull/16298"""
import jax
import jax.numpy as jnp
import numpy as np
import intently as it

expect = ["rotary-direction", "rotation-other", "scores-other", "differs-from-reference"]
words = "(x0, x1) becomes (x0 cos + x1 sin, x1 cos + x0 sin): the minus of the first sine is missing, which is no rotation"

WIDTH, HEADS, TURNED = 32, 2, 8


def weights():
    rng = np.random.default_rng(3)
    return {n: jnp.asarray(rng.normal(size=(WIDTH, WIDTH)) / WIDTH ** 0.5, jnp.float32) for n in ("wq", "wk", "wv", "wo")}


def table(length):
    freq = 1.0 / (10000 ** (np.arange(0, TURNED, 2) / TURNED))
    angle = np.arange(length)[:, None] * freq[None]
    return jnp.asarray(np.sin(angle), jnp.float32), jnp.asarray(np.cos(angle), jnp.float32)


def model(sign):
    p = weights()

    def swap_pairs(u):
        even, odd = u[..., 0::2], u[..., 1::2]
        return jnp.stack([sign * odd, even], axis=-1).reshape(u.shape)

    def turn(u, sines, cosines):
        sines = jnp.repeat(sines, 2, axis=-1)[:, :, None, :]
        cosines = jnp.repeat(cosines, 2, axis=-1)[:, :, None, :]
        head, rest = u[..., :TURNED], u[..., TURNED:]
        return jnp.concatenate([head * cosines + swap_pairs(head) * sines, rest], axis=-1)

    def attention(hidden, position_ids):
        b, t, _ = hidden.shape
        q, k, v = (jnp.reshape(hidden @ p[n], (b, t, HEADS, -1)) for n in ("wq", "wk", "wv"))
        sines, cosines = (tab[position_ids] for tab in table(32))
        q, k = turn(q, sines, cosines), turn(k, sines, cosines)
        logits = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
        seen = jnp.tril(jnp.ones((t, t), bool))
        probs = jax.nn.softmax(jnp.where(seen, logits, jnp.finfo(logits.dtype).min), axis=-1)
        return jnp.einsum("bhqk,bkhd->bqhd", probs, v).reshape(b, t, WIDTH) @ p["wo"]

    return attention


def asks():
    rng = np.random.default_rng(0)
    return dict(inputs=dict(hidden=jnp.asarray(rng.normal(size=(2, 7, WIDTH)), jnp.float32),
                            position_ids=jnp.tile(jnp.arange(7), (2, 1))), mask=it.causal(), like=right())


def wrong():
    return model(1.0)


def right():
    return model(-1.0)


def proof():
    x = asks()["inputs"]
    shifted = dict(x, position_ids=x["position_ids"] + 5)
    moves = lambda f: float(jnp.abs(f(**x) - f(**shifted)).max())
    return moves(wrong()) > 1e-2 and moves(right()) < 1e-4   # only a rotation forgets where the text starts
