"""A translation tutorial hides padding from length + 1 on, so the first padded place is seen. Source: github.com/ajhalthor/Transformer-Neural-Network/issues/15"""
import numpy as np
import torch
from torch import nn
import intently as it

expect = ["lengths-off-by-one"]
words = "np.arange(length + 1, longest) leaves the place at index `length` unmasked"

def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x=torch.randn(3, 8, 32), lengths=[8, 5, 3]), mask=it.padding([8, 5, 3]))

def hidden_by(lengths, longest, first):
    mask = np.zeros((len(lengths), 1, longest, longest), dtype=np.float32)
    for row, n in enumerate(lengths):
        pads = np.arange(n + first, longest)
        mask[row][:, :, pads] = -1e9
    return torch.from_numpy(mask)

class EncoderAttention(nn.Module):
    def __init__(self, width, heads, first):
        super().__init__()
        self.into = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.heads, self.first = heads, first

    def forward(self, x, lengths):
        b, t, c = x.shape
        q, k, v = self.into(x).view(b, t, self.heads, -1).transpose(1, 2).chunk(3, -1)
        z = q @ k.mT / q.size(-1) ** .5 + hidden_by(lengths, t, self.first)
        values = torch.softmax(z, dim=-1) @ v
        return self.out(values.transpose(1, 2).reshape(b, t, c))

def wrong():
    torch.manual_seed(1)
    return EncoderAttention(32, 4, 1).eval()

def right():
    torch.manual_seed(1)
    return EncoderAttention(32, 4, 0).eval()

def proof():
    i = asks()["inputs"]
    a, b = wrong()(**i), right()(**i)
    return bool(torch.allclose(a[0], b[0], atol=1e-5) and (a[1:] - b[1:]).abs().max() > .02)
