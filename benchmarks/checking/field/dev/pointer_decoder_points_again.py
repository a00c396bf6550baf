"""A step of a pointer network may point to items that were chosen in earlier steps. Source: github.com/Guillem96/pointer-nn-pytorch/issues/1"""
import torch
from torch import nn
import intently as it

expect = ["padding-attended", "mask-missing"]
words = "items already chosen keep their attention"

def asks():
    torch.manual_seed(0)
    chosen = torch.tensor([[0, 1, 0, 0, 1, 0, 0], [1, 0, 0, 1, 0, 1, 0]]).bool()
    return dict(inputs=dict(items=torch.randn(2, 7, 32), hidden=torch.randn(2, 32), chosen=chosen), mask=it.padding((~chosen).tolist()))

class PointerStep(nn.Module):
    def __init__(self, n, once):
        super().__init__()
        self.cell = nn.GRUCell(n, n)
        self.w1 = nn.Linear(n, n, bias=False)
        self.w2 = nn.Linear(n, n, bias=False)
        self.v = nn.Linear(n, 1, bias=False)
        nn.init.normal_(self.v.weight)
        self.once = once

    def forward(self, items, hidden, chosen):
        so_far = (items * chosen.unsqueeze(-1)).sum(1) / chosen.sum(1, keepdim=True)
        d = self.cell(so_far, hidden)
        u = self.v(torch.tanh(self.w1(items) + self.w2(d).unsqueeze(1))).squeeze(-1)
        if self.once:
            u = u.masked_fill(chosen, float("-inf"))
        a = torch.softmax(u, dim=-1)
        return torch.bmm(a.unsqueeze(1), items).squeeze(1), a

def wrong():
    torch.manual_seed(1)
    return PointerStep(32, False).eval()

def right():
    torch.manual_seed(1)
    return PointerStep(32, True).eval()

def proof():
    i = asks()["inputs"]
    a, b = wrong()(**i)[1], right()(**i)[1]
    return bool(a[i["chosen"]].min() > 1e-4 and b[i["chosen"]].max() == 0)
