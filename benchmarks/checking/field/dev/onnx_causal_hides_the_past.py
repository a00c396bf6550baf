"""The reference of an attention operator counts its causal mask from the first past key, so queries after a cache see the oldest keys only. Source: github.com/onnx/onnx/pull/7297"""
import numpy as np
import intently as it

expect = ["mask-top-left"]
words = "tril over (queries, past and present keys) without the offset of the past"


def softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def operator(shift):
    def run(Q, K, V, past_key=None, past_value=None, is_causal=True, scale=None):
        past = 0
        if past_key is not None:
            past = past_key.shape[2]
            K = np.concatenate((past_key, K), axis=2)
            V = np.concatenate((past_value, V), axis=2)
        present_key, present_value = K, V
        repeats = Q.shape[1] // K.shape[1]
        K, V = np.repeat(K, repeats, axis=1), np.repeat(V, repeats, axis=1)
        root = np.sqrt(1 / np.sqrt(Q.shape[-1]) if scale is None else scale)
        product = np.matmul(Q * root, np.swapaxes(K, -1, -2) * root)
        if is_causal:
            bias = np.zeros(product.shape[-2:], dtype=product.dtype)
            bias[~np.tril(np.ones(bias.shape, dtype=bool), k=past if shift else 0)] = -np.inf
            product = product + bias
        return np.matmul(softmax(product), V), present_key, present_value
    return run


def asks():
    rng = np.random.default_rng(4)
    n = lambda h, t: rng.normal(size=(2, h, t, 8)).astype(np.float32)
    return dict(inputs=dict(Q=n(4, 3), K=n(2, 3), V=n(2, 3), past_key=n(2, 5), past_value=n(2, 5)), mask=it.causal())


def wrong():
    return operator(False)


def right():
    return operator(True)


def proof():
    q = asks()["inputs"]
    whole = dict(Q=np.concatenate((np.zeros((2, 4, 5, 8), np.float32), q["Q"]), 2),
                 K=np.concatenate((q["past_key"], q["K"]), 2), V=np.concatenate((q["past_value"], q["V"]), 2))
    last = right()(**whole)[0][:, :, 5:]
    return np.abs(right()(**q)[0] - last).max() < 1e-5 < 1e-2 < np.abs(wrong()(**q)[0] - last).max()
