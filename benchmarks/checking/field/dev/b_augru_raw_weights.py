"""The attention weights that drive a recommender's AUGRU are raw scores: no softmax over the history. Source: github.com/RUCAIBox/RecBole/issues/1483"""
import torch
from torch import nn

expect = ["not-normalised"]
words = "weights of the history are bilinear scores without a softmax"


class TargetAttention(nn.Module):
    """DIEN: the target item attends to the interests of a history."""

    def __init__(self, fixed, width=24):
        super().__init__()
        self.fixed = fixed
        self.w = nn.Linear(width, width, bias=False)

    def forward(self, target, interests, lengths):
        z = torch.bmm(interests, self.w(target).unsqueeze(2)).squeeze(2)
        valid = torch.arange(interests.shape[1])[None] < lengths[:, None]
        if self.fixed:
            a = z.masked_fill(~valid, float("-inf")).softmax(-1)
        else:
            a = z * valid
        return torch.bmm(a.unsqueeze(1), interests).squeeze(1)


def asks():
    import intently as it
    torch.manual_seed(1)
    lengths = torch.tensor([6, 4])
    return dict(inputs=dict(target=torch.randn(2, 24), interests=torch.randn(2, 6, 24), lengths=lengths),
                mask=it.padding(lengths), scale=1.0)


def _make(fixed):
    torch.manual_seed(0)
    return TargetAttention(fixed).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = dict(asks()["inputs"], interests=torch.ones(2, 6, 24))
    return not torch.allclose(wrong()(**a), torch.ones(2, 24)) and torch.allclose(right()(**a), torch.ones(2, 24), atol=1e-5)
