"""An Evoformer gives its pair representation as bias to the column attention of the alignment and not to the row attention. Source: github.com/lucidrains/alphafold2/issues/89"""
import torch
import torch.nn as nn

expect = ["bias-missing", "bias-other", "differs-from-reference"]
words = "row attention has no pair bias; column attention gets it although its axis is another"


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_kv, self.gating, self.to_out = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * width, bias=False), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x, bias=None):
        b, t, c = x.shape
        q, k, v = (a.view(b, t, self.heads, -1).transpose(1, 2) for a in (self.to_q(x), *self.to_kv(x).chunk(2, -1)))
        z = q * (c // self.heads) ** -0.5 @ k.transpose(2, 3)
        if bias is not None:
            z = z + bias
        y = (z.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c)
        return self.to_out(y * self.gating(x).sigmoid())


class Axial(nn.Module):
    def __init__(self, width, heads, row, pair):
        super().__init__()
        self.row = row
        self.norm, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.edges = nn.Linear(pair, heads, bias=False)

    def forward(self, x, edges=None):                      # (b, rows, columns, c)
        b, r, l, c = x.shape
        x = self.norm(x)
        if not self.row:
            x = x.transpose(1, 2)
        lead, n = x.shape[1], x.shape[2]
        bias = None
        if edges is not None:
            bias = self.edges(edges).permute(0, 3, 1, 2).repeat_interleave(lead, 0)
        y = self.attn(x.reshape(b * lead, n, c), bias).view(b, lead, n, c)
        return y if self.row else y.transpose(1, 2)


class MsaBlock(nn.Module):
    def __init__(self, mended, width=32, pair=16, heads=4):
        super().__init__()
        self.mended = mended
        self.rows, self.columns = Axial(width, heads, True, pair), Axial(width, heads, False, pair)
        self.ff = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, msa, pairwise):
        if self.mended:
            msa = self.rows(msa, pairwise) + msa
            msa = self.columns(msa) + msa
        else:
            msa = self.rows(msa) + msa
            msa = self.columns(msa, pairwise) + msa
        return self.ff(msa) + msa


def build(mended):
    torch.manual_seed(0)
    return MsaBlock(mended).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(msa=torch.randn(1, 6, 6, 32), pairwise=torch.randn(1, 6, 6, 16)), like=right())


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    a = asks()["inputs"]
    return not torch.allclose(wrong()(**a), right()(**a), atol=1e-3)
