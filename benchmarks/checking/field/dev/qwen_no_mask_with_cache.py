"""The causal mask is left out whenever there is a cache, so several new tokens see one another. Source: github.com/QwenLM/Qwen/issues/979"""
import torch
from torch import nn

expect = ["mask-in-cache", "mask-missing", "cached-step-differs"]
words = "a chunk of tokens after a cache attends to its own later tokens"


def _turn(x, first):
    d = x.shape[-1]
    rates = 10000.0 ** (-torch.arange(0, d, 2).float() / d)
    angles = (first + torch.arange(x.shape[1]).float())[:, None] * rates
    angles = torch.cat((angles, angles), dim=-1)[None, :, None]
    a, b = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat((-b, a), dim=-1) * angles.sin()


class CachedAttention(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width, bias=False)

    def causal(self, t, s):
        return None if s > t else torch.ones(t, s, dtype=torch.bool).tril()

    def forward(self, hidden_states, layer_past=None, use_cache=False):
        b, t, c = hidden_states.shape
        q, k, v = (z.view(b, t, self.heads, -1) for z in self.c_attn(hidden_states).chunk(3, dim=-1))
        first = 0 if layer_past is None else layer_past[0].shape[1]
        q, k = _turn(q, first), _turn(k, first)
        if layer_past is not None:
            k, v = torch.cat((layer_past[0], k), dim=1), torch.cat((layer_past[1], v), dim=1)
        scores = torch.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
        seen = self.causal(t, k.shape[1])
        if seen is not None:
            scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
        y = torch.einsum("bhts,bshd->bthd", scores.softmax(dim=-1), v)
        y = self.c_proj(y.reshape(b, t, c))
        return (y, (k, v)) if use_cache else y


class Mended(CachedAttention):
    def causal(self, t, s):
        return torch.ones(t, s, dtype=torch.bool).tril(s - t)


def asks():
    import intently as it

    torch.manual_seed(1)
    with torch.no_grad():
        past = Mended.make()(torch.randn(2, 5, 32), use_cache=True)[1]
    return dict(inputs=dict(hidden_states=torch.randn(2, 4, 32), layer_past=past), mask=it.causal())


def _make(kind):
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    m = kind().eval()
    torch.random.set_rng_state(state)
    return m


Mended.make = classmethod(_make)


def wrong():
    return _make(CachedAttention)


def right():
    return _make(Mended)


def proof():
    x = asks()["inputs"]
    torch.manual_seed(3)
    whole = torch.randn(2, 8, 32)
    a, b = wrong(), right()
    (y, past), want = b(whole[:, :5], use_cache=True), b(whole)
    mended = torch.allclose(torch.cat((y, b(whole[:, 5:], past)), 1), want, atol=1e-5)
    return mended and torch.allclose(a(whole), want, atol=1e-5) and not torch.allclose(a(**x), b(**x), atol=1e-3)
