"""The attention softcap is handed to the paged kernel as a constant 0.0, so a Gemma-2 layer runs uncapped. Source: github.com/vllm-project/vllm-metal/issues/665"""
import jax
import jax.numpy as jnp
import numpy as np

expect = ["softcap-missing"]
words = "the cap of the configuration never reaches the attention, scores are not capped"

CAP = 50.0


def asks():
    rng = np.random.default_rng(4)
    draw = lambda m: jnp.asarray(m * rng.standard_normal((2, 2, 6, 16)), jnp.float32)
    return dict(inputs=dict(q=draw(8.0), k=draw(8.0), v=draw(1.0)), like=right())


def _paged(q, k, v, scale, softcap):
    s = q @ jnp.swapaxes(k, -1, -2) * scale
    if softcap > 0.0:
        s = jnp.tanh(s / softcap) * softcap
    return jax.nn.softmax(s, axis=-1) @ v


class _Gemma2:
    attn_logit_softcapping = CAP
    scale = 16 ** -0.5


def _make(cap_of):
    inner = _Gemma2()

    def sdpa_forward(q, k, v):
        return _paged(q, k, v, inner.scale, cap_of(inner))
    return sdpa_forward


def wrong():
    return _make(lambda inner: 0.0)


def right():
    return _make(lambda inner: inner.attn_logit_softcapping)


def proof():
    a = asks()["inputs"]
    return float(jnp.abs(wrong()(**a) - right()(**a)).max()) > 1e-2


if __name__ == "__main__":
    print(proof())
