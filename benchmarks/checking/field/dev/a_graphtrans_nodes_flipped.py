"""The masked encoder of a graph Transformer hides the real nodes and keeps the padded ones: the mask is True at padding and is compared with 0. Source: github.com/ucbrise/graphtrans/issues/10"""
import math
import torch
from torch import nn
import intently as it

expect = ["mask-inverted"]
words = "positions where the padding mask is False (real nodes) are filled with the lowest number"
PAD = torch.tensor([[True, True, False, False, False, False, False],
                    [True, False, False, False, False, False, False]])


def asks():
    torch.manual_seed(3)
    return dict(inputs=dict(nodes=torch.randn(2, 7, 32), node_padding=PAD.clone()), mask=it.padding(~PAD))


class NodeAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width)
        self.to_k = nn.Linear(width, width)
        self.to_v = nn.Linear(width, width)
        self.merge = nn.Linear(width, width)

    def hidden(self, node_padding):
        return node_padding == 0

    def forward(self, h, node_padding):
        b, n, c = h.shape
        cut = lambda z: z.view(b, n, self.heads, c // self.heads).transpose(1, 2)
        q, k, v = cut(self.to_q(h)), cut(self.to_k(h)), cut(self.to_v(h))
        score = q @ k.transpose(2, 3) / math.sqrt(c // self.heads)
        score = score.masked_fill(self.hidden(node_padding)[:, None, None, :], torch.finfo(score.dtype).min)
        out = score.softmax(-1) @ v
        return self.merge(out.transpose(1, 2).reshape(b, n, c))


class NodeAttentionMended(NodeAttention):
    def hidden(self, node_padding):
        return node_padding != 0


class Layer(nn.Module):
    def __init__(self, kind, width, heads):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = kind(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, h, node_padding):
        h = h + self.attention(self.first(h), node_padding)
        return h + self.mlp(self.second(h))


class GraphEncoder(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layers = nn.ModuleList(Layer(kind, 32, 4) for _ in range(2))
        self.norm = nn.LayerNorm(32)

    def forward(self, nodes, node_padding):
        for layer in self.layers:
            nodes = layer(nodes, node_padding)
        return self.norm(nodes)


def wrong():
    torch.manual_seed(0)
    return GraphEncoder(NodeAttention).eval()


def right():
    torch.manual_seed(0)
    return GraphEncoder(NodeAttentionMended).eval()


def proof():
    x = asks()["inputs"]
    y = dict(x, nodes=x["nodes"].masked_fill(PAD[..., None], 5.0))
    moved = lambda f: (f(**x) - f(**y))[~PAD].abs().max() > 1e-3
    return bool(moved(wrong()) and not moved(right()))
