"""Angles are cached under the length of the text without its offset, so the first offset of a length holds for ever. Source: github.com/lucidrains/rotary-embedding-torch/issues/11"""
import torch
from torch import nn

expect = ["rotation-offset-lost", "state-left", "cached-step-differs", "rotation-other"]
words = "every later step of one token is rotated as the first such step; a call depends on the calls before it"


class Rotary(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("freqs", 1.0 / (10000 ** (torch.arange(0, width, 2).float() / width)))
        self.cache = {}

    def name(self, n, offset):
        return f"angles:{n}"

    def angles(self, n, offset):
        name = self.name(n, offset)
        if name not in self.cache:
            self.cache[name] = torch.outer(offset + torch.arange(n).float(), self.freqs).repeat_interleave(2, dim=-1)
        return self.cache[name]

    def forward(self, x, offset=0):
        """x (b, h, n, d), pairs next to each other."""
        a = self.angles(x.shape[-2], offset)
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
        return x * a.cos() + turned * a.sin()


class MendedRotary(Rotary):
    def name(self, n, offset):
        return f"angles:{n};offset:{offset}"


class StepAttention(nn.Module):
    def __init__(self, rotary, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.rotary = rotary(width // heads)
        self.to_qkv, self.to_out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x, cache=None):
        """The output, and keys and values for the next step."""
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.to_qkv(x).chunk(3, dim=-1))
        offset = 0 if cache is None else cache[0].shape[2]
        q, k = self.rotary(q, offset), self.rotary(k, offset)
        if cache is not None:
            k, v = torch.cat((cache[0], k), dim=2), torch.cat((cache[1], v), dim=2)
        s = k.shape[2]
        dots = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        dots = dots.masked_fill(~torch.ones(t, s, dtype=torch.bool).tril(s - t), float("-inf"))
        y = (dots.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, t, c)
        return self.to_out(y), (k, v)


def asks():
    import intently as it

    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 7, 32)), mask=it.causal())


def wrong():
    torch.manual_seed(0)
    return StepAttention(Rotary).eval()


def right():
    torch.manual_seed(0)
    return StepAttention(MendedRotary).eval()


def proof():
    x = asks()["inputs"]["x"]

    def off(m):
        whole, (y, cache) = m(x)[0], m(x[:, :3])
        ys = [y]
        for i in range(3, 7):
            y, cache = m(x[:, i : i + 1], cache)
            ys.append(y)
        return (torch.cat(ys, 1) - whole).abs().max().item()

    return off(wrong()) > 1e-3 and off(right()) < 1e-4
