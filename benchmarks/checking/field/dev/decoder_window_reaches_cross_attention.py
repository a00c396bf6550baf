"""A decoder layer that is causal sets the window (-1, 0) once and hands it to its self- and to its cross-attention, so the latter is causal too. Source: github.com/NVIDIA/TransformerEngine/issues/629"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["cross-causal", "mask-other"]
words = "the window that makes self-attention causal is passed to cross-attention, where a query then misses the end of the source"


class WindowedAttention(nn.Module):
    """window = (left, right); -1 is no limit. Queries are counted from the end of the keys."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads, self.d = heads, hidden // heads
        self.q, self.kv, self.o = nn.Linear(hidden, hidden), nn.Linear(hidden, 2 * hidden), nn.Linear(hidden, hidden)

    def forward(self, x, source, window):
        b, t, _ = x.shape
        s = source.shape[1]
        q = self.q(x).view(b, t, self.heads, self.d).transpose(1, 2)
        k, v = self.kv(source).view(b, s, 2, self.heads, self.d).permute(2, 0, 3, 1, 4)
        at = torch.arange(t, device=x.device)[:, None] + s - t
        keys = torch.arange(s, device=x.device)[None]
        seen = torch.ones(t, s, dtype=torch.bool, device=x.device)
        if window[0] >= 0:
            seen &= keys >= at - window[0]
        if window[1] >= 0:
            seen &= keys <= at + window[1]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.o(y.transpose(1, 2).reshape(b, t, -1))


class DecoderLayer(nn.Module):
    def __init__(self, hidden=32, heads=4, self_attn_mask_type="causal"):
        super().__init__()
        self.window = (-1, 0) if self_attn_mask_type == "causal" else (-1, -1)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(hidden) for _ in range(3))
        self.self_attention = WindowedAttention(hidden, heads)
        self.inter_attention = WindowedAttention(hidden, heads)
        self.mlp = nn.Sequential(nn.Linear(hidden, 64), nn.GELU(), nn.Linear(64, hidden))

    def cross_window(self):
        return self.window

    def forward(self, hidden_states, encoder_output):
        x = self.norm1(hidden_states)
        y = hidden_states + self.self_attention(x, x, self.window)
        y = y + self.inter_attention(self.norm2(y), encoder_output, self.cross_window())
        return y + self.mlp(self.norm3(y))


class MendedLayer(DecoderLayer):
    def cross_window(self):
        return (-1, -1)


def asks():
    return dict(inputs=dict(hidden_states=torch.randn(2, 6, 32), encoder_output=torch.randn(2, 9, 32)))


def _make(cls):
    torch.manual_seed(0)
    return cls().eval()


def wrong():
    return _make(DecoderLayer)


def right():
    return _make(MendedLayer)


def proof():
    x = asks()["inputs"]
    end = dict(x, encoder_output=x["encoder_output"].clone())
    end["encoder_output"][:, -1] += 1
    bad, good = wrong(), right()
    return torch.allclose(bad(**x)[:, 0], bad(**end)[:, 0]) and not torch.allclose(good(**x)[:, 0], good(**end)[:, 0], atol=1e-4)
