"""A hierarchical attention network keeps its GRU outputs time first and normalises word and sentence scores along dim 1, which is the batch. Source: github.com/pandeykartikey/Hierarchical-Attention-Network/issues/5"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["softmax-over-batch", "batch-mixed", "not-normalised"]
words = "with outputs (time, batch, width), the softmax along dim 1 compares the documents of a batch, not the words of a sentence"


class Pooling(nn.Module):
    axis = 1

    def __init__(self, width):
        super().__init__()
        self.annotate = nn.Linear(width, width)
        self.context = nn.Linear(width, 1, bias=False)

    def forward(self, states):
        u = torch.tanh(self.annotate(states))
        a = F.softmax(self.context(u), dim=self.axis)
        return (a * states).sum(0)


class MendedPooling(Pooling):
    axis = 0


class WordLevel(nn.Module):
    def __init__(self, pooling, vocab, embed, hidden):
        super().__init__()
        self.embed = nn.Embedding(vocab, embed)
        self.gru = nn.GRU(embed, hidden, bidirectional=True)
        self.pool = pooling(2 * hidden)

    def forward(self, ids):                       # (words, batch)
        states, _ = self.gru(self.embed(ids))
        return self.pool(states)


class SentenceLevel(nn.Module):
    def __init__(self, pooling, width, hidden, classes):
        super().__init__()
        self.gru = nn.GRU(width, hidden, bidirectional=True)
        self.pool = pooling(2 * hidden)
        self.classify = nn.Linear(2 * hidden, classes)

    def forward(self, sentences):                 # (sentences, batch, width)
        states, _ = self.gru(sentences)
        return self.classify(self.pool(states))


class HAN(nn.Module):
    def __init__(self, pooling, vocab=80, embed=20, hidden=16, classes=5):
        super().__init__()
        self.words = WordLevel(pooling, vocab, embed, hidden)
        self.sentences = SentenceLevel(pooling, 2 * hidden, hidden, classes)

    def forward(self, documents):                 # (batch, sentences, words)
        vectors = [self.words(s.t()) for s in documents.unbind(1)]
        return self.sentences(torch.stack(vectors))


def asks():
    return dict(inputs=dict(documents=torch.randint(0, 80, (3, 4, 6))))


def _make(pooling):
    torch.manual_seed(0)
    return HAN(pooling).eval()


def wrong():
    return _make(Pooling)


def right():
    return _make(MendedPooling)


def proof():
    d = asks()["inputs"]["documents"]
    bad, good = wrong(), right()
    alone = torch.allclose(good(d[:1]), good(d)[:1], atol=1e-5)
    return alone and not torch.allclose(bad(d[:1]), bad(d)[:1], atol=1e-4)
