"""A meta-learning version of MultiheadAttention turns its result round for batch_first, but never its inputs. Source: github.com/tristandeleu/pytorch-meta/pull/171"""
from collections import OrderedDict
import torch
from torch import nn
import torch.nn.functional as F

expect = ["batch-and-sequence-exchanged", "batch-mixed", "output-reordered"]
words = "with batch_first, (b, t, c) goes unturned into a function that expects (t, b, c), and the result is turned afterwards"


def asks():
    torch.manual_seed(3)
    x = torch.randn(4, 4, 32)
    return dict(inputs=dict(query=x, key=x, value=x))


class FastWeightsAttention(nn.MultiheadAttention):
    def enter(self, *tensors):
        return tensors

    def forward(self, query, key, value, params=None):
        p = OrderedDict(self.named_parameters()) if params is None else params
        q, k, v = self.enter(query, key, value)
        y, _ = F.multi_head_attention_forward(
            q, k, v, self.embed_dim, self.num_heads, p["in_proj_weight"], p["in_proj_bias"], None, None,
            False, self.dropout, p["out_proj.weight"], p["out_proj.bias"], training=self.training)
        return y.transpose(0, 1) if self.batch_first else y


class FastWeightsAttentionMended(FastWeightsAttention):
    def enter(self, *tensors):
        return tuple(z.transpose(0, 1) for z in tensors) if self.batch_first else tensors


def wrong():
    torch.manual_seed(0)
    return FastWeightsAttention(32, 4, batch_first=True).eval()


def right():
    torch.manual_seed(0)
    return FastWeightsAttentionMended(32, 4, batch_first=True).eval()


def proof():
    x = asks()["inputs"]
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    y, _ = plain(**x)
    return bool((right()(**x) - y).abs().max() < 1e-5 and (wrong()(**x) - y).abs().max() > 1e-2)
