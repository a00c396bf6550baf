"""Atoms attend in windows, several samples of a structure at once; the pair bias of the windows is repeated window by window, the atoms sample by sample. Source: github.com/jwohlwend/boltz/issues/523"""
import torch
from torch import nn

expect = ["bias-other", "mask-of-other-rows"]
words = "the rows of the bias do not belong to the rows of the queries: window w of a sample gets the bias of another window"

BATCH, WINDOWS, SAMPLES, SIZE = 2, 3, 2, 4


def asks():
    return dict(inputs=dict(atoms=torch.randn(BATCH * SAMPLES, WINDOWS * SIZE, 16), pairs=torch.randn(BATCH, WINDOWS, SIZE, SIZE, 6)))


class AttentionPairBias(nn.Module):
    def __init__(self, width, pair_width, heads, repeat):
        super().__init__()
        self.heads, self.repeat = heads, repeat
        self.norm = nn.LayerNorm(width)
        self.q = nn.Linear(width, width)
        self.k, self.v, self.g = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.z = nn.Sequential(nn.LayerNorm(pair_width), nn.Linear(pair_width, heads, bias=False))
        self.o = nn.Linear(width, width, bias=False)

    def forward(self, s, z, multiplicity):
        s = self.norm(s)
        q, k, v = (f(s).unflatten(-1, (self.heads, -1)) for f in (self.q, self.k, self.v))
        bias = self.repeat(self.z(z).movedim(-1, 1), multiplicity)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5 + bias
        y = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2)
        return self.o(self.g(s).sigmoid() * y)


class WindowedAtoms(nn.Module):
    def __init__(self, repeat):
        super().__init__()
        self.attend = AttentionPairBias(16, 6, 2, repeat)

    def forward(self, atoms, pairs):
        b, n, c = atoms.shape
        batch, windows = pairs.shape[:2]
        s = atoms.reshape(b * windows, n // windows, c)                 # (batch, sample, window) in one axis
        z = pairs.flatten(0, 1)                                         # (batch, window) in one axis
        return self.attend(s, z, b // batch).reshape(b, n, c)


def by_rows(bias, times):
    return bias.repeat_interleave(times, 0)


def by_samples(bias, times):
    return bias.unflatten(0, (-1, WINDOWS)).repeat_interleave(times, 0).flatten(0, 1)


def make(repeat):
    torch.manual_seed(4)
    m = WindowedAtoms(repeat)
    nn.init.normal_(m.attend.z[1].weight, std=2)
    return m.eval()


def wrong():
    return make(by_rows)


def right():
    return make(by_samples)


def proof():
    call = asks()["inputs"]
    alone = [m(call["atoms"][:1], call["pairs"][:1]) for m in (wrong(), right())]
    both = [m(**call)[:1] for m in (wrong(), right())]
    return (both[0] - alone[0]).abs().max().item() > 1e-2 and (both[1] - alone[1]).abs().max().item() < 1e-5
