"""Padding gets the score -1e-7, which is zero, where -1e7 was meant. Source: github.com/NTMC-Community/MatchZoo-py/issues/163"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["mask-too-weak", "padding-attended"]
words = "padded words keep the weight of a score of zero"


class BothWays(nn.Module):
    """ESIM: each word of one text is compared with the words of the other; masks are 1 at padding."""

    hidden = -1e-7

    def forward(self, v1, v1_mask, v2, v2_mask):
        similarity = v1.bmm(v2.transpose(2, 1).contiguous())
        to_2 = F.softmax(similarity.masked_fill(v2_mask.unsqueeze(1).bool(), self.hidden), dim=2)
        to_1 = F.softmax(similarity.masked_fill(v1_mask.unsqueeze(2).bool(), self.hidden), dim=1)
        attended_1 = to_2.bmm(v2)
        attended_2 = to_1.transpose(1, 2).bmm(v1)
        attended_1 = attended_1.masked_fill(v1_mask.unsqueeze(2).bool(), 0)
        attended_2 = attended_2.masked_fill(v2_mask.unsqueeze(2).bool(), 0)
        return attended_1, attended_2


class Mended(BothWays):
    hidden = -1e7


def asks():
    import intently as it

    torch.manual_seed(1)
    pads = torch.tensor([[0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1]])
    x = dict(v1=torch.randn(2, 7, 16), v1_mask=pads, v2=torch.randn(2, 7, 16), v2_mask=pads.clone())
    return dict(inputs=x, mask=it.padding(pads == 0), scale=1.0)


def wrong():
    return BothWays().eval()


def right():
    return Mended().eval()


def proof():
    x = asks()["inputs"]
    return not torch.allclose(wrong()(**x)[0], right()(**x)[0], atol=1e-3)
