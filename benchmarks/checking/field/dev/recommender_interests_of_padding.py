"""A sequential recommender condenses a history into a few interests and attends to them, and also mixes items by positions; neither softmax knows which items are padding. Source: github.com/BELIEVEfxy/LightSANs/issues/3"""
import torch
from torch import nn

expect = ["padding-attended", "mask-missing"]
words = "items that only fill the history up take part in its interests and in the attention by positions"


class Interests(nn.Module):
    """Items (b, n, c) to k interests: a softmax over the items for each interest."""

    def __init__(self, width, k):
        super().__init__()
        self.theta = nn.Parameter(torch.randn(width, k) / width ** 0.5)

    def forward(self, items, real):
        shares = (items @ self.theta).masked_fill(~real[..., None], float("-inf")).softmax(dim=-2)
        return torch.einsum("bnk,bnc->bkc", shares, items)


class LightAttention(nn.Module):
    def __init__(self, width, heads, k):
        super().__init__()
        self.heads, self.d = heads, width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.key_interests, self.value_interests = Interests(width, k), Interests(width, k)
        self.position_query, self.position_key = nn.Linear(width, width), nn.Linear(width, width)
        self.norm_items, self.norm_positions = nn.LayerNorm(width), nn.LayerNorm(width)
        self.out = nn.Linear(width, width)

    def split(self, x):
        return x.unflatten(-1, (self.heads, self.d)).transpose(-3, -2)

    def forward(self, items, places, real):
        q, v = self.split(self.query(items)), self.split(self.value(items))
        k_few = self.split(self.key_interests(self.key(items), real))
        v_few = self.split(self.value_interests(self.value(items), real))
        by_items = (q @ k_few.transpose(-2, -1) / self.d ** 0.5).softmax(-1) @ v_few
        p = self.norm_positions(places)
        scores = self.split(self.position_query(p)) @ self.split(self.position_key(p)).transpose(-2, -1) / self.d ** 0.5
        scores = scores.expand(items.shape[0], -1, -1, -1).masked_fill(~real[:, None, None], float("-inf"))
        by_places = scores.softmax(-1) @ v
        y = (by_items + by_places).transpose(1, 2).flatten(2)
        return self.norm_items(items + self.out(y))


class Recommender(nn.Module):
    """Next item of histories that are padded with item 0 on the right."""

    def __init__(self, items=40, width=32, heads=4, k=3, depth=2, longest=12):
        super().__init__()
        self.item_embedding, self.position_embedding = nn.Embedding(items, width), nn.Embedding(longest, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(LightAttention(width, heads, k) for _ in range(depth))
        self.feed = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width)) for _ in range(depth))

    def real(self, item_seq):
        return item_seq != 0

    def forward(self, item_seq, item_seq_len):
        x = self.norm(self.item_embedding(item_seq))
        places = self.position_embedding(torch.arange(item_seq.shape[1], device=item_seq.device))
        for layer, feed in zip(self.layers, self.feed):
            x = layer(x, places, self.real(item_seq))
            x = x + feed(x)
        last = x[torch.arange(len(x)), item_seq_len - 1]
        return last @ self.item_embedding.weight.t()


class Reported(Recommender):
    def real(self, item_seq):
        return torch.ones_like(item_seq, dtype=torch.bool)


def asks():
    lengths = torch.tensor([8, 5])
    items = torch.randint(1, 40, (2, 8)) * (torch.arange(8)[None] < lengths[:, None])
    return dict(inputs=dict(item_seq=items, item_seq_len=lengths))


def _make(cls):
    torch.manual_seed(0)
    return cls().eval()


def wrong():
    return _make(Reported)


def right():
    return _make(Recommender)


def proof():
    x = asks()["inputs"]
    short = dict(item_seq=x["item_seq"][1:, :5], item_seq_len=x["item_seq_len"][1:])
    bad, good = wrong(), right()
    return (torch.allclose(good(**x)[1:], good(**short), atol=1e-4)
            and not torch.allclose(bad(**x)[1:], bad(**short), atol=1e-3))
