"""The decoder of a convolutional story model attends to its encoder by gated multi-head attention and is never given the key padding mask. Source: github.com/facebookresearch/fairseq/issues/318"""
import torch
import torch.nn as nn

expect = ["padding-attended"]
words = "encoder padding has weight in decoder attention: key_padding_mask is not passed"


class GatedHeads(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q = nn.Sequential(nn.Linear(width, 2 * width), nn.GLU())
        self.k = nn.Sequential(nn.Linear(width, 2 * width), nn.GLU())
        self.v = nn.Sequential(nn.Linear(width, 2 * width), nn.GLU())
        self.out = nn.Linear(width, width)

    def forward(self, query, key, value, key_padding_mask=None):
        b, t, c = query.shape
        q, k, v = (f(x).view(b, -1, self.heads, c // self.heads).transpose(1, 2)
                   for f, x in ((self.q, query), (self.k, key), (self.v, value)))
        z = q @ k.transpose(2, 3) * (c // self.heads) ** -0.5
        if key_padding_mask is not None:
            z = z.masked_fill(key_padding_mask[:, None, None], float("-inf"))
        return self.out((z.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class Story(nn.Module):
    def __init__(self, masked, words=30, width=32, heads=4):
        super().__init__()
        self.masked = masked
        self.src, self.tgt = nn.Embedding(words, width, padding_idx=1), nn.Embedding(words, width, padding_idx=1)
        self.read = nn.Linear(width, 2 * width)
        self.write = nn.Conv1d(width, 2 * width, 3)
        self.attproj = nn.Linear(width, width)
        self.attention = GatedHeads(width, heads)
        self.out = nn.Linear(width, words)

    def forward(self, src_tokens, prev_output_tokens):
        pad = src_tokens.eq(1)
        source = self.src(src_tokens)
        a = nn.functional.glu(self.read(source), -1).masked_fill(pad[..., None], 0)
        b = (a + source) * 0.5 ** 0.5
        target = self.tgt(prev_output_tokens)
        x = nn.functional.glu(self.write(nn.functional.pad(target.transpose(1, 2), (2, 0))), 1).transpose(1, 2)
        y = self.attention(self.attproj(x) + target, a, b, pad if self.masked else None)
        return self.out((x + y) * 0.5 ** 0.5)


def build(masked):
    torch.manual_seed(0)
    return Story(masked).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    src = torch.randint(2, 30, (2, 8))
    src[1, 5:] = 1
    return dict(inputs=dict(src_tokens=src, prev_output_tokens=torch.randint(2, 30, (2, 6))), mask=it.padding([8, 5]))


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    a = asks()["inputs"]
    short = dict(src_tokens=a["src_tokens"][1:, :5], prev_output_tokens=a["prev_output_tokens"][1:])
    return not torch.allclose(wrong()(**a)[1:], wrong()(**short), atol=1e-4) and torch.allclose(right()(**a)[1:], right()(**short), atol=1e-5)
