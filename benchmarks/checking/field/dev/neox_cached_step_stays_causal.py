"""With a cache a GPT asks its fused kernel for causal attention all the same, and the kernel counts the one new query as the first. Source: github.com/EleutherAI/gpt-neox/pull/1178"""
import intently as it
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["mask-top-left", "cached-step-differs", "cache-overwritten"]
words = "a step from a cache sees key 0 only"


class NeoXHeads(nn.Module):
    def __init__(self, width, heads, mended, turned=4):
        super().__init__()
        self.heads, self.d, self.turned, self.mended = heads, width // heads, turned, mended
        self.query_key_value = nn.Linear(width, 3 * width)
        self.dense = nn.Linear(width, width)

    def turn(self, x, start):
        n = self.turned
        angle = torch.arange(start, start + x.shape[2])[:, None] * 10000.0 ** (-torch.arange(0, n, 2) / n)
        cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
        part, rest = x[..., :n], x[..., n:]
        a, b = part.chunk(2, -1)
        return torch.cat([part * cos + torch.cat([-b, a], -1) * sin, rest], -1)

    def forward(self, x, past=None):
        b, t, c = x.shape
        q, k, v = self.query_key_value(x).view(b, t, self.heads, 3 * self.d).transpose(1, 2).chunk(3, -1)
        start = 0 if past is None else past[0].shape[2]
        q, k = self.turn(q, start), self.turn(k, start)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        if self.mended:
            t, s = q.shape[2], k.shape[2]
            seen = torch.ones(t, s, dtype=torch.bool).tril(s - t)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.dense(y.transpose(1, 2).reshape(b, -1, c)), (k, v)


class NeoXLayer(nn.Module):
    def __init__(self, width, heads, mended):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = NeoXHeads(width, heads, mended)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x, past=None):
        y, present = self.attention(self.ln1(x), past)
        return x + y + self.mlp(self.ln2(x)), present


class NeoX(nn.Module):
    def __init__(self, mended, words=40, width=32, heads=4, depth=2):
        super().__init__()
        self.embed_in = nn.Embedding(words, width)
        self.layers = nn.ModuleList(NeoXLayer(width, heads, mended) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.embed_out = nn.Linear(width, words, bias=False)

    def forward(self, input_ids, past_key_values=None):
        x, present = self.embed_in(input_ids), []
        for i, layer in enumerate(self.layers):
            x, kv = layer(x, None if past_key_values is None else past_key_values[i])
            present.append(kv)
        return self.embed_out(self.norm(x)), tuple(present)


def build(mended):
    torch.manual_seed(0)
    return NeoX(mended).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(input_ids=torch.randint(0, 40, (2, 8))), mask=it.causal())


def wrong():
    return build(False)


def right():
    return build(True)


def in_steps(model, ids):
    past, out = None, []
    for i in range(ids.shape[1]):
        y, past = model(ids[:, i:i + 1], past)
        out.append(y)
    return torch.cat(out, 1)


def proof():
    ids = asks()["inputs"]["input_ids"]
    w, r = wrong(), right()
    chunk = r(ids[:, 4:], r(ids[:, :4])[1])[0]
    fine = torch.allclose(r(ids)[0], in_steps(r, ids), atol=1e-5) and torch.allclose(r(ids)[0][:, 4:], chunk, atol=1e-5)
    return fine and not torch.allclose(w(ids)[0], in_steps(w, ids), atol=1e-3)
