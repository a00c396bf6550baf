"""The dot attention of an LSTM translator gets no source lengths and attends to padding while decoding. Source: github.com/pytorch/translate/pull/226"""
import torch
import torch.nn as nn
import torch.nn.functional as F
import intently as it

expect = ["padding-attended"]
words = "padding of shorter sources keeps weight in attention"


class DotAttention(nn.Module):
    def __init__(self, decoder, context):
        super().__init__()
        self.input_proj = nn.Linear(decoder, context, bias=False)

    def scores(self, state, hiddens, lengths):
        return torch.einsum("bd,bsd->bs", self.input_proj(state), hiddens)

    def forward(self, state, hiddens, lengths):
        w = F.softmax(self.scores(state, hiddens, lengths), dim=-1)
        return torch.einsum("bs,bsd->bd", w, hiddens), w


class DotAttentionMended(DotAttention):
    def scores(self, state, hiddens, lengths):
        z = super().scores(state, hiddens, lengths)
        return z.masked_fill(torch.arange(z.shape[1])[None] >= lengths[:, None], float("-inf"))


class Translator(nn.Module):
    def __init__(self, attention, source=31, target=27, width=16, size=20):
        super().__init__()
        self.source, self.target = nn.Embedding(source, width, padding_idx=0), nn.Embedding(target, width)
        self.encoder = nn.LSTM(width, size // 2, bidirectional=True, batch_first=True)
        self.cell = nn.LSTMCell(width + size, size)
        self.attention = attention(size, size)
        self.out = nn.Linear(2 * size, target)

    def encode(self, ids, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.source(ids), lengths, batch_first=True, enforce_sorted=False)
        hiddens, _ = self.encoder(packed)
        return nn.utils.rnn.pad_packed_sequence(hiddens, batch_first=True, total_length=ids.shape[1])[0]

    def forward(self, ids, lengths, previous):
        hiddens = self.encode(ids, lengths)
        h = c = context = hiddens.new_zeros(len(ids), hiddens.shape[-1])
        ys = []
        for token in previous.t():
            h, c = self.cell(torch.cat([self.target(token), context], -1), (h, c))
            context, _ = self.attention(h, hiddens, lengths)
            ys.append(self.out(torch.cat([h, context], -1)))
        return torch.stack(ys, 1)


def asks():
    torch.manual_seed(1)
    lengths = torch.tensor([8, 5])
    ids = torch.randint(1, 31, (2, 8)) * (torch.arange(8)[None] < lengths[:, None])
    return dict(inputs=dict(ids=ids, lengths=lengths, previous=torch.randint(1, 27, (2, 4))), mask=it.padding(lengths))


def wrong():
    torch.manual_seed(0)
    return Translator(DotAttention).eval()


def right():
    torch.manual_seed(0)
    return Translator(DotAttentionMended).eval()


def proof():
    i = asks()["inputs"]
    return not torch.allclose(wrong()(**i), right()(**i), atol=1e-5)
