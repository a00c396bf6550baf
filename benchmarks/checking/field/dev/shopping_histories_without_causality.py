"""A sequential recommender builds the triangle for its attention and leaves it commented out in the call, so every item sees those bought later. Source: github.com/liuqidong07/LLMEmb/issues/2"""
import intently as it
import torch
import torch.nn as nn

expect = ["mask-missing"]
words = "the causal mask is not passed to the attention"


class PointFeed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        y = self.two(self.drop(torch.relu(self.one(x.transpose(1, 2)))))
        return x + self.drop(y.transpose(1, 2))


class NextItem(nn.Module):
    def __init__(self, mended, items=40, width=32, blocks=2, longest=12):
        super().__init__()
        self.mended = mended
        self.item, self.place = nn.Embedding(items + 1, width), nn.Embedding(longest, width)
        self.drop = nn.Dropout(0.2)
        self.attentions = nn.ModuleList(nn.MultiheadAttention(width, 2, 0.2) for _ in range(blocks))
        self.before = nn.ModuleList(nn.LayerNorm(width) for _ in range(blocks))
        self.between = nn.ModuleList(nn.LayerNorm(width) for _ in range(blocks))
        self.feeds = nn.ModuleList(PointFeed(width) for _ in range(blocks))
        self.last = nn.LayerNorm(width)

    def forward(self, history):
        t = history.shape[1]
        x = self.item(history) * self.item.embedding_dim ** 0.5 + self.place(torch.arange(t))
        x = self.drop(x)
        later = ~torch.ones(t, t, dtype=torch.bool).tril()
        for attention, before, between, feed in zip(self.attentions, self.before, self.between, self.feeds):
            x = x.transpose(0, 1)
            q = before(x)
            y, _ = attention(q, x, x, attn_mask=later if self.mended else None)
            x = feed(between((q + y).transpose(0, 1)))
        return self.last(x) @ self.item.weight.T


def build(mended):
    torch.manual_seed(0)
    return NextItem(mended).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(history=torch.randint(1, 41, (2, 8))), mask=it.causal())


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    a = asks()["inputs"]["history"]
    b = a.clone()
    b[:, -1] = b[:, -1] % 40 + 1
    return not torch.allclose(wrong()(a)[:, 2], wrong()(b)[:, 2], atol=1e-4) and torch.allclose(right()(a)[:, 2], right()(b)[:, 2], atol=1e-5)
