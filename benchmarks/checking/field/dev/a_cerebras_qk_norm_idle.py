"""Multi-head attention builds norms for queries and keys when configured and never calls them. Source: github.com/Cerebras/modelzoo/pull/85"""
import torch
import torch.nn as nn

expect = ["differs-from-reference", "scores-other", "projection-other"]
words = "queries and keys are not normalised although q_norm and k_norm exist"


class MultiheadAttention(nn.Module):
    def __init__(self, width, heads, apply):
        super().__init__()
        self.heads, self.apply_norm = heads, apply
        self.proj_q_dense_layer, self.proj_k_dense_layer, self.proj_v_dense_layer, self.proj_output_dense_layer = (nn.Linear(width, width) for _ in range(4))
        self.q_norm, self.k_norm = nn.LayerNorm(width // heads), nn.LayerNorm(width // heads)

    def process_q_before_logits(self, q):
        return self.q_norm(q) if self.apply_norm else q

    def process_k_before_logits(self, k):
        return self.k_norm(k) if self.apply_norm else k

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, q, k, v, attn_mask=None):
        q, k, v = self.split(self.proj_q_dense_layer(q)), self.split(self.proj_k_dense_layer(k)), self.split(self.proj_v_dense_layer(v))
        q, k = self.process_q_before_logits(q), self.process_k_before_logits(k)
        logits = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2))
        if attn_mask is not None:
            logits = logits + attn_mask
        y = torch.matmul(logits.softmax(-1), v).transpose(1, 2)
        return self.proj_output_dense_layer(y.reshape(y.shape[0], y.shape[1], -1))


class Encoder(nn.Module):
    def __init__(self, apply, width=32, heads=4, depth=2):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(torch.randn(1, 9, width) * 0.02)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.attn = nn.ModuleList(MultiheadAttention(width, heads, apply) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, pixels):
        x = self.patch(pixels).flatten(2).transpose(1, 2) + self.places
        for norm, attn in zip(self.norms, self.attn):
            n = norm(x)
            x = x + attn(n, n, n)
        return self.head(x.mean(1))


def build(apply):
    torch.manual_seed(0)
    return Encoder(apply).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(pixels=torch.randn(2, 3, 12, 12)), like=right())


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    a = asks()["inputs"]
    return not torch.allclose(wrong()(**a), right()(**a), atol=1e-4)
