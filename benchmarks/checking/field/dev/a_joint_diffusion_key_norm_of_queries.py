"""In a joint attention of image and text tokens the text's keys go through the norm of the text's queries. Source: github.com/huggingface/diffusers/pull/13533"""
import torch
from torch import nn

expect = ["projection-other", "differs-from-reference", "projection-scaled"]
words = "norm_added_q is called on the keys of the context where norm_added_k is meant"


def asks():
    torch.manual_seed(3)
    return dict(inputs=dict(image=torch.randn(2, 9, 32), text=torch.randn(2, 5, 32)), like=right())


class JointAttention(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads, size = heads, width // heads
        self.image_q, self.image_k, self.image_v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.text_q, self.text_k, self.text_v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.norm_q, self.norm_k = nn.RMSNorm(size, eps=1e-6), nn.RMSNorm(size, eps=1e-6)
        self.norm_text_q, self.norm_text_k = nn.RMSNorm(size, eps=1e-6), nn.RMSNorm(size, eps=1e-6)
        for norm in (self.norm_q, self.norm_k, self.norm_text_q, self.norm_text_k):
            nn.init.uniform_(norm.weight, 0.4, 1.8)                     # as after training
        self.image_out, self.text_out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)

    def text_keys(self, k):
        return self.norm_text_q(k)

    def forward(self, image, text):
        cut = lambda z: z.unflatten(-1, (self.heads, -1))
        q = torch.cat([self.norm_text_q(cut(self.text_q(text))), self.norm_q(cut(self.image_q(image)))], 1)
        k = torch.cat([self.text_keys(cut(self.text_k(text))), self.norm_k(cut(self.image_k(image)))], 1)
        v = torch.cat([cut(self.text_v(text)), cut(self.image_v(image))], 1)
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        n = text.shape[1]
        return self.image_out(y[:, n:]), self.text_out(y[:, :n])


class JointAttentionMended(JointAttention):
    def text_keys(self, k):
        return self.norm_text_k(k)


def wrong():
    torch.manual_seed(0)
    return JointAttention().eval()


def right():
    torch.manual_seed(0)
    return JointAttentionMended().eval()


def proof():
    x = asks()["inputs"]
    return bool((wrong()(**x)[0] - right()(**x)[0]).abs().max() > 1e-3)
