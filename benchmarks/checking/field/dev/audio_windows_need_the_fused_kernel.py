"""An audio encoder hands the borders of its windows to each layer as cu_seqlens, which only the fused kernel reads; the other back ends attend to the whole clip. Source: github.com/QwenLM/Qwen3-ASR/issues/213"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["mask-missing", "window-missing", "mask-other", "mask-in-one-path", "setting-matters"]
words = "without the fused kernel the borders of windows are ignored, and frames of one window see all others"


class AudioAttention(nn.Module):
    def __init__(self, width, heads, implementation):
        super().__init__()
        self.heads, self.implementation = heads, implementation
        self.q_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(3))
        self.k_proj = nn.Linear(width, width, bias=False)

    def forward(self, x, cu_seqlens, attention_mask=None):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        if self.implementation == "flash":
            parts = zip(*(y.split(cu_seqlens.diff().tolist(), dim=2) for y in (q, k, v)))
            y = torch.cat([F.scaled_dot_product_attention(*part) for part in parts], dim=2)
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask)
        return self.out_proj(y.transpose(1, 2).flatten(2))


class AudioLayer(nn.Module):
    def __init__(self, width, heads, implementation):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = AudioAttention(width, heads, implementation)
        self.feed = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x, cu_seqlens, attention_mask):
        x = x + self.attention(self.norm1(x), cu_seqlens, attention_mask)
        return x + self.feed(self.norm2(x))


class AudioEncoder(nn.Module):
    def __init__(self, mels=16, width=32, heads=4, depth=2, window=4, implementation="sdpa"):
        super().__init__()
        self.window = window
        self.conv = nn.Linear(mels, width)
        self.places = nn.Parameter(torch.randn(window, width))
        self.layers = nn.ModuleList(AudioLayer(width, heads, implementation) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def attention_mask(self, cu_seqlens):
        window = torch.repeat_interleave(torch.arange(len(cu_seqlens) - 1), cu_seqlens.diff())
        return window[:, None] == window[None]

    def forward(self, features):
        n = features.shape[1]
        cu_seqlens = torch.tensor([*range(0, n, self.window), n])
        at = torch.arange(n) % self.window
        x, mask = self.conv(features) + self.places[at], self.attention_mask(cu_seqlens)
        for layer in self.layers:
            x = layer(x, cu_seqlens, mask)
        return self.norm(x)


class ReportedEncoder(AudioEncoder):
    def attention_mask(self, cu_seqlens):
        return None


def asks():
    import intently as it
    return dict(inputs=dict(features=torch.randn(2, 9, 16)), mask=it.segments(torch.arange(9) // 4))


def _make(cls, **setting):
    torch.manual_seed(0)
    return cls(**setting).eval()


def wrong():
    return _make(ReportedEncoder)


def right():
    return _make(AudioEncoder)


def proof():
    x = asks()["inputs"]
    fused = _make(AudioEncoder, implementation="flash")(**x)
    return torch.allclose(fused, right()(**x), atol=1e-5) and not torch.allclose(fused, wrong()(**x), atol=1e-3)
