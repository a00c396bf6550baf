"""Linear attention hides padding in the values only; the keys of padding stay in the normaliser. Source: github.com/fla-org/flash-linear-attention/issues/1263"""
import intently as it
import torch
import torch.nn.functional as F
from torch import nn

expect = ["padding-attended", "not-normalised"]
words = "outputs shrink with the padding before them: its features are in the denominator, its values are zero"


def asks():
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1]])
    return dict(inputs=dict(hidden=torch.randn(2, 7, 32), attention_mask=mask), mask=it.causal() & it.padding(mask.bool()))


class LinearAttention(nn.Module):
    """Causal, elu + 1, divided by the running sum of features. Texts are padded on the left."""

    def __init__(self, width, heads, hide_keys):
        super().__init__()
        self.heads, self.hide_keys = heads, hide_keys
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.o = nn.Linear(width, width, bias=False)

    def forward(self, hidden, attention_mask=None):
        q, k, v = (f(hidden).unflatten(-1, (self.heads, -1)) for f in (self.q, self.k, self.v))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        if attention_mask is not None:
            real = attention_mask[:, :, None, None].to(v.dtype)
            v = v * real
            if self.hide_keys:
                k = k * real
        state = torch.einsum("bthd,bthe->bthde", k, v).cumsum(1)
        y = torch.einsum("bthd,bthde->bthe", q, state)
        total = (q * k.cumsum(1)).sum(-1, keepdim=True)
        return self.o((y / (total + 1e-10)).flatten(2))


def make(hide_keys):
    torch.manual_seed(9)
    return LinearAttention(32, 2, hide_keys).eval()


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    call = asks()["inputs"]
    alone = call["hidden"][1:, 3:]
    apart = [(m(**call)[1:, 3:] - m(alone)).abs().max().item() for m in (wrong(), right())]
    return apart[0] > 1e-2 and apart[1] < 1e-5
