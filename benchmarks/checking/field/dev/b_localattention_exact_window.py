"""The causal mask and the mask of the exact window are joined by and, which no pair fulfils, so nothing is hidden. Source: github.com/lucidrains/local-attention/issues/5"""
import torch
from torch import nn
import torch.nn.functional as F
import intently as it

expect = ["mask-missing", "window-missing", "mask-other"]
words = "with an exact window the causal mask is lost: queries see the later keys of their block and whole blocks back"


def look_back(x, fill):
    """(b, blocks, w, …) -> each block with the one before it, (b, blocks, 2 w, …)."""
    pad = (0, 0) * (x.dim() - 2) + (1, 0)
    return torch.cat((F.pad(x, pad, value=fill)[:, :-1], x), dim=2)


class LocalAttention(nn.Module):
    def __init__(self, window_size=3, join=torch.logical_or):
        super().__init__()
        self.window_size, self.join = window_size, join

    def forward(self, q, k, v):
        b, h, t, d = q.shape
        w = self.window_size
        q, k, v = (x.reshape(b * h, t // w, w, d) for x in (q, k, v))
        at = torch.arange(t).view(1, t // w, w)
        k, v, k_at = look_back(k, 0.0), look_back(v, 0.0), look_back(at, -1)
        z = torch.einsum("bnie,bnje->bnij", q, k) * d ** -0.5
        i, j = at[..., :, None], k_at[..., None, :]
        low = -torch.finfo(z.dtype).max
        z = z.masked_fill(self.join(i < j, i > j + w), low)
        z = z.masked_fill(j == -1, low)
        return torch.einsum("bnij,bnje->bnie", z.softmax(-1), v).reshape(b, h, t, d)


def asks():
    torch.manual_seed(0)
    x = lambda: torch.randn(2, 2, 9, 16)
    return dict(inputs=dict(q=x(), k=x(), v=x()), mask=it.window(3, 0))


def wrong():
    return LocalAttention(join=torch.logical_and).eval()


def right():
    return LocalAttention(join=torch.logical_or).eval()


def proof():
    i = asks()["inputs"]
    r, c = torch.arange(9)[:, None], torch.arange(9)[None]
    y = F.scaled_dot_product_attention(**{n: i[m] for n, m in (("query", "q"), ("key", "k"), ("value", "v"))},
                                       attn_mask=(c <= r) & (c >= r - 3))
    gap = lambda f: (f(**i) - y).abs().max().item()
    return gap(wrong()) > 1e-2 and gap(right()) < 1e-5
