"""Additive attention of a seq2seq model takes its softmax over hidden units and passes the resulting scores through relu as weights, which do not sum to one. Source: github.com/keon/seq2seq/issues/15"""
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["not-normalised", "scores-other"]
words = "weights are relu(v softmax(W [s; h])): the softmax runs over hidden units and nothing normalises over time"


class Attention(nn.Module):
    def __init__(self, hidden, mended):
        super().__init__()
        self.mended = mended
        self.attn = nn.Linear(2 * hidden, hidden)
        self.v = nn.Parameter(torch.empty(hidden).uniform_(-1, 1))

    def forward(self, state, memory):                     # (1, b, h), (t, b, h)
        t = memory.size(0)
        both = torch.cat((state.expand(t, -1, -1), memory), 2).transpose(0, 1)
        if self.mended:
            return F.softmax(torch.tanh(self.attn(both)) @ self.v, 1)[:, None]
        return F.relu(F.softmax(self.attn(both), 2) @ self.v)[:, None]


class Decoder(nn.Module):
    def __init__(self, mended, words=30, hidden=32):
        super().__init__()
        self.embed = nn.Embedding(words, hidden)
        self.attention = Attention(hidden, mended)
        self.gru = nn.GRU(2 * hidden, hidden)
        self.out = nn.Linear(2 * hidden, words)

    def forward(self, word, last_hidden, encoder_outputs):
        e = self.embed(word)[None]
        w = self.attention(last_hidden, encoder_outputs)
        context = w.bmm(encoder_outputs.transpose(0, 1)).transpose(0, 1)
        y, hidden = self.gru(torch.cat((e, context), 2), last_hidden)
        return F.log_softmax(self.out(torch.cat((y, context), 2)[0]), 1), hidden, w


def build(mended):
    torch.manual_seed(0)
    return Decoder(mended).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(word=torch.randint(0, 30, (2,)), last_hidden=torch.randn(1, 2, 32), encoder_outputs=torch.randn(7, 2, 32)), layout="t b c")


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    a = asks()["inputs"]
    return not torch.allclose(wrong()(**a)[2].sum(-1), torch.ones(2, 1), atol=1e-2) and torch.allclose(right()(**a)[2].sum(-1), torch.ones(2, 1), atol=1e-5)
