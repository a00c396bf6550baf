"""Cross-attention of an image to a padded prompt unpads the queries by the mask of the keys: most pixels come back as zeros. Source: github.com/vllm-project/vllm-omni/issues/5865"""
import torch
import intently as it

expect = ["mask-on-queries", "batch-mixed"]
words = "query rows at padded places of the prompt, and all rows beyond it, are zero; indices of (batch, keys) are used on (batch, queries)"

def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(query=torch.randn(2, 9, 4, 8), key=torch.randn(2, 6, 4, 8), value=torch.randn(2, 6, 4, 8),
                            attention_mask=torch.arange(6) < torch.tensor([[6], [4]])), mask=it.padding([6, 4]))

def places(mask):
    return mask.flatten().nonzero().squeeze(-1), [0, *mask.sum(1).cumsum(0).tolist()]

def packed(q, k, v, q_ends, k_ends):
    out = []
    for (a, b), (c, d) in zip(zip(q_ends, q_ends[1:]), zip(k_ends, k_ends[1:])):
        z = torch.einsum("thd,shd->hts", q[a:b], k[c:d]) * q.shape[-1] ** -0.5
        out.append(torch.einsum("hts,shd->thd", z.softmax(-1), v[c:d]))
    return torch.cat(out)

def unpadded_both(query, key, value, attention_mask):
    b, t, h, d = query.shape
    kept, k_ends = places(attention_mask)
    k, v = key.flatten(0, 1)[kept], value.flatten(0, 1)[kept]
    rows, q_ends = places(attention_mask[:, -t:])
    q = query.flatten(0, 1)[rows]
    out = query.new_zeros(b * t, h, d)
    return out.index_copy(0, rows, packed(q, k, v, q_ends, k_ends)).view(b, t, h, d)

def unpadded_keys(query, key, value, attention_mask):
    b, t, h, d = query.shape
    kept, k_ends = places(attention_mask)
    k, v = key.flatten(0, 1)[kept], value.flatten(0, 1)[kept]
    q_ends = list(range(0, b * t + 1, t))
    return packed(query.flatten(0, 1), k, v, q_ends, k_ends).view(b, t, h, d)

def wrong():
    return unpadded_both

def right():
    return unpadded_keys

def proof():
    i = asks()["inputs"]
    a, b = wrong()(**i), right()(**i)
    dense = torch.nn.functional.scaled_dot_product_attention(*(i[n].transpose(1, 2) for n in ("query", "key", "value")),
                                                             attn_mask=i["attention_mask"][:, None, None]).transpose(1, 2)
    return bool(torch.allclose(b, dense, atol=1e-5) and (a.abs().sum((2, 3)) == 0).sum() >= 8)
