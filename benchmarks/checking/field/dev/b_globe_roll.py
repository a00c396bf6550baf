"""A window block on the globe rolls longitudes by the shift of latitudes, and rolls back by the right one. Source: github.com/NVIDIA/physicsnemo/issues/1399"""
import torch
from torch import nn

expect = ["output-reordered", "mask-other", "differs-from-reference"]
words = "torch.roll(x, (-shift_lat, -shift_lat)) for (-shift_lat, -shift_lon): other windows, and outputs come back at other longitudes"


def asks():
    return dict(inputs=dict(x=torch.randn(2, 4, 8, 16, generator=torch.Generator().manual_seed(5))), like=right())


class GlobeBlock(nn.Module):
    def __init__(self, width=16, heads=2, window=(2, 4), shift=(1, 2), rolls=(1, 1)):
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.window, self.shift, self.rolls = heads, window, shift, rolls

    def cut(self, x):
        (a, o), (b, h, w, c) = self.window, x.shape
        return x.view(b, h // a, a, w // o, o, c).transpose(2, 3).reshape(b, -1, a * o, c)

    def join(self, u, shape):
        (a, o), (b, h, w, c) = self.window, shape
        return u.view(b, h // a, w // o, a, o, -1).transpose(2, 3).reshape(b, h, w, c)

    def hidden(self, h, w):
        bands = torch.zeros(1, h, w, 1)
        bands[:, h - self.window[0]:] = 1
        bands[:, h - self.shift[0]:] = 2
        bands = self.cut(bands)[0, :, :, 0]
        return bands[:, :, None] != bands[:, None, :]

    def forward(self, x):
        b, h, w, c = x.shape
        shifted = torch.roll(x, (-self.rolls[0], -self.rolls[1]), (1, 2))
        u = self.cut(shifted)
        q, k, v = self.qkv(u).unflatten(-1, (3, self.heads, -1)).permute(3, 0, 1, 4, 2, 5)
        z = q @ k.mT * q.shape[-1] ** -0.5
        z = z.masked_fill(self.hidden(h, w)[None, :, None], float("-inf"))
        y = self.proj((z.softmax(-1) @ v).transpose(2, 3).flatten(3))
        return torch.roll(self.join(y, x.shape), self.shift, (1, 2))


def _make(rolls):
    torch.manual_seed(0)
    return GlobeBlock(rolls=rolls).eval()


def wrong():
    return _make((1, 1))


def right():
    return _make((1, 2))


def proof():
    a = asks()["inputs"]
    return (wrong()(**a) - right()(**a)).abs().max().item() > 1e-2


if __name__ == "__main__":
    print(proof())
