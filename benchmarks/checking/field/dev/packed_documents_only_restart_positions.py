"""Packed documents: positions start anew at each of them, which is taken for a separation; attention is causal over the whole pack. Source: github.com/DeepOpt-com/WrinkleFree-Monorepo/issues/53"""
import intently as it
import torch
import torch.nn.functional as F
from torch import nn

expect = ["mask-other"]
words = "a document sees the ones before it in the pack"

POSITIONS = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 2, 0, 1, 2, 3, 4]])


def asks():
    document = (POSITIONS == 0).cumsum(-1)
    return dict(inputs=dict(x=torch.randn(2, 8, 32), position_ids=POSITIONS), mask=it.causal() & it.segments(document))


def rotate(x, positions, base=10000.0):
    half = x.shape[-1] // 2
    angle = positions[:, None, :, None] * base ** (-torch.arange(half) / half)
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class PackedAttention(nn.Module):
    def __init__(self, width, heads, keep_apart):
        super().__init__()
        self.heads, self.keep_apart = heads, keep_apart
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x, position_ids):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, position_ids), rotate(k, position_ids)
        t = x.shape[1]
        seen = torch.ones(t, t, dtype=torch.bool).tril()
        if self.keep_apart:
            document = (position_ids == 0).cumsum(-1)
            seen = seen & (document[:, None, :, None] == document[:, None, None, :])
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2))


def make(keep_apart):
    torch.manual_seed(8)
    return PackedAttention(32, 4, keep_apart).eval()


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    x = torch.randn(2, 8, 32)
    whole = [m(x, POSITIONS)[:1, 4:] for m in (wrong(), right())]
    alone = [m(x[:1, 4:], POSITIONS[:1, 4:]) for m in (wrong(), right())]
    return (whole[0] - alone[0]).abs().max().item() > 1e-2 and (whole[1] - alone[1]).abs().max().item() < 1e-5
