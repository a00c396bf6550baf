"""Packed documents are found in the position ids only if no padding mask is passed; a mask of ones lets documents see each other. Source: github.com/huggingface/transformers/pull/46634"""
import torch
import torch.nn as nn
import torch.nn.functional as F
import intently as it

expect = ["mask-other", "mask-in-one-path"]
words = "with an attention_mask of ones, tokens of a packed document attend to the documents before it"


def build_mask(positions, padding, careless):
    t = positions.shape[1]
    seen = torch.ones(t, t, dtype=torch.bool).tril().expand(len(positions), t, t)
    if not careless or padding is None:
        document = (positions == 0).cumsum(-1)
        seen = seen & (document[:, :, None] == document[:, None, :])
    if padding is not None:
        seen = seen & padding[:, None, :].bool()
    return seen[:, None]


class PackedDecoder(nn.Module):
    def __init__(self, careless, words=50, wide=32, heads=2):
        super().__init__()
        self.careless, self.heads = careless, heads
        self.embed = nn.Embedding(words, wide)
        self.place = nn.Embedding(16, wide)
        self.norm = nn.LayerNorm(wide)
        self.q, self.k, self.v, self.o = (nn.Linear(wide, wide, bias=False) for _ in range(4))
        self.head = nn.Linear(wide, words)

    def forward(self, input_ids, position_ids, attention_mask=None):
        x = self.embed(input_ids) + self.place(position_ids)
        y = self.norm(x)
        b, t, c = y.shape
        q, k, v = (f(y).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        seen = build_mask(position_ids, attention_mask, self.careless)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.head(x + self.o(y.transpose(1, 2).reshape(b, t, c)))


POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 0, 1, 2, 0, 1, 2]])
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 2, 2, 2]])


def asks():
    torch.manual_seed(1)
    return dict(
        inputs=dict(
            input_ids=torch.randint(0, 50, (2, 8)),
            position_ids=POSITIONS.clone(),
            attention_mask=torch.ones(2, 8, dtype=torch.long),
        ),
        mask=it.causal() & it.segments(DOCUMENTS),
    )


def make(flag):
    torch.manual_seed(0)
    return PackedDecoder(flag).eval()


def wrong():
    return make(True)


def right():
    return make(False)


def proof():
    i = asks()["inputs"]
    j = dict(i, input_ids=i["input_ids"].clone())
    j["input_ids"][:, 0] = (j["input_ids"][:, 0] + 1) % 50
    leak = (wrong()(**i) - wrong()(**j))[:, 3:].abs().max() > 1e-3
    return bool(leak) and bool((right()(**i) - right()(**j))[:, 3:].abs().max() < 1e-6)
