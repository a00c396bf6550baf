"""A drafter builds its mask as booleans (True is seen) and its eager attention adds the mask to the scores, so seen keys gain one and none is hidden. Source: github.com/vllm-project/speculators/pull/691"""
import torch
import torch.nn as nn

expect = ["mask-boolean-added"]
words = "scores + mask with mask in {False, True}"


def create_mask(rule, t, s):
    return rule(torch.arange(t)[:, None], torch.arange(s)[None])[None, None]


def create_float_mask(rule, t, s):
    return torch.zeros(1, 1, t, s).masked_fill(~create_mask(rule, t, s), float("-inf"))


def eager(q, k, v, mask, scale):
    z = q @ k.transpose(2, 3) * scale
    if mask is not None:
        z = z + mask[..., : k.shape[-2]]
    return z.softmax(-1, dtype=torch.float32).to(q.dtype) @ v


class DraftLayer(nn.Module):
    def __init__(self, width, heads, groups):
        super().__init__()
        self.heads, self.groups, self.d = heads, groups, width // heads
        self.q = nn.Linear(2 * width, width, bias=False)
        self.k, self.v = nn.Linear(2 * width, groups * self.d, bias=False), nn.Linear(2 * width, groups * self.d, bias=False)
        self.o = nn.Linear(width, width, bias=False)

    def forward(self, x, mask):
        b, t, _ = x.shape
        q = self.q(x).view(b, t, self.heads, self.d).transpose(1, 2)
        k, v = (f(x).view(b, t, self.groups, self.d).transpose(1, 2).repeat_interleave(self.heads // self.groups, 1) for f in (self.k, self.v))
        return self.o(eager(q, k, v, mask, self.d ** -0.5).transpose(1, 2).reshape(b, t, -1))


class Eagle(nn.Module):
    def __init__(self, make, words=40, width=32):
        super().__init__()
        self.make = make
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(32, width)
        self.n1, self.n2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.layer = DraftLayer(width, 4, 2)
        self.head = nn.Linear(width, words)

    def forward(self, input_ids, hidden_states):
        t = input_ids.shape[1]
        mask = self.make(lambda i, j: j <= i, t, t)
        e = self.embed(input_ids) + self.place(torch.arange(t))
        return self.head(hidden_states + self.layer(torch.cat((self.n1(e), self.n2(hidden_states)), -1), mask))


def wrong():
    torch.manual_seed(0)
    return Eagle(create_mask).eval()


def right():
    torch.manual_seed(0)
    return Eagle(create_float_mask).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(input_ids=torch.randint(0, 40, (2, 7)), hidden_states=torch.randn(2, 7, 32)), mask=it.causal())


def proof():
    a = asks()["inputs"]
    b = dict(a, hidden_states=a["hidden_states"].clone())
    b["hidden_states"][:, -1] = torch.randn(2, 32)
    return not torch.allclose(wrong()(**a)[:, 0], wrong()(**b)[:, 0], atol=1e-4) and torch.allclose(right()(**a)[:, 0], right()(**b)[:, 0], atol=1e-6)
