"""A captioner takes the tokens of its image encoder through an extractor that detaches them, so captions train the decoder and never the encoder. Source: github.com/lucidrains/CoCa-pytorch/issues/6"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["gradient-cut"]
words = "cross-attention reads a detached copy of the image tokens: the output depends on the encoder and gives it no gradient"


class Attention(nn.Module):
    def __init__(self, width, heads, causal=False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm = nn.LayerNorm(width)
        self.to_q, self.to_kv, self.to_out = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * width, bias=False), nn.Linear(width, width)

    def forward(self, x, context=None):
        y = self.norm(x)
        split = lambda z: z.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.to_kv(y if context is None else context).chunk(2, dim=-1)
        out = F.scaled_dot_product_attention(split(self.to_q(y)), split(k), split(v), is_causal=self.causal)
        return x + self.to_out(out.transpose(1, 2).flatten(2))


class Feed(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        return x + super().forward(x)


class ViT(nn.Module):
    def __init__(self, width, heads, depth, patch=4, patches=9):
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.randn(patches, width) / 2)
        self.transformer = nn.Sequential(*(m for _ in range(depth) for m in (Attention(width, heads), Feed(width))), nn.LayerNorm(width))
        self.head = nn.Linear(width, 10)

    def forward(self, image):
        x = self.patch(image).flatten(2).transpose(1, 2) + self.places
        return self.head(self.transformer(x).mean(1))


class Extractor(nn.Module):
    """Runs a vision transformer and returns what its last layer put out, by a hook."""

    def __init__(self, vit):
        super().__init__()
        self.vit = vit
        self.latents = None
        vit.transformer.register_forward_hook(lambda _, __, output: self.keep(output))

    def keep(self, output):
        self.latents = output.clone()

    def forward(self, image):
        self.vit(image)
        latents, self.latents = self.latents, None
        return latents


class ReportedExtractor(Extractor):
    def keep(self, output):
        self.latents = output.clone().detach()


class Captioner(nn.Module):
    def __init__(self, extractor, vocab=40, width=32, heads=4, depth=2, longest=12):
        super().__init__()
        self.image = extractor(ViT(width, heads, depth))
        self.token, self.place = nn.Embedding(vocab, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(nn.ModuleList((Attention(width, heads, causal=True), Attention(width, heads), Feed(width))) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, text, images):
        tokens = self.image(images)
        x = self.token(text) + self.place.weight[: text.shape[1]]
        for itself, across, feed in self.layers:
            x = feed(across(itself(x), tokens))
        return self.norm(x) @ self.token.weight.t()


def asks():
    return dict(inputs=dict(text=torch.randint(0, 40, (2, 6)), images=torch.randn(2, 3, 12, 12)))


def _make(extractor):
    torch.manual_seed(0)
    return Captioner(extractor).eval()


def wrong():
    return _make(ReportedExtractor)


def right():
    return _make(Extractor)


def proof():
    x = asks()["inputs"]
    bad, good = wrong(), right()
    same = torch.allclose(bad(**x), good(**x))
    for m in (bad, good):
        m(**x).square().mean().backward()
    return same and bad.image.vit.patch.weight.grad is None and float(good.image.vit.patch.weight.grad.abs().max()) > 0
