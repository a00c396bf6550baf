"""The definition of an attention operator adds the mask and caps the sum: hidden keys get the score -cap. Source: github.com/onnx/onnx/issues/7865"""
import intently as it
import numpy as np

expect = ["softcap-after-mask", "mask-too-weak"]
words = "tanh turns minus infinity into -1, so hidden keys keep weight"


def asks():
    rng = np.random.default_rng(2)
    draw = lambda n: rng.normal(size=(2, 3, n, 8)).astype("float32")
    hide = np.triu(np.full((6, 6), -np.inf, "float32"), 1)
    return dict(inputs=dict(Q=draw(6), K=draw(6), V=draw(6), attn_mask=hide), mask=it.causal())


def softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def make(cap_first, softcap=3.0):
    def attention(Q, K, V, attn_mask=None):
        root = np.sqrt(1.0 / np.sqrt(Q.shape[-1])).astype(Q.dtype)
        z = (Q * root) @ np.swapaxes(K * root, -1, -2)
        cap = lambda s: (softcap * np.tanh(s / softcap)).astype(s.dtype)
        if cap_first:
            z = cap(z)
        if attn_mask is not None:
            z = z + attn_mask
        if not cap_first:
            z = cap(z)
        return softmax(z) @ V

    return attention


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    call = asks()["inputs"]
    later = dict(call, V=call["V"].copy())
    later["V"][:, :, -1] += 5
    leak = [np.abs(f(**call) - f(**later))[:, :, :-1].max() for f in (wrong(), right())]
    return bool(leak[0] > 1e-2 and leak[1] == 0)
