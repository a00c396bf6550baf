"""Attention over neighbours in edge form takes the largest score of the real edges of a node, lets exp of a masked edge overflow and multiplies it by 0 afterwards. Source: github.com/deepmodeling/deepmd-kit/pull/5715"""
import numpy as np

expect = ["nan-with-keys"]
words = "a masked edge with a score far above the largest real one gives exp = inf, inf * 0 = NaN, and the sum spreads it over the node"

ATOMS = 5


def _edges():
    rng = np.random.default_rng(3)
    target = np.repeat(np.arange(ATOMS), 4)
    source = np.concatenate([rng.permutation(ATOMS)[:4] for _ in range(ATOMS)])
    real = source != 1                              # atom 1 is out of reach of the others
    return source, target, real


def _segment(ufunc, data, ids, start):
    out = np.full((ATOMS,) + data.shape[1:], start, data.dtype)
    ufunc.at(out, ids, data)
    return out


def _attend(x, w, source, target, real, clean):
    q, k, v = (np.einsum("nc,chd->nhd", x, m) for m in w)
    score = np.einsum("ehd,ehd->eh", q[target], k[source]) / q.shape[-1] ** 0.5
    keep = real[:, None]
    top = _segment(np.maximum, np.where(keep, score, -np.inf), target, -np.inf)
    top = np.where(np.isinf(top), 0.0, top)
    moved = score - top[target]
    if clean:
        moved = np.where(keep, moved, 0.0)
    e = np.exp(moved) * keep
    total = _segment(np.add, e, target, 0.0)
    weight = e / np.where(total > 0, total, 1.0)[target]
    return _segment(np.add, weight[..., None] * v[source], target, 0.0).reshape(len(x), -1)


def _weights():
    rng = np.random.default_rng(0)
    return (rng.normal(size=(3, 12, 2, 8)) * 0.3).astype(np.float32)


def asks():
    x = np.random.default_rng(1).normal(size=(ATOMS, 12)).astype(np.float32)
    x[1] *= -200                                    # and has large features
    source, target, real = _edges()
    return dict(inputs=dict(x=x, source=source, target=target, real=real))


def wrong():
    w = _weights()

    def attention(x, source, target, real):
        with np.errstate(over="ignore", invalid="ignore"):
            return _attend(x, w, source, target, real, clean=False)

    return attention


def right():
    w = _weights()

    def attention(x, source, target, real):
        return _attend(x, w, source, target, real, clean=True)

    return attention


def proof():
    x = asks()["inputs"]
    return bool(np.isnan(wrong()(**x)).any()) and bool(np.isfinite(right()(**x)).all())
