"""The multimodal encoder over image and text states gets no mask, so image tokens attend to the text's [PAD]. Source: github.com/facebookresearch/multimodal/issues/530"""
import torch
from torch import nn
import intently as it

expect = ["padding-attended", "mask-missing"]
words = "the text encoder masks its padding, the encoder over both does not"
IDS = torch.tensor([[5, 8, 3, 11, 2, 7], [4, 9, 6, 0, 0, 0]])


def asks():
    torch.manual_seed(3)
    real = IDS != 0
    both = torch.cat([torch.ones(2, 5).bool(), real], 1)
    return dict(inputs=dict(patches=torch.randn(2, 4, 20), ids=IDS.clone()),
                mask={"text_encoder.*": it.padding(real), "mm_encoder.*": it.padding(both)})


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, real=None):
        parts = [f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value)]
        z = parts[0] @ parts[1].mT * parts[0].shape[-1] ** -0.5
        if real is not None:
            z = z.masked_fill(~real[:, None, None, :], float("-inf"))
        return self.output((z.softmax(-1) @ parts[2]).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.attention = Attention(width, heads)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x, real=None):
        x = x + self.attention(self.before(x), real)
        return x + self.mlp(self.between(x))


class Encoder(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(depth))
        self.norm = nn.LayerNorm(32)

    def forward(self, x, real=None):
        for layer in self.layers:
            x = layer(x, real)
        return self.norm(x)


class ImageText(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.word = nn.Linear(20, 32), nn.Embedding(12, 32)
        self.image_place, self.text_place = nn.Embedding(4, 32), nn.Embedding(8, 32)
        self.image_encoder, self.text_encoder, self.mm_encoder = Encoder(1), Encoder(1), Encoder(2)
        self.from_image, self.from_text = nn.Linear(32, 32), nn.Linear(32, 32)
        self.first = nn.Parameter(torch.randn(1, 1, 32))

    def fuse(self, both, real):
        return self.mm_encoder(both)

    def forward(self, patches, ids):
        real = ids != 0
        a = self.image_encoder(self.patch(patches) + self.image_place.weight)
        b = self.text_encoder(self.word(ids) + self.text_place.weight[:ids.shape[1]], real)
        both = torch.cat([self.first.expand(len(ids), -1, -1), self.from_image(a), self.from_text(b)], 1)
        return self.fuse(both, real)


class ImageTextMended(ImageText):
    def fuse(self, both, real):
        seen = torch.ones(len(real), both.shape[1] - real.shape[1], dtype=torch.bool)
        return self.mm_encoder(both, torch.cat([seen, real], 1))


def wrong():
    torch.manual_seed(0)
    return ImageText().eval()


def right():
    torch.manual_seed(0)
    return ImageTextMended().eval()


def proof():
    x = asks()["inputs"]
    short = dict(patches=x["patches"][1:], ids=x["ids"][1:, :3])
    same = lambda f: (f(**x)[1, :8] - f(**short)[0]).abs().max()
    return bool(same(wrong()) > 1e-3 and same(right()) < 1e-5)
