"""The energy of a concat attention has no nonlinearity, so the decoder's state adds the same to every score and cancels. Source: github.com/AuCson/PyTorch-Batch-Attention-Seq2seq/issues/3"""
import math
import torch
from torch import nn

expect = ["query-without-influence"]
words = "without tanh the weights do not depend on the decoder's state"


class ConcatScore(nn.Module):
    def __init__(self, size, squash):
        super().__init__()
        self.mix = nn.Linear(2 * size, size)
        self.v = nn.Parameter(torch.randn(size) / math.sqrt(size))
        self.squash = squash

    def forward(self, state, memory):
        """state (b, c), memory (s, b, c) -> weights (b, 1, s)"""
        s = memory.shape[0]
        pairs = torch.cat([state.expand(s, -1, -1), memory], dim=-1).transpose(0, 1)
        energy = self.squash(self.mix(pairs))
        return (energy @ self.v).softmax(-1).unsqueeze(1)


class DecoderStep(nn.Module):
    def __init__(self, size, squash, words=30):
        super().__init__()
        self.embed = nn.Embedding(words, 16)
        self.attention = ConcatScore(size, squash)
        self.cell = nn.GRU(size + 16, size)
        self.out = nn.Linear(size, words)

    def forward(self, word, last_hidden, memory):
        share = self.attention(last_hidden[-1], memory)
        read = (share @ memory.transpose(0, 1)).transpose(0, 1)
        y, hidden = self.cell(torch.cat([self.embed(word)[None], read], -1), last_hidden)
        return self.out(y[0]).log_softmax(-1), hidden, share


def _inputs():
    torch.manual_seed(14)
    return dict(state=torch.randn(2, 32), memory=torch.randn(7, 2, 32))


class Reading(nn.Module):
    """The part the thread is about: what the state reads from the memory."""

    def __init__(self, step):
        super().__init__()
        self.attention = step.attention

    def forward(self, state, memory):
        return (self.attention(state, memory) @ memory.transpose(0, 1)).squeeze(1)


def asks():
    return dict(inputs=_inputs())


def _build(squash):
    torch.manual_seed(15)
    return Reading(DecoderStep(32, squash)).eval()


def wrong():
    return _build(nn.Identity())


def right():
    return _build(nn.Tanh())


def proof():
    x = _inputs()
    y = dict(x, state=torch.randn(2, 32))
    moved = lambda m: (m(**x) - m(**y)).abs().max()
    return bool(moved(wrong()) < 1e-5 and moved(right()) > 1e-3)
