"""The padding mask is only built if the lengths of queries and of keys are both given; with those of the keys alone it is silently dropped. Source: github.com/jax-ml/jax/issues/23349"""
import numpy as np
import jax
import jax.numpy as jnp
import intently as it

expect = ["padding-attended"]
words = "key_value_seq_lengths alone has no effect, so padding is attended to"


def make(either):
    def padding_logits(t, s, q_len, kv_len):
        ok = jnp.ones((1, 1, 1), bool)
        if q_len is not None:
            ok = ok & (jnp.arange(t)[None, :, None] < q_len[:, None, None])
        if kv_len is not None:
            ok = ok & (jnp.arange(s)[None, None, :] < kv_len[:, None, None])
        return ok[:, None]

    def dot_product_attention(query, key, value, key_value_seq_lengths=None, query_seq_lengths=None):
        t, s = query.shape[1], key.shape[1]
        z = jnp.einsum("BTNH,BSNH->BNTS", query, key, preferred_element_type=jnp.float32)
        z = z * query.shape[-1] ** -0.5
        given = (query_seq_lengths is not None, key_value_seq_lengths is not None)
        if any(given) if either else all(given):
            keep = padding_logits(t, s, query_seq_lengths, key_value_seq_lengths)
            z = jnp.where(keep, z, -0.7 * jnp.finfo(z.dtype).max)
        w = jax.nn.softmax(z, axis=-1).astype(key.dtype)
        return jnp.einsum("BNTS,BSNH->BTNH", w, value)

    return dot_product_attention


def asks():
    g = np.random.default_rng(2)
    x = lambda n: jnp.asarray(g.standard_normal((2, n, 4, 8)), jnp.float32)
    lengths = [4, 6]
    return dict(inputs=dict(query=x(5), key=x(7), value=x(7), key_value_seq_lengths=jnp.array(lengths)),
                mask=it.padding(lengths))


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    i = asks()["inputs"]
    j = dict(i, value=i["value"].at[:, 6:].add(5.0))
    leaks = lambda f: float(jnp.abs(f(**i) - f(**j)).max())
    return leaks(wrong()) > 1e-2 and leaks(right()) < 1e-6
