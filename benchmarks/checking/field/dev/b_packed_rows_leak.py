"""Rows packed from several short texts get a plain causal mask, so a text attends to those before it in the row. Source: github.com/0-5788719150923125/praxis/issues/38"""
import torch
from torch import nn

import intently as it

expect = ["mask-missing", "mask-other"]
words = "causal but not block-causal: tokens see texts that end before theirs begins"

EOS = 0
IDS = torch.tensor([[5, 9, 2, EOS, 7, 3, 8, 4], [6, EOS, 4, 9, 3, EOS, 2, 5]])
BLOCKS = (IDS == EOS).long().cumsum(1) - (IDS == EOS).long()


def asks():
    return dict(inputs=dict(input_ids=IDS), mask=it.causal() & it.segments(BLOCKS))


class PackedLayer(nn.Module):
    def __init__(self, vocab=12, width=32, heads=4, blocks=False):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.blocks = heads, blocks

    def forward(self, input_ids):
        x = self.embed(input_ids)
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        z = q @ k.mT / (c // self.heads) ** 0.5
        keep = torch.ones(t, t, dtype=torch.bool).tril().expand(b, t, t)
        if self.blocks:
            ends = (input_ids == EOS).long()
            block = ends.cumsum(1) - ends
            keep = keep & (block[:, :, None] == block[:, None, :])
        w = z.masked_fill(~keep[:, None], float("-inf")).softmax(-1)
        return self.out((w @ v).transpose(1, 2).reshape(b, t, c))


def _make(blocks):
    torch.manual_seed(0)
    return PackedLayer(blocks=blocks).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    d = (wrong()(IDS) - right()(IDS)).abs()
    return d[0, :4].max().item() < 1e-5 and d[0, 4:].max().item() > 1e-2


if __name__ == "__main__":
    print(proof())
