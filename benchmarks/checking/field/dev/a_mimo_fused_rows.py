"""A loader takes the rows of a fused projection for interleaved by rank (q, k, v of each rank in turn), while the checkpoint stacks all of Q, all of K and all of V. Source: github.com/sgl-project/sglang/issues/24321"""
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["layout-of-fused-rows", "projection-other", "differs-from-reference"]
words = "rows of Q stand where K and V are expected"


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv_proj, self.o_proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv_proj(x).chunk(3, -1)
        q, k, v = (a.view(b, t, self.heads, -1).transpose(1, 2) for a in (q, k, v))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))


class Model(nn.Module):
    def __init__(self, words=40, width=32, heads=4, depth=2):
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(32, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(depth))
        self.layers = nn.ModuleList(Attention(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids):
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x))
        return self.head(x)


def load(model, checkpoint, ranks, interleaved):
    for name, weight in checkpoint.items():
        if interleaved and "qkv_proj" in name:
            # each rank's chunk is read as its own (q, k, v); ranks are joined part by part
            chunks = [c.chunk(3) for c in weight.chunk(ranks)]
            weight = torch.cat([c[part] for part in range(3) for c in chunks])
        model.get_parameter(name).data.copy_(weight)
    return model.eval()


def checkpoint():
    torch.manual_seed(0)
    return Model().state_dict()


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(ids=torch.randint(0, 40, (2, 7))), mask=it.causal(), like=right())


def wrong():
    return load(Model(), checkpoint(), 4, True)


def right():
    return load(Model(), checkpoint(), 4, False)


def proof():
    a = asks()["inputs"]
    return not torch.allclose(wrong()(**a), right()(**a), atol=1e-3)
