"""A change to a speech synthesiser moved dropout from the attention weights to the logits before the softmax, and was reverted. Source: github.com/PaddlePaddle/Parakeet/pull/76"""
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["dropout-before-softmax"]
words = "dropout acts on scores, before the softmax"


def attend(q, k, v, mask=None, dropout=0.0, training=True, early=False):
    z = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if mask is not None:
        z = z + (1.0 - mask) * -1e9
    if early:
        w = F.softmax(F.dropout(z, dropout, training), -1)
    else:
        w = F.dropout(F.softmax(z, -1), dropout, training)
    return w @ v, w


class MultiheadAttention(nn.Module):
    def __init__(self, width, heads, early, p=0.2):
        super().__init__()
        self.heads, self.early, self.p = heads, early, p
        self.affine_q, self.affine_k, self.affine_v, self.affine_o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, q, k, v, mask=None):
        b, t, c = q.shape
        q, k, v = (f(a).view(b, a.shape[1], self.heads, -1).transpose(1, 2)
                   for f, a in ((self.affine_q, q), (self.affine_k, k), (self.affine_v, v)))
        if mask is not None:
            mask = mask[:, None]
        y, w = attend(q, k, v, mask, self.p, self.training, self.early)
        return self.affine_o(y.transpose(1, 2).reshape(b, t, c)), w


def build(early):
    torch.manual_seed(0)
    return MultiheadAttention(32, 4, early).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    x, m = torch.randn(2, 5, 32), torch.randn(2, 7, 32)
    mask = (torch.arange(7) < torch.tensor([7, 5])[:, None]).float()[:, None]
    return dict(inputs=dict(q=x, k=m, v=m, mask=mask), mask=it.padding([7, 5]))


def wrong():
    return build(True)


def right():
    return build(False)


def proof():
    a = asks()["inputs"]
    w = wrong().train()(**a)[1]
    r = right().train()(**a)[1]
    return bool((w.sum(-1) - 1).abs().max() < 1e-5 and (r == 0).float().mean() > 0.2)
