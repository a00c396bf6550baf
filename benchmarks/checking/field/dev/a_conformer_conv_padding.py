"""A Conformer masks padding in attention, and its convolution module reads padded frames all the same. Source: github.com/pytorch/audio/issues/4205"""
import torch
import torch.nn as nn
import torch.nn.functional as F
import intently as it

expect = ["padding-attended"]
words = "frames of padding reach real frames through the depthwise convolution; attention itself is masked"


class ConvModule(nn.Module):
    def __init__(self, width, kernel=5):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.enter = nn.Conv1d(width, 2 * width, 1)
        self.depth = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.group = nn.LayerNorm(width)
        self.leave = nn.Conv1d(width, width, 1)

    def clear(self, x, padded):
        return x

    def forward(self, x, padded):
        y = F.glu(self.enter(self.norm(x).transpose(1, 2)), 1)
        y = self.depth(self.clear(y, padded))
        y = F.silu(self.group(y.transpose(1, 2))).transpose(1, 2)
        return self.leave(y).transpose(1, 2)


class ConvModuleMended(ConvModule):
    def clear(self, x, padded):
        return x.masked_fill(padded[:, None], 0.0)


class Layer(nn.Module):
    def __init__(self, conv, width, heads):
        super().__init__()
        feed = lambda: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 48), nn.SiLU(), nn.Linear(48, width))
        self.first, self.last = feed(), feed()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=True)
        self.conv = conv(width)
        self.final = nn.LayerNorm(width)

    def forward(self, x, padded):
        x = x + 0.5 * self.first(x)
        a = self.norm(x)
        x = x + self.attention(a, a, a, key_padding_mask=padded, need_weights=False)[0]
        x = x + self.conv(x, padded)
        return self.final(x + 0.5 * self.last(x))


class Conformer(nn.Module):
    def __init__(self, conv, width=32, heads=4, depth=2):
        super().__init__()
        self.layers = nn.ModuleList(Layer(conv, width, heads) for _ in range(depth))

    def forward(self, x, lengths):
        padded = torch.arange(x.shape[1])[None] >= lengths[:, None]
        for layer in self.layers:
            x = layer(x, padded)
        return x, lengths


def asks():
    torch.manual_seed(1)
    lengths = torch.tensor([9, 6])
    return dict(inputs=dict(x=torch.randn(2, 9, 32), lengths=lengths), mask=it.padding(lengths))


def wrong():
    torch.manual_seed(0)
    return Conformer(ConvModule).eval()


def right():
    torch.manual_seed(0)
    return Conformer(ConvModuleMended).eval()


def proof():
    i = asks()["inputs"]
    y = i["x"].clone()
    y[1, 6:] = y[1, 6:].flip(-1)
    with torch.no_grad():
        leaks = not torch.allclose(wrong()(**i)[0][1, :6], wrong()(y, i["lengths"])[0][1, :6], atol=1e-5)
        return leaks and torch.allclose(right()(**i)[0][1, :6], right()(y, i["lengths"])[0][1, :6], atol=1e-5)
