"""A forecaster's reset clears the caches of its blocks, not its own flag: the next series enters with its last step only. Source: github.com/time-series-foundation-models/lag-llama/issues/81"""
import torch
from torch import nn
import torch.nn.functional as F

expect = ["state-left", "cached-step-differs"]
words = "after the first call the model believes that a prefix is cached, and drops all steps but the last"

def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(series=torch.randn(2, 7, 4)))

class CausalBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * width, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.h = heads
        self.kv_cache = None

    def forward(self, x):
        y = self.norm(x)
        k, v = self.kv(y).chunk(2, dim=-1)
        if self.kv_cache is not None:
            k, v = torch.cat((self.kv_cache[0], k), 1), torch.cat((self.kv_cache[1], v), 1)
        self.kv_cache = k, v
        q, k, v = (one.unflatten(-1, (self.h, -1)).transpose(1, 2) for one in (self.q(y), k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)
        return x + self.o(y.transpose(1, 2).flatten(2))

class Forecaster(nn.Module):
    def __init__(self, clears_flag, lags=4, width=32, heads=4, depth=2, horizon=3):
        super().__init__()
        self.into = nn.Linear(lags, width)
        self.blocks = nn.ModuleList(CausalBlock(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, lags)
        self.clears_flag, self.horizon = clears_flag, horizon
        self.y_cache = False

    def reset_cache(self):
        for block in self.blocks:
            block.y_cache = False
            block.kv_cache = None
        if self.clears_flag:
            self.y_cache = False

    def step(self, series):
        if self.y_cache:
            series = series[:, -1:]
        self.y_cache = True
        x = self.into(series)
        for block in self.blocks:
            x = block(x)
        return self.head(x)[:, -1:]

    def forward(self, series):
        self.reset_cache()
        for _ in range(self.horizon):
            series = torch.cat((series, self.step(series)), 1)
        return series[:, -self.horizon:]

def wrong():
    torch.manual_seed(1)
    return Forecaster(False).eval()

def right():
    torch.manual_seed(1)
    return Forecaster(True).eval()

def proof():
    i = asks()["inputs"]
    w, r = wrong(), right()
    first, second = w(**i), w(**i)
    return bool(torch.allclose(first, r(**i), atol=1e-5) and (first - second).abs().max() > .02 and torch.allclose(r(**i), first, atol=1e-5))
