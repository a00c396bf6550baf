"""Multi-head attention of a tutorial multiplies queries and keys without any scale. Source: github.com/ethen8181/machine-learning/issues/13"""
import torch
from torch import nn
import intently as it

expect = ["no-scale"]
words = "scores are not divided by sqrt(d)"


class TutorialHeads(nn.Module):
    def __init__(self, width, heads, slip):
        super().__init__()
        self.heads, self.size, self.slip = heads, width // heads, slip
        self.query_weight, self.key_weight, self.value_weight, self.linear_weight = (nn.Linear(width, width) for _ in range(4))

    def forward(self, query, key, value, mask=None):
        b = query.shape[0]
        q = self.query_weight(query).view(b, -1, self.heads, self.size).permute(0, 2, 1, 3)
        k = self.key_weight(key).view(b, -1, self.heads, self.size).permute(0, 2, 3, 1)
        v = self.value_weight(value).view(b, -1, self.heads, self.size).permute(0, 2, 1, 3)
        energy = torch.matmul(q, k)
        if not self.slip:
            energy = energy / self.size ** 0.5
        if mask is not None:
            energy = energy.masked_fill(mask == 0, -1e10)
        attention = energy.softmax(dim=-1)
        output = torch.matmul(attention, v).permute(0, 2, 1, 3).reshape(b, -1, self.heads * self.size)
        return self.linear_weight(output), attention


def make(slip):
    torch.manual_seed(22)
    return TutorialHeads(32, 4, slip).eval()


def asks():
    torch.manual_seed(0)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0, 0]])
    return dict(inputs=dict(query=torch.randn(2, 5, 32), key=torch.randn(2, 7, 32), value=torch.randn(2, 7, 32), mask=mask[:, None, None]), mask=it.padding(mask.bool()))


def wrong(): return make(True)
def right(): return make(False)


def proof():
    a = asks()["inputs"]
    return not torch.allclose(wrong()(**a)[1], right()(**a)[1], atol=1e-3)
