"""A convolutional transformer for brain signals divides the scores of each head by the root of the whole embedding. Source: github.com/braindecode/braindecode/issues/873"""
import torch
import torch.nn as nn

expect = ["scale-model-width"]
words = "scores are divided by sqrt(embedding) where sqrt(embedding / heads) is meant"


class Heads(nn.Module):
    def __init__(self, size, count, per_head):
        super().__init__()
        self.size, self.count, self.per_head = size, count, per_head
        self.to_q, self.to_k, self.to_v = (nn.Linear(size, size) for _ in range(3))
        self.drop = nn.Dropout(0.2)
        self.project = nn.Linear(size, size)

    def cut(self, x):
        return x.unflatten(-1, (self.count, -1)).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.cut(self.to_q(x)), self.cut(self.to_k(x)), self.cut(self.to_v(x))
        energy = torch.einsum("bhqd,bhkd->bhqk", q, k)
        divisor = (self.size // self.count if self.per_head else self.size) ** 0.5
        weights = self.drop((energy / divisor).softmax(-1))
        return self.project(torch.einsum("bhqk,bhkd->bhqd", weights, v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, size, count, per_head):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention = Heads(size, count, per_head)
        self.feed = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Dropout(0.2), nn.Linear(4 * size, size))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class SignalConformer(nn.Module):
    def __init__(self, per_head, channels=4, size=40, count=4, classes=3):
        super().__init__()
        self.temporal = nn.Conv2d(1, size, (1, 5))
        self.spatial = nn.Conv2d(size, size, (channels, 1))
        self.norm = nn.BatchNorm2d(size)
        self.pool = nn.AvgPool2d((1, 6), (1, 3))
        self.layers = nn.Sequential(*(Layer(size, count, per_head) for _ in range(2)))
        self.classify = nn.Linear(size, classes)

    def forward(self, x):
        x = self.norm(self.spatial(self.temporal(x[:, None])))
        x = self.pool(nn.functional.elu(x)).squeeze(2).transpose(1, 2)
        return self.classify(self.layers(x).mean(1))


def build(per_head):
    torch.manual_seed(0)
    return SignalConformer(per_head).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 4, 28)))


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    x = asks()["inputs"]
    return not torch.allclose(wrong()(**x), right()(**x), atol=1e-5)
