"""The half-rate stack of a speech encoder is given its attention mask (None) as padding mask, so its layers attend to padded frames. Source: github.com/k2-fsa/icefall/issues/767"""
import torch
from torch import nn
import intently as it

expect = ["padding-attended", "mask-missing"]
words = "src_key_padding_mask=mask instead of src_key_padding_mask=src_key_padding_mask in the downsampled stack"


def asks():
    torch.manual_seed(3)
    n = torch.tensor([8, 4])
    return dict(inputs=dict(frames=torch.randn(2, 8, 20), lengths=n),
                mask={"full.*": it.padding(n), "slow.*": it.padding(n // 2)})


class SpeechAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.leave = nn.Linear(width, width)

    def forward(self, x, mask=None, src_key_padding_mask=None):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        z = (q * q.shape[-1] ** -0.5) @ k.mT
        if mask is not None:
            z = z.masked_fill(mask, float("-inf"))
        if src_key_padding_mask is not None:
            z = z.masked_fill(src_key_padding_mask[:, None, None], float("-inf"))
        return self.leave((z.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class SpeechLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = SpeechAttention(width, heads)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    def forward(self, x, mask=None, src_key_padding_mask=None):
        x = x + self.attention(self.norm(x), mask, src_key_padding_mask)
        return x + self.feed(self.norm2(x))


class Stack(nn.Module):
    def __init__(self, width, heads, depth):
        super().__init__()
        self.layers = nn.ModuleList(SpeechLayer(width, heads) for _ in range(depth))

    def forward(self, x, mask=None, src_key_padding_mask=None):
        for layer in self.layers:
            x = layer(x, mask=mask, src_key_padding_mask=src_key_padding_mask)
        return x


class HalfRate(Stack):
    def forward(self, x, mask=None, src_key_padding_mask=None):
        b, t, c = x.shape
        low = x.view(b, t // 2, 2, c).mean(2)
        if mask is not None:
            mask = mask[::2, ::2]
        if src_key_padding_mask is not None:
            src_key_padding_mask = src_key_padding_mask[:, ::2]
        low = super().forward(low, mask=mask, src_key_padding_mask=self.choose(mask, src_key_padding_mask))
        return x + low.repeat_interleave(2, 1)

    def choose(self, mask, src_key_padding_mask):
        return mask


class HalfRateMended(HalfRate):
    def choose(self, mask, src_key_padding_mask):
        return src_key_padding_mask


class SpeechEncoder(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.enter = nn.Linear(20, 32)
        self.full = Stack(32, 4, 1)
        self.slow = kind(32, 4, 2)

    def forward(self, frames, lengths):
        padding = torch.arange(frames.shape[1]) >= lengths[:, None]
        x = self.full(self.enter(frames), src_key_padding_mask=padding)
        return self.slow(x, src_key_padding_mask=padding)


def wrong():
    torch.manual_seed(0)
    return SpeechEncoder(HalfRate).eval()


def right():
    torch.manual_seed(0)
    return SpeechEncoder(HalfRateMended).eval()


def proof():
    x = asks()["inputs"]
    y = dict(x, frames=x["frames"].clone())
    y["frames"][1, 4:] += 3.0
    moved = lambda f: (f(**x) - f(**y))[1, :4].abs().max() > 1e-4
    return bool(moved(wrong()) and not moved(right()))
