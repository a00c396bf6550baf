"""For packed requests, the window is applied by tril to the mask of forbidden keys with k - q + window: nothing before the window is hidden, and far future keys become visible. Source: github.com/huggingface/transformers/pull/41228"""
import torch
import torch.nn.functional as F

expect = ["window-missing", "mask-other"]
words = "the sliding window clears part of the causal mask instead of adding to it"


def block_mask(length_q, length_k, window, low):
    hidden = torch.full((length_q, length_k), low)
    band = torch.triu(hidden, diagonal=length_k - length_q + 1)
    if window > 1:
        band = torch.tril(band, diagonal=length_k - length_q + window)
    return band


def block_mask_mended(length_q, length_k, window, low):
    hidden = torch.full((length_q, length_k), low)
    band = torch.triu(hidden, diagonal=length_k - length_q + 1)
    if window > 1:
        band = band + torch.tril(hidden, diagonal=length_k - length_q - window)
    return band


def attend_requests(build, query, key, value, ends_q, ends_k, window):
    """All requests of a batch lie behind each other along the sequence; `ends` are cumulative lengths."""
    low = torch.finfo(query.dtype).min
    mask = torch.full((1, 1, query.shape[2], key.shape[2]), low, dtype=query.dtype)
    for i in range(len(ends_q) - 1):
        rows, columns = slice(ends_q[i], ends_q[i + 1]), slice(ends_k[i], ends_k[i + 1])
        mask[..., rows, columns] = block_mask_at(build, rows, columns, window, low)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def block_mask_at(build, rows, columns, window, low):
    return build(rows.stop - rows.start, columns.stop - columns.start, window, low)


ENDS = [0, 6, 9]
WINDOW = 3


def packed_attention(query, key, value):
    return attend_requests(block_mask, query, key, value, ENDS, ENDS, WINDOW)


def packed_attention_mended(query, key, value):
    return attend_requests(block_mask_mended, query, key, value, ENDS, ENDS, WINDOW)


def asks():
    import intently as it
    q, k, v = (torch.randn(1, 2, 9, 16) for _ in range(3))
    return dict(inputs=dict(query=q, key=k, value=v),
                mask=it.window(WINDOW - 1, 0) & it.segments([[0] * 6 + [1] * 3]))


def wrong():
    return packed_attention


def right():
    return packed_attention_mended


def proof():
    q, k, v = (torch.randn(1, 2, 9, 16) for _ in range(3))
    good = right()(q, k, v)
    i, j = torch.arange(9)[:, None], torch.arange(9)[None]
    part = (torch.arange(9) >= 6)
    allowed = (j <= i) & (i - j < WINDOW) & (part[:, None] == part[None])
    plain = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    return torch.allclose(good, plain, atol=1e-5) and not torch.allclose(wrong()(q, k, v), plain, atol=1e-3)


if __name__ == "__main__":
    print(proof())
