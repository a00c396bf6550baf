"""The non-local block of a VQGAN defines a 1 x 1 projection and adds the raw attention to its input without it. Source: github.com/dome272/VQGAN-pytorch/issues/23"""
import torch
import torch.nn as nn

expect = ["differs-from-reference", "projection-other", "output-changed"]
words = "proj_out is never applied to what attention returns"


class NonLocal(nn.Module):
    def __init__(self, channels, project):
        super().__init__()
        self.project = project
        self.gn = nn.GroupNorm(8, channels)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(channels, channels, 1) for _ in range(4))

    def forward(self, x):
        b, c, h, w = x.shape
        n = self.gn(x)
        q = self.q(n).reshape(b, c, h * w).permute(0, 2, 1)
        k, v = self.k(n).reshape(b, c, h * w), self.v(n).reshape(b, c, h * w)
        a = torch.softmax(torch.bmm(q, k) * c ** -0.5, 2).permute(0, 2, 1)
        y = torch.bmm(v, a).reshape(b, c, h, w)
        return x + (self.proj_out(y) if self.project else y)


class Residual(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.body = nn.Sequential(nn.GroupNorm(4, a), nn.SiLU(), nn.Conv2d(a, b, 3, 1, 1))
        self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x):
        return self.skip(x) + self.body(x)


class Encoder(nn.Module):
    def __init__(self, project):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), Residual(16, 32), nn.Conv2d(32, 32, 3, 2, 1), Residual(32, 32),
                                    NonLocal(32, project), Residual(32, 32), nn.GroupNorm(8, 32), nn.SiLU(), nn.Conv2d(32, 8, 3, 1, 1))

    def forward(self, image):
        return self.layers(image)


def build(project):
    torch.manual_seed(0)
    return Encoder(project).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(image=torch.randn(2, 3, 6, 6)), like=right())


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    a = asks()["inputs"]
    return not torch.allclose(wrong()(**a), right()(**a), atol=1e-3)
