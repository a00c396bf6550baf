"""Attentive statistics pooling takes tanh of the finished score v.(Wx + b), where the paper scores with v.tanh(Wx + b). Source: github.com/KrishnaDN/Attentive-Statistics-Pooling-for-Deep-Speaker-Embedding/issues/3"""
import torch
from torch import nn

expect = ["scores-other", "differs-from-reference"]
words = "tanh lies around the score and not on the hidden layer"


def asks():
    return dict(inputs=dict(frames=torch.randn(2, 9, 24, generator=torch.Generator().manual_seed(6))), like=right())


class AttentiveStatistics(nn.Module):
    def __init__(self, width=24, inner_tanh=False):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.v = nn.Parameter(torch.randn(width, 1))
        self.inner_tanh = inner_tanh

    def forward(self, frames):
        h = self.linear(frames)
        v = self.v.expand(len(frames), -1, -1)
        e = torch.tanh(h).bmm(v).squeeze(2) if self.inner_tanh else torch.tanh(h.bmm(v).squeeze(2))
        a = e.softmax(1).unsqueeze(1)
        mean = a.bmm(frames)
        var = a.bmm(frames * frames) - mean * mean
        return torch.cat([mean, var.clamp(min=1e-5).sqrt()], 2).squeeze(1)


def _make(inner_tanh):
    torch.manual_seed(0)
    return AttentiveStatistics(inner_tanh=inner_tanh).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    return (wrong()(**a) - right()(**a)).abs().max().item() > 1e-2


if __name__ == "__main__":
    print(proof())
