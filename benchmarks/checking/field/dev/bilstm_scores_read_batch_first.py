"""A BiLSTM classifier flattens time-first outputs, scores every row and reads the scores as (batch, time), so weights belong to words of other texts. Source: github.com/u784799i/biLSTM_attn/issues/3"""
import torch
from torch import nn

expect = ["batch-mixed", "values-of-other-keys"]
words = "scores of (time * batch) rows are reshaped to (batch, time) without a transpose: a word is weighed by the score of another word of another text"


class TextClassifier(nn.Module):
    def __init__(self, vocab=70, embed=24, hidden=16, attention=12, classes=4):
        super().__init__()
        self.lookup = nn.Embedding(vocab, embed)
        self.lstm = nn.LSTM(embed, hidden, bidirectional=True)
        self.w_omega = nn.Parameter(torch.randn(2 * hidden, attention) / 4)
        self.u_omega = nn.Parameter(torch.randn(attention))
        self.label = nn.Linear(2 * hidden, classes)

    def energies(self, states):
        steps, batch, width = states.shape
        rows = torch.tanh(states.reshape(-1, width) @ self.w_omega)
        return (rows @ self.u_omega.reshape(-1, 1)).reshape(-1, steps)

    def pool(self, states):
        alphas = torch.softmax(self.energies(states), dim=1)
        return (states.permute(1, 0, 2) * alphas.unsqueeze(-1)).sum(1)

    def forward(self, sentences):
        states, _ = self.lstm(self.lookup(sentences).permute(1, 0, 2))
        return self.label(self.pool(states))


class Mended(TextClassifier):
    def energies(self, states):
        steps, batch, width = states.shape
        rows = torch.tanh(states.reshape(-1, width) @ self.w_omega)
        return (rows @ self.u_omega.reshape(-1, 1)).reshape(steps, batch).t()


def asks():
    return dict(inputs=dict(sentences=torch.randint(0, 70, (3, 7))))


def _make(cls):
    torch.manual_seed(0)
    return cls().eval()


def wrong():
    return _make(TextClassifier)


def right():
    return _make(Mended)


def proof():
    s = asks()["inputs"]["sentences"]
    bad, good = wrong(), right()
    return torch.allclose(good(s[:1]), good(s)[:1], atol=1e-5) and not torch.allclose(bad(s[:1]), bad(s)[:1], atol=1e-4)
