"""Generation with a cache: after the prompt the offset of positions grows by the length of the prompt twice, so every step is rotated a prompt too far. Source: github.com/skyzh/tiny-llm/pull/46"""
import intently as it
import numpy as np

expect = ["cached-step-differs", "rotation-other", "rotation-off-by-one", "position-offset-lost"]
words = "positions jump from the end of the prompt by its length: 0 … 4, then 10, 11, 12"

C, HEADS, PROMPT = 32, 2, 5


def asks():
    x = np.random.default_rng(21).normal(size=(2, 8, C)).astype("float32")
    return dict(inputs=dict(x=x), mask=it.causal())


def rope(x, offset):
    half = x.shape[-1] // 2
    angle = (offset + np.arange(x.shape[-2]))[:, None] * 100.0 ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], -1)


class Layer:
    def __init__(self):
        rng = np.random.default_rng(22)
        self.q, self.k, self.v, self.o = (rng.normal(size=(C, C)) / C ** 0.5 for _ in range(4))

    def __call__(self, x, offset, cache):
        b, n, _ = x.shape
        q, k, v = ((x @ w).reshape(b, n, HEADS, -1).swapaxes(1, 2) for w in (self.q, self.k, self.v))
        q, k = rope(q, offset), rope(k, offset)
        if cache:
            k, v = np.concatenate([cache["k"], k], 2), np.concatenate([cache["v"], v], 2)
        cache.update(k=k, v=v)
        z = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        z = np.where(np.tri(n, k.shape[2], k.shape[2] - n, dtype=bool), z, -np.inf)
        e = np.exp(z - z.max(-1, keepdims=True))
        y = e / e.sum(-1, keepdims=True) @ v
        return y.swapaxes(1, 2).reshape(b, n, C) @ self.o


def make(advance):
    layer = Layer()

    def generate(x):
        """The rows of x as they come: a prompt, then one token after the other."""
        cache, offset, rows = {}, 0, []
        pieces = [x[:, :PROMPT]] + [x[:, i:i + 1] for i in range(PROMPT, x.shape[1])]
        for number, piece in enumerate(pieces):
            rows.append(layer(piece, offset, cache))
            offset += advance(number, piece)
        return np.concatenate(rows, 1).astype(x.dtype)

    return generate


def wrong():
    return make(lambda number, piece: PROMPT + piece.shape[1] if number == 0 else piece.shape[1])


def right():
    return make(lambda number, piece: piece.shape[1])


def proof():
    x = asks()["inputs"]["x"]
    whole = Layer()(x, 0, {})
    off = np.abs(wrong()(x) - whole).max((0, 2))
    return bool(np.abs(right()(x) - whole).max() < 1e-5 and off[:PROMPT].max() < 1e-5 and off[PROMPT:].min() > 1e-3)
