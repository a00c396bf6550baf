"""Windows in a volume: the index into the table of relative positions has wrong strides, so different offsets share an entry. Source: github.com/282857341/nnFormer/pull/88"""
import torch
from torch import nn

expect = ["bias-other", "differs-from-reference"]
words = "strides 3h-1 and 2h-1 in place of (2h-1)(2w-1) and 2w-1"


class VolumeWindow(nn.Module):
    def __init__(self, width, heads, size, slip):
        super().__init__()
        self.heads = heads
        d, h, w = size
        self.table = nn.Parameter(torch.randn((2 * d - 1) * (2 * h - 1) * (2 * w - 1), heads))
        places = torch.stack(torch.meshgrid(*(torch.arange(n) for n in size), indexing="ij")).flatten(1)
        offset = (places[:, :, None] - places[:, None, :]).permute(1, 2, 0).contiguous()
        offset += torch.tensor(size) - 1
        strides = (3 * h - 1, 2 * h - 1, 1) if slip else ((2 * h - 1) * (2 * w - 1), 2 * w - 1, 1)
        self.register_buffer("index", (offset * torch.tensor(strides)).sum(-1))
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        attn = (q * (c // self.heads) ** -0.5) @ k.transpose(-2, -1)
        attn = attn + self.table[self.index.view(-1)].view(n, n, -1).permute(2, 0, 1)
        return self.proj((attn.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))


def make(slip):
    torch.manual_seed(9)
    return VolumeWindow(32, 2, (2, 2, 3), slip).eval()


def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x=torch.randn(2, 12, 32)), like=right())


def wrong(): return make(True)
def right(): return make(False)


def proof():
    x = asks()["inputs"]["x"]
    return len(right().index.unique()) > len(wrong().index.unique()) and not torch.allclose(wrong()(x), right()(x), atol=1e-3)
