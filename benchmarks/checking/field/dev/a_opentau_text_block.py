"""A robot policy gives its prompt tokens the mark 0, which continues the block of the image, so text is bidirectional where each token should open its own causal block. Source: github.com/TensorAuto/OpenTau/pull/236"""
import torch
import torch.nn as nn
import torch.nn.functional as F
import intently as it

expect = ["mask-other", "mask-missing", "leak-later"]
words = "prompt tokens see later prompt tokens, and image patches see the prompt"
PATCHES, TEXT, WIDTH = 4, 5, 32


def blocks(marks):
    """A token sees all tokens of its own block and of earlier ones; a mark 1 opens a block."""
    order = marks.cumsum(-1)
    return order[..., None, :] <= order[..., :, None]


class Planner(nn.Module):
    def __init__(self, vocab=30, heads=4, depth=2):
        super().__init__()
        self.heads = heads
        self.patch, self.word = nn.Linear(12, WIDTH), nn.Embedding(vocab, WIDTH)
        self.place = nn.Parameter(torch.randn(PATCHES + TEXT, WIDTH) * 0.3)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(depth))
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.head = nn.Linear(WIDTH, vocab)

    def text_marks(self, n):
        return [0] * n

    def forward(self, patches, prompt):
        x = torch.cat([self.patch(patches), self.word(prompt)], 1) + self.place
        marks = torch.tensor([0] * patches.shape[1] + self.text_marks(prompt.shape[1]))
        seen = blocks(marks)
        b, t, c = x.shape
        for norm, qkv, out in zip(self.norms, self.qkv, self.out):
            q, k, v = (a.view(b, t, self.heads, -1).transpose(1, 2) for a in qkv(norm(x)).chunk(3, -1))
            x = x + out(F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).reshape(b, t, c))
        return self.head(x[:, -prompt.shape[1] :])


class PlannerMended(Planner):
    def text_marks(self, n):
        return [1] * n


def asks():
    torch.manual_seed(1)
    meant = blocks(torch.tensor([0] * PATCHES + [1] * TEXT))
    return dict(inputs=dict(patches=torch.randn(2, PATCHES, 12), prompt=torch.randint(0, 30, (2, TEXT))), mask=it.allowed(meant))


def wrong():
    torch.manual_seed(0)
    return Planner().eval()


def right():
    torch.manual_seed(0)
    return PlannerMended().eval()


def proof():
    i = asks()["inputs"]
    return not torch.allclose(wrong()(**i), right()(**i), atol=1e-5)
