"""Weights of a content attention are exponentials times a mask, divided by their sum, which is 0 where the mask is all zero. Source: github.com/mila-iqia/blocks/pull/581"""
import numpy as np

import intently as it

expect = ["nan-without-keys"]
words = "a row of the batch without any real key gives 0 / 0"

MASK = np.array([[1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0]], bool)


def asks():
    rng = np.random.default_rng(2)
    return dict(inputs=dict(state=rng.standard_normal((2, 16)), attended=rng.standard_normal((2, 6, 16)), mask=MASK), mask=it.padding(MASK.tolist()))


def _make(guards):
    rng = np.random.default_rng(0)
    ws, wa, w = (rng.standard_normal(s) / 4 for s in ((16, 24), (16, 24), (24,)))

    def content_attention(state, attended, mask):
        energies = np.tanh(attended @ wa + (state @ ws)[:, None]) @ w
        unnormalised = np.exp(energies - energies.max(1, keepdims=True)) * mask
        total = unnormalised.sum(1, keepdims=True)
        if guards:
            total = total + (total == 0)
        with np.errstate(invalid="ignore"):
            weights = unnormalised / total
        return (weights[:, :, None] * attended).sum(1)
    return content_attention


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    x, y = wrong()(**a), right()(**a)
    return np.isnan(x[1]).all() and not np.isnan(y).any() and np.allclose(x[0], y[0])


if __name__ == "__main__":
    print(proof())
