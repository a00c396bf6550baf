"""The quantizable multi-head attention with batch_first=True views its result (batch * heads, time, d) straight as (batch, time, width), so numbers of several positions are joined. Source: github.com/pytorch/pytorch/issues/67651"""
import torch
import torch.nn as nn

expect = ["merged-by-reshape"]
words = "heads are merged by a view without moving them behind time"


class FloatFunctionalAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, mended, batch_first=True):
        super().__init__()
        self.embed_dim, self.num_heads, self.batch_first, self.mended = embed_dim, num_heads, batch_first, mended
        self.head_dim = embed_dim // num_heads
        self.linear_Q, self.linear_K, self.linear_V = (nn.Linear(embed_dim, embed_dim) for _ in range(3))
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = 0.1

    def forward(self, query, key, value):
        if self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        steps, bsz, _ = query.shape
        q = self.linear_Q(query) * self.head_dim ** -0.5
        k, v = self.linear_K(key), self.linear_V(value)
        q = q.contiguous().view(steps, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = k.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = v.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        w = torch.bmm(q, k.transpose(1, 2)).softmax(-1)
        w = nn.functional.dropout(w, self.dropout, self.training)
        y = torch.bmm(w, v)
        if self.batch_first and not self.mended:
            y = y.view(bsz, steps, self.embed_dim)
        else:
            y = y.transpose(0, 1).contiguous().view(steps, bsz, self.embed_dim)
            if self.batch_first:
                y = y.transpose(0, 1)
        y = self.out_proj(y)
        w = w.view(bsz, self.num_heads, steps, -1).mean(1)
        return y, w


def build(mended):
    torch.manual_seed(0)
    return FloatFunctionalAttention(32, 4, mended).eval()


def asks():
    torch.manual_seed(1)
    x = torch.randn(2, 6, 32)
    return dict(inputs=dict(query=x, key=x, value=x))


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    x = torch.randn(2, 6, 32)
    m = right()
    ref = nn.MultiheadAttention(32, 4, batch_first=True)
    ref.in_proj_weight.data = torch.cat([m.linear_Q.weight, m.linear_K.weight, m.linear_V.weight]).data
    ref.in_proj_bias.data = torch.cat([m.linear_Q.bias, m.linear_K.bias, m.linear_V.bias]).data
    ref.out_proj.load_state_dict(m.out_proj.state_dict())
    y = ref.eval()(x, x, x)[0]
    return torch.allclose(m(x, x, x)[0], y, atol=1e-5) and not torch.allclose(wrong()(x, x, x)[0], y, atol=1e-3)
