"""A sentence encoder gives BERT a mask that is one where the token is padding. Source: github.com/nyu-mll/jiant/pull/465"""
import math

import intently as it
import torch
import torch.nn as nn

expect = ["mask-inverted"]
words = "padding is attended to and real words are hidden"


class BertHeads(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.dense = (nn.Linear(width, width) for _ in range(4))
        self.drop = nn.Dropout(0.1)

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, x, bias):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
        y = self.drop(scores.softmax(-1)) @ v
        return self.dense(y.permute(0, 2, 1, 3).flatten(2))


class BertLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = BertHeads(width, heads)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, bias):
        x = self.norm1(x + self.attention(x, bias))
        return self.norm2(x + self.down(nn.functional.gelu(self.up(x))))


class Bert(nn.Module):
    def __init__(self, words=60, width=32, heads=4, depth=2):
        super().__init__()
        self.word, self.place, self.segment = nn.Embedding(words, width, padding_idx=0), nn.Embedding(16, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(BertLayer(width, heads) for _ in range(depth))

    def forward(self, ids, mask):
        x = self.word(ids) + self.place(torch.arange(ids.shape[1])) + self.segment(torch.zeros_like(ids))
        x = self.norm(x)
        bias = (1.0 - mask[:, None, None, :].float()) * -10000.0
        for layer in self.layers:
            x = layer(x, bias)
        return x


class SentenceEncoder(nn.Module):
    """Sentence ids with 0 for padding to a vector of the first token."""

    def __init__(self, mended):
        super().__init__()
        self.mended = mended
        self.bert = Bert()
        self.pool = nn.Linear(32, 32)

    def forward(self, sent):
        mask = (sent != 0) if self.mended else (sent == 0)
        return torch.tanh(self.pool(self.bert(sent, mask.long())[:, 0]))


def build(mended):
    torch.manual_seed(0)
    return SentenceEncoder(mended).eval()


def asks():
    torch.manual_seed(1)
    sent = torch.randint(1, 60, (2, 8))
    sent[0, 6:] = 0
    sent[1, 4:] = 0
    return dict(inputs=dict(sent=sent), mask=it.padding([6, 4]))


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    x = asks()["inputs"]
    return not torch.allclose(wrong()(**x), right()(**x), atol=1e-3)
