"""A diffusion transformer joins text and image tokens and takes a mask of the text, which none of its blocks uses, so padding of the prompt is attended to. Source: github.com/huggingface/diffusers/issues/12294"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["padding-attended", "mask-missing"]
words = "encoder_hidden_states_mask reaches the blocks and is ignored by joint attention"


class JointAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.image_qkv, self.text_qkv = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)
        self.image_out, self.text_out = nn.Linear(width, width), nn.Linear(width, width)
        self.norm_q, self.norm_k = nn.RMSNorm(width // heads), nn.RMSNorm(width // heads)

    def mask(self, text_mask, pixels):
        seen = torch.cat([text_mask, text_mask.new_ones(len(text_mask), pixels)], dim=1)
        return seen.bool()[:, None, None]

    def forward(self, image, text, text_mask):
        n = text.shape[1]
        parts = [y.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4) for y in (self.text_qkv(text), self.image_qkv(image))]
        q, k, v = torch.cat(parts, dim=3)
        y = F.scaled_dot_product_attention(self.norm_q(q), self.norm_k(k), v, attn_mask=self.mask(text_mask, image.shape[1]))
        y = y.transpose(1, 2).flatten(2)
        return self.image_out(y[:, n:]), self.text_out(y[:, :n])


class ReportedAttention(JointAttention):
    def mask(self, text_mask, pixels):
        return None


class Block(nn.Module):
    def __init__(self, attention, width, heads):
        super().__init__()
        self.attention = attention(width, heads)
        self.image_mod, self.text_mod = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        feed = lambda: nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        self.image_feed, self.text_feed = feed(), feed()

    def forward(self, image, text, text_mask, time):
        a, b, c, d = self.image_mod(F.silu(time))[:, None].chunk(4, dim=-1)
        e, f, g, h = self.text_mod(F.silu(time))[:, None].chunk(4, dim=-1)
        x, y = self.attention(self.norm(image) * (1 + a) + b, self.norm(text) * (1 + e) + f, text_mask)
        image, text = image + c * x, text + g * y
        return image + d * self.image_feed(self.norm(image)), text + h * self.text_feed(self.norm(text))


class ImageTransformer(nn.Module):
    def __init__(self, attention, channels=8, text=20, width=32, heads=4, depth=2, side=3):
        super().__init__()
        self.image_in, self.text_in = nn.Linear(channels, width), nn.Linear(text, width)
        self.places = nn.Parameter(torch.randn(side * side, width) / 2)
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(Block(attention, width, heads) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, channels)

    def forward(self, hidden_states, encoder_hidden_states, encoder_hidden_states_mask, timestep):
        time = self.time(timestep[:, None])
        image, text = self.image_in(hidden_states) + self.places, self.text_in(encoder_hidden_states)
        for block in self.blocks:
            image, text = block(image, text, encoder_hidden_states_mask, time)
        return self.out(self.norm(image))


def asks():
    mask = (torch.arange(7)[None] < torch.tensor([[7], [3]])).long()
    return dict(inputs=dict(hidden_states=torch.randn(2, 9, 8), encoder_hidden_states=torch.randn(2, 7, 20),
                            encoder_hidden_states_mask=mask, timestep=torch.rand(2)))


def _make(attention):
    torch.manual_seed(0)
    return ImageTransformer(attention).eval()


def wrong():
    return _make(ReportedAttention)


def right():
    return _make(JointAttention)


def proof():
    x = asks()["inputs"]
    other = dict(x, encoder_hidden_states=x["encoder_hidden_states"].clone())
    other["encoder_hidden_states"][1, 3:] += 1
    bad, good = wrong(), right()
    return torch.allclose(good(**x), good(**other), atol=1e-5) and not torch.allclose(bad(**x), bad(**other), atol=1e-4)
