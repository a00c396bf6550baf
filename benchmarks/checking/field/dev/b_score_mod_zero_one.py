"""A flex_attention score_mod adds the 0/1 mask of keys to the scores. Source: github.com/HKUSTDial/flash-sparse-attention/issues/146"""
import torch
from torch import nn

expect = ["mask-boolean-added"]
words = "score + mask with mask in {0, 1}: nothing is hidden, allowed keys gain a factor e"


def _scored(q, k, v, score_mod, scale):
    """flex_attention's rule, written out: every score passes score_mod(score, b, h, i, j)."""
    z = q @ k.transpose(-2, -1) * scale
    at = torch.meshgrid(*(torch.arange(n) for n in z.shape), indexing="ij")
    return score_mod(z, *at).softmax(-1) @ v


class DynamicMaskAttention(nn.Module):
    def __init__(self, fixed, width=32, heads=4):
        super().__init__()
        self.fixed, self.heads = fixed, heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, hidden_states, attention_mask):
        b, t, c = hidden_states.shape
        q, k, v = (p(hidden_states).view(b, t, self.heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))

        def add(score, row, head, i, j):
            if self.fixed:
                return torch.where(attention_mask[row, i, j], score, float("-inf"))
            return score + attention_mask.to(score.dtype)[row, i, j]
        y = _scored(q, k, v, add, q.shape[-1] ** -0.5)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, c))


def asks():
    import intently as it
    torch.manual_seed(1)
    allowed = torch.ones(6, 6, dtype=torch.bool).tril().expand(2, 6, 6)
    return dict(inputs=dict(hidden_states=torch.randn(2, 6, 32), attention_mask=allowed), mask=it.causal())


def _make(fixed):
    torch.manual_seed(0)
    return DynamicMaskAttention(fixed).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    other = dict(a, hidden_states=a["hidden_states"].clone())
    other["hidden_states"][:, 5] += 1
    moved = [not torch.allclose(m(**a)[:, :5], m(**other)[:, :5], atol=1e-6) for m in (wrong(), right())]
    return moved == [True, False]
