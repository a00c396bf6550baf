"""The alignment between a degraded and a clean recording fills padded frames with -inf after the softmax was taken. Source: github.com/gabrielmittag/NISQA/issues/17"""
import torch
from torch import nn
import intently as it

expect = ["mask-after-softmax", "nan-with-keys"]
words = "weights, not scores, are set to -inf, so the weighted sum is infinite or NaN"


def asks():
    torch.manual_seed(3)
    return dict(inputs=dict(degraded=torch.randn(2, 6, 24), clean=torch.randn(2, 8, 24), clean_lengths=torch.tensor([8, 5])),
                mask=it.padding([8, 5]), scale=1.0)


class Alignment(nn.Module):
    """Soft alignment with general (Luong) scores, without a scale."""

    def __init__(self, width=24):
        super().__init__()
        self.compare = nn.Linear(width, width, bias=False)

    def forward(self, degraded, clean, clean_lengths):
        score = torch.bmm(self.compare(degraded), clean.transpose(1, 2))
        real = torch.arange(clean.shape[1])[None, None] < clean_lengths[:, None, None]
        share = torch.softmax(score, 2)
        share = share.masked_fill(~real, float("-inf"))
        return torch.bmm(share, clean)


class AlignmentMended(Alignment):
    def forward(self, degraded, clean, clean_lengths):
        score = torch.bmm(self.compare(degraded), clean.transpose(1, 2))
        real = torch.arange(clean.shape[1])[None, None] < clean_lengths[:, None, None]
        share = torch.softmax(score.masked_fill(~real, float("-inf")), 2)
        return torch.bmm(share, clean)


def wrong():
    torch.manual_seed(0)
    return Alignment().eval()


def right():
    torch.manual_seed(0)
    return AlignmentMended().eval()


def proof():
    x = asks()["inputs"]
    return bool(not wrong()(**x).isfinite().all() and right()(**x).isfinite().all())
