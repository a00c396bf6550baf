"""The softmax of scores (batch, heads, channels, channels) runs over dim=1, the heads. Source: github.com/CAMMA-public/rendezvous-in-time/issues/3"""
import math
import torch
import torch.nn as nn

expect = ["softmax-over-heads"]
words = "weights of the four heads sum to 1 for each pair of channels"
D = 16


class MixedHeads(nn.Module):
    """One self head and three cross heads over channels, each with its own map of values."""

    def __init__(self, classes=20, heads=4):
        super().__init__()
        self.heads = heads
        self.merge = nn.Conv2d(D * heads, classes, 3, padding=1)
        self.bn = nn.BatchNorm2d(classes)
        self.act = nn.ELU()
        self.weigh = nn.Softmax(dim=1)

    def attend(self, key, value, query):
        scores = key @ query.transpose(-1, -2) / math.sqrt(key.shape[-2])
        return self.weigh(scores) @ value

    def forward(self, query, keys, maps):
        """query (b, D), keys (b, heads, D), maps (b, heads, D, H, W)"""
        b, n, d, h, w = maps.shape
        q = query[:, None, :, None].expand(-1, self.heads, -1, -1)
        y = self.attend(keys[..., None], maps.flatten(3), q)
        return self.act(self.bn(self.merge(y.reshape(b, n * d, h, w))))


class MixedHeadsMended(MixedHeads):
    def __init__(self):
        super().__init__()
        self.weigh = nn.Softmax(dim=-1)


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(query=torch.randn(2, D), keys=torch.randn(2, 4, D), maps=torch.randn(2, 4, D, 3, 4)),
                scale=1 / math.sqrt(D))


def wrong():
    torch.manual_seed(0)
    return MixedHeads().eval()


def right():
    torch.manual_seed(0)
    return MixedHeadsMended().eval()


def proof():
    i = asks()["inputs"]
    return not torch.allclose(wrong()(**i), right()(**i), atol=1e-5)
