"""Cross-attention reads its buffer of keys up to a multiple of a block and masks nothing: rows that were never written, or that an earlier call wrote, are attended to. Source: github.com/ggml-org/whisper.cpp/pull/3941"""
import torch
from torch import nn

expect = ["not-normalised", "state-left", "padding-attended", "mask-missing"]
words = "rows of the padded buffer beyond the audio get weights; leftovers of a longer call are read"


class CrossAttention(nn.Module):
    BLOCK = 8

    def __init__(self, masks, width=32, heads=4, longest=32):
        super().__init__()
        self.heads, self.masks = heads, masks
        self.q, self.v, self.out = (nn.Linear(width, width) for _ in range(3))
        self.k = nn.Linear(width, width, bias=False)
        self.register_buffer("kept_k", torch.zeros(2, longest, width))
        self.register_buffer("kept_v", torch.zeros(2, longest, width))

    def _heads(self, a):
        return a.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    @torch.no_grad()
    def encode(self, audio):
        b, n, _ = audio.shape
        self.kept_k[:b, :n] = self.k(audio)
        self.kept_v[:b, :n] = self.v(audio)
        return n

    def forward(self, x, audio):
        b, n = x.shape[0], self.encode(audio)
        n_pad = -(-n // self.BLOCK) * self.BLOCK
        k, v = self._heads(self.kept_k[:b, :n_pad]), self._heads(self.kept_v[:b, :n_pad])
        z = self._heads(self.q(x)) @ k.transpose(-1, -2) * (x.shape[-1] // self.heads) ** -0.5
        if self.masks:
            z = z + torch.where(torch.arange(n_pad) < n, 0.0, float("-inf"))
        return self.out((z.softmax(-1) @ v).transpose(1, 2).flatten(2))


def _inputs():
    torch.manual_seed(6)
    return dict(x=torch.randn(2, 5, 32), audio=torch.randn(2, 11, 32))


def asks():
    return dict(inputs=_inputs())


def _build(masks):
    torch.manual_seed(7)
    return CrossAttention(masks).eval()


def wrong():
    return _build(False)


def right():
    return _build(True)


def proof():
    x = _inputs()

    def again(m):
        fresh = m(**x)
        m(x["x"], torch.randn(2, 16, 32))
        return fresh, (m(**x) - fresh).abs().max()

    (a, left_a), (b, left_b) = again(wrong()), again(right())
    return bool((a - b).abs().max() > 1e-2 and left_a > 1e-2 and left_b < 1e-6)
