"""Linear attention over blocks: values are mixed and then met by the query, the normaliser the other way round. Source: github.com/DAGroup-PKU/MHLA/issues/13"""
import torch
from torch import nn
import torch.nn.functional as F

expect = ["not-normalised"]
words = "a constant value does not pass unchanged, since the denominator mixes products of queries of other blocks"

def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x=torch.randn(2, 12, 32)))

class BlockLinear(nn.Module):
    def __init__(self, width, heads, blocks, mix_keys):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.mix = nn.Parameter(torch.rand(blocks, blocks) + torch.eye(blocks))
        self.h, self.blocks, self.mix_keys = heads, blocks, mix_keys

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, -1)).unflatten(1, (self.blocks, -1)).permute(3, 0, 4, 1, 2, 5)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = k.transpose(-2, -1) @ v
        top = q @ torch.einsum("ij,bhjde->bhide", self.mix, kv)
        total = k.sum(-2)
        if self.mix_keys:
            total = torch.einsum("ij,bhjd->bhid", self.mix, total)
            below = torch.einsum("bhild,bhid->bhil", q, total)
        else:
            below = torch.einsum("bhjld,bhjd->bhjl", q, total)
            below = torch.einsum("ij,bhjl->bhil", self.mix, below)
        y = top / (below.unsqueeze(-1) + 1e-6)
        return self.proj(y.flatten(2, 3).transpose(1, 2).flatten(2))

def wrong():
    torch.manual_seed(1)
    return BlockLinear(32, 4, 3, False).eval()

def right():
    torch.manual_seed(1)
    return BlockLinear(32, 4, 3, True).eval()

def proof():
    i = asks()["inputs"]
    out = []
    for f in (wrong(), right()):
        with torch.no_grad():
            f.qkv.weight[64:] = 0
            f.qkv.bias[64:] = 1
            f.proj.weight.copy_(torch.eye(32)), f.proj.bias.zero_()
            out.append(f(**i))
    return bool((out[0] - 1).abs().max() > .02 and (out[1] - 1).abs().max() < 1e-3)
