"""On a prefix-cache hit the layer hands the whole paged cache to the kernel without the block table, so it reads pages in storage order. Source: github.com/tanishqkumar/ssd/issues/23"""
import torch
from torch import nn

expect = ["cache-rows-exchanged", "cached-step-differs", "differs-from-reference", "output-changed"]
words = "keys and values come from other pages than those the block table names"

PAGE, PAGES, HEADS, D = 2, 8, 2, 16
TABLE = torch.tensor([[5, 2, 7], [0, 6, 3]])


def asks():
    g = torch.Generator().manual_seed(3)
    return dict(inputs=dict(x=torch.randn(2, 2, 32, generator=g), k_pages=torch.randn(PAGES, PAGE, HEADS, D, generator=g), v_pages=torch.randn(PAGES, PAGE, HEADS, D, generator=g), block_table=TABLE), like=right())


class PagedAttention(nn.Module):
    """Queries of the fresh tokens against the last pages of their prefix, which end with them."""

    def __init__(self, follows_table):
        super().__init__()
        self.q, self.o = nn.Linear(32, 32), nn.Linear(32, 32)
        self.follows_table = follows_table

    def pages_of(self, cache, table):
        if self.follows_table:
            return cache[table].flatten(1, 2)
        n = table.shape[1] * PAGE
        return cache.flatten(0, 1)[: len(table) * n].view(len(table), n, HEADS, D)

    def forward(self, x, k_pages, v_pages, block_table):
        b, t, c = x.shape
        q = self.q(x).view(b, t, HEADS, D).transpose(1, 2)
        k, v = (self.pages_of(p, block_table).transpose(1, 2) for p in (k_pages, v_pages))
        z = q @ k.mT * D ** -0.5
        s = z.shape[-1]
        z = z.masked_fill(torch.ones(t, s, dtype=torch.bool).triu(s - t + 1), float("-inf"))
        return self.o((z.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


def _make(follows_table):
    torch.manual_seed(0)
    return PagedAttention(follows_table).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    return (wrong()(**a) - right()(**a)).abs().max().item() > 1e-2


if __name__ == "__main__":
    print(proof())
