"""A decoding kernel writes its large negative number for slots past the length and only then applies the softcap, which turns it into -cap. Source: github.com/flashinfer-ai/flashinfer/pull/350"""
import numpy as np

expect = ["softcap-after-mask", "padding-attended", "mask-too-weak"]
words = "tanh makes -cap of the masked score, so slots past the length keep weight"


def cap_then(scores, cap):
    return cap * np.tanh(scores / cap)


def masked_scores(scores, valid, cap):
    return cap_then(np.where(valid, scores, -5e4), cap)


def masked_scores_mended(scores, valid, cap):
    return np.where(valid, cap_then(scores, cap), -5e4)


def decode(order, query, key, value, lengths, cap, tile):
    """One query per request against a cache (batch, slots, kv heads, d), tile by tile with a running softmax."""
    batch, heads, d = query.shape
    slots, groups = key.shape[1], heads // key.shape[2]
    out = np.zeros_like(query)
    for b in range(batch):
        for h in range(heads):
            top, total, mixed = -np.inf, 0.0, np.zeros(d, query.dtype)
            for start in range(0, slots, tile):
                at = np.arange(start, min(start + tile, slots))
                s = key[b, at, h // groups] @ query[b, h] / np.sqrt(d)
                s = order(s, at < lengths[b], cap)
                new = max(top, s.max())
                e = np.exp(s - new)
                shrink = np.exp(top - new)
                total = total * shrink + e.sum()
                mixed = mixed * shrink + e @ value[b, at, h // groups]
                top = new
            out[b, h] = mixed / total
    return out


def decode_capped(query, key, value, lengths, cap=5.0, tile=4):
    return decode(masked_scores, query, key, value, lengths, cap, tile)


def decode_capped_mended(query, key, value, lengths, cap=5.0, tile=4):
    return decode(masked_scores_mended, query, key, value, lengths, cap, tile)


def given():
    r = np.random.default_rng(0)
    q = r.standard_normal((2, 4, 16)).astype(np.float32)
    k, v = (r.standard_normal((2, 8, 2, 16)).astype(np.float32) for _ in range(2))
    return dict(query=q, key=k, value=v, lengths=np.array([8, 5]))


def asks():
    import intently as it
    return dict(inputs=given(), mask=it.padding([8, 5]))


def wrong():
    return decode_capped


def right():
    return decode_capped_mended


def proof():
    a = given()
    b = {name: x.copy() for name, x in a.items()}
    b["value"][1, 5:] += 7
    same = np.allclose(right()(**a), right()(**b), atol=1e-5)
    return same and not np.allclose(wrong()(**a)[1], wrong()(**b)[1], atol=1e-3)


if __name__ == "__main__":
    print(proof())
