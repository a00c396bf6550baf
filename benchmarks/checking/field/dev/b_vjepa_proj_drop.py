"""A video encoder hands its dropout rate to scaled_dot_product_attention whether it trains or not. Source: github.com/facebookresearch/vjepa2/pull/160"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["dropout-in-eval"]
words = "dropout_p is not zero in evaluation mode"


class VideoAttention(nn.Module):
    def __init__(self, fixed, width=32, heads=4, drop=0.2):
        super().__init__()
        self.fixed, self.heads, self.drop = fixed, heads, drop
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.proj_drop = nn.Dropout(drop)

    def forward(self, x, mask=None):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        p = self.drop if self.training or not self.fixed else 0.0
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        return self.proj_drop(self.proj(x.transpose(1, 2).reshape(b, n, c)))


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 8, 32)))


def _make(fixed):
    torch.manual_seed(0)
    return VideoAttention(fixed).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    x = asks()["inputs"]["x"]
    w, r = wrong(), right()
    return not torch.equal(w(x), w(x)) and torch.equal(r(x), r(x))
