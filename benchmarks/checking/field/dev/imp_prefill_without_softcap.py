"""The prompt's pass keeps scores in a buffer of its own that the softcap does not reach; steps after it are capped. Source: github.com/kekzl/imp/pull/688"""
import torch
from torch import nn
import intently as it

expect = ["softcap-in-one-path", "softcap-missing", "cached-step-differs", "paths-differ"]
words = "scores of the whole pass are not capped, those of cached steps are"


class CappedAttention(nn.Module):
    def __init__(self, caps_prompt, width=32, heads=4, kv_heads=2, cap=5.0):
        super().__init__()
        self.heads, self.kv_heads, self.cap, self.caps_prompt = heads, kv_heads, cap, caps_prompt
        self.d = width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * kv_heads * self.d, bias=False)
        self.o = nn.Linear(width, width, bias=False)

    def _capped(self, z):
        return torch.tanh(z / self.cap) * self.cap

    def _prompt(self, q, k, v):
        wide = torch.einsum("bghtd,bgsd->bghts", q.float(), k.float()) * self.d**-0.5
        if self.caps_prompt:
            wide = self._capped(wide)
        t, s = wide.shape[-2:]
        wide = wide.masked_fill(torch.ones(t, s, dtype=torch.bool).triu(s - t + 1), float("-inf"))
        return torch.einsum("bghts,bgsd->bghtd", wide.softmax(-1), v)

    def _step(self, q, k, v):
        z = self._capped(torch.einsum("bghtd,bgsd->bghts", q, k) * self.d**-0.5)
        return torch.einsum("bghts,bgsd->bghtd", z.softmax(-1), v)

    def forward(self, x, past=None):
        b, t, _ = x.shape
        q = self.q(x).view(b, t, self.kv_heads, -1, self.d).permute(0, 2, 3, 1, 4)
        k, v = self.kv(x).view(b, t, 2, self.kv_heads, self.d).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = self._step(q, k, v) if t == 1 else self._prompt(q, k, v)
        return self.o(y.permute(0, 3, 1, 2, 4).reshape(b, t, -1)), (k, v)


def _inputs():
    torch.manual_seed(12)
    return dict(x=6 * torch.randn(2, 7, 32))


def asks():
    return dict(inputs=_inputs(), mask=it.causal())


def _build(caps):
    torch.manual_seed(13)
    return CappedAttention(caps).eval()


def wrong():
    return _build(False)


def right():
    return _build(True)


def proof():
    x = _inputs()["x"]

    def gap(m):
        whole, _ = m(x)
        _, past = m(x[:, :6])
        return (whole[:, 6:] - m(x[:, 6:], past)[0]).abs().max()

    return bool(gap(wrong()) > 1e-2 and gap(right()) < 1e-5 and (wrong()(x)[0] - right()(x)[0]).abs().max() > 1e-2)
