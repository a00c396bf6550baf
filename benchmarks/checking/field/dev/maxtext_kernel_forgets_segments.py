"""One of the attention kernels of a trainer is called with a causal mask only, so packed texts see the ones before them. Source: github.com/AI-Hypercomputer/maxtext/issues/4476"""
import jax
import jax.numpy as jnp
import numpy as np
import intently as it

expect = ["mask-other", "mask-missing", "mask-in-one-path"]
words = "tokens attend to earlier texts packed into the same row"


class Attention:
    def __init__(self, kernel, heads=4, width=32):
        r = np.random.default_rng(8)
        self.heads, self.kernel = heads, kernel
        self.qkv = jnp.asarray(r.normal(size=(3, width, heads, width // heads)).astype("float32") * width**-0.5)
        self.out = jnp.asarray(r.normal(size=(heads, width // heads, width)).astype("float32") * width**-0.5)

    def plain(self, q, k, v, segments):
        t = q.shape[1]
        keep = jnp.tril(jnp.ones((t, t), dtype=bool))[None, None]
        if segments is not None:
            keep = keep & (segments[:, None, :, None] == segments[:, None, None, :])
        z = jnp.einsum("btnh,bsnh->bnts", q * q.shape[-1] ** -0.5, k)
        p = jax.nn.softmax(jnp.where(keep, z, -2.4e38), axis=-1)
        return jnp.einsum("bnts,bsnh->btnh", p, v)

    def fused(self, q, k, v, segments):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)

    def __call__(self, x, decoder_segment_ids=None):
        q, k, v = jnp.einsum("btc,kcnh->kbtnh", x, self.qkv)
        y = getattr(self, self.kernel)(q, k, v, decoder_segment_ids)
        return jnp.einsum("btnh,nhc->btc", y, self.out)


IDS = np.array([[1, 1, 1, 2, 2, 2, 2, 2], [1, 1, 1, 1, 1, 2, 2, 3]])


def _inputs():
    r = np.random.default_rng(9)
    return dict(x=jnp.asarray(r.normal(size=(2, 8, 32)).astype("float32")), decoder_segment_ids=jnp.asarray(IDS))


def asks():
    import torch

    ids = torch.tensor(IDS)[:, None]
    return dict(inputs=_inputs(), mask=it.causal() & it.segments(ids))


def wrong():
    return Attention("fused")


def right():
    return Attention("plain")


def proof():
    x = _inputs()
    d = jnp.abs(wrong()(**x) - right()(**x)).max(-1)
    return bool(d[0, :3].max() < 1e-5) and bool(d[0, 3:].max() > 1e-2) and bool(d[1, 5:].min() > 1e-3)
