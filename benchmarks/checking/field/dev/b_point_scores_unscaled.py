"""Invariant point attention adds squared distances of points without their share of the scale. Source: github.com/lucidrains/invariant-point-attention/issues/1"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["scores-other", "bias-scaled", "differs-from-reference"]
words = "the point term of the scores is not multiplied by its scale, so distances dominate"


class PointAttention(nn.Module):
    def __init__(self, fixed, width=32, heads=4, d=8, points=4):
        super().__init__()
        self.heads, self.d, self.points = heads, d, points
        terms = 2
        self.scalar_scale = (terms * d) ** -0.5
        self.point_scale = (terms * points * 4.5) ** -0.5 if fixed else 1.0
        self.scalar_q, self.scalar_k, self.scalar_v = (nn.Linear(width, heads * d, bias=False) for _ in range(3))
        self.point_q, self.point_k, self.point_v = (nn.Linear(width, heads * points * 3, bias=False) for _ in range(3))
        self.point_weights = nn.Parameter(torch.log(torch.exp(torch.ones(heads)) - 1))
        self.out = nn.Linear(heads * d + heads * points * 4, width)

    def forward(self, x, rotations, translations):
        b, t, _ = x.shape
        q, k, v = (p(x).view(b, t, self.heads, self.d) for p in (self.scalar_q, self.scalar_k, self.scalar_v))

        def place(p):
            local = p(x).view(b, t, self.heads, self.points, 3)
            return torch.einsum("bthpc,btcr->bthpr", local, rotations) + translations[:, :, None, None]
        pq, pk, pv = place(self.point_q), place(self.point_k), place(self.point_v)
        z = torch.einsum("bihd,bjhd->bhij", q, k) * self.scalar_scale
        far = (pq[:, :, None] - pk[:, None]).square().sum((-1, -2))
        weight = F.softplus(self.point_weights) * self.point_scale
        z = z - 0.5 * (far * weight).permute(0, 3, 1, 2)
        w = z.softmax(-1)
        y = torch.einsum("bhij,bjhd->bihd", w, v).flatten(2)
        yp = torch.einsum("bhij,bjhpc->bihpc", w, pv) - translations[:, :, None, None]
        yp = torch.einsum("bthpr,btcr->bthpc", yp, rotations)
        return self.out(torch.cat((y, yp.flatten(2), yp.norm(dim=-1).flatten(2)), -1))


def asks():
    torch.manual_seed(1)
    turns = torch.linalg.qr(torch.randn(2, 6, 3, 3))[0]
    return dict(inputs=dict(x=torch.randn(2, 6, 32), rotations=turns, translations=torch.randn(2, 6, 3)),
                scale=16 ** -0.5, like=right())


def _make(fixed):
    torch.manual_seed(0)
    return PointAttention(fixed).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    return not torch.allclose(wrong()(**a), right()(**a), atol=1e-2)
