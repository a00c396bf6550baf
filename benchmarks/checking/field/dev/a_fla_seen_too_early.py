"""A cache shared by all layers counts the new token as soon as the first layer has stored it, so higher layers rotate the step's queries and keys one position too far. Source: github.com/fla-org/flash-linear-attention/issues/766"""
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["rotation-off-by-one", "cached-step-differs", "rotation-offset-lost"]
words = "in cached steps layers above the first read a past length that is too large by the length of the step"


class SharedCache:
    def __init__(self, early):
        self.early, self.seen, self.store = early, 0, {}

    def past(self, layer):
        if self.early:
            return self.seen
        return self.store[layer][0].shape[1] if layer in self.store else 0

    def update(self, layer, k, v):
        if layer == 0:
            self.seen += k.shape[1]
        if layer in self.store:
            a, b = self.store[layer]
            k, v = torch.cat((a, k), 1), torch.cat((b, v), 1)
        self.store[layer] = (k, v)
        return k, v


def turn(x, start):                                      # (b, t, h, d)
    half = x.shape[-1] // 2
    speed = 10000 ** (-torch.arange(half).float() / half)
    angle = (start + torch.arange(x.shape[1]).float())[:, None] * speed
    c, s = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * c - b * s, a * s + b * c), -1)


class Attention(nn.Module):
    def __init__(self, width, heads, layer):
        super().__init__()
        self.heads, self.layer = heads, layer
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x, cache):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1) for f in (self.q_proj, self.k_proj, self.v_proj))
        start = cache.past(self.layer) if cache is not None else 0
        q, k = turn(q, start), turn(k, start)
        if cache is not None:
            k, v = cache.update(self.layer, k, v)
        s = k.shape[1]
        see = torch.ones(t, s, dtype=torch.bool).tril(s - t)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=see)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, c))


class Decoder(nn.Module):
    def __init__(self, early, words=40, width=32, heads=4, depth=3):
        super().__init__()
        self.early = early
        self.embed = nn.Embedding(words, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.layers = nn.ModuleList(Attention(width, heads, i) for i in range(depth))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        if use_cache and past_key_values is None:
            past_key_values = SharedCache(self.early)
        x = self.embed(input_ids)
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x), past_key_values)
        logits = self.head(x)
        return (logits, past_key_values) if use_cache else logits


class Stepwise(nn.Module):
    """A prompt of four tokens, then the rest one by one, through the cache."""

    def __init__(self, early):
        super().__init__()
        self.model = Decoder(early)

    def forward(self, input_ids):
        y, cache = self.model(input_ids[:, :4], use_cache=True)
        out = [y]
        for i in range(4, input_ids.shape[1]):
            y, cache = self.model(input_ids[:, i : i + 1], past_key_values=cache, use_cache=True)
            out.append(y)
        return torch.cat(out, 1)


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(input_ids=torch.randint(0, 40, (2, 8))), mask=it.causal())


def wrong():
    torch.manual_seed(0)
    return Stepwise(True).eval()


def right():
    torch.manual_seed(0)
    return Stepwise(False).eval()


def proof():
    ids = torch.randint(0, 40, (2, 8))
    a, b = wrong(), right()
    return not torch.allclose(a(ids), a.model(ids), atol=1e-3) and torch.allclose(b(ids), b.model(ids), atol=1e-4)
