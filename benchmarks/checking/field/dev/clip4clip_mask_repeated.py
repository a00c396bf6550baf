"""The mask of each video is repeated in the order (head, batch) where nn.MultiheadAttention wants (batch, head). Source: github.com/ArrowLuo/CLIP4Clip/issues/22"""
import torch
from torch import nn

expect = ["mask-of-other-rows", "padding-attended"]
words = "heads of one row of the batch get the mask of another row"


class FrameBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attn = nn.MultiheadAttention(width, heads)
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def per_head(self, additive):
        return additive.repeat(self.heads, 1, 1)

    def forward(self, x, additive):
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=self.per_head(additive))[0]
        return x + self.mlp(self.ln_2(x))


class MendedBlock(FrameBlock):
    def per_head(self, additive):
        return additive.repeat_interleave(self.heads, dim=0)


class FrameTransformer(nn.Module):
    """A temporal transformer over the frames of a video, time first inside."""

    def __init__(self, block, width=32, heads=4):
        super().__init__()
        self.positions = nn.Embedding(12, width)
        self.block = block(width, heads)

    def forward(self, frames, frame_mask):
        n = frames.shape[1]
        additive = (1.0 - frame_mask[:, None, :].float()) * -1000000.0
        additive = additive.expand(-1, n, -1)
        x = frames + self.positions(torch.arange(n, device=frames.device))
        return self.block(x.permute(1, 0, 2), additive).permute(1, 0, 2)


_mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])


def asks():
    import intently as it

    torch.manual_seed(1)
    return dict(inputs=dict(frames=torch.randn(2, 6, 32), frame_mask=_mask.clone()), mask=it.padding(_mask.bool()))


def _make(block):
    torch.manual_seed(0)
    return FrameTransformer(block).eval()


def wrong():
    return _make(FrameBlock)


def right():
    return _make(MendedBlock)


def proof():
    x = asks()["inputs"]
    return not torch.allclose(wrong()(**x), right()(**x), atol=1e-3)
