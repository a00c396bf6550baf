"""Each label attends to the words of a note by a learned query; the softmax runs over the padding too. Source: github.com/jamesmullenbach/caml-mimic/issues/13"""
import torch
from torch import nn
import torch.nn.functional as F
import intently as it

expect = ["padding-attended"]
words = "padding tokens take attention weight from the words of shorter notes"

def asks():
    return dict(inputs=dict(ids=torch.tensor([[4, 7, 2, 9, 3, 8, 5, 6], [3, 9, 6, 2, 0, 0, 0, 0]])), mask=it.padding([8, 4]))

class Codes(nn.Module):
    def __init__(self, masked, labels=5, width=24, filters=32):
        super().__init__()
        self.embed = nn.Embedding(12, width, padding_idx=0)
        self.conv = nn.Conv1d(width, filters, 3, padding=1)
        self.query = nn.Linear(filters, labels, bias=False)
        self.final = nn.Linear(filters, labels)
        self.masked = masked
        nn.init.normal_(self.query.weight)

    def forward(self, ids):
        h = torch.tanh(self.conv(self.embed(ids).transpose(1, 2)).transpose(1, 2))
        scores = self.query.weight @ h.transpose(1, 2)
        if self.masked:
            scores = scores.masked_fill((ids == 0).unsqueeze(1), float("-inf"))
        m = F.softmax(scores, dim=2) @ h
        return (self.final.weight * m).sum(2) + self.final.bias

def wrong():
    torch.manual_seed(1)
    return Codes(False).eval()

def right():
    torch.manual_seed(1)
    return Codes(True).eval()

def proof():
    i = asks()["inputs"]["ids"]
    a, b, alone = wrong()(i), right()(i), right()(i[1:, :4])
    return bool(torch.allclose(a[0], b[0], atol=1e-5) and (a[1] - b[1]).abs().max() > .02 and torch.allclose(alone[0], b[1], atol=1e-4))
