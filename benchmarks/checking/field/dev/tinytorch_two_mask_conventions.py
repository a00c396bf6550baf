"""A GPT of a NumPy course builds an additive mask (0 and -inf), and its attention reads 1 as allowed: every allowed score gets -1e9, and in float32 nothing is left of it. Source: github.com/harvard-edge/cs249r_book/pull/1785"""
import numpy as np

expect = ["query-without-influence", "scores-other"]
words = "all allowed scores are -1e9 up to rounding, so weights are uniform over the past and do not depend on query or key"

MASK_VALUE = np.float32(-1e9)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def normalise(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + np.float32(1e-5))


class Linear:
    def __init__(self, r, inner, outer):
        self.weight = (r.standard_normal((inner, outer)) / np.sqrt(inner)).astype(np.float32)
        self.bias = np.zeros(outer, np.float32)

    def __call__(self, x):
        return x @ self.weight + self.bias


class MultiHeadAttention:
    """mask: 1 where a query may look, 0 where not."""

    def __init__(self, r, width, heads):
        self.heads, self.size = heads, width // heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (Linear(r, width, width) for _ in range(4))

    def split(self, x):
        b, t, _ = x.shape
        return x.reshape(b, t, self.heads, self.size).transpose(0, 2, 1, 3)

    def __call__(self, x, mask=None):
        b, t, c = x.shape
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        scores = q @ k.transpose(0, 1, 3, 2) / np.float32(np.sqrt(self.size))
        if mask is not None:
            scores = scores + (np.float32(1) - mask) * MASK_VALUE
        y = softmax(scores) @ v
        return self.out_proj(y.transpose(0, 2, 1, 3).reshape(b, t, c))


class GPT:
    def __init__(self, seed=0, words=24, width=32, heads=4, depth=2, longest=16):
        r = np.random.default_rng(seed)
        self.word = r.standard_normal((words, width)).astype(np.float32)
        self.place = (r.standard_normal((longest, width)) * 0.5).astype(np.float32)
        self.blocks = [(MultiHeadAttention(r, width, heads), Linear(r, width, 4 * width), Linear(r, 4 * width, width)) for _ in range(depth)]
        self.head = Linear(r, width, words)

    def causal(self, t):
        return np.triu(np.full((t, t), -np.inf, np.float32), k=1)

    def __call__(self, tokens):
        t = tokens.shape[1]
        x = self.word[tokens] + self.place[:t]
        mask = self.causal(t)
        for attention, up, down in self.blocks:
            x = x + attention(normalise(x), mask)
            h = up(normalise(x))
            x = x + down(np.maximum(h, 0))
        return self.head(normalise(x))


class GPTMended(GPT):
    def causal(self, t):
        return np.tril(np.ones((t, t), np.float32))


def asks():
    import intently as it
    return dict(inputs=dict(tokens=np.random.default_rng(1).integers(0, 24, (2, 8))), mask=it.causal())


def wrong():
    return GPT()


def right():
    return GPTMended()


def proof():
    x = asks()["inputs"]["tokens"]
    a = wrong()
    before = a(x)
    for attention, _, _ in a.blocks:
        attention.q_proj.weight = attention.q_proj.weight * 0
    blind = np.allclose(before, a(x), atol=1e-3)
    b = right()
    kept = b(x)
    for attention, _, _ in b.blocks:
        attention.q_proj.weight = attention.q_proj.weight * 0
    return blind and not np.allclose(kept, b(x), atol=1e-2)


if __name__ == "__main__":
    print(proof())
