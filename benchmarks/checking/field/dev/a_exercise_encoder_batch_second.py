"""An exercise's Transformer for series is built without batch_first and fed (batch, steps, width). Source: github.com/Exorust/TorchLeet/issues/5"""
import torch
from torch import nn

expect = ["batch-and-sequence-exchanged", "batch-mixed"]
words = "the encoder attends over the rows of the batch"


def asks():
    torch.manual_seed(3)
    return dict(inputs=dict(series=torch.randn(2, 9, 3)))


class SeriesRegressor(nn.Module):
    def __init__(self, **how):
        super().__init__()
        self.enter = nn.Linear(3, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, **how)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.leave = nn.Linear(32, 1)

    def forward(self, series):
        return self.leave(self.encoder(self.enter(series)).mean(1))


def wrong():
    torch.manual_seed(0)
    return SeriesRegressor().eval()


def right():
    torch.manual_seed(0)
    return SeriesRegressor(batch_first=True).eval()


def proof():
    x = asks()["inputs"]["series"]
    y = x.clone()
    y[1] += 1.0
    moved = lambda f: (f(x) - f(y))[0].abs().max() > 1e-4
    return bool(moved(wrong()) and not moved(right()))
