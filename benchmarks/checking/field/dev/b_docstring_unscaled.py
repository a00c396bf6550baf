"""The attention example of an exporter's docstring leaves out the division by sqrt(d_k). Source: github.com/pytorch/pytorch/pull/167632"""
import torch

expect = ["no-scale"]
words = "scores are not divided by sqrt(d_k)"


def asks():
    g = torch.Generator().manual_seed(4)
    return dict(inputs=dict(query=torch.randn(2, 2, 5, 16, generator=g), key=torch.randn(2, 2, 7, 16, generator=g), value=torch.randn(2, 2, 7, 16, generator=g)))


def _make(scaled):
    def attention(query, key, value, attn_mask=None):
        scores = torch.matmul(query, key.transpose(-2, -1))
        if scaled:
            scores = scores / query.shape[-1] ** 0.5
        if attn_mask is not None:
            scores = scores + attn_mask
        return torch.matmul(torch.softmax(scores, dim=-1), value)
    return attention


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    return (wrong()(**a) - right()(**a)).abs().max().item() > 1e-2


if __name__ == "__main__":
    print(proof())
