"""A graph attention over atoms calls a softmax whose default axis is 1, which in its layout (heads, batch, atoms, atoms) is the batch. Source: github.com/chainer/chainer-chemistry/pull/217"""
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["softmax-over-batch"]
words = "weights of all molecules of a batch sum to 1, not those of an atom's neighbours"


class AtomAttention(nn.Module):
    def __init__(self, width, out, heads, axis, join=True):
        super().__init__()
        self.heads, self.out, self.axis, self.join = heads, out, axis, join
        self.message = nn.Linear(width, heads * out, bias=False)
        self.asking = nn.Parameter(torch.randn(heads, out) * 0.5)
        self.asked = nn.Parameter(torch.randn(heads, out) * 0.5)

    def forward(self, atoms, bonds):
        b, n, _ = atoms.shape
        z = self.message(atoms).view(b, n, self.heads, self.out).permute(2, 0, 1, 3)
        one = torch.einsum("hbnd,hd->hbn", z, self.asking)
        two = torch.einsum("hbnd,hd->hbn", z, self.asked)
        e = F.leaky_relu(one.unsqueeze(3) + two.unsqueeze(2), 0.2)
        e = torch.where(bonds.bool().expand_as(e), e, torch.full_like(e, -10000.0))
        alpha = F.softmax(e, dim=self.axis)
        y = alpha @ z
        if self.join:
            return F.elu(y.permute(1, 2, 0, 3).reshape(b, n, -1))
        return y.mean(0)


class MoleculeNet(nn.Module):
    def __init__(self, axis):
        super().__init__()
        self.kinds = nn.Embedding(9, 16)
        self.first = AtomAttention(16, 8, 2, axis)
        self.second = AtomAttention(16, 16, 2, axis, join=False)
        self.read = nn.Linear(16, 2)

    def forward(self, kinds, bonds):
        x = self.first(self.kinds(kinds), bonds)
        return self.read(self.second(x, bonds).sum(1))


def build(axis):
    torch.manual_seed(0)
    return MoleculeNet(axis).eval()


def asks():
    torch.manual_seed(1)
    bonds = torch.eye(6).repeat(2, 1, 1)
    for i, j in [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0)]:
        bonds[0, i, j] = bonds[0, j, i] = 1
    for i, j in [(0, 1), (1, 2), (2, 3), (2, 4), (4, 5)]:
        bonds[1, i, j] = bonds[1, j, i] = 1
    return dict(inputs=dict(kinds=torch.randint(0, 9, (2, 6)), bonds=bonds))


def wrong():
    return build(1)


def right():
    return build(-1)


def proof():
    x = asks()["inputs"]
    return not torch.allclose(wrong()(**x), right()(**x), atol=1e-4)
