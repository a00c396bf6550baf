"""masked_fill returns a new tensor that is thrown away, so text before the first image gets the mean of all media. Source: github.com/lucidrains/flamingo-pytorch/issues/10"""
import torch
from einops import rearrange
from torch import nn

expect = ["mean-without-keys"]
words = "queries without a key are meant to get zero and get the mean of all values"


class MediaAttention(nn.Module):
    """Text attends to the last medium before it; media (b, m, n, c) are m images of n latents."""

    def __init__(self, width=32, media_width=24, heads=4):
        super().__init__()
        self.heads, inner = heads, width
        self.factor = (inner // heads) ** -0.5
        self.norm = nn.LayerNorm(width)
        self.to_q = nn.Linear(width, inner, bias=False)
        self.to_kv = nn.Linear(media_width, 2 * inner, bias=False)
        self.to_out = nn.Linear(inner, width, bias=False)

    def without_media(self, attn, nothing):
        attn.masked_fill(nothing, 0.0)
        return attn

    def forward(self, text, media, media_locations):
        m, n = media.shape[1:3]
        q = rearrange(self.to_q(self.norm(text)), "b t (h d) -> b h t d", h=self.heads) * self.factor
        k, v = self.to_kv(media).chunk(2, dim=-1)
        k, v = (rearrange(z, "b m n (h d) -> b h (m n) d", h=self.heads) for z in (k, v))
        sim = q @ k.transpose(-1, -2)
        text_time = media_locations.cumsum(dim=-1)
        media_time = torch.arange(1, m + 1, device=text.device).repeat_interleave(n)
        seen = text_time[:, None, :, None] == media_time[None, None, None]
        sim = sim.masked_fill(~seen, -torch.finfo(sim.dtype).max)
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)
        attn = self.without_media(attn, (text_time == 0)[:, None, :, None])
        return self.to_out(rearrange(attn @ v, "b h t d -> b t (h d)"))


class Mended(MediaAttention):
    def without_media(self, attn, nothing):
        return attn.masked_fill(nothing, 0.0)


_locations = torch.tensor([[0, 1, 0, 0, 1, 0, 0], [0, 0, 1, 0, 0, 1, 0]]).bool()


def asks():
    import intently as it

    torch.manual_seed(1)
    time = _locations.cumsum(-1)
    seen = time[:, None, :, None] == torch.arange(1, 3).repeat_interleave(3)
    x = dict(text=torch.randn(2, 7, 32), media=torch.randn(2, 2, 3, 24), media_locations=_locations.clone())
    return dict(inputs=x, mask=it.allowed(seen))


def wrong():
    torch.manual_seed(0)
    return MediaAttention().eval()


def right():
    torch.manual_seed(0)
    return Mended().eval()


def proof():
    x = asks()["inputs"]
    a, b = wrong()(**x), right()(**x)
    return bool(b[0, 0].abs().max() == 0 and a[0, 0].abs().max() > 1e-3 and torch.allclose(a[0, 1:], b[0, 1:]))
