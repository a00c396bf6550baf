"""A small vision-language model packs samples behind each other; its decoder attends across their borders. Source: github.com/huggingface/nanoVLM/pull/204"""
import torch
from torch import nn
import torch.nn.functional as F

expect = ["mask-other", "mask-missing"]
words = "only the causal mask is applied: a sample sees the samples packed before it"


def rotate(x, position):
    half = x.shape[-1] // 2
    rate = 10000.0 ** -(torch.arange(half) / half)
    angle = (position[..., None] * rate)[:, None]
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), dim=-1)


class GroupedAttention(nn.Module):
    def __init__(self, width=32, heads=4, groups=2):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, self.size * groups, bias=False)
        self.v_proj = nn.Linear(width, self.size * groups, bias=False)
        self.out_proj = nn.Linear(width, width, bias=False)

    def mix(self, q, k, v, documents):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x, position, documents):
        b, t, _ = x.shape
        q, k, v = (p(x).view(b, t, -1, self.size).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, position), rotate(k, position)
        k, v = (m.repeat_interleave(self.heads // self.groups, dim=1) for m in (k, v))
        return self.out_proj(self.mix(q, k, v, documents).transpose(1, 2).reshape(b, t, -1))


class GroupedAttentionMended(GroupedAttention):
    def mix(self, q, k, v, documents):
        t = q.shape[2]
        allowed = torch.ones(t, t, dtype=torch.bool).tril() & (documents[:, :, None] == documents[:, None, :])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed[:, None])


class Block(nn.Module):
    def __init__(self, kind, width):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = kind(width)
        self.gate, self.up, self.down = nn.Linear(width, 64, bias=False), nn.Linear(width, 64, bias=False), nn.Linear(64, width, bias=False)

    def forward(self, x, position, documents):
        x = x + self.attention(self.norm1(x), position, documents)
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    def __init__(self, kind, words=24, width=32, depth=2):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(kind, width) for _ in range(depth))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids, position, documents):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, position, documents)
        return self.head(self.norm(x))


DOCUMENTS = [[0, 0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 2, 2, 2]]
POSITIONS = [[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 1, 2, 0, 1, 2, 0, 1, 2]]


def given():
    return dict(ids=torch.randint(0, 24, (2, 9)), position=torch.tensor(POSITIONS), documents=torch.tensor(DOCUMENTS))


def asks():
    import intently as it
    return dict(inputs=given(), mask=it.causal() & it.segments(DOCUMENTS))


def wrong():
    torch.manual_seed(0)
    return Decoder(GroupedAttention).eval()


def right():
    torch.manual_seed(0)
    return Decoder(GroupedAttentionMended).eval()


def proof():
    a = given()
    b = dict(a, ids=a["ids"].clone())
    b["ids"][0, 0] = (b["ids"][0, 0] + 1) % 24
    with torch.no_grad():
        kept = lambda m: torch.allclose(m(**a)[0, 4:], m(**b)[0, 4:], atol=1e-5)
        return kept(right()) and not kept(wrong())


if __name__ == "__main__":
    print(proof())
