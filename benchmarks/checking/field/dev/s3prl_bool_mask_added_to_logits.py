"""Attentive pooling of speech frames adds a mask of booleans to the logits. Source: github.com/s3prl/s3prl/issues/579"""
import torch
from torch import nn
import intently as it

expect = ["mask-boolean-added", "padding-attended"]
words = "valid frames gain 1, padded frames are not hidden"

def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(frames=torch.randn(3, 9, 24), valid=torch.arange(9) < torch.tensor([[9], [6], [4]])), mask=it.padding([9, 6, 4]))

class AttentivePooling(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, 1)
        nn.init.normal_(self.outer.weight)

    def mask(self, logits, valid):
        return logits + valid

    def forward(self, frames, valid):
        logits = self.outer(torch.relu(self.inner(frames))).squeeze(-1)
        p = torch.softmax(self.mask(logits, valid), dim=-1).unsqueeze(-1)
        return torch.sum(frames * p, dim=1)

class Mended(AttentivePooling):
    def mask(self, logits, valid):
        return logits.masked_fill(~valid, -1e9)

def wrong():
    torch.manual_seed(1)
    return AttentivePooling(24).eval()

def right():
    torch.manual_seed(1)
    return Mended(24).eval()

def proof():
    i = asks()["inputs"]
    a, b = wrong()(**i), right()(**i)
    return bool(torch.allclose(a[0], b[0], atol=1e-5) and (a[1:] - b[1:]).abs().max() > .1)
