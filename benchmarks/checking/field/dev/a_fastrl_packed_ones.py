"""A trainer packs several responses into one row for a draft model, restarts positions, and passes an attention mask of ones, so a response attends to those packed before it. Source: github.com/mit-han-lab/fastrl/issues/14"""
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["mask-other", "mask-missing"]
words = "the mask is causal over the packed row and does not keep documents apart"


class Draft(nn.Module):
    def __init__(self, apart, words=40, width=32, heads=4):
        super().__init__()
        self.apart, self.heads = apart, heads
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(32, width)
        self.join = nn.Linear(2 * width, width)
        self.norm = nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.head = nn.Linear(width, words)

    def forward(self, input_ids, hidden, position_ids):
        b, t = input_ids.shape
        x = self.join(torch.cat((self.embed(input_ids) + self.place(position_ids), hidden), -1))
        document = (position_ids == 0).cumsum(-1) if self.apart else torch.ones_like(position_ids)
        see = (document[:, :, None] == document[:, None]) & torch.ones(t, t, dtype=torch.bool).tril()
        n = self.norm(x)
        q, k, v = (f(n).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=see[:, None])
        return self.head(x + self.o(y.transpose(1, 2).reshape(b, t, -1)))


def build(apart):
    torch.manual_seed(0)
    return Draft(apart).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    place = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1]])
    return dict(inputs=dict(input_ids=torch.randint(0, 40, (1, 9)), hidden=torch.randn(1, 9, 32), position_ids=place),
                mask=it.causal() & it.segments(torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2])))


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    a = asks()["inputs"]
    alone = dict(input_ids=a["input_ids"][:, 4:7], hidden=a["hidden"][:, 4:7], position_ids=a["position_ids"][:, 4:7])
    return not torch.allclose(wrong()(**a)[:, 4:7], wrong()(**alone), atol=1e-3) and torch.allclose(right()(**a)[:, 4:7], right()(**alone), atol=1e-5)
