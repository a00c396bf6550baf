"""A trajectory model feeds (batch, time, width) to nn.TransformerEncoder without batch_first, adds positions along the batch and attends over it. Source: github.com/songyangco/GETNext/issues/2"""
import math
import torch
import torch.nn as nn
import intently as it

expect = ["batch-and-sequence-exchanged", "batch-mixed", "softmax-over-batch"]
words = "self-attention runs over the trajectories of a batch instead of over time"


def table(n, width):
    angles = torch.arange(n)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    pe = torch.zeros(n, width)
    pe[:, 0::2], pe[:, 1::2] = angles.sin(), angles.cos()
    return pe


class Trajectories(nn.Module):
    batch_first = False

    def __init__(self, places=40, width=32, heads=2, depth=2):
        super().__init__()
        self.register_buffer("pe", table(64, width))
        layer = nn.TransformerEncoderLayer(width, heads, 48, 0.1, batch_first=self.batch_first)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.to_place, self.to_time, self.to_kind = nn.Linear(width, places), nn.Linear(width, 1), nn.Linear(width, 9)
        self.width = width

    def positions(self, x):
        return x + self.pe[: x.shape[0], None]

    def forward(self, visits):
        """visits (b, t, width)"""
        n = visits.shape[1 if self.batch_first else 0]
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        x = self.encoder(self.positions(visits * math.sqrt(self.width)), mask)
        return self.to_place(x), self.to_time(x), self.to_kind(x)


class TrajectoriesMended(Trajectories):
    batch_first = True

    def positions(self, x):
        return x + self.pe[None, : x.shape[1]]


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(visits=torch.randn(3, 6, 32) * 0.3), mask=it.causal())


def wrong():
    torch.manual_seed(0)
    return Trajectories().eval()


def right():
    torch.manual_seed(0)
    return TrajectoriesMended().eval()


def proof():
    x = asks()["inputs"]["visits"]
    y = x.clone()
    y[0] = y[0].flip(-1)
    w, r = wrong(), right()
    return not torch.allclose(w(x)[0][2], w(y)[0][2], atol=1e-4) and not torch.allclose(w(x)[0], r(x)[0], atol=1e-4)
