"""A GRU translator with Luong's general score projects the decoder's states and then scores the unprojected ones, so the matrix of the score has no effect. Source: github.com/alanwang93/seq2seq-pytorch/issues/3"""
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

expect = ["projection-other", "scores-other", "differs-from-reference"]
words = "the projection inside the general score is computed and not used: scores are plain dot products, and its weight gets no gradient"


class GlobalAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear_in = nn.Linear(width, width, bias=False)
        self.linear_out = nn.Linear(2 * width, width)

    def score(self, h_t, h_s):
        return self.linear_in(h_t) @ h_s.transpose(1, 2)

    def forward(self, h_t, h_s, lengths):
        hidden = torch.arange(h_s.shape[1], device=h_s.device)[None] >= lengths[:, None]
        align = self.score(h_t, h_s).masked_fill(hidden[:, None], float("-inf")).softmax(-1)
        return torch.tanh(self.linear_out(torch.cat((align @ h_s, h_t), -1))), align


class Reported(GlobalAttention):
    def score(self, h_t, h_s):
        b, t, d = h_t.shape
        h_t = h_t.reshape(b * t, d)
        h_t_ = self.linear_in(h_t)
        h_t = h_t.view(b, t, d)
        return h_t @ h_s.transpose(1, 2)


class Translator(nn.Module):
    """Time first, as its loaders give it."""

    def __init__(self, attention, source=50, target=40, embed=20, width=32):
        super().__init__()
        self.source, self.target = nn.Embedding(source, embed, padding_idx=0), nn.Embedding(target, embed, padding_idx=0)
        self.encoder, self.decoder = nn.GRU(embed, width), nn.GRU(embed, width)
        self.attention = attention(width)
        self.logits = nn.Linear(width, target)

    def forward(self, src, src_lengths, tgt):
        packed = pack_padded_sequence(self.source(src), src_lengths.cpu(), enforce_sorted=False)
        states, last = self.encoder(packed)
        states, _ = pad_packed_sequence(states, total_length=src.shape[0])
        outputs, _ = self.decoder(self.target(tgt), last)
        mixed, align = self.attention(outputs.transpose(0, 1), states.transpose(0, 1), src_lengths)
        return self.logits(mixed), align


def asks():
    src = torch.randint(1, 50, (7, 2))
    src[5:, 1] = 0
    return dict(inputs=dict(src=src, src_lengths=torch.tensor([7, 5]), tgt=torch.randint(1, 40, (5, 2))), scale=1.0)


def _make(attention):
    torch.manual_seed(0)
    return Translator(attention).eval()


def wrong():
    return _make(Reported)


def right():
    return _make(GlobalAttention)


def proof():
    x = asks()["inputs"]
    bad, good = wrong(), right()
    bad(**x)[0].sum().backward()
    good(**x)[0].sum().backward()
    return bad.attention.linear_in.weight.grad is None and good.attention.linear_in.weight.grad is not None and not torch.allclose(bad(**x)[1], good(**x)[1], atol=1e-4)
