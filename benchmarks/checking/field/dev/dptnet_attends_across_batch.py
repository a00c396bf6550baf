"""A layer for speech separation gives (batch, time, channels) to an attention that reads (time, batch, channels). Source: github.com/asteroid-team/asteroid/issues/380"""
import torch
from torch import nn

expect = ["batch-and-sequence-exchanged", "batch-mixed"]
words = "each frame attends to the same frame of other chunks; batch_first is missing"

def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x=torch.randn(3, 24, 8)))

class ImprovedLayer(nn.Module):
    def __init__(self, width, heads, hidden, batch_first):
        super().__init__()
        self.mha = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=batch_first)
        self.norm_mha = nn.LayerNorm(width)
        self.recurrent = nn.LSTM(width, hidden, bidirectional=True, batch_first=True)
        self.linear = nn.Linear(2 * hidden, width)
        self.norm_ff = nn.LayerNorm(width)

    def forward(self, x):
        x = x.transpose(1, 2)
        y = self.norm_mha(self.mha(x, x, x)[0] + x)
        y = self.norm_ff(self.linear(torch.relu(self.recurrent(y)[0])) + y)
        return y.transpose(1, 2)

def wrong():
    torch.manual_seed(1)
    return ImprovedLayer(24, 4, 16, False).eval()

def right():
    torch.manual_seed(1)
    return ImprovedLayer(24, 4, 16, True).eval()

def proof():
    x = asks()["inputs"]["x"]
    alone = [f(x[:1]) - f(x)[:1] for f in (wrong(), right())]
    return bool(alone[0].abs().max() > .02 and alone[1].abs().max() < 1e-5)
