"""The text-conditioned attention of a latent diffusion network never multiplies its scores by the scale it stores. Source: github.com/Project-MONAI/GenerativeModels/issues/146"""
import torch
import torch.nn as nn

expect = ["no-scale"]
words = "scores of self- and cross-attention are q·k, without 1/sqrt(head width)"


class TextAttention(nn.Module):
    def __init__(self, width, context_width=None, heads=2, head_width=16, scaled=False):
        super().__init__()
        inner = heads * head_width
        self.heads, self.scaled = heads, scaled
        self.scale = head_width ** -0.5
        self.query = nn.Linear(width, inner, bias=False)
        self.key = nn.Linear(context_width or width, inner, bias=False)
        self.value = nn.Linear(context_width or width, inner, bias=False)
        self.out = nn.Linear(inner, width)

    def fold(self, x):
        b, t, c = x.shape
        x = x.reshape(b, t, self.heads, c // self.heads)
        return x.permute(0, 2, 1, 3).reshape(b * self.heads, t, c // self.heads)

    def unfold(self, x):
        bh, t, d = x.shape
        x = x.reshape(bh // self.heads, self.heads, t, d)
        return x.permute(0, 2, 1, 3).reshape(bh // self.heads, t, self.heads * d)

    def forward(self, x, context=None):
        context = x if context is None else context
        q, k, v = self.fold(self.query(x)), self.fold(self.key(context)), self.fold(self.value(context))
        scores = torch.bmm(q, k.transpose(1, 2))
        if self.scaled:
            scores = scores * self.scale
        return self.out(self.unfold(torch.bmm(scores.softmax(-1), v)))


class TextBlock(nn.Module):
    def __init__(self, width, context_width, scaled):
        super().__init__()
        self.self_attention = TextAttention(width, scaled=scaled)
        self.text_attention = TextAttention(width, context_width, scaled=scaled)
        self.n1, self.n2, self.n3 = (nn.LayerNorm(width) for _ in range(3))
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x, context):
        x = x + self.self_attention(self.n1(x))
        x = x + self.text_attention(self.n2(x), context)
        return x + self.mlp(self.n3(x))


class Denoiser(nn.Module):
    def __init__(self, scaled):
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 32))
        self.norm = nn.GroupNorm(4, 32)
        self.block = TextBlock(32, 24, scaled)
        self.last = nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, image, step, context):
        x = self.first(image) + self.time(step[:, None] / 1000)[:, :, None, None]
        b, c, h, w = x.shape
        y = self.norm(x).flatten(2).transpose(1, 2)
        y = self.block(y, context).transpose(1, 2).reshape(b, c, h, w)
        return self.last(x + y)


def build(scaled):
    torch.manual_seed(0)
    return Denoiser(scaled).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(image=torch.randn(2, 3, 3, 3), step=torch.tensor([10., 700.]), context=torch.randn(2, 5, 24)))


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    x = asks()["inputs"]
    return not torch.allclose(wrong()(**x), right()(**x), atol=1e-3)
