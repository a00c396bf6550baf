"""The weights of a graph attention's mailbox are dropped by the functional dropout, evaluated or not. Source: github.com/dmlc/dgl/pull/319"""
import torch
from torch import nn
import torch.nn.functional as F

expect = ["dropout-in-eval"]
words = "F.dropout(e, p) without training=self.training"

def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(nodes=torch.randn(6, 16), neighbours=torch.tensor([[0, 1, 2], [1, 0, 3], [2, 5, 4], [3, 1, 2], [4, 0, 5], [5, 3, 1]])))

class Mailbox(nn.Module):
    def __init__(self, width, out, drop):
        super().__init__()
        self.into = nn.Linear(width, out, bias=False)
        self.own = nn.Linear(out, 1, bias=False)
        self.near = nn.Linear(out, 1, bias=False)
        self.rate = drop

    def drop(self, p):
        return F.dropout(p, self.rate)

    def forward(self, nodes, neighbours):
        ft = self.into(nodes)
        box = ft[neighbours]
        scores = F.leaky_relu(self.own(ft)[:, None] + self.near(box))
        p = self.drop(torch.softmax(scores, 1))
        return F.elu((p * box).sum(1))

class Quiet(Mailbox):
    def drop(self, p):
        return F.dropout(p, self.rate, training=self.training)

def wrong():
    torch.manual_seed(1)
    return Mailbox(16, 16, .6).eval()

def right():
    torch.manual_seed(1)
    return Quiet(16, 16, .6).eval()

def proof():
    i = asks()["inputs"]
    w, r = wrong(), right()
    return bool((w(**i) - w(**i)).abs().max() > .05 and torch.equal(r(**i), r(**i)))
