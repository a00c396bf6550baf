"""A Luong decoder attends to all encoder steps: lengths reach the encoder only, and the mask of the attention is never set. Source: github.com/IBM/pytorch-seq2seq/issues/141"""
import torch
from torch import nn

expect = ["padding-attended"]
words = "padded encoder steps keep weight, so a sentence depends on the longest one in its batch"


class DotAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear_out = nn.Linear(2 * width, width)
        self.mask = None

    def set_mask(self, mask):
        self.mask = mask

    def forward(self, output, context):
        attn = torch.bmm(output, context.transpose(1, 2))
        if self.mask is not None:
            attn = attn.masked_fill(self.mask, -float("inf"))
        attn = torch.softmax(attn, dim=-1)
        mix = torch.bmm(attn, context)
        return torch.tanh(self.linear_out(torch.cat((mix, output), dim=2))), attn


class Seq2Seq(nn.Module):
    def __init__(self, vocabulary=20, width=24):
        super().__init__()
        self.embed_in, self.embed_out = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.attention = DotAttention(width)
        self.out = nn.Linear(width, vocabulary)

    def prepare(self, lengths, n):
        pass

    def forward(self, source, lengths, target):
        packed = nn.utils.rnn.pack_padded_sequence(self.embed_in(source), lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, last = self.encoder(packed)
        states, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=source.shape[1])
        output, _ = self.decoder(self.embed_out(target), last)
        self.prepare(lengths, source.shape[1])
        output, _ = self.attention(output, states)
        return self.out(output)


class Mended(Seq2Seq):
    def prepare(self, lengths, n):
        self.attention.set_mask((torch.arange(n) >= lengths[:, None])[:, None, :])


def asks():
    import intently as it

    torch.manual_seed(1)
    lengths = torch.tensor([8, 5])
    source = torch.randint(1, 20, (2, 8))
    source[1, 5:] = 0
    x = dict(source=source, lengths=lengths, target=torch.randint(1, 20, (2, 6)))
    return dict(inputs=x, mask=it.padding(lengths), scale=1.0)


def wrong():
    torch.manual_seed(0)
    return Seq2Seq().eval()


def right():
    torch.manual_seed(0)
    return Mended().eval()


def proof():
    x = asks()["inputs"]
    a, b = wrong()(**x), right()(**x)
    return torch.allclose(a[0], b[0]) and not torch.allclose(a[1], b[1], atol=1e-3)
