"""Scores are products of queries and values, the keys are never used. Source: github.com/Genentech/ARGMINN/issues/1"""
import torch
from torch import nn

expect = ["values-are-keys", "projections-exchanged", "projection-other", "differs-from-reference"]
words = "query @ value in place of query @ key, so values serve as keys too"


def asks():
    return dict(inputs=dict(x=torch.randn(2, 8, 24, generator=torch.Generator().manual_seed(1))), like=right())


class MotifAttention(nn.Module):
    def __init__(self, width=24, d=24, by="value"):
        super().__init__()
        self.query_map, self.key_map, self.value_map = (nn.Linear(width, d) for _ in range(3))
        self.by, self.d = by, d

    def forward(self, x):
        found = dict(query=self.query_map(x), key=self.key_map(x), value=self.value_map(x))
        scores = torch.matmul(found["query"], found[self.by].transpose(1, 2)) / self.d ** 0.5
        return torch.matmul(torch.softmax(scores, dim=2), found["value"])


def _make(by):
    torch.manual_seed(0)
    return MotifAttention(by=by).eval()


def wrong():
    return _make("value")


def right():
    return _make("key")


def proof():
    a = asks()["inputs"]
    return (wrong()(**a) - right()(**a)).abs().max().item() > 1e-2


if __name__ == "__main__":
    print(proof())
