"""Windows of an image are cut by view alone, without the permutation that brings the rows of a window together. Source: github.com/ByChelsea/CMOS/issues/4"""
import torch
from torch import nn

expect = ["mask-other", "differs-from-reference"]
words = "a window holds consecutive pixels of a row and not a square"


def asks():
    return dict(inputs=dict(x=torch.randn(2, 4, 4, 32, generator=torch.Generator().manual_seed(7))), like=right())


class SquareWindows(nn.Module):
    def __init__(self, width=32, heads=2, side=2, permutes=False):
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.side, self.permutes = heads, side, permutes

    def cut(self, x):
        b, h, w, c = x.shape
        n = self.side
        x = x.view(b, h // n, n, w // n, n, c)
        if self.permutes:
            x = x.permute(0, 1, 3, 2, 4, 5).contiguous()
        return x.view(-1, n * n, c)

    def join(self, windows, b, h, w):
        n, c = self.side, windows.shape[-1]
        if not self.permutes:
            return windows.view(b, h, w, c)
        x = windows.view(b, h // n, w // n, n, n, c)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)

    def forward(self, x):
        b, h, w, c = x.shape
        u = self.cut(x)
        q, k, v = self.qkv(u).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        a = (q @ k.mT * (c // self.heads) ** -0.5).softmax(-1)
        return self.join(self.proj((a @ v).transpose(1, 2).flatten(2)), b, h, w)


def _make(permutes):
    torch.manual_seed(0)
    return SquareWindows(permutes=permutes).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    return (wrong()(**a) - right()(**a)).abs().max().item() > 1e-2


if __name__ == "__main__":
    print(proof())
