"""The example of an article about KV caches multiplies queries and keys and forgets the division by the root of d. Source: github.com/huggingface/blog/pull/2893"""
import math
import torch

expect = ["no-scale"]
words = "scores are not divided by sqrt(d), though the formula above the code divides them"


def causal_weights(scores):
    length, total = scores.shape[-2:]
    seen = torch.tril(torch.ones(length, total, dtype=torch.bool), diagonal=total - length)
    return torch.softmax(scores.masked_fill(seen.logical_not(), float("-inf")), dim=-1)


def attend_with_cache(query, key, value, cached_key=None, cached_value=None):
    """One query block against everything cached so far; returns the output and the grown cache."""
    if cached_key is not None:
        key = torch.cat((cached_key, key), dim=-2)
        value = torch.cat((cached_value, value), dim=-2)
    scores = torch.matmul(query, key.mT)
    return torch.matmul(causal_weights(scores), value), key, value


def attend_with_cache_scaled(query, key, value, cached_key=None, cached_value=None):
    if cached_key is not None:
        key = torch.cat((cached_key, key), dim=-2)
        value = torch.cat((cached_value, value), dim=-2)
    scores = torch.matmul(query, key.mT) / math.sqrt(key.shape[-1])
    return torch.matmul(causal_weights(scores), value), key, value


def asks():
    import intently as it
    q, k, v = (torch.randn(2, 7, 16) for _ in range(3))
    return dict(inputs=dict(query=q, key=k, value=v), mask=it.causal())


def wrong():
    return attend_with_cache


def right():
    return attend_with_cache_scaled


def proof():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 7, 16) for _ in range(3))
    return not torch.allclose(wrong()(q, k, v)[0], right()(q, k, v)[0], atol=1e-3)


if __name__ == "__main__":
    print(proof())
