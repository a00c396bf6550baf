"""An ALiBi module divides scores by the square root of the model's width although it has several heads. Source: github.com/jaketae/alibi/alibi/attention.py"""
import math, torch, intently as it
from torch import nn
expect = ["scale-model-width"]
words = "scores / sqrt(d_model) after the split into heads"
class LinearBiasAttention(nn.Module):
    def __init__(self, width, heads, longest, divisor):
        super().__init__()
        self.heads, self.divisor = heads, divisor
        base = 2 ** (8 / heads)
        self.register_buffer("slope", torch.tensor([base ** -(i + 1) for i in range(heads)]).view(heads, 1, 1))
        self.register_buffer("seen", torch.ones(longest, longest).tril().bool())
        self.fused = nn.Linear(width, 3 * width, bias=False); self.drop = nn.Dropout(0.1)
    def forward(self, x):
        b, t, c = x.shape
        k, q, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.fused(x).chunk(3, -1))
        i = torch.arange(t)
        z = q @ k.transpose(-1, -2) / self.divisor + self.slope * (i[None] - i[:, None])
        w = z.masked_fill(~self.seen[:t, :t], float("-inf")).softmax(-1)
        return self.drop((w @ v).transpose(1, 2).reshape(b, t, c))
def asks(): return dict(inputs=dict(x=torch.randn(2, 7, 64, generator=torch.Generator().manual_seed(0))), mask=it.causal())
def _make(d): torch.manual_seed(0); return LinearBiasAttention(64, 4, 16, d).eval()
def wrong(): return _make(math.sqrt(64))
def right(): return _make(math.sqrt(16))
def proof(): a = asks()["inputs"]; return bool((wrong()(**a) - right()(**a)).abs().max() > 1e-3)
