"""A tutorial's decoder gives its cross-attention the mask of the target, causal and with the target's padding, in place of the source's. Source: github.com/Kamichanw/SeekDeeper/issues/3"""
import torch
from torch import nn
import intently as it

expect = ["cross-causal", "padding-attended", "mask-other"]
words = "query i of the decoder sees source words 0 … i, padding among them, where it should see all real source words"
REAL = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]]).bool()


def asks():
    torch.manual_seed(3)
    source = torch.randint(1, 20, (2, 7)) * REAL
    return dict(inputs=dict(source=source, target=torch.randint(1, 20, (2, 7))),
                mask={"encoder.*": it.padding(REAL), "decoder.*.own": it.causal(), "decoder.*.cross": it.padding(REAL)})


class Heads(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, context, visible):
        cut = lambda z: z.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q, k, v = cut(self.q(x)), cut(self.k(context)), cut(self.v(context))
        z = q @ k.mT / q.shape[-1] ** 0.5
        z = z.masked_fill(~visible, float("-inf"))
        return self.o((z.softmax(-1) @ v).transpose(1, 2).flatten(2))


def feed():
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.feed = Heads(), feed()
        self.n1, self.n2 = nn.LayerNorm(32), nn.LayerNorm(32)

    def forward(self, x, source_mask):
        x = self.n1(x + self.own(x, x, source_mask))
        return self.n2(x + self.feed(x))


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.cross, self.feed = Heads(), Heads(), feed()
        self.n1, self.n2, self.n3 = nn.LayerNorm(32), nn.LayerNorm(32), nn.LayerNorm(32)

    def forward(self, x, memory, target_mask, source_mask):
        x = self.n1(x + self.own(x, x, target_mask))
        x = self.n2(x + self.look(x, memory, target_mask, source_mask))
        return self.n3(x + self.feed(x))

    def look(self, x, memory, target_mask, source_mask):
        return self.cross(x, memory, target_mask)


class DecoderLayerMended(DecoderLayer):
    def look(self, x, memory, target_mask, source_mask):
        return self.cross(x, memory, source_mask)


class Translator(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.words, self.places = nn.Embedding(20, 32), nn.Embedding(16, 32)
        self.encoder = nn.ModuleList(EncoderLayer() for _ in range(2))
        self.decoder = nn.ModuleList(kind() for _ in range(2))
        self.head = nn.Linear(32, 20)

    def embed(self, ids):
        return self.words(ids) + self.places(torch.arange(ids.shape[1]))

    def forward(self, source, target):
        source_mask = (source != 0)[:, None, None, :]
        n = target.shape[1]
        target_mask = (target != 0)[:, None, None, :] & torch.ones(n, n).tril().bool()
        x = self.embed(source)
        for layer in self.encoder:
            x = layer(x, source_mask)
        y = self.embed(target)
        for layer in self.decoder:
            y = layer(y, x, target_mask, source_mask)
        return self.head(y)


def wrong():
    torch.manual_seed(0)
    return Translator(DecoderLayer).eval()


def right():
    torch.manual_seed(0)
    return Translator(DecoderLayerMended).eval()


def proof():
    x = asks()["inputs"]
    y = dict(x, source=x["source"].clone())
    y["source"][0, 6] = y["source"][0, 6] % 19 + 1
    a, b = wrong(), right()
    return bool((a(**x) - b(**x)).abs().max() > 1e-2 and (b(**x) - b(**y))[0, 0].abs().max() > 1e-4)
