"""A local window is forgotten unless another mask is given, too: the early return of the mask helper does not look at it. Source: github.com/jax-ml/jax/issues/32300"""
import jax
import jax.numpy as jnp
import numpy as np
import intently as it

expect = ["window-missing", "mask-missing"]
words = "the local window is ignored when no mask is passed"


def _hide(scores, user_mask, causal, q_len, kv_len, span, early_out_looks_at_span):
    nothing = user_mask is None and not causal and q_len is None and kv_len is None
    if early_out_looks_at_span:
        nothing = nothing and span is None
    if nothing:
        return scores
    t, s = scores.shape[-2:]
    keep = jnp.ones((1, 1, t, s), dtype=bool)
    rows, cols = jnp.arange(t)[:, None], jnp.arange(s)[None, :]
    if user_mask is not None:
        keep = keep & user_mask
    if causal:
        keep = keep & (cols <= rows)
    if span is not None:
        left, right = span
        keep = keep & (cols >= rows - left) & (cols <= rows + right)
    if q_len is not None:
        keep = keep & (rows < q_len[:, None, None, None])
    if kv_len is not None:
        keep = keep & (cols < kv_len[:, None, None, None])
    return jnp.where(keep, scores, 0.7 * float(np.finfo(np.float32).min))


def _build(fixed):
    def attention(query, key, value, mask=None, causal=False, q_len=None, kv_len=None, span=(2, 1)):
        # (b, t, h, d), as jax.nn has it
        scores = jnp.einsum("bthd,bshd->bhts", query, key) * query.shape[-1] ** -0.5
        scores = _hide(scores, mask, causal, q_len, kv_len, span, fixed)
        weights = jax.nn.softmax(scores, axis=-1)
        return jnp.einsum("bhts,bshd->bthd", weights, value)

    return attention


def _qkv():
    r = np.random.default_rng(0)
    return {n: jnp.asarray(r.normal(size=(2, 7, 4, 8)).astype("float32")) for n in ("query", "key", "value")}


def asks():
    return dict(inputs=_qkv(), mask=it.window(2, 1))


def wrong():
    return _build(False)


def right():
    return _build(True)


def proof():
    x = _qkv()
    a, b = wrong()(**x), right()(**x)
    everything = jnp.ones((1, 1, 7, 7), dtype=bool)
    return bool(jnp.abs(a - b).max() > 1e-2) and bool(
        jnp.abs(wrong()(**x, mask=everything) - right()(**x, mask=everything)).max() < 1e-6
    )
