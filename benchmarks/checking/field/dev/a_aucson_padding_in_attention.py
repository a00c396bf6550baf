"""A batched seq2seq decoder with Bahdanau attention normalises over all encoder steps and never masks the padded ones. Source: github.com/AuCson/PyTorch-Batch-Attention-Seq2seq/issues/10"""
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["padding-attended"]
words = "no mask in the softmax over source steps: padding gets weight"


class Scorer(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.attn = nn.Linear(2 * hidden, hidden)
        self.v = nn.Parameter(torch.randn(hidden) * hidden ** -0.5)

    def forward(self, state, memory, lengths=None):      # state (b, h), memory (s, b, h)
        memory = memory.transpose(0, 1)
        state = state[:, None].expand(-1, memory.size(1), -1)
        energy = torch.tanh(self.attn(torch.cat((state, memory), 2))) @ self.v
        if lengths is not None:
            energy = energy.masked_fill(torch.arange(energy.size(1)) >= lengths[:, None], float("-inf"))
        return F.softmax(energy, dim=1)[:, None]


class Seq2Seq(nn.Module):
    def __init__(self, masked, words=30, hidden=32):
        super().__init__()
        self.masked = masked
        self.src, self.tgt = nn.Embedding(words, hidden, padding_idx=0), nn.Embedding(words, hidden, padding_idx=0)
        self.encoder = nn.GRU(hidden, hidden, bidirectional=True)
        self.scorer = Scorer(hidden)
        self.decoder = nn.GRU(2 * hidden, hidden)
        self.out = nn.Linear(2 * hidden, words)

    def forward(self, source, lengths, target):          # (s, b), (b,), (t, b)
        packed = nn.utils.rnn.pack_padded_sequence(self.src(source), lengths, enforce_sorted=False)
        both, state = self.encoder(packed)
        both, _ = nn.utils.rnn.pad_packed_sequence(both, total_length=source.size(0))
        half = both.size(2) // 2
        memory = both[..., :half] + both[..., half:]
        state = state[:1]
        steps = []
        for word in target:
            w = self.scorer(state[-1], memory, lengths if self.masked else None)
            context = w.bmm(memory.transpose(0, 1)).transpose(0, 1)
            y, state = self.decoder(torch.cat((self.tgt(word)[None], context), 2), state)
            steps.append(self.out(torch.cat((y, context), 2)))
        return torch.cat(steps)


def build(masked):
    torch.manual_seed(0)
    return Seq2Seq(masked).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    source = torch.randint(1, 30, (7, 2))
    source[4:, 1] = 0
    return dict(inputs=dict(source=source, lengths=torch.tensor([7, 4]), target=torch.randint(1, 30, (5, 2))),
                mask=it.padding([7, 4]), layout="t b")


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    a = asks()["inputs"]
    short = dict(a, source=a["source"][:4, 1:], lengths=a["lengths"][1:], target=a["target"][:, 1:])
    return not torch.allclose(wrong()(**a)[:, 1:], wrong()(**short), atol=1e-4) and torch.allclose(right()(**a)[:, 1:], right()(**short), atol=1e-5)
