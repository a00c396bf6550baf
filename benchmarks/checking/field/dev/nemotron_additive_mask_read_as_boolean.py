"""A streaming speech encoder fills relative scores where logical_not(mask) holds, but under eager attention the mask is additive: allowed places are 0 and get filled. Source: github.com/huggingface/transformers/pull/48817"""
import torch
from torch import nn
import intently as it

expect = ["mask-inverted", "nan-with-keys", "mask-other"]
words = "frames inside the chunk's context get -inf and frames outside are attended to; where everything is allowed, NaN"


class RelativeFrameAttention(nn.Module):
    def __init__(self, reads_boolean, width=32, heads=4):
        super().__init__()
        self.heads, self.d, self.reads_boolean = heads, width // heads, reads_boolean
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.relative_k_proj = nn.Linear(width, width, bias=False)
        self.bias_u, self.bias_v = nn.Parameter(torch.randn(heads, self.d) * .1), nn.Parameter(torch.randn(heads, self.d) * .1)

    def distances(self, t, width):
        pos = torch.arange(t - 1, -t, -1.0)[:, None]
        ang = pos * 10000.0 ** (-torch.arange(0, width, 2) / width)
        return torch.stack((ang.sin(), ang.cos()), -1).flatten(1)

    @staticmethod
    def shift(z):
        b, h, t, n = z.shape
        return nn.functional.pad(z, (1, 0)).view(b, h, n + 1, t)[:, :, 1:].reshape(b, h, t, n)

    def forward(self, hidden_states, attention_mask):
        b, t, c = hidden_states.shape
        cut = lambda u: u.view(b, t, self.heads, self.d).transpose(1, 2)
        q, k, v = (cut(p(hidden_states)) for p in (self.q_proj, self.k_proj, self.v_proj))
        far = self.relative_k_proj(self.distances(t, c)).view(-1, self.heads, self.d)
        by_position = self.shift(torch.einsum("bhtd,nhd->bhtn", q + self.bias_v[:, None], far))[..., :t] * self.d ** -0.5
        if self.reads_boolean:
            by_position = by_position.masked_fill(attention_mask.logical_not(), float("-inf"))
        else:
            by_position = by_position + attention_mask
        scores = (q + self.bias_u[:, None]) @ k.mT * self.d ** -0.5 + by_position
        y = scores.softmax(-1, dtype=torch.float32) @ v
        return self.o_proj(y.transpose(1, 2).reshape(b, t, c))


def chunks(t, size=2, left=1):
    at = torch.arange(t) // size
    gap = at[:, None] - at[None]
    return (gap >= 0) & (gap <= left)


def asks():
    torch.manual_seed(0)
    allowed = chunks(8)
    mask = torch.zeros(2, 1, 8, 8).masked_fill(~allowed, torch.finfo(torch.float32).min)
    return dict(inputs=dict(hidden_states=torch.randn(2, 8, 32), attention_mask=mask), mask=allowed)


def make(reads_boolean):
    torch.manual_seed(5)
    return RelativeFrameAttention(reads_boolean).eval()


def wrong():
    return make(True)


def right():
    return make(False)


@torch.no_grad()
def proof():
    q = asks()["inputs"]
    free = dict(q, attention_mask=torch.zeros(2, 1, 8, 8))
    return bool(wrong()(**free).isnan().all()) and bool(right()(**free).isfinite().all()) and float((wrong()(**q) - right()(**q)).abs().max()) > 1e-2
