"""Each layer halves rotary_dim of its rotary module, but all layers hold the same cached module, so it is halved once per layer. Source: github.com/vllm-project/vllm/issues/16904"""
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["rotation-other", "rotation-missing", "rotary-base", "rotary-pairs", "differs-from-reference"]
words = "fewer numbers of queries and keys are rotated than in the reference: a quarter or an eighth in place of half"


class Rotary(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.rotary_dim = size

    def forward(self, places, x):                       # (b, t, h, d), neighbouring pairs
        n = self.rotary_dim
        speed = 10000 ** (-torch.arange(0, n, 2).float() / n)
        angle = places[:, None].float() * speed
        c, s = angle.cos()[:, None], angle.sin()[:, None]
        a, b = x[..., 0:n:2], x[..., 1:n:2]
        turned = torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2)
        return torch.cat((turned, x[..., n:]), -1)


class Layer(nn.Module):
    def __init__(self, width, heads, rotary):
        super().__init__()
        self.heads = heads
        self.norm = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width, bias=False)
        self.rotary_emb = rotary

    def forward(self, x, places):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).unbind(2)
        q, k = self.rotary_emb(places, q), self.rotary_emb(places, k)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(b, t, c))


class Llama(nn.Module):
    def __init__(self, words=40, width=64, heads=4, depth=3):
        super().__init__()
        cache = {}
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            Layer(width, heads, cache.setdefault(width // heads, Rotary(width // heads))) for _ in range(depth))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, torch.arange(ids.shape[1]))
        return self.head(x)


class Glm(Llama):
    def __init__(self, once):
        super().__init__()
        done = set()
        for layer in self.layers:
            if once and id(layer.rotary_emb) in done:
                continue
            layer.rotary_emb.rotary_dim //= 2
            done.add(id(layer.rotary_emb))


def build(once):
    torch.manual_seed(0)
    return Glm(once).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(ids=torch.randint(0, 40, (2, 8))), mask=it.causal(), like=right())


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    a = asks()["inputs"]
    return wrong().layers[0].rotary_emb.rotary_dim == 2 and right().layers[0].rotary_emb.rotary_dim == 8 and not torch.allclose(wrong()(**a), right()(**a), atol=1e-3)
