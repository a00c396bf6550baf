"""A vision tower normalises queries and keys over one head where its checkpoint was trained with a norm over all heads together. Source: github.com/huggingface/transformers/pull/37620"""
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["differs-from-reference", "projection-other", "projection-scaled", "scores-other"]
words = "q_norm and k_norm act on each head and not on the whole width"


class RMS(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.3 * torch.randn(width))

    def forward(self, x, heads=None):
        w = self.weight if heads is None else self.weight.view(heads, -1)
        return w * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class VisionAttention(nn.Module):
    def __init__(self, width, heads, whole):
        super().__init__()
        self.heads, self.whole = heads, whole
        self.q_proj, self.k_proj, self.v_proj, self.projection_layer = (nn.Linear(width, width) for _ in range(4))
        self.q_norm, self.k_norm = RMS(width), RMS(width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.whole:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (a.view(b, t, self.heads, -1) for a in (q, k, v))
        if not self.whole:
            q, k = self.q_norm(q, self.heads), self.k_norm(k, self.heads)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.projection_layer(y.transpose(1, 2).reshape(b, t, c))


class Tower(nn.Module):
    def __init__(self, whole, width=32, heads=4, depth=2):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.cls = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, 10, width) * 0.02)
        self.norms = nn.ModuleList(RMS(width) for _ in range(depth))
        self.attn = nn.ModuleList(VisionAttention(width, heads, whole) for _ in range(depth))
        self.scale = nn.ParameterList(nn.Parameter(torch.full((width,), 0.5)) for _ in range(depth))

    def forward(self, pixel_values):
        x = self.patch(pixel_values).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(len(x), -1, -1), x), 1) + self.places
        for norm, attn, s in zip(self.norms, self.attn, self.scale):
            x = x + s * attn(norm(x))
        return x


def build(whole):
    torch.manual_seed(0)
    return Tower(whole).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(pixel_values=torch.randn(2, 3, 12, 12)), like=right())


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    a = asks()["inputs"]
    return not torch.allclose(wrong()(**a), right()(**a), atol=1e-3)
