"""Gated cross-attention: text sees every image before it where it should see the last one only. Source: github.com/lucidrains/flamingo-pytorch/issues/6"""
import torch
from torch import nn, einsum

expect = ["mask-other"]
words = "the mask compares the counts of images by >= in place of =="

TEXT = torch.tensor([[1, 0, 0, 1, 0, 0, 1, 0], [1, 0, 1, 0, 0, 0, 0, 1]]).bool()

def asks():
    torch.manual_seed(0)
    which = TEXT.cumsum(-1)
    image = torch.arange(1, 4).repeat_interleave(2)
    return dict(inputs=dict(x=torch.randn(2, 8, 32), media=torch.randn(2, 3, 2, 32), media_locations=TEXT),
                mask=(which[:, :, None] == image)[:, None])

class MaskedCross(nn.Module):
    def __init__(self, width, heads, only_last):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_kv = nn.Linear(width, 2 * width, bias=False)
        self.to_out = nn.Linear(width, width, bias=False)
        self.h, self.only_last = heads, only_last

    def forward(self, x, media, media_locations):
        b, t, c = x.shape
        images, m = media.shape[1:3]
        q = self.to_q(self.norm(x))
        k, v = self.to_kv(media.flatten(1, 2)).chunk(2, dim=-1)
        q, k, v = (one.unflatten(-1, (self.h, -1)).transpose(1, 2) for one in (q, k, v))
        sim = einsum("bhid,bhjd->bhij", q * (c // self.h) ** -0.5, k)
        text_time = media_locations.cumsum(dim=-1)[:, None, :, None]
        media_time = (torch.arange(images) + 1).repeat_interleave(m)
        seen = text_time == media_time if self.only_last else text_time >= media_time
        sim = sim.masked_fill(~seen, -torch.finfo(sim.dtype).max)
        sim = sim - sim.amax(dim=-1, keepdim=True)
        y = einsum("bhij,bhjd->bhid", sim.softmax(dim=-1), v)
        return self.to_out(y.transpose(1, 2).flatten(2))

def wrong():
    torch.manual_seed(1)
    return MaskedCross(32, 4, False).eval()

def right():
    torch.manual_seed(1)
    return MaskedCross(32, 4, True).eval()

def proof():
    i = asks()["inputs"]
    a, b = wrong()(**i), right()(**i)
    return bool(torch.allclose(a[0, :3], b[0, :3], atol=1e-5) and (a[0, 3:] - b[0, 3:]).abs().max() > .02)
