"""Beam search repeats encoder outputs sentence by sentence over the whole batch, while its hypotheses are grouped by sentence, so beams attend to the memory of other sentences. Source: github.com/jadore801120/attention-is-all-you-need-pytorch/issues/28"""
import torch
import torch.nn as nn

expect = ["batch-mixed", "cache-rows-exchanged", "mask-of-other-rows"]
words = "cross-attention of a hypothesis reads the memory and the mask of another row of the batch"


class Heads(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.fc = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, q, k, v, mask):
        b, t, c = q.shape
        q, k, v = (f(x).view(b, -1, self.heads, c // self.heads).transpose(1, 2) for f, x in ((self.wq, q), (self.wk, k), (self.wv, v)))
        z = (q / q.shape[-1] ** 0.5 @ k.transpose(2, 3)).masked_fill(mask, float("-inf"))
        return self.fc((z.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class Transformer(nn.Module):
    def __init__(self, words=30, width=32, heads=4):
        super().__init__()
        self.src, self.tgt = nn.Embedding(words, width, padding_idx=0), nn.Embedding(words, width)
        self.place = nn.Embedding(32, width)
        self.enc, self.own, self.cross = Heads(width, heads), Heads(width, heads), Heads(width, heads)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.out = nn.Linear(width, words)

    def encode(self, seq):
        x = self.src(seq) + self.place(torch.arange(seq.shape[1]))
        return self.norms[0](x + self.enc(x, x, x, seq.eq(0)[:, None, None]))

    def decode(self, seq, memory, source):
        t = seq.shape[1]
        y = self.tgt(seq) + self.place(torch.arange(t))
        y = self.norms[1](y + self.own(y, y, y, torch.ones(t, t, dtype=torch.bool).triu(1)))
        y = self.norms[2](y + self.cross(y, memory, memory, source.eq(0)[:, None, None]))
        return self.out(y)


class BeamStep(nn.Module):
    """Scores of the next word for all hypotheses, (batch, beam, words)."""

    def __init__(self, grouped):
        super().__init__()
        self.grouped, self.model = grouped, Transformer()

    def forward(self, source, hypotheses):               # (b, s), (b, beam, t)
        b, n, t = hypotheses.shape
        memory = self.model.encode(source)
        if self.grouped:
            source, memory = source.repeat_interleave(n, 0), memory.repeat_interleave(n, 0)
        else:
            source, memory = source.repeat(n, 1), memory.repeat(n, 1, 1)
        y = self.model.decode(hypotheses.view(b * n, t), memory, source)
        return y[:, -1].log_softmax(-1).view(b, n, -1)


def build(grouped):
    torch.manual_seed(0)
    return BeamStep(grouped).eval()


def asks():
    torch.manual_seed(1)
    source = torch.randint(1, 30, (2, 7))
    source[1, 5:] = 0
    return dict(inputs=dict(source=source, hypotheses=torch.randint(1, 30, (2, 3, 4))))


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    a = asks()["inputs"]
    alone = {k: v[:1] for k, v in a.items()}
    return not torch.allclose(wrong()(**a)[:1], wrong()(**alone), atol=1e-3) and torch.allclose(right()(**a)[:1], right()(**alone), atol=1e-5)
