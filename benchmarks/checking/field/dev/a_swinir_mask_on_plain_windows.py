"""Window attention of an image restorer uses the mask of shifted windows in every layer when the image has another size than configured, also where windows are not shifted. Source: github.com/JingyunLiang/SwinIR/issues/153"""
import torch
import torch.nn as nn

expect = ["mask-other", "differs-from-reference"]
words = "unshifted windows at the lower and right border are cut by the mask of shifted ones"


def cut(x, w):
    b, h, v, c = x.shape
    return x.view(b, h // w, w, v // w, w, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, w * w, c)


def paste(x, w, h, v):
    b = x.shape[0] // ((h // w) * (v // w))
    return x.view(b, h // w, v // w, w, w, -1).permute(0, 1, 3, 2, 4, 5).reshape(b, h, v, -1)


def shifted_mask(h, v, w, s):
    kind = torch.zeros(1, h, v, 1)
    n = 0
    for a in (slice(0, -w), slice(-w, -s), slice(-s, None)):
        for b in (slice(0, -w), slice(-w, -s), slice(-s, None)):
            kind[:, a, b] = n
            n += 1
    kind = cut(kind, w).squeeze(-1)
    return torch.where(kind[:, None] == kind[:, :, None], 0.0, -100.0)


class WindowAttention(nn.Module):
    def __init__(self, width, heads, w):
        super().__init__()
        self.heads = heads
        self.table = nn.Parameter(torch.randn((2 * w - 1) ** 2, heads) * 0.02)
        grid = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(w), indexing="ij")).flatten(1)
        far = grid[:, :, None] - grid[:, None] + w - 1
        self.register_buffer("index", far[0] * (2 * w - 1) + far[1])
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, mask=None):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        z = q * (c // self.heads) ** -0.5 @ k.transpose(-2, -1) + self.table[self.index].permute(2, 0, 1)
        if mask is not None:
            m = mask.shape[0]
            z = (z.view(b // m, m, self.heads, n, n) + mask[:, None]).view(-1, self.heads, n, n)
        return self.proj((z.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))


class Layer(nn.Module):
    def __init__(self, width, heads, w, shift, size, mended):
        super().__init__()
        self.w, self.shift, self.size, self.mended = w, shift, size, mended
        self.norm = nn.LayerNorm(width)
        self.attn = WindowAttention(width, heads, w)
        self.register_buffer("mask", shifted_mask(*size, w, shift) if shift else None)

    def forward(self, x):                                 # (b, h, w, c)
        _, h, v, _ = x.shape
        y = self.norm(x)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        if (h, v) == self.size:
            mask = self.mask
        elif self.mended and not self.shift:
            mask = None
        else:
            mask = shifted_mask(h, v, self.w, self.shift or self.w // 2)
        y = paste(self.attn(cut(y, self.w), mask), self.w, h, v)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        return x + y


class Restorer(nn.Module):
    def __init__(self, mended, width=16, heads=2, w=4, size=(16, 16)):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(width, 3, 3, 1, 1)
        self.body = nn.Sequential(Layer(width, heads, w, 0, size, mended), Layer(width, heads, w, w // 2, size, mended))

    def forward(self, image):
        x = self.first(image).permute(0, 2, 3, 1)
        return image + self.last(self.body(x).permute(0, 3, 1, 2))


def build(mended):
    torch.manual_seed(0)
    return Restorer(mended).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(image=torch.randn(1, 3, 8, 8)), like=right())


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    a, b = asks()["inputs"], dict(image=torch.randn(1, 3, 16, 16))
    return not torch.allclose(wrong()(**a), right()(**a), atol=1e-4) and torch.allclose(wrong()(**b), right()(**b))
