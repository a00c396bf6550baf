"""A notebook's Vision Transformer takes the softmax of (batch, query, key) scores along dim=1, over the queries. Source: github.com/nerminnuraydogan/vision-transformer/issues/1"""
import torch
from torch import nn

expect = ["softmax-over-queries"]
words = "each column of a head's weights sums to 1, not each row"


class OneHead(nn.Module):
    dim = 1

    def __init__(self, width, size):
        super().__init__()
        self.to_q = nn.Linear(width, size)
        self.to_k = nn.Linear(width, size)
        self.to_v = nn.Linear(width, size)
        self.size = size

    def forward(self, tokens):
        q, k, v = self.to_q(tokens), self.to_k(tokens), self.to_v(tokens)
        score = q.matmul(k.permute(0, 2, 1)).div(self.size ** 0.5)
        return score.softmax(dim=self.dim).matmul(v)


class MendedHead(OneHead):
    dim = -1


class EncoderLayer(nn.Module):
    def __init__(self, head, width, heads):
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.heads = nn.ModuleList(head(width, width // heads) for _ in range(heads))
        self.join = nn.Linear(width, width)
        self.between = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width))

    def forward(self, tokens):
        normed = self.before(tokens)
        tokens = tokens + self.join(torch.cat([one(normed) for one in self.heads], dim=-1))
        return tokens + self.mlp(self.between(tokens))


class VisionModel(nn.Module):
    def __init__(self, head, image=16, patch=8, width=32, heads=4, depth=2, classes=5):
        super().__init__()
        count = (image // patch) ** 2
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.cls = nn.Parameter(torch.randn(1, 1, width) * 0.2)
        self.place = nn.Parameter(torch.randn(1, count + 1, width) * 0.2)
        self.drop = nn.Dropout(0.1)
        self.layers = nn.Sequential(*[EncoderLayer(head, width, heads) for _ in range(depth)])
        self.last = nn.LayerNorm(width)
        self.classify = nn.Linear(width, classes)

    def forward(self, image):
        tokens = self.patches(image).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls.expand(len(image), -1, -1), tokens], dim=1) + self.place
        return self.classify(self.last(self.layers(self.drop(tokens)))[:, 0])


def asks():
    return dict(inputs=dict(image=torch.randn(2, 3, 16, 16)))


def wrong():
    torch.manual_seed(0)
    return VisionModel(OneHead).eval()


def right():
    torch.manual_seed(0)
    return VisionModel(MendedHead).eval()


def proof():
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        return not torch.allclose(wrong()(x), right()(x), atol=1e-4)


if __name__ == "__main__":
    print(proof())
