"""Cross-attention adds a relative position bias between decoder and encoder positions, which the original T5 has not. Source: github.com/huggingface/transformers/pull/8518"""
import math
import torch
from torch import nn
import intently as it

expect = ["bias-other"]
words = "a bias by distance is added to the scores of cross-attention, where none belongs"


class CrossAttention(nn.Module):
    def __init__(self, dim=32, heads=4, buckets=8, relative=False):
        super().__init__()
        self.heads, self.buckets, self.relative = heads, buckets, relative
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.relative_attention_bias = nn.Embedding(buckets, heads) if relative else None

    def compute_bias(self, t, s, far=16):
        ahead = torch.arange(s)[None] - torch.arange(t)[:, None]
        n = self.buckets // 2
        side, ahead = (ahead > 0).long() * n, ahead.abs()
        exact = n // 2
        log = exact + (torch.log(ahead.clamp(min=1) / exact) / math.log(far / exact) * (n - exact)).long()
        bucket = side + torch.where(ahead < exact, ahead, log.clamp(max=n - 1))
        return self.relative_attention_bias(bucket).permute(2, 0, 1)[None]

    def forward(self, hidden_states, encoder_states, encoder_mask):
        cut = lambda x: x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q, k, v = cut(self.q(hidden_states)), cut(self.k(encoder_states)), cut(self.v(encoder_states))
        scores = torch.matmul(q, k.transpose(3, 2))
        if self.relative:
            scores = scores + self.compute_bias(q.shape[2], k.shape[2])
        scores = scores.masked_fill(~encoder_mask[:, None, None], torch.finfo(scores.dtype).min)
        y = torch.matmul(scores.softmax(-1), v)
        return self.o(y.transpose(1, 2).flatten(2))


def original(model):
    """The original model, without a bias in cross-attention, one head at a time."""
    def run(hidden_states, encoder_states, encoder_mask):
        heads = []
        for q, k, v in zip(*(f(x).chunk(model.heads, -1) for f, x in (
                (model.q, hidden_states), (model.k, encoder_states), (model.v, encoder_states)))):
            z = (q @ k.mT).masked_fill(~encoder_mask[:, None], float("-inf"))
            heads.append(z.softmax(-1) @ v)
        return model.o(torch.cat(heads, -1))
    return run


LENGTHS = [7, 5]


def build(relative):
    torch.manual_seed(1)
    return CrossAttention(relative=relative).eval()


def asks():
    torch.manual_seed(0)
    inputs = dict(hidden_states=torch.randn(2, 5, 32), encoder_states=torch.randn(2, 7, 32),
                  encoder_mask=torch.arange(7)[None] < torch.tensor(LENGTHS)[:, None])
    return dict(inputs=inputs, mask=it.padding(LENGTHS), scale=1.0, like=original(build(False)))


def wrong():
    return build(True)


def right():
    return build(False)


def proof():
    a = asks()
    gap = lambda f: (f(**a["inputs"]) - a["like"](**a["inputs"])).abs().max().item()
    return gap(wrong()) > 1e-2 and gap(right()) < 1e-5
