"""The energy of each head is divided by the root of the embedding size. Source: github.com/aladdinpersson/Machine-Learning-Collection/issues/65"""
import torch
import torch.nn as nn

expect = ["scale-model-width"]
words = "scores are divided by sqrt(embed_size) where it should be sqrt(head_dim)"


class HeadedAttention(nn.Module):
    def __init__(self, by_embed, embed=64, heads=4):
        super().__init__()
        self.heads, self.depth = heads, embed // heads
        self.root = (embed if by_embed else self.depth) ** 0.5
        self.project_values = nn.Linear(embed, embed)
        self.project_keys = nn.Linear(embed, embed)
        self.project_queries = nn.Linear(embed, embed)
        self.join = nn.Linear(embed, embed)

    def forward(self, values, keys, queries, seen=None):
        b, t, c = queries.shape

        def part(x):
            return x.reshape(b, x.shape[1], self.heads, self.depth)

        values = part(self.project_values(values))
        keys = part(self.project_keys(keys))
        queries = part(self.project_queries(queries))
        energy = torch.einsum("bqhd,bkhd->bhqk", queries, keys)
        if seen is not None:
            energy = energy.masked_fill(seen == 0, float("-inf"))
        share = torch.softmax(energy / self.root, dim=3)
        return self.join(torch.einsum("bhqk,bkhd->bqhd", share, values).reshape(b, t, c))


def asks():
    torch.manual_seed(1)
    source = torch.randn(2, 8, 64)
    return dict(inputs=dict(values=source, keys=source, queries=torch.randn(2, 5, 64)))


def make(flag):
    torch.manual_seed(0)
    return HeadedAttention(flag).eval()


def wrong():
    return make(True)


def right():
    return make(False)


def proof():
    i = asks()["inputs"]
    return bool((wrong()(**i) - right()(**i)).abs().max() > 1e-2)
