"""Latent attention scales its queries after the projection, and the fused kernel scales the product once more. Source: github.com/AI-Hypercomputer/maxtext/issues/3138"""
import jax
import jax.numpy as jnp
import numpy as np
import intently as it

expect = ["scale-one-over-d", "other-scale", "setting-matters", "paths-differ", "projection-scaled", "differs-from-reference"]
words = "scores are divided by sqrt(d) twice where attention='cudnn_flash_jax'"

EMB, HEADS, NOPE, ROPE, VDIM, RANK = 32, 4, 12, 4, 8, 16
QK = NOPE + ROPE


def rope(u):
    ang = jnp.arange(u.shape[1])[:, None, None] * (10000.0 ** (-jnp.arange(0, ROPE, 2) / ROPE))
    a, b = u[..., :ROPE // 2], u[..., ROPE // 2:]
    return jnp.concatenate([a * jnp.cos(ang) - b * jnp.sin(ang), b * jnp.cos(ang) + a * jnp.sin(ang)], -1)


def dot_product(q, k, v):
    t = q.shape[1]
    z = jnp.einsum("bthd,bshd->bhts", q, k)
    z = jnp.where(jnp.tril(jnp.ones((t, t), bool)), z, -0.7 * jnp.finfo(z.dtype).max)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(z, -1), v)


def flash(q, k, v, scale):
    """Stands for the fused kernel; values are padded to the width of keys as it wants."""
    v = jnp.pad(v, ((0, 0),) * 3 + ((0, QK - VDIM),))
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, scale=scale)[..., :VDIM]


def mla(kernel_scale):
    rng = np.random.default_rng(21)
    def w(*s): return jnp.asarray(rng.normal(size=s) / s[0] ** 0.5, jnp.float32)
    wq, wdown, wup, wo = w(EMB, HEADS, QK), w(EMB, RANK + ROPE), w(RANK, HEADS, NOPE + VDIM), w(HEADS * VDIM, EMB)

    def layer(inputs, attention="cudnn_flash_jax"):
        b, t, _ = inputs.shape
        q = jnp.einsum("bte,ehd->bthd", inputs, wq)
        q = jnp.concatenate([q[..., :NOPE], rope(q[..., NOPE:])], -1) * QK ** -0.5
        low = inputs @ wdown
        up = jnp.einsum("btr,rhd->bthd", low[..., :RANK], wup)
        shared = rope(low[:, :, None, RANK:])
        k = jnp.concatenate([up[..., :NOPE], jnp.broadcast_to(shared, (b, t, HEADS, ROPE))], -1)
        v = up[..., NOPE:]
        out = flash(q, k, v, kernel_scale) if attention == "cudnn_flash_jax" else dot_product(q, k, v)
        return out.reshape(b, t, -1) @ wo

    return layer


def asks():
    return dict(inputs=dict(inputs=jnp.asarray(2 * np.random.default_rng(2).normal(size=(2, 8, EMB)), jnp.float32)),
                mask=it.causal())


def wrong():
    return mla(QK ** -0.5)


def right():
    return mla(1.0)


def proof():
    x = asks()["inputs"]["inputs"]
    gap = lambda f: float(jnp.abs(f(x) - f(x, attention="dot_product")).max())
    return gap(wrong()) > 1e-2 and gap(right()) < 1e-4
