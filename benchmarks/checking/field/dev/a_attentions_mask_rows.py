"""Multi-head attention folds projections as (heads * batch, time, d) and its mask as (batch * heads, ...), so rows of the batch get the masks of other rows. Source: github.com/sooftware/attentions/issues/4"""
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["mask-of-other-rows"]
words = "heads come before the batch in the scores and after it in the mask"


class Scaled(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.root = d ** 0.5

    def forward(self, q, k, v, mask=None):
        score = torch.bmm(q, k.transpose(1, 2)) / self.root
        if mask is not None:
            score = score.masked_fill(mask.reshape(score.size()), float("-inf"))
        w = F.softmax(score, -1)
        return torch.bmm(w, v), w


class MultiHead(nn.Module):
    def __init__(self, mended, width=32, heads=4):
        super().__init__()
        self.mended, self.heads, self.d = mended, heads, width // heads
        self.scaled = Scaled(self.d)
        self.query_proj, self.key_proj, self.value_proj = (nn.Linear(width, width) for _ in range(3))

    def fold(self, x):
        x = x.view(x.size(0), -1, self.heads, self.d).permute(2, 0, 1, 3)
        return x.contiguous().view(-1, x.size(2), self.d)

    def forward(self, query, key, value, mask=None):     # mask (b, t, s), True is hidden
        b = value.size(0)
        q, k, v = self.fold(self.query_proj(query)), self.fold(self.key_proj(key)), self.fold(self.value_proj(value))
        if mask is not None:
            mask = mask.repeat(self.heads, 1, 1) if self.mended else mask.unsqueeze(1).repeat(1, self.heads, 1, 1)
        y, w = self.scaled(q, k, v, mask)
        y = y.view(self.heads, b, -1, self.d).permute(1, 2, 0, 3)
        return y.contiguous().view(b, -1, self.heads * self.d), w


def build(mended):
    torch.manual_seed(0)
    return MultiHead(mended).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    lengths = torch.tensor([7, 3])
    mask = (torch.arange(7) >= lengths[:, None])[:, None].expand(2, 5, 7)
    m = torch.randn(2, 7, 32)
    return dict(inputs=dict(query=torch.randn(2, 5, 32), key=m, value=m, mask=mask), mask=it.padding([7, 3]))


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    a = asks()["inputs"]
    alone = dict(query=a["query"][1:], key=a["key"][1:, :3], value=a["value"][1:, :3])
    return not torch.allclose(wrong()(**a)[0][1:], wrong()(**alone)[0], atol=1e-4) and torch.allclose(right()(**a)[0][1:], right()(**alone)[0], atol=1e-5)
