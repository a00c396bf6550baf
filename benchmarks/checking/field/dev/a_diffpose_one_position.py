"""Positional encoding indexes pe[:, n] instead of slicing pe[:, :n], so every frame gets the vector of position n. Source: github.com/DiffPoseTalk/DiffPoseTalk/issues/20"""
import math
import torch
import torch.nn as nn

expect = []
words = "all tokens get one and the same position vector, so the encoder does not know their order"


class Positions(nn.Module):
    def __init__(self, width, longest=60):
        super().__init__()
        at = torch.arange(longest)[:, None]
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        pe = torch.zeros(1, longest, width)
        pe[0, :, 0::2], pe[0, :, 1::2] = torch.sin(at * rate), torch.cos(at * rate)
        self.register_buffer("pe", pe)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return self.drop(x + self.pe[:, x.shape[1], :])


class PositionsMended(Positions):
    def forward(self, x):
        return self.drop(x + self.pe[:, : x.shape[1], :])


class StyleEncoder(nn.Module):
    def __init__(self, positions, motion=10, width=32, heads=4):
        super().__init__()
        self.enter = nn.Linear(motion, width)
        self.positions = positions(width)
        layer = nn.TransformerEncoderLayer(width, heads, 64, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.leave = nn.Linear(width, 12)

    def forward(self, motion):
        return self.leave(self.encoder(self.positions(self.enter(motion))))


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(motion=torch.randn(2, 8, 10)))


def wrong():
    torch.manual_seed(0)
    return StyleEncoder(Positions).eval()


def right():
    torch.manual_seed(0)
    return StyleEncoder(PositionsMended).eval()


def proof():
    x = asks()["inputs"]["motion"]
    turned = torch.allclose(wrong()(x.flip(1)), wrong()(x).flip(1), atol=1e-5)
    return turned and not torch.allclose(right()(x.flip(1)), right()(x).flip(1), atol=1e-3)
