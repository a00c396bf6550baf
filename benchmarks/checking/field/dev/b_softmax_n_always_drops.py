"""The plain version of a softmax-n attention drops weights at inference too: it knows no training flag. Source: github.com/softmax1/Flash-Attention-Softmax-N/pull/32"""
import torch
import torch.nn.functional as F

expect = ["dropout-in-eval"]
words = "dropout of the weights acts outside training"


def softmax_n(z, n):
    if n == 0:
        return z.softmax(-1)
    top = z.max(-1, keepdim=True).values.clamp(min=0)
    p = torch.exp(z - top)
    return p / (p.sum(-1, keepdim=True) + n * torch.exp(-top))


def slow(q, k, v, n, rate, train):
    z = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    return torch.dropout(softmax_n(z, n), rate, train) @ v


def asks():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 7, 16)
    return dict(inputs=dict(q=q, k=k, v=v))


def wrong():
    def slow_attention(q, k, v, n=0.0, rate=0.2):
        return slow(q, k, v, n, rate, train=True)

    return slow_attention


def right():
    def slow_attention(q, k, v, n=0.0, rate=0.2, train=False):
        return slow(q, k, v, n, rate, train)

    return slow_attention


def proof():
    i = asks()["inputs"]
    bad, good = wrong(), right()
    ref = F.scaled_dot_product_attention(**{"query": i["q"], "key": i["k"], "value": i["v"]})
    return bool((bad(**i) - bad(**i)).abs().max() > 1e-2) and bool((good(**i) - ref).abs().max() < 1e-5)
