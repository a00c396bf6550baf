"""Groups of tokens attend by rules; the first token of each group is counted to the group before. Source: github.com/octo-models/octo/issues/75"""
import numpy as np
import jax
import jax.numpy as jnp
import torch

expect = ["mask-other", "causal-off-by-one"]
words = "searchsorted on the left side gives the token at a border to the earlier group, which others may see"

SIZES = dict(task=3, camera=4, readout=2)
RULES = dict(task={"task"}, camera={"task", "camera"}, readout={"task", "camera", "readout"})

def may_see(side):
    names = list(SIZES)
    ends = np.cumsum(list(SIZES.values()))
    total = int(ends[-1])
    allowed = np.zeros((total, total), bool)
    for i in range(total):
        for j in range(total):
            mine = names[np.searchsorted(ends, i, side=side)]
            theirs = names[np.searchsorted(ends, j, side=side)]
            allowed[i, j] = theirs in RULES[mine]
    return allowed

def asks():
    r = np.random.default_rng(0)
    return dict(inputs=dict(tokens=jnp.asarray(r.normal(size=(2, 9, 24)), jnp.float32)), mask=torch.tensor(may_see("right")))

def block(side):
    r = np.random.default_rng(4)
    wq, wk, wv = (jnp.asarray(r.normal(size=(24, 3, 8)) / 4, jnp.float32) for _ in range(3))
    wo = jnp.asarray(r.normal(size=(3, 8, 24)) / 4, jnp.float32)

    def attend(tokens):
        allowed = jnp.asarray(may_see(side))
        q, k, v = (jnp.einsum("bnc,chd->bhnd", tokens, w) for w in (wq, wk, wv))
        z = jnp.einsum("bhnd,bhmd->bhnm", q, k) / jnp.sqrt(q.shape[-1])
        p = jax.nn.softmax(jnp.where(allowed, z, -1e30), axis=-1)
        return jnp.einsum("bhnm,bhmd,hdc->bnc", p, v, wo)

    return attend

def wrong():
    return block("left")

def right():
    return block("right")

def proof():
    i = asks()["inputs"]
    return bool(may_see("left")[6, 7] and not may_see("right")[6, 7] and jnp.abs(wrong()(**i) - right()(**i)).max() > .02)
