"""A graph attention network takes one softmax over the edges of the whole batch where each node should normalise over its own neighbours. Source: github.com/alibaba/graph-learn/pull/26"""
import jax
import jax.numpy as jnp
import numpy as np

expect = ["not-normalised", "softmax-over-queries"]
words = "coefficients are normalised over all edges of the batch, so those of one node sum to much less than 1"

NODES, FEATURES, HIDDEN, HEADS, CLASSES = 7, 10, 8, 3, 4


def _params():
    rng = np.random.default_rng(0)
    layer = lambda i, h, o: dict(project=jnp.asarray(rng.normal(size=(i, h, o)) / np.sqrt(i), jnp.float32),
                                 source=jnp.asarray(rng.normal(size=(h, o)) / np.sqrt(o), jnp.float32),
                                 target=jnp.asarray(rng.normal(size=(h, o)) / np.sqrt(o), jnp.float32))
    return [layer(FEATURES, HEADS, HIDDEN), layer(HEADS * HIDDEN, 1, CLASSES)]


def _over_all(energy, target):
    return jax.nn.softmax(energy, axis=0)


def _over_neighbours(energy, target):
    top = jax.ops.segment_max(energy, target, NODES)
    e = jnp.exp(energy - top[target])
    return e / jax.ops.segment_sum(e, target, NODES)[target]


def _layer(p, x, source, target, normalise):
    h = jnp.einsum("ni,iho->nho", x, p["project"])
    energy = jax.nn.leaky_relu((h * p["source"]).sum(-1)[source] + (h * p["target"]).sum(-1)[target], 0.2)
    alpha = normalise(energy, target)
    return jax.ops.segment_sum(alpha[..., None] * h[source], target, NODES).reshape(NODES, -1)


def _network(normalise):
    first, second = _params()

    def gat(x, source, target):
        x = jax.nn.elu(_layer(first, x, source, target, normalise))
        return _layer(second, x, source, target, normalise)

    return gat


def asks():
    a = np.array([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 0], [0, 3], [6, 2]])
    edges = np.concatenate((a, a[:, ::-1], np.stack([np.arange(NODES)] * 2, 1)))
    x = jnp.asarray(np.random.default_rng(1).normal(size=(NODES, FEATURES)), jnp.float32)
    return dict(inputs=dict(x=x, source=jnp.asarray(edges[:, 0]), target=jnp.asarray(edges[:, 1])))


def wrong():
    return _network(_over_all)


def right():
    return _network(_over_neighbours)


def proof():
    x = asks()["inputs"]
    energy = jnp.asarray(np.random.default_rng(2).normal(size=(len(x["target"]), 3)))
    sums = lambda f: jax.ops.segment_sum(f(energy, x["target"]), x["target"], NODES)
    differ = float(jnp.abs(wrong()(**x) - right()(**x)).max()) > 1e-3
    return differ and bool((sums(_over_all) < 0.9).any()) and bool(jnp.allclose(sums(_over_neighbours), 1, atol=1e-5))
