"""Linear attention computes its feature map as elu(x) + 1, which is 0 in bfloat16 where exp(x) is not. Source: github.com/fla-org/flash-linear-attention/issues/1261"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["half-imprecise"]
words = "elu(x) rounds to -1 in bfloat16 and the sum to 0: features of negative numbers, and with them keys, are lost"


class LinearAttention(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.fixed = fixed

    def _phi(self, x):
        if self.fixed:
            return torch.where(x >= 0, x + 1, x.clamp_max(0).exp())
        return F.elu(x) + 1

    def forward(self, q, k, v):
        """(b, h, t, d)"""
        q, k = self._phi(q), self._phi(k)
        state = torch.einsum("bhsd,bhse->bhde", k, v)
        norm = torch.einsum("bhtd,bhd->bht", q, k.sum(2)) + 1e-10
        return torch.einsum("bhtd,bhde->bhte", q, state) / norm.unsqueeze(-1)


def asks():
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 2, 7, 16) for _ in "qkv")
    return dict(inputs=dict(q=(q - 6).bfloat16(), k=(k - 6).bfloat16(), v=v.bfloat16()))


def wrong():
    return LinearAttention(False).eval()


def right():
    return LinearAttention(True).eval()


def proof():
    a = asks()["inputs"]
    true = right()(**{n: x.double() for n, x in a.items()})
    error = [(m(**a).double() - true).abs().max().item() for m in (wrong(), right())]
    return error[0] > 3 * error[1]
