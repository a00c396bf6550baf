"""ALiBi's slopes are one geometric series even where the number of heads is no power of two. Source: github.com/ml-explore/mlx/pull/3071"""
import math
import jax
import jax.numpy as jnp
import numpy as np

expect = ["bias-slopes", "bias-other"]
words = "the slopes of the heads are not those of ALiBi for 3 heads"


def _one_series(heads):
    ratio = 256.0 ** (1.0 / heads)
    return jnp.power(ratio, -jnp.arange(1.0, heads + 1))[:, None, None]


def _interleaved(heads):
    def series(n):
        return [2.0 ** (-8.0 * (i + 1) / n) for i in range(n)]

    if math.log2(heads).is_integer():
        got = series(heads)
    else:
        lower = 2 ** int(math.log2(heads))
        got = series(lower) + series(2 * lower)[::2][: heads - lower]
    return jnp.asarray(got)[:, None, None]


class Alibi:
    def __init__(self, slopes):
        self.slopes = slopes

    def __call__(self, scores, offset=0):
        heads, t, s = scores.shape[-3:]
        away = jnp.abs(jnp.arange(offset, offset + t)[:, None] - jnp.arange(s)[None, :])
        return scores - self.slopes(heads) * away


def _build(slopes):
    alibi = Alibi(slopes)

    def attend(q, k, v):
        scores = jnp.matmul(q, jnp.swapaxes(k, -1, -2)) / math.sqrt(q.shape[-1])
        return jnp.matmul(jax.nn.softmax(alibi(scores), axis=-1), v)

    return attend


def _qkv():
    r = np.random.default_rng(1)
    return {n: jnp.asarray(r.normal(size=(2, 3, 8, 16)).astype("float32")) for n in "qkv"}


def asks():
    return dict(inputs=_qkv(), like=right())


def wrong():
    return _build(_one_series)


def right():
    return _build(_interleaved)


def proof():
    x = _qkv()
    four = {n: jnp.concatenate([a, a[:, :1]], 1) for n, a in x.items()}
    return bool(jnp.abs(wrong()(**x) - right()(**x)).max() > 1e-2) and bool(
        jnp.abs(wrong()(**four) - right()(**four)).max() < 1e-5
    )
