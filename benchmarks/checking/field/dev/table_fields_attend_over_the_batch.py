"""A transformer for tables embeds the fields of its rows by an encoder that expects the batch on the second axis and gets it on the first. Source: github.com/IBM/TabFormer/pull/14"""
import torch
import torch.nn as nn

expect = ["batch-and-sequence-exchanged", "batch-mixed"]
words = "fields attend to the same field of other rows of the batch"


class FieldEmbedding(nn.Module):
    def __init__(self, mended, fields=3, words=30, width=16, out=32):
        super().__init__()
        self.mended = mended
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, nhead=2, dim_feedforward=width, dropout=0.1)
        self.encoder = nn.TransformerEncoder(layer, num_layers=1, enable_nested_tensor=False)
        self.join = nn.Linear(width * fields, out)

    def forward(self, ids):
        x = self.words(ids)
        b, rows, fields, c = x.shape
        x = x.view(b, rows * fields, c)
        if self.mended:
            x = self.encoder(x.transpose(0, 1)).transpose(0, 1).contiguous()
        else:
            x = self.encoder(x)
        return self.join(x.view(b, rows, fields * c))


class TableBert(nn.Module):
    def __init__(self, mended):
        super().__init__()
        self.fields = FieldEmbedding(mended)
        self.place = nn.Embedding(8, 32)
        layer = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, dropout=0.1, batch_first=True)
        self.rows = nn.TransformerEncoder(layer, num_layers=1, enable_nested_tensor=False)
        self.fraud = nn.Linear(32, 1)

    def forward(self, ids):
        x = self.fields(ids) + self.place(torch.arange(ids.shape[1]))
        return self.fraud(self.rows(x)).squeeze(-1)


def build(mended):
    torch.manual_seed(0)
    return TableBert(mended).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(ids=torch.randint(0, 30, (2, 4, 3))))


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    ids = asks()["inputs"]["ids"]
    mixed = not torch.allclose(wrong()(ids)[:1], wrong()(ids[:1]), atol=1e-5)
    return mixed and torch.allclose(right()(ids)[:1], right()(ids[:1]), atol=1e-5)
