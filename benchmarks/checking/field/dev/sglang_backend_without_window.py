"""A serving back end on plain SDPA never looks at a layer's sliding window: prompt pieces and decoding steps attend to the whole prefix. Source: github.com/sgl-project/sglang/pull/26516"""
import torch
import torch.nn.functional as F
from torch import nn
import intently as it

expect = ["window-missing", "window-off-in-cache"]
words = "window_size of the layer is stored and ignored, in extend and in decode"


class NativeBackend:
    def __init__(self, obeys):
        self.obeys = obeys

    def run(self, q, k, v, layer):
        t, s = q.size(2), k.size(2)
        where = torch.arange(s - t, s, device=q.device)[:, None]
        keys = torch.arange(s, device=q.device)[None]
        seen = keys <= where
        if self.obeys and layer.sliding_window_size > -1:
            seen = seen & (keys >= where - layer.sliding_window_size)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)


class WindowLayer(nn.Module):
    def __init__(self, backend, width=32, heads=4, kv_heads=2, sliding_window_size=3):
        super().__init__()
        self.backend, self.heads, self.kv_heads, self.sliding_window_size = backend, heads, kv_heads, sliding_window_size
        self.d = width // heads
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.d, bias=False)
        self.o = nn.Linear(width, width, bias=False)

    def forward(self, hidden, past_key_value=None):
        b, t, c = hidden.shape
        parts = self.qkv(hidden).view(b, t, -1, self.d).transpose(1, 2)
        q, k, v = parts.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        if past_key_value is not None:
            k, v = torch.cat((past_key_value[0], k), 2), torch.cat((past_key_value[1], v), 2)
        y = self.backend.run(q, k, v, self)
        return self.o(y.transpose(1, 2).reshape(b, t, c)), (k, v)


def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(hidden=torch.randn(2, 9, 32)), mask=it.window(3, 0))


def make(obeys):
    torch.manual_seed(6)
    return WindowLayer(NativeBackend(obeys)).eval()


def wrong():
    return make(False)


def right():
    return make(True)


@torch.no_grad()
def proof():
    x = asks()["inputs"]["hidden"]
    old = x.clone()
    old[:, 0] += 2
    moves = lambda f: float((f(x)[0] - f(old)[0])[:, 4:].abs().max())
    return moves(wrong()) > 1e-3 and moves(right()) < 1e-6
