"""The attention of an LSTM translator runs its softmax over all source steps: a mask of the batch is computed and reaches nobody. Source: github.com/MaximumEntropy/Seq2Seq-PyTorch/issues/6"""
import intently as it
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

expect = ["padding-attended", "mask-missing"]
words = "steps after the end of a source sentence take a part of every row of weights"


class ProjectedDot(nn.Module):
    def __init__(self, width, mended):
        super().__init__()
        self.mended = mended
        self.into = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(2 * width, width, bias=False)

    def forward(self, state, source, real):
        target = self.into(state).unsqueeze(2)
        scores = torch.bmm(source, target).squeeze(2)
        if self.mended:
            scores = scores.masked_fill(~real, float("-inf"))
        weights = scores.softmax(1)
        context = torch.bmm(weights.unsqueeze(1), source).squeeze(1)
        return torch.tanh(self.out(torch.cat([context, state], 1)))


class AttentiveLSTM(nn.Module):
    def __init__(self, size, width, mended):
        super().__init__()
        self.cell = nn.LSTMCell(size, width)
        self.attention = ProjectedDot(width, mended)

    def forward(self, x, h, c, source, real):
        out = []
        for step in x.unbind(1):
            h, c = self.cell(step, (h, c))
            h = self.attention(h, source, real)
            out.append(h)
        return torch.stack(out, 1)


class Translator(nn.Module):
    def __init__(self, mended, words=30, size=16, width=24):
        super().__init__()
        self.src, self.trg = nn.Embedding(words, size, padding_idx=0), nn.Embedding(words, size, padding_idx=0)
        self.encoder = nn.LSTM(size, width // 2, bidirectional=True, batch_first=True)
        self.bridge = nn.Linear(width, width)
        self.decoder = AttentiveLSTM(size, width, mended)
        self.vocabulary = nn.Linear(width, words)

    def forward(self, input_src, input_trg, src_lengths):
        packed = pack_padded_sequence(self.src(input_src), src_lengths, batch_first=True)
        packed, (h, c) = self.encoder(packed)
        source, _ = pad_packed_sequence(packed, batch_first=True)
        h, c = torch.cat([h[-1], h[-2]], 1), torch.cat([c[-1], c[-2]], 1)
        real = torch.arange(source.shape[1])[None] < torch.as_tensor(src_lengths)[:, None]
        y = self.decoder(self.trg(input_trg), torch.tanh(self.bridge(h)), c, source, real)
        return self.vocabulary(y)


def build(mended):
    torch.manual_seed(0)
    return Translator(mended).eval()


def asks():
    torch.manual_seed(1)
    src = torch.randint(1, 30, (2, 7))
    src[1, 4:] = 0
    return dict(inputs=dict(input_src=src, input_trg=torch.randint(1, 30, (2, 5)), src_lengths=[7, 4]), mask=it.padding([7, 4]), scale=1.0)


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    x = asks()["inputs"]
    one = dict(input_src=x["input_src"][1:, :4], input_trg=x["input_trg"][1:], src_lengths=[4])
    return not torch.allclose(wrong()(**x)[1:], wrong()(**one), atol=1e-5) and torch.allclose(right()(**x)[1:], right()(**one), atol=1e-6)
