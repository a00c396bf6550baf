"""Masked scores are filled with minus a tiny epsilon, 1e-12, instead of minus infinity. Source: github.com/hyunwoongko/transformer/issues/10"""
import math
import torch
import torch.nn as nn
import intently as it

expect = ["mask-too-weak", "mask-missing", "mask-other"]
words = "hidden scores become about 0, so hidden keys keep weight"


class DotProduct(nn.Module):
    def __init__(self, fill):
        super().__init__()
        self.fill = fill
        self.normalise = nn.Softmax(dim=-1)

    def forward(self, q, k, v, mask=None):
        score = q @ k.transpose(2, 3) / math.sqrt(k.shape[-1])
        if mask is not None:
            score = score.masked_fill(mask == 0, self.fill)
        return self.normalise(score) @ v


def asks():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 6, 16)
    return dict(inputs=dict(q=q, k=k, v=v, mask=torch.tril(torch.ones(6, 6))), mask=it.causal())


def wrong():
    return DotProduct(-1e-12).eval()


def right():
    return DotProduct(-math.inf).eval()


def proof():
    i = asks()["inputs"]
    j = dict(i, v=i["v"].clone())
    j["v"][:, :, -1] += 3
    leak = (wrong()(**i) - wrong()(**j))[:, :, :-1].abs().max() > 1e-2
    return bool(leak) and bool((right()(**i) - right()(**j))[:, :, :-1].abs().max() == 0)
