"""The encoder of a molecule generator builds its transformer layer for (length, batch, width), feeds (batch, length, width) and tells it of no padding. Source: github.com/DaoyuanLi2816/Molecule-Generator/pull/22"""
import intently as it
import torch
import torch.nn as nn

expect = ["batch-and-sequence-exchanged", "batch-mixed", "padding-attended", "mask-missing"]
words = "symbols attend to other molecules of the batch; once that is mended, to padding too"


class StringEncoder(nn.Module):
    def __init__(self, mended, symbols=25, width=32, latent=8, pad=0):
        super().__init__()
        self.mended, self.pad = mended, pad
        self.symbol = nn.Embedding(symbols, width, padding_idx=pad)
        self.place = nn.Parameter(torch.randn(1, 16, width) * 0.3)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.1, batch_first=mended)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.mean, self.spread = nn.Linear(width, latent), nn.Linear(width, latent)

    def forward(self, x):
        pad = x == self.pad
        h = self.symbol(x) + self.place[:, :x.shape[1]]
        h = self.encoder(h, src_key_padding_mask=pad) if self.mended else self.encoder(h)
        first = h[:, 0]
        return self.mean(first), self.spread(first)


def build(mended):
    torch.manual_seed(0)
    return StringEncoder(mended).eval()


def asks():
    torch.manual_seed(1)
    x = torch.randint(1, 25, (2, 8))
    x[1, 5:] = 0
    return dict(inputs=dict(x=x), mask=it.padding([8, 5]))


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    x = asks()["inputs"]["x"]
    alone = wrong()(x[:1])[0]
    return not torch.allclose(wrong()(x)[0][:1], alone, atol=1e-5) and torch.allclose(right()(x)[0][:1], right()(x[:1])[0], atol=1e-5)
