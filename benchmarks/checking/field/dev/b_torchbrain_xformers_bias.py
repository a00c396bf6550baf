"""The boolean mask is turned into a bias the wrong way round on the memory-efficient path: -inf where a key is valid. Source: github.com/neuro-galaxy/torch_brain/pull/74"""
import torch
from torch import nn
import intently as it

expect = ["mask-inverted"]
words = "queries see exactly the padded tokens of the context"


def memory_efficient_attention(q, k, v, attn_bias):
    """(b, t, h, d), with an additive bias (b, h, t, s)."""
    z = torch.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5 + attn_bias
    return torch.einsum("bhts,bshd->bthd", z.softmax(-1), v)


def rotate(x, times):
    half = x.shape[-1] // 2
    speed = 2 * torch.pi / torch.logspace(-1, 1, half)
    angle = (times[..., None] * speed)[:, :, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


class RotaryCrossAttention(nn.Module):
    def __init__(self, dim=32, heads=4, hide_valid=True):
        super().__init__()
        self.heads, self.hide_valid = heads, hide_valid
        self.norm, self.norm_context = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.to_q, self.to_kv = nn.Linear(dim, dim, bias=False), nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x_query, x_context, query_times, context_times, context_mask):
        cut = lambda y: y.unflatten(-1, (self.heads, -1))
        x_context = self.norm_context(x_context)
        q = rotate(cut(self.to_q(self.norm(x_query))), query_times)
        k, v = map(cut, self.to_kv(x_context).chunk(2, dim=-1))
        k = rotate(k, context_times)
        hidden = context_mask if self.hide_valid else ~context_mask
        bias = torch.zeros(context_mask.shape, dtype=q.dtype).masked_fill(hidden, float("-inf"))
        bias = bias[:, None, None].expand(-1, self.heads, q.shape[1], -1)
        return self.to_out(memory_efficient_attention(q, k, v, bias).flatten(2))


LENGTHS = [4, 6]


def asks():
    torch.manual_seed(0)
    x_query, x_context = torch.randn(2, 5, 32), torch.randn(2, 7, 32)
    mask = torch.arange(7)[None] < torch.tensor(LENGTHS)[:, None]
    inputs = dict(x_query=x_query, x_context=x_context, query_times=torch.linspace(0, 1, 5).repeat(2, 1),
                  context_times=torch.rand(2, 7).sort(-1).values, context_mask=mask)
    return dict(inputs=inputs, mask=it.padding(LENGTHS))


def wrong():
    torch.manual_seed(1)
    return RotaryCrossAttention(hide_valid=True).eval()


def right():
    torch.manual_seed(1)
    return RotaryCrossAttention(hide_valid=False).eval()


def proof():
    i = asks()["inputs"]
    j = dict(i, x_context=i["x_context"].clone())
    j["x_context"][:, 6:] = 3 * torch.randn(2, 1, 32)
    change = lambda f: (f()(**i) - f()(**j)).abs().max().item()
    return change(wrong) > 1e-3 and change(right) < 1e-6
