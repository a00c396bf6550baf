"""The decoder state is repeated in the order 0 1 0 1 beside encoder states in the order 0 0 1 1. Source: github.com/j-min/MoChA-pytorch/issues/3"""
import torch
from torch import nn

expect = ["batch-mixed"]
words = "each encoder state is scored with the decoder state of another row of the batch"


class Energy(nn.Module):
    def __init__(self, enc, dec, att, each):
        super().__init__()
        self.from_enc = nn.Linear(enc, att, bias=False)
        self.from_dec = nn.Linear(dec, att, bias=False)
        self.b = nn.Parameter(torch.randn(att) * 0.1)
        self.v = nn.Linear(att, 1, bias=False)
        self.gain = nn.Parameter(torch.tensor(2.0))
        self.r = nn.Parameter(torch.tensor(-1.0))
        self.each = each

    def forward(self, states, query):
        n, s, _ = states.shape
        q = self.from_dec(query)
        q = q.repeat(1, s).reshape(n * s, -1) if self.each else q.repeat(s, 1)
        hidden = torch.tanh(self.from_enc(states.reshape(n * s, -1)) + q + self.b)
        unit = self.v.weight / self.v.weight.norm()
        return (self.gain * hidden @ unit.t()).view(n, s) + self.r


class SoftAttention(nn.Module):
    def __init__(self, each):
        super().__init__()
        self.energy = Energy(32, 24, 16, each)

    def forward(self, encoder_outputs, decoder_h):
        share = self.energy(encoder_outputs, decoder_h).softmax(dim=1)
        return torch.bmm(share[:, None], encoder_outputs).squeeze(1)


def _inputs():
    torch.manual_seed(0)
    return dict(encoder_outputs=torch.randn(3, 7, 32), decoder_h=torch.randn(3, 24))


def asks():
    return dict(inputs=_inputs())


def _build(each):
    torch.manual_seed(1)
    return SoftAttention(each).eval()


def wrong():
    return _build(False)


def right():
    return _build(True)


def proof():
    x = _inputs()
    y = dict(x, decoder_h=torch.cat([x["decoder_h"][:1], torch.randn(2, 24)]))
    moved = lambda m: (m(**x)[0] - m(**y)[0]).abs().max()
    return bool(moved(wrong()) > 1e-3 and moved(right()) < 1e-6)
