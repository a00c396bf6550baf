"""A port of nanoGPT keeps the score where tril is 0 and writes -1e9 where it is 1. Source: github.com/vithursant/nanoGPT_mlx/issues/6"""
import math
import numpy as np
import jax
import jax.numpy as jnp

expect = ["mask-inverted"]
words = "each position sees only later ones, never itself or earlier ones"


def linear(r, inner, outer):
    return dict(weight=jnp.asarray(r.standard_normal((outer, inner)) / math.sqrt(inner), jnp.float32), bias=jnp.zeros(outer))


def apply(p, x):
    return x @ p["weight"].T + p["bias"]


def layer_norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


class CausalGPT:
    def __init__(self, seed=0, words=24, width=32, heads=4, depth=2):
        r = np.random.default_rng(seed)
        self.heads = heads
        self.embedding = jnp.asarray(r.standard_normal((words, width)), jnp.float32)
        self.blocks = [dict(qkv=linear(r, width, 3 * width), out=linear(r, width, width), up=linear(r, width, 4 * width), down=linear(r, 4 * width, width))
                       for _ in range(depth)]
        self.logits = linear(r, width, words)

    @staticmethod
    def hide(score, mask):
        return jnp.where(mask == 0, score, -1e9)

    def attend(self, block, x, mask):
        b, t, c = x.shape
        q, k, v = (m.reshape(b, t, self.heads, c // self.heads).transpose(0, 2, 1, 3) for m in jnp.split(apply(block["qkv"], x), 3, axis=2))
        score = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1])
        w = jax.nn.softmax(self.hide(score, mask), axis=-1)
        return apply(block["out"], (w @ v).transpose(0, 2, 1, 3).reshape(b, t, c))

    def __call__(self, ids):
        mask = jnp.tril(jnp.ones((ids.shape[1], ids.shape[1])))[None, None]
        x = self.embedding[ids]
        for block in self.blocks:
            x = x + self.attend(block, layer_norm(x), mask)
            x = x + apply(block["down"], jax.nn.gelu(apply(block["up"], layer_norm(x))))
        return apply(self.logits, x)


class CausalGPTMended(CausalGPT):
    @staticmethod
    def hide(score, mask):
        return jnp.where(mask == 0, -1e9, score)


def asks():
    import intently as it
    return dict(inputs=dict(ids=np.random.default_rng(1).integers(0, 24, (2, 7))), mask=it.causal())


def wrong():
    return CausalGPT()


def right():
    return CausalGPTMended()


def proof():
    a = asks()["inputs"]["ids"]
    b = a.copy()
    b[:, -1] = (b[:, -1] + 1) % 24
    first = lambda m: np.allclose(m(a)[:, :-1], m(b)[:, :-1], atol=1e-5)
    return first(right()) and not first(wrong())


if __name__ == "__main__":
    print(proof())
