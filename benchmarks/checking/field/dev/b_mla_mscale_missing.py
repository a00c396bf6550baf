"""An exported latent attention leaves YaRN's factor out of the softmax scale. Source: github.com/onnxruntime/mobius/pull/548"""
import math

import numpy as np

expect = ["other-scale"]
words = "d ** -0.5 for d ** -0.5 * mscale ** 2 with mscale = 0.1 m log(factor) + 1"

FACTOR, MSCALE_ALL_DIM, D = 40, 0.707, 16
MEANT = D ** -0.5 * (0.1 * MSCALE_ALL_DIM * math.log(FACTOR) + 1.0) ** 2


def _component(fixed):
    scale = np.float32(MEANT if fixed else D ** -0.5)

    def attention(query_states, key_states, value_states):
        """(b, h, t, d), rotated already."""
        t = query_states.shape[2]
        z = np.matmul(query_states, key_states.transpose(0, 1, 3, 2)) * scale
        z = z + np.triu(np.full((t, t), -np.inf, "float32"), 1)
        z = np.exp(z - z.max(-1, keepdims=True))
        return np.matmul(z / z.sum(-1, keepdims=True), value_states)
    return attention


def asks():
    import intently as it
    r = np.random.default_rng(1)
    q, k = (r.standard_normal((2, 3, 6, D)).astype("float32") for _ in "qk")
    v = r.standard_normal((2, 3, 6, 8)).astype("float32")
    return dict(inputs=dict(query_states=q, key_states=k, value_states=v), mask=it.causal(), scale=MEANT)


def wrong():
    return _component(False)


def right():
    return _component(True)


def proof():
    """Equal at the first position, different later."""
    a = asks()["inputs"]
    w, r = wrong()(**a), right()(**a)
    return np.allclose(w[:, :, 0], r[:, :, 0]) and not np.allclose(w, r, atol=1e-2)
