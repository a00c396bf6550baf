"""Joint attention of text and image: tokens are joined text first, the mask image first. Source: github.com/bghira/SimpleTuner/issues/904"""
import torch
from torch import nn
import torch.nn.functional as F

expect = ["mask-other", "padding-side", "padding-attended"]
words = "the padding of the text is looked for among the last keys, which are patches of the image"

def asks():
    torch.manual_seed(0)
    keep = torch.arange(5) < torch.tensor([[5], [2]])
    whole = torch.cat((keep, torch.ones(2, 9, dtype=torch.bool)), 1)
    return dict(inputs=dict(image=torch.randn(2, 9, 32), text=torch.randn(2, 5, 32), text_keep=keep), mask=whole[:, None, None, :])

class JointAttention(nn.Module):
    def __init__(self, width, heads, mask_first):
        super().__init__()
        self.image = nn.Linear(width, 3 * width)
        self.text = nn.Linear(width, 3 * width)
        self.image_out = nn.Linear(width, width)
        self.text_out = nn.Linear(width, width)
        self.h, self.mask_first = heads, mask_first

    def heads(self, x):
        return x.unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, image, text, text_keep):
        s = text.shape[1]
        q, k, v = torch.cat((self.heads(self.text(text)), self.heads(self.image(image))), dim=3)
        ones = torch.ones(image.shape[:2], dtype=torch.bool)
        parts = (ones, text_keep) if self.mask_first == "image" else (text_keep, ones)
        mask = torch.cat(parts, dim=1)[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        return self.image_out(y[:, s:]), self.text_out(y[:, :s])

def wrong():
    torch.manual_seed(1)
    return JointAttention(32, 4, "image").eval()

def right():
    torch.manual_seed(1)
    return JointAttention(32, 4, "text").eval()

def proof():
    i = asks()["inputs"]
    a, b = wrong()(**i)[0], right()(**i)[0]
    other = dict(i, text=torch.where(i["text_keep"][..., None], i["text"], 3.))
    return bool(torch.allclose(a[0], b[0], atol=1e-5) and (a[1] - wrong()(**other)[0][1]).abs().max() > .05
                and torch.allclose(b, right()(**other)[0], atol=1e-5))
