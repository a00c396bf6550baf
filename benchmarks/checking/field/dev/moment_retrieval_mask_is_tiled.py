"""The layer that lets video clips read a text repeats its mask heads times along the batch, where the fused axis has the heads of a row side by side. Source: github.com/line/lighthouse/pull/77"""
import intently as it
import torch
import torch.nn as nn

expect = ["mask-of-other-rows", "mask-other"]
words = "heads of a row use the mask of another row of the batch"


class TextToVideo(nn.Module):
    def __init__(self, width, heads, mended):
        super().__init__()
        self.heads, self.mended = heads, mended
        self.attention = nn.MultiheadAttention(width, heads, dropout=0.1)
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, video, text, video_pad, text_pad):
        pairs = (video_pad.unsqueeze(2).float() @ text_pad.unsqueeze(1).float()).bool()
        if self.mended:
            pairs = pairs.repeat_interleave(self.heads, dim=0)
        else:
            pairs = pairs.repeat(self.heads, 1, 1)
        y = self.attention(video, text, text, attn_mask=pairs, key_padding_mask=text_pad)[0]
        video = self.n1(video + y)
        return self.n2(video + self.feed(video))


class Memory(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, dropout=0.1)
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x, pad):
        x = self.n1(x + self.attention(x, x, x, key_padding_mask=pad)[0])
        return self.n2(x + self.feed(x))


class MomentFinder(nn.Module):
    def __init__(self, mended, width=32, heads=4, moments=3):
        super().__init__()
        self.see, self.read = nn.Linear(20, width), nn.Linear(12, width)
        self.place = nn.Embedding(16, width)
        self.t2v = TextToVideo(width, heads, mended)
        self.memory = Memory(width, heads)
        self.moments = nn.Parameter(torch.randn(moments, width))
        self.decoder = nn.MultiheadAttention(width, heads)
        self.span = nn.Linear(width, 2)

    def forward(self, video, text, video_mask, text_mask):
        video_pad, text_pad = ~video_mask.bool(), ~text_mask.bool()
        v = (self.see(video) + self.place(torch.arange(video.shape[1]))).transpose(0, 1)
        t = self.read(text).transpose(0, 1)
        v = self.memory(self.t2v(v, t, video_pad, text_pad), video_pad)
        asked = self.moments[:, None].expand(-1, v.shape[1], -1)
        found = self.decoder(asked, v, v, key_padding_mask=video_pad)[0]
        return self.span(found).sigmoid().transpose(0, 1)


def build(mended):
    torch.manual_seed(0)
    return MomentFinder(mended).eval()


def asks():
    torch.manual_seed(1)
    video_mask, text_mask = torch.ones(2, 7), torch.ones(2, 5)
    video_mask[1, 4:] = 0
    text_mask[1, 2:] = 0
    return dict(inputs=dict(video=torch.randn(2, 7, 20), text=torch.randn(2, 5, 12), video_mask=video_mask, text_mask=text_mask),
                mask={"t2v*": it.padding([5, 2]), "memory*": it.padding([7, 4]), "decoder*": it.padding([7, 4])})


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    x = asks()["inputs"]
    return not torch.allclose(wrong()(**x), right()(**x), atol=1e-4)
