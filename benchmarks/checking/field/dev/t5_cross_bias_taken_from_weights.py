"""A T5 that returns attentions picks the bias of cross-attention for later layers from the wrong place of a layer's outputs: it is the first layer's cross-attention weights. Source: github.com/huggingface/transformers/pull/4499"""
import math
import torch
from torch import nn

expect = ["bias-other", "setting-matters", "scores-other"]
words = "from the second layer on, cross-attention adds the first layer's weights in place of the position bias, if attentions are asked for"


def bucket(distance, bidirectional, buckets=8, furthest=20):
    n, out = -distance, torch.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        out = out + (n < 0).long() * buckets
        n = n.abs()
    else:
        n = n.clamp(min=0)
    exact = buckets // 2
    far = exact + (torch.log(n.float().clamp(min=1) / exact) / math.log(furthest / exact) * (buckets - exact)).long()
    return out + torch.where(n < exact, n, far.clamp(max=buckets - 1))


class T5Attention(nn.Module):
    def __init__(self, width, heads, with_bias, bidirectional):
        super().__init__()
        self.heads, self.bidirectional = heads, bidirectional
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        for m in (self.q, self.k):
            nn.init.normal_(m.weight, std=0.5 * width ** -0.5)
        if with_bias:
            self.relative_attention_bias = nn.Embedding(8, heads)

    def forward(self, x, states=None, bias=None, hidden=None, output_attentions=False):
        states = x if states is None else states
        t, s = x.shape[1], states.shape[1]
        if bias is None:
            apart = torch.arange(s)[None] - torch.arange(t)[:, None]
            bias = self.relative_attention_bias(bucket(apart, self.bidirectional)).permute(2, 0, 1)[None]
            if hidden is not None:
                bias = bias.masked_fill(hidden, float("-inf"))
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f, y in ((self.q, x), (self.k, states), (self.v, states)))
        weights = (q @ k.transpose(-2, -1) + bias).softmax(-1)
        y = self.o((weights @ v).transpose(1, 2).flatten(2))
        return (y, weights, bias) if output_attentions else (y, bias)


class Layer(nn.Module):
    def __init__(self, width, heads, first, decoder):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.self_attention = T5Attention(width, heads, first, bidirectional=not decoder)
        self.cross_attention = T5Attention(width, heads, first, bidirectional=True) if decoder else None
        self.feed = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width))

    def forward(self, x, states, bias, cross_bias, hidden, output_attentions):
        y = self.self_attention(self.norms[0](x), None, bias, hidden, output_attentions)
        x, rest = x + y[0], y[1:]
        if self.cross_attention is not None:
            y = self.cross_attention(self.norms[1](x), states, cross_bias, None, output_attentions)
            x, rest = x + y[0], rest + y[1:]
        return (x + self.feed(self.norms[2](x)),) + rest


class Stack(nn.Module):
    def __init__(self, width, heads, depth, decoder):
        super().__init__()
        self.decoder = decoder
        self.layers = nn.ModuleList(Layer(width, heads, i == 0, decoder) for i in range(depth))
        self.norm = nn.LayerNorm(width)

    def cross_bias(self, outputs, output_attentions):
        return outputs[4 if output_attentions else 2]

    def forward(self, x, states=None, output_attentions=False):
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1) if self.decoder else None
        bias, cross_bias, attentions = None, None, ()
        for i, layer in enumerate(self.layers):
            outputs = layer(x, states, bias, cross_bias, hidden, output_attentions)
            x = outputs[0]
            if i == 0:
                bias = outputs[2 if output_attentions else 1]
                if self.decoder:
                    cross_bias = self.cross_bias(outputs, output_attentions)
            if output_attentions:
                attentions += (outputs[1],) + ((outputs[3],) if self.decoder else ())
        return self.norm(x), attentions


class ReportedStack(Stack):
    def cross_bias(self, outputs, output_attentions):
        return outputs[3 if output_attentions else 2]


class T5(nn.Module):
    def __init__(self, stack, vocab=40, width=32, heads=4, depth=3):
        super().__init__()
        self.shared = nn.Embedding(vocab, width)
        self.encoder, self.decoder = stack(width, heads, depth, False), stack(width, heads, depth, True)

    def forward(self, input_ids, decoder_input_ids, output_attentions=False):
        states, a = self.encoder(self.shared(input_ids), None, output_attentions)
        x, b = self.decoder(self.shared(decoder_input_ids), states, output_attentions)
        logits = x @ self.shared.weight.t()
        return (logits, a + b) if output_attentions else logits


def asks():
    return dict(inputs=dict(input_ids=torch.randint(0, 40, (2, 9)), decoder_input_ids=torch.randint(0, 40, (2, 6)), output_attentions=True), scale=1.0)


def _make(stack):
    torch.manual_seed(0)
    return T5(stack).eval()


def wrong():
    return _make(ReportedStack)


def right():
    return _make(Stack)


def proof():
    x = asks()["inputs"]
    plain = {k: v for k, v in x.items() if k != "output_attentions"}
    bad, good = wrong(), right()
    return (torch.allclose(good(**x)[0], good(**plain)) and torch.allclose(bad(**plain), good(**plain))
            and not torch.allclose(bad(**x)[0], bad(**plain), atol=1e-3))
