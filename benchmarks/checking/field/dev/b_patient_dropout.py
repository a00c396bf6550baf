"""scaled_dot_product_attention gets its dropout also in evaluation, so predictions are random. Source: github.com/OHDSI/DeepPatientLevelPrediction/pull/153"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["dropout-in-eval"]
words = "dropout_p is not set to 0 outside of training"


def asks():
    return dict(inputs=dict(x=torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(3))))


class PatientAttention(nn.Module):
    def __init__(self, width=32, heads=4, dropout=0.2, minds=False):
        super().__init__()
        self.wq, self.wk, self.wv, self.out = (nn.Linear(width, width) for _ in range(4))
        self.heads, self.dropout, self.minds = heads, dropout, minds

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        p = self.dropout if self.training or not self.minds else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        return self.out(y.transpose(1, 2).flatten(2))


def _make(minds):
    torch.manual_seed(0)
    return PatientAttention(minds=minds).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    x = asks()["inputs"]["x"]
    w, r = wrong(), right()
    return not torch.equal(w(x), w(x)) and torch.equal(r(x), r(x))


if __name__ == "__main__":
    print(proof())
