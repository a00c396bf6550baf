"""The self-attention of a model for slots and intents divides the weights by the root of the width after the softmax, not the scores before it. Source: github.com/qinlibo-hit/GL-GIN/issues/5"""
import math
import torch
from torch import nn
from torch.nn import functional as F

expect = ["no-scale", "not-normalised"]
words = "the softmax is taken of raw scores, and its weights are divided by sqrt(d), so rows sum to 1 / sqrt(d)"


class QKVAttention(nn.Module):
    def __init__(self, width, hidden, output):
        super().__init__()
        self.hidden = hidden
        self.query_layer, self.key_layer = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.value_layer = nn.Linear(width, output)

    def weights(self, query, key):
        return F.softmax(query @ key.transpose(-2, -1), dim=-1) / math.sqrt(self.hidden)

    def forward(self, query, key, value):
        query, key, value = self.query_layer(query), self.key_layer(key), self.value_layer(value)
        return self.weights(query, key) @ value


class MendedAttention(QKVAttention):
    def weights(self, query, key):
        return F.softmax(query @ key.transpose(-2, -1) / math.sqrt(self.hidden), dim=-1)


class SlotsAndIntents(nn.Module):
    def __init__(self, attention, vocab=60, embed=32, hidden=24, slots=9, intents=4):
        super().__init__()
        self.embedding = nn.Embedding(vocab, embed)
        self.lstm = nn.LSTM(embed, hidden // 2, batch_first=True, bidirectional=True)
        self.attention = attention(embed, 16, 20)
        self.slot_decoder = nn.LSTM(hidden + 20, hidden, batch_first=True)
        self.slot, self.intent = nn.Linear(hidden, slots), nn.Linear(hidden + 20, intents)

    def forward(self, text):
        words = self.embedding(text)
        states, _ = self.lstm(words)
        both = torch.cat([self.attention(words, words, words), states], dim=-1)
        decoded, _ = self.slot_decoder(both)
        return self.slot(decoded), self.intent(both)


def asks():
    return dict(inputs=dict(text=torch.randint(0, 60, (2, 8))))


def _make(attention):
    torch.manual_seed(0)
    return SlotsAndIntents(attention).eval()


def wrong():
    return _make(QKVAttention)


def right():
    return _make(MendedAttention)


def proof():
    x = asks()["inputs"]
    q = torch.randn(2, 5, 16)
    sums = wrong().attention.weights(q, q).sum(-1)
    return torch.allclose(sums, torch.full((2, 5), 0.25)) and not torch.allclose(wrong()(**x)[0], right()(**x)[0], atol=1e-4)
