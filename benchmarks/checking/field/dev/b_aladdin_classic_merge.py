"""Weights times values, (b, h, s, d), are reshaped to (b, s, h d) without the transpose back, beside einsum code that has it. Source: github.com/aladdinpersson/Machine-Learning-Collection/issues/165"""
import torch
import intently as it

expect = ["merged-by-reshape"]
words = "heads and positions are mixed when heads are merged"


def make(transpose_back):
    def classic_attention(q, k, v):
        """(b, s, h, d) -> (b, s, h d)"""
        b, s, h, d = q.shape
        scores = torch.matmul(q.permute(0, 2, 1, 3), k.permute(0, 2, 3, 1))
        scores = torch.softmax(scores / d ** 0.5, dim=3)
        y = torch.matmul(scores, v.permute(0, 2, 1, 3))
        if transpose_back:
            y = y.permute(0, 2, 1, 3)
        return y.reshape(b, s, h * d)

    return classic_attention


def einstein_attention(q, k, v):
    w = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5, dim=3)
    return torch.einsum("bhql,blhd->bqhd", w, v).flatten(2)


def asks():
    torch.manual_seed(0)
    x = lambda: torch.randn(2, 6, 4, 8)
    return dict(inputs=dict(q=x(), k=x(), v=x()), like=einstein_attention)


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    i = asks()["inputs"]
    gap = lambda f: (f(**i) - einstein_attention(**i)).abs().max().item()
    return gap(wrong()) > 1e-2 and gap(right()) < 1e-5
