"""While generating, a cache that should hold block_size keys keeps block_size of the old ones and then adds the new one: one key too many. Source: github.com/clankur/einygpt/pull/2"""
import torch
import torch.nn as nn
from einops import einsum, rearrange
import intently as it

expect = ["window-off-in-cache", "window-off-by-one", "cached-step-differs"]
words = "a step sees block_size + 1 keys once the cache is full"


class Attention(nn.Module):
    def __init__(self, width=32, heads=4, block=6):
        super().__init__()
        self.heads, self.block = heads, block
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(width, heads, width // heads) * width ** -0.5) for _ in range(3))
        self.wo = nn.Linear(width, width)

    def trimmed(self, old):
        return old[:, -self.block :]

    def forward(self, x, cache=None):
        """x (b, t, c); cache (keys, values), each (b, s, heads, d)"""
        q, k, v = (einsum(x, w, "b t c, c h d -> b t h d") for w in (self.wq, self.wk, self.wv))
        if cache is not None:
            k = torch.cat([self.trimmed(cache[0]), k], 1)
            v = torch.cat([self.trimmed(cache[1]), v], 1)
        z = einsum(q, k, "b t h d, b s h d -> b h t s") * q.shape[-1] ** -0.5
        t, s = z.shape[-2:]
        z = z.masked_fill(torch.ones(t, s, dtype=torch.bool).triu(s - t + 1), float("-inf"))
        y = einsum(z.softmax(-1), v, "b h t s, b s h d -> b t h d")
        return self.wo(rearrange(y, "b t h d -> b t (h d)")), (k, v)


class AttentionMended(Attention):
    def trimmed(self, old):
        return old[:, 1 - self.block :]


def asks():
    torch.manual_seed(1)
    cache = (torch.randn(2, 6, 4, 8), torch.randn(2, 6, 4, 8))
    return dict(inputs=dict(x=torch.randn(2, 1, 32), cache=cache), mask=it.window(5, 0))


def wrong():
    torch.manual_seed(0)
    return Attention().eval()


def right():
    torch.manual_seed(0)
    return AttentionMended().eval()


def proof():
    i = asks()["inputs"]
    return wrong()(**i)[1][0].shape[1] == 7 and not torch.allclose(wrong()(**i)[0], right()(**i)[0], atol=1e-5)
