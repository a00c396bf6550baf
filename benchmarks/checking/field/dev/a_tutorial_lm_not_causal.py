"""The language model of a tutorial calls its TransformerEncoder without a mask in training and evaluation, so every position sees the word it should predict. Source: github.com/pytorch/tutorials/issues/2478"""
import math
import torch
import torch.nn as nn

expect = ["mask-missing"]
words = "src_mask stays None: no causal mask reaches the encoder"


class Places(nn.Module):
    def __init__(self, width, p=0.1, longest=100):
        super().__init__()
        self.drop = nn.Dropout(p)
        at = torch.arange(longest)[:, None]
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        pe = torch.zeros(longest, 1, width)
        pe[:, 0, 0::2], pe[:, 0, 1::2] = torch.sin(at * rate), torch.cos(at * rate)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return self.drop(x + self.pe[: x.size(0)])


class WordModel(nn.Module):
    def __init__(self, always, words=50, width=32, heads=2, hidden=64, depth=2):
        super().__init__()
        self.always, self.width = always, width
        self.places = Places(width)
        layer = nn.TransformerEncoderLayer(width, heads, hidden, 0.1)
        self.stack = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.embed = nn.Embedding(words, width)
        self.out = nn.Linear(width, words)

    def forward(self, src, src_mask=None):               # src: (time, batch)
        x = self.places(self.embed(src) * math.sqrt(self.width))
        if src_mask is None and self.always:
            src_mask = nn.Transformer.generate_square_subsequent_mask(len(src))
        return self.out(self.stack(x, src_mask))


def build(always):
    torch.manual_seed(0)
    return WordModel(always).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(src=torch.randint(0, 50, (8, 2))), mask=it.causal(), layout="t b")


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    a = torch.randint(0, 50, (8, 2))
    b = a.clone()
    b[-1] = (b[-1] + 1) % 50
    return not torch.allclose(wrong()(a)[0], wrong()(b)[0], atol=1e-4) and torch.allclose(right()(a)[0], right()(b)[0], atol=1e-5)
