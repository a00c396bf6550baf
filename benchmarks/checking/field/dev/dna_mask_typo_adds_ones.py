"""The additive mask of a BERT for DNA is assigned to a misspelled name; the 0/1 mask is returned and added to the scores. Source: github.com/jerryji1993/DNABERT/issues/102"""
import math

import intently as it
import torch
from torch import nn

expect = ["mask-boolean-added", "padding-attended", "mask-too-weak"]
words = "real keys gain 1, padding gains 0, and none is hidden"


def asks():
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])
    return dict(inputs=dict(hidden_states=torch.randn(2, 7, 32), attention_mask=mask), mask=it.padding([7, 4]))


def extend_misspelled(mask, dtype):
    extended = mask[:, None, None, :]
    extened = extended.to(dtype)
    extened = (1.0 - extened) * -10000.0            # noqa: F841
    return extended


def extend(mask, dtype):
    extended = mask[:, None, None, :]
    extended = extended.to(dtype)
    extended = (1.0 - extended) * -10000.0
    return extended


class SelfAttention(nn.Module):
    def __init__(self, width, heads, extend):
        super().__init__()
        self.heads, self.size, self.extend = heads, width // heads, extend
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)

    def for_scores(self, x):
        return x.view(*x.shape[:-1], self.heads, self.size).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask):
        q, k, v = (self.for_scores(f(hidden_states)) for f in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.size)
        scores = scores + self.extend(attention_mask, scores.dtype)
        probs = self.dropout(scores.softmax(-1))
        return torch.matmul(probs, v).permute(0, 2, 1, 3).flatten(2)


def make(extend):
    torch.manual_seed(3)
    return SelfAttention(32, 4, extend).eval()


def wrong():
    return make(extend_misspelled)


def right():
    return make(extend)


def proof():
    call = asks()["inputs"]
    other = dict(call, hidden_states=call["hidden_states"].clone())
    other["hidden_states"][1, 4:] = torch.randn(3, 32)
    notices = [(m(**call) - m(**other))[1, :4].abs().max().item() for m in (wrong(), right())]
    return notices[0] > 1e-2 and notices[1] < 1e-6
