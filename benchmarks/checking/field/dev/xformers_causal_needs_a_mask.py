"""An attention component that is built as causal adds its causal mask only to a mask that the caller passes. Source: github.com/facebookresearch/xformers/issues/103"""
import math
import torch
from torch import nn

expect = ["mask-missing", "mask-in-one-path", "setting-matters"]
words = "without an att_mask the causal mask is skipped"


class ScaledDot(nn.Module):
    def __init__(self, causal=False, length=None, dropout=0.0):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        band = None
        if causal:
            band = torch.full((length, length), float("-inf")).triu(1)
        self.register_buffer("band", band, persistent=False)

    def masked(self, score, att_mask):
        if att_mask is None:
            return score
        t, s = score.shape[-2:]
        if att_mask.dtype is torch.bool:
            att_mask = torch.zeros(att_mask.shape).masked_fill(~att_mask, float("-inf"))
        if self.band is not None:
            att_mask = att_mask + self.band[:t, :s]
        return score + att_mask

    def forward(self, q, k, v, att_mask=None):
        score = torch.einsum("bhid,bhjd->bhij", q / math.sqrt(q.shape[-1]), k)
        return self.drop(self.masked(score, att_mask).softmax(-1)) @ v


class ScaledDotMended(ScaledDot):
    def masked(self, score, att_mask):
        if self.band is None:
            return super().masked(score, att_mask)
        if att_mask is None:
            att_mask = torch.ones(score.shape[-2:], dtype=torch.bool)
        return super().masked(score, att_mask)


def asks():
    import intently as it
    q, k, v = (torch.randn(2, 2, 7, 16) for _ in range(3))
    return dict(inputs=dict(q=q, k=k, v=v), mask=it.causal())


def wrong():
    return ScaledDot(causal=True, length=16).eval()


def right():
    return ScaledDotMended(causal=True, length=16).eval()


def proof():
    q, k, v = (torch.randn(2, 2, 7, 16) for _ in range(3))
    allowed = torch.ones(7, 7, dtype=torch.bool)
    same = torch.allclose(wrong()(q, k, v, allowed), right()(q, k, v, allowed), atol=1e-6)
    return same and not torch.allclose(wrong()(q, k, v), right()(q, k, v), atol=1e-3)


if __name__ == "__main__":
    print(proof())
