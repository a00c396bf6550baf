"""ALiBi slopes 2^(-8h/n) are counted from h = 0: the first head has slope 1, and every head one factor too much. Source: github.com/paiml/aprender/pull/2143"""
import intently as it
import numpy as np

expect = ["bias-slopes", "bias-other", "bias-scaled", "bias-twice"]
words = "each head's penalty is 2^(8/n) times that of the paper"

HEADS = 4


def asks():
    rng = np.random.default_rng(6)
    draw = lambda: rng.normal(size=(2, HEADS, 7, 8)).astype("float32")
    return dict(inputs=dict(q=draw(), k=draw(), v=draw()), mask=it.causal())


def slopes(n, first):
    """A geometric series for a power of two, the series of 2 n interleaved for the others."""
    def of_power(m):
        return [2.0 ** (-8.0 * (i + first) / m) for i in range(m)]
    if n & (n - 1) == 0:
        return np.array(of_power(n))
    low = 1 << (n.bit_length() - 1)
    return np.array(of_power(low) + of_power(2 * low)[0::2][: n - low])


def make(first):
    def alibi_attention(q, k, v):
        t, s = q.shape[-2], k.shape[-2]
        far = np.arange(s)[None] - (np.arange(t)[:, None] + s - t)             # 0 at the query, negative before it
        z = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
        z = z + slopes(q.shape[1], first)[:, None, None] * far
        z = np.where(far > 0, -np.inf, z)
        z = np.exp(z - z.max(-1, keepdims=True))
        return ((z / z.sum(-1, keepdims=True)) @ v).astype(q.dtype)

    return alibi_attention


def wrong():
    return make(0)


def right():
    return make(1)


def proof():
    call = asks()["inputs"]
    return bool(np.allclose(slopes(8, 1)[[0, 7]], [0.5, 1 / 256]) and slopes(8, 0)[0] == 1
                and np.abs(wrong()(**call) - right()(**call)).max() > 1e-2)
