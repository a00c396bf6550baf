"""Attention over encoder outputs (length, batch, hidden) takes the softmax along axis 1, the batch. Source: github.com/ssw-nlp-study-group/nlp_study/pull/2"""
import torch
from torch import nn

expect = ["softmax-over-batch"]
words = "axis 0 is the sequence of letters and axis 1 the batch, softmax goes along the batch"


def asks():
    g = torch.Generator().manual_seed(2)
    return dict(inputs=dict(hidden=torch.randn(1, 2, 32, generator=g), encoder_outputs=torch.randn(7, 2, 32, generator=g)), scale=1.0)


class LetterAttention(nn.Module):
    def __init__(self, hidden=32, axis=1):
        super().__init__()
        self.transform = nn.Linear(hidden, hidden)
        self.axis = axis

    def forward(self, hidden, encoder_outputs):
        energies = (self.transform(encoder_outputs) * hidden).sum(2)
        weights = energies.softmax(self.axis).unsqueeze(2)
        return (weights * encoder_outputs).sum(0)


def _make(axis):
    torch.manual_seed(0)
    return LetterAttention(axis=axis).eval()


def wrong():
    return _make(1)


def right():
    return _make(0)


def proof():
    a = asks()["inputs"]
    return (wrong()(**a) - right()(**a)).abs().max().item() > 1e-2


if __name__ == "__main__":
    print(proof())
