"""A few correct formulas in many layouts and call styles, with a planted mistake and the right twin."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")
import numpy as np  # noqa: E402
import torch  # noqa: E402

from benchmarks.checking.field.generated.common import HEAD, Case, copied, drawn, maker, renamed  # noqa: E402

NUMPY = "import numpy as np\n\n\n"
JAX = "import jax\nimport jax.numpy as jnp\n\n\n"
KERAS = "import keras\nfrom keras import layers, ops\n\n\n"
TEMPLATES: dict[str, Callable[[random.Random], dict]] = {}

# acceptable names of mistakes that several templates share
OVER = {"q": ("softmax-over-queries",), "h": ("softmax-over-heads",), "b": ("softmax-over-batch",)}
MERGED = ("merged-by-reshape",)
SPLIT = ("split-by-reshape",)


def template(f: Callable[[random.Random], dict]) -> Callable[[random.Random], dict]:
    TEMPLATES[f.__name__] = f
    return f


def sizes(rng: random.Random, **given: int) -> dict[str, int]:
    h, d = given.get("h") or rng.choice([2, 4]), given.get("d") or rng.choice([4, 8])
    b = given.get("b") or rng.choice([2, 3])
    t = given.get("t") or rng.choice([5, 6, 7, 9])
    s = given.get("s") or rng.choice([x for x in (6, 7, 8, 10) if x != t])
    return dict(b=b, t=t, s=s, h=h, d=d, c=h * d)


# --------------------------------------------------------------------------- functions of q, k, v


@template
def einsum_function(rng: random.Random) -> dict:
    L = rng.choice(["bthd", "bhtd", "hbtd", "tbhd", "btd", "tbd", "bdt"])
    heads = "h" in L
    z = ("bhts" if heads else "bts")
    if L == "hbtd":
        z = rng.choice(["hbts", "bhts"])
    if L in ("tbd",):
        z = rng.choice(["bts", "tsb"])
    K = L.replace("t", "s")
    ax = {x: z.index(x) for x in z}
    n = sizes(rng)
    last = ax["s"] == len(z) - 1
    sdim = rng.choice(["-1", str(ax["s"])]) if last else str(ax["s"])
    form = f'"{L},{K}->{z}"'
    d = f"q.shape[{L.index('d') if L[-1] != 'd' else -1}]"
    text = HEAD + f'''def attention(q, k, v):
    scores = torch.einsum({form}, q, k) / {d} ** 0.5
    weights = F.softmax(scores, dim={sdim})
    return torch.einsum("{z},{K}->{L}", weights, v)
'''
    muts = [("no-scale", ("no-scale",), f" / {d} ** 0.5", ""), ("scale-one-over-d", ("scale-one-over-d",), f"{d} ** 0.5", d),
            ("scale-inverted", ("scale-inverted",), f"/ {d} ** 0.5", f"* {d} ** 0.5"),
            ("softmax-over-queries", OVER["q"], f"scores, dim={sdim}", f"scores, dim={ax['t']}"),
            ("softmax-over-batch", OVER["b"], f"scores, dim={sdim}", f"scores, dim={ax['b']}"),
            ("values-are-keys", ("values-are-keys",), "weights, v)", "weights, k)"),
            ("scale-of-wrong-axis", ("other-scale",), d, f"q.shape[{L.index('t')}]", {"scale": 1})]
    if heads:
        muts += [("softmax-over-heads", OVER["h"], f"scores, dim={sdim}", f"scores, dim={ax['h']}"),
                 ("heads-summed", ("scores-other", "batch-mixed", "differs-from-reference", "other-scale", "split-by-reshape"), form, f'"{L},{K.replace("h", "g")}->{z}"', {"like": 1})]
        n["s"] = n["t"]
    square = {"n": 1} if rng.random() < 0.3 else {}
    return dict(text=text, build="attention", n=n, layout=" ".join(L), muts=muts,
                inputs=dict(q=" ".join(L), k=" ".join(K), v=" ".join(K)), names=["q", "k", "v", "scores", "weights", "attention"], **({} if square else {}))


@template
def matmul_bthd(rng: random.Random) -> dict:
    n = sizes(rng)
    n["s"] = n["t"] if rng.random() < 0.6 else n["s"]
    causal = rng.random() < 0.5 and n["s"] == n["t"]
    text = HEAD + '''def attention(q, k, v):
    b, t, h, d = q.shape
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    scores = torch.matmul(q, k.transpose(-2, -1)) * d ** -0.5
''' + ("    scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -torch.inf)\n" if causal else "") + '''    weights = torch.softmax(scores, dim=-1)
    return torch.matmul(weights, v).transpose(1, 2)
'''
    muts = [("no-scale", ("no-scale",), " * d ** -0.5", ""), ("scale-inverted", ("scale-inverted",), "d ** -0.5", "d ** 0.5"),
            ("scale-model-width", ("scale-model-width",), "d ** -0.5", "(h * d) ** -0.5"),
            ("softmax-over-heads", OVER["h"], "dim=-1", "dim=1"), ("values-are-keys", ("values-are-keys",), "(weights, v)", "(weights, k)"),
            ("merged-by-reshape", MERGED, "v).transpose(1, 2)", "v).reshape(b, t, h, -1)"),
            ("split-by-reshape", SPLIT, "q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)",
             "q, k, v = (x.reshape(b, h, -1, d) for x in (q, k, v))"),
            ("output-reordered", ("merged-by-reshape", "differs-from-reference"), "v).transpose(1, 2)", "v).flip(1).transpose(1, 2)"),
            ("heads-attended", ("softmax-over-heads", "split-by-reshape", "batch-and-sequence-exchanged", "differs-from-reference"),
             "    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)\n", "") if not causal and n["s"] == n["t"] else None]
    if not causal:
        muts.append(("softmax-over-queries", OVER["q"], "dim=-1", "dim=-2"))
    else:
        muts += [("mask-missing", ("mask-missing",), "    scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -torch.inf)\n", ""),
                 ("mask-transposed", ("mask-transposed",), ".triu(1)", ".tril(-1)"), ("causal-off-by-one", ("causal-off-by-one",), ".triu(1)", ".triu(2)")]
    if muts[8] and "heads-attended" == muts[8][0]:
        muts[8] = ("heads-attended", muts[8][1], "torch.matmul(weights, v).transpose(1, 2)", "torch.matmul(weights, v)", {"also": (muts[8][2], "")})
    return dict(text=text, build="attention", n=n, layout="b t h d", muts=muts, mask=(lambda it, n, x: it.causal()) if causal else None,
                inputs=dict(q="b t h d", k="b s h d", v="b s h d"), names=["q", "k", "v", "scores", "weights", "attention"])


@template
def bmm_flat(rng: random.Random) -> dict:
    n = sizes(rng)
    add = rng.random() < 0.5
    first = '''    empty = torch.empty(b * h, t, s, dtype=q.dtype)
    scores = torch.baddbmm(empty, q, k.transpose(1, 2), beta=0, alpha=1 / math.sqrt(d))
''' if add else '''    scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(d)
'''
    text = HEAD + f'''def attention(q, k, v):
    b, h, t, d = q.shape
    s = k.shape[2]
    q = q.reshape(b * h, t, d)
    k = k.reshape(b * h, s, d)
    v = v.reshape(b * h, s, d)
{first}    weights = F.softmax(scores, dim=-1)
    return torch.bmm(weights, v).view(b, h, t, d)
'''
    muts = [("no-scale", ("no-scale",), "alpha=1 / math.sqrt(d)" if add else " / math.sqrt(d)", "alpha=1" if add else ""),
            ("scale-one-over-d", ("scale-one-over-d",), "math.sqrt(d)", "d"),
            ("softmax-over-queries", OVER["q"], "dim=-1", "dim=1"),
            ("softmax-over-batch", ("softmax-over-batch", "softmax-over-heads"), "dim=-1", "dim=0"),
            ("values-are-keys", ("values-are-keys",), "(weights, v)", "(weights, k)"),
            ("output-reordered", ("merged-by-reshape", "batch-mixed"), ".view(b, h, t, d)", ".view(h, b, t, d).transpose(0, 1)"),
            ("batch-mixed", ("batch-mixed", "split-by-reshape"), "k = k.reshape(b * h, s, d)", "k = k.transpose(0, 1).reshape(b * h, s, d)"),
            ("values-of-other-heads", ("batch-mixed", "differs-from-reference", "merged-by-reshape", "cache-pairs-apart"), "v = v.reshape(b * h, s, d)", "v = v.transpose(0, 1).reshape(b * h, s, d)")]
    return dict(text=text, build="attention", n=n, layout="b h t d", muts=muts, inputs=dict(q="b h t d", k="b h s d", v="b h s d"),
                names=["q", "k", "v", "scores", "weights", "attention"])


@template
def sdpa_function(rng: random.Random) -> dict:
    n = sizes(rng)
    what = rng.choice(["causal", "mask", "plain"])
    n["s"] = n["t"] if what == "causal" else n["s"]
    arg = {"causal": ", is_causal=True", "mask": ", attn_mask=mask[:, None, None, :]", "plain": ""}[what]
    text = HEAD + f'''def attention(q, k, v{", mask" if what == "mask" else ""}):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v{arg})
    return out.transpose(1, 2)
'''
    end, pre = f"_product_attention(q, k, v{arg})", "_product_attention("
    muts = [("scale-inverted", ("scale-inverted",), end, f"{pre}q, k, v{arg}, scale=q.shape[-1] ** 0.5)"),
            ("scale-twice", ("scale-one-over-d",), end, f"{pre}q / q.shape[-1] ** 0.5, k, v{arg})"),
            ("no-scale", ("no-scale",), end, f"{pre}q, k, v{arg}, scale=1.0)"),
            ("scale-model-width", ("scale-model-width",), end, f"{pre}q, k, v{arg}, scale=(q.shape[1] * q.shape[-1]) ** -0.5)"),
            ("values-are-keys", ("values-are-keys",), pre + "q, k, v" + arg, pre + "q, k, k" + arg),
            ("values-exchanged", ("values-are-keys", "projections-exchanged", "scores-other", "differs-from-reference"), pre + "q, k, v" + arg, pre + "q, v, k" + arg),
            ("dropout-in-eval", ("dropout-in-eval",), end, f"{pre}q, k, v{arg}, dropout_p=0.1)"),
            ("merged-by-reshape", MERGED, "out.transpose(1, 2)", "out.reshape(out.shape[0], out.shape[2], out.shape[1], -1)")]
    if what == "plain":
        muts += [("cross-causal", ("cross-causal", "mask-other"), end, pre + "q, k, v, is_causal=True)")]
    if what == "causal":
        muts += [("mask-missing", ("mask-missing",), ", is_causal=True", "")]
    if what == "mask":
        muts += [("mask-inverted", ("mask-inverted",), "=mask[", "=~mask["), ("mask-boolean-added", ("mask-boolean-added",), "None, :]", "None, :].float()"),
                 ("padding-attended", ("padding-attended",), arg, "")]
    x = dict(q="b t h d", k="b s h d", v="b s h d")
    return dict(text=text, build="attention", n=n, layout="b t h d", muts=muts, inputs=dict(**x, mask="real b s") if what == "mask" else x,
                mask={"causal": lambda it, n, x: it.causal(), "mask": lambda it, n, x: it.padding(x["mask"])}.get(what), names=["q", "k", "v", "out", "attention"])


@template
def chunked_softmax(rng: random.Random) -> dict:
    n = sizes(rng, s=10)
    size = rng.choice([2, 4, 5])
    text = HEAD + f'''def blockwise_attention(q, k, v, size={size}):
    scale = q.shape[-1] ** -0.5
    best = torch.full(q.shape[:-1] + (1,), float("-inf"))
    total = torch.zeros_like(best)
    out = torch.zeros(q.shape[:-1] + (v.shape[-1],))
    for start in range(0, k.shape[-2], size):
        z = (q @ k[..., start : start + size, :].transpose(-2, -1)) * scale
        top = torch.maximum(best, z.amax(-1, keepdim=True))
        p = torch.exp(z - top)
        shrink = torch.exp(best - top)
        total = total * shrink + p.sum(-1, keepdim=True)
        out = out * shrink + p @ v[..., start : start + size, :]
        best = top
    return out / total
'''
    muts = [("no-scale", ("no-scale",), " * scale\n", "\n"), ("scale-one-over-d", ("scale-one-over-d",), "-1] ** -0.5", "-1] ** -1.0"),
            ("not-normalised", ("not-normalised",), "return out / total", "return out"),
            ("chunk-not-rescaled", ("not-normalised", "scores-other", "differs-from-reference"), "out = out * shrink + p", "out = out + p"),
            ("total-not-rescaled", ("not-normalised",), "total = total * shrink + p", "total = total + p"),
            ("softmax-per-chunk", ("not-normalised", "scores-other", "differs-from-reference"), "    return out / total", "    return out",
             {"also": ("p = torch.exp(z - top)\n        shrink = torch.exp(best - top)\n        total = total * shrink + p.sum(-1, keepdim=True)\n        out = out * shrink + p @", "p = torch.softmax(z, -1)\n        out = out + p @")}),
            ("keys-dropped", ("mask-other", "window-off-by-one", "cache-overwritten"), "range(0, k.shape[-2], size)", "range(0, k.shape[-2] - size, size)"),
            ("chunk-off-by-one", ("mask-other", "causal-off-by-one", "lengths-off-by-one"), "range(0, k.shape[-2], size)", "range(1, k.shape[-2], size)"),
            ("values-shifted", ("cache-pairs-apart", "values-are-keys", "differs-from-reference"), "p @ v[..., start", "p @ v.roll(1, -2)[..., start"),
            ("large-scores", ("large-scores", "nan-with-keys"), "top = torch.maximum(best, z.amax(-1, keepdim=True))", "top = torch.zeros_like(best)", {"drive": "large"})]
    L = rng.choice(["b h t d", "b t d"])
    return dict(text=text, build="blockwise_attention", n=n, layout=L, muts=muts, inputs=dict(q=L, k=L.replace("t", "s"), v=L.replace("t", "s")),
                names=["q", "k", "v", "best", "out", "blockwise_attention"])


@template
def flat_logits(rng: random.Random) -> dict:
    n = sizes(rng)
    text = HEAD + '''def attention(q, k, v):
    b, t, d = q.shape
    s = k.shape[1]
    logits = torch.einsum("btd,bsd->bts", q, k).reshape(b * t, s) / math.sqrt(d)
    weights = F.softmax(logits, dim=1)
    return torch.bmm(weights.view(b, t, s), v)
'''
    muts = [("softmax-flat-axis", ("softmax-over-queries", "softmax-over-batch", "not-normalised"), "logits, dim=1", "logits, dim=0"),
            ("softmax-over-all", ("not-normalised",), "F.softmax(logits, dim=1)", "F.softmax(logits.view(b, t * s), dim=1)"),
            ("no-scale", ("no-scale",), " / math.sqrt(d)", ""),
            ("batch-mixed", ("batch-mixed", "merged-by-reshape"), "weights.view(b, t, s)", "weights.view(t, b, s).transpose(0, 1)"),
            ("scale-one-over-d", ("scale-one-over-d",), "math.sqrt(d)", "d"), ("values-are-keys", ("values-are-keys",), "s), v)", "s), k)")]
    return dict(text=text, build="attention", n=n, layout="b t d", muts=muts, inputs=dict(q="b t d", k="b s d", v="b s d"), names=["q", "k", "v", "logits", "weights", "attention"])


@template
def keyword_only(rng: random.Random) -> dict:
    n = sizes(rng)
    star = rng.choice(["*, query, key, value, key_mask", "query, *, key, value, key_mask"])
    text = HEAD + f'''def attend({star}):
    width = query.size(-1)
    scores = query @ key.transpose(-1, -2) / math.sqrt(width)
    scores = scores.masked_fill(~key_mask[:, None, :], float("-inf"))
    return F.softmax(scores, dim=-1) @ value
'''
    muts = [("mask-inverted", ("mask-inverted",), "~key_mask", "key_mask"), ("no-scale", ("no-scale",), " / math.sqrt(width)", ""),
            ("padding-attended", ("padding-attended",), '    scores = scores.masked_fill(~key_mask[:, None, :], float("-inf"))\n', ""),
            ("mask-after-softmax", ("mask-after-softmax",), "F.softmax(scores, dim=-1) @", "(F.softmax(scores, dim=-1) * key_mask[:, None, :]) @", {"also": ('    scores = scores.masked_fill(~key_mask[:, None, :], float("-inf"))\n', "")}),
            ("values-are-keys", ("values-are-keys",), "@ value", "@ key"), ("mask-too-weak", ("mask-too-weak",), 'float("-inf")', "-1.0"),
            ("mask-zero", ("mask-too-weak",), 'float("-inf")', "0.0")]
    return dict(text=text, build="attend", n=n, layout="b t d", muts=muts, inputs=dict(query="b t d", key="b s d", value="b s d", key_mask="real b s"),
                mask=lambda it, n, x: it.padding(x["key_mask"]), names=["scores", "attend"])


@template
def gqa_function(rng: random.Random) -> dict:
    n = sizes(rng, h=4)
    bthd = rng.random() < 0.6
    L = "b t h d" if bthd else "b h t d"
    ax = 2 if bthd else 1
    lay = ("bthd", "bshd") if bthd else ("bhtd", "bhsd")
    text = HEAD + f'''def grouped_attention(q, k, v):
    groups = q.shape[{ax}] // k.shape[{ax}]
    k = k.repeat_interleave(groups, dim={ax})
    v = v.repeat_interleave(groups, dim={ax})
    scores = torch.einsum("{lay[0]},{lay[1]}->bhts", q, k) / math.sqrt(q.shape[-1])
    weights = scores.softmax(dim=-1)
    return torch.einsum("bhts,{lay[1]}->{lay[0]}", weights, v)
'''
    rep = "(1, 1, groups, 1)" if bthd else "(1, groups, 1, 1)"
    muts = [("key-heads-tiled", ("key-heads-tiled",), f"k = k.repeat_interleave(groups, dim={ax})\n    v = v.repeat_interleave(groups, dim={ax})", f"k = k.repeat{rep}\n    v = v.repeat{rep}", {"like": 1}),
            ("value-heads-tiled", ("key-heads-tiled", "cache-pairs-apart", "differs-from-reference"), f"v = v.repeat_interleave(groups, dim={ax})", f"v = v.repeat{rep}", {"like": rng.random() < 0.7}),
            ("scale-model-width", ("scale-model-width",), "math.sqrt(q.shape[-1])", f"math.sqrt(q.shape[{ax}] * q.shape[-1])"),
            ("softmax-over-heads", OVER["h"], "dim=-1", "dim=1"), ("softmax-over-queries", OVER["q"], "dim=-1", "dim=-2"),
            ("values-are-keys", ("values-are-keys",), "weights, v)", "weights, k)")]
    kv = L.replace("t", "s").replace("h", "2")
    return dict(text=text, build="grouped_attention", n=n, layout=L, muts=muts, inputs=dict(q=L, k=kv, v=kv), names=["q", "k", "v", "scores", "weights"])


@template
def tuple_outputs(rng: random.Random) -> dict:
    n = sizes(rng)
    order = rng.random() < 0.7
    text = HEAD + f'''class ScaledDotProductAttention(nn.Module):
    def __init__(self, temperature, dropout=0.1):
        super().__init__()
        self.temperature = temperature
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, k, v, mask=None):
        attn = torch.matmul(q / self.temperature, k.transpose(2, 3))
        if mask is not None:
            attn = attn.masked_fill(mask == 0, -1e9)
        attn = self.dropout(F.softmax(attn, dim=-1))
        output = torch.matmul(attn, v)
        return {"output, attn" if order else "output, attn"}
'''
    muts = [("mask-inverted", ("mask-inverted",), "mask == 0", "mask"), ("softmax-over-heads", OVER["h"], "dim=-1", "dim=1"),
            ("mask-too-weak", ("mask-too-weak",), "-1e9", "-1"), ("mask-too-weak-small", ("mask-too-weak",), "-1e9", "1e-9"),
            ("scale-wrong-argument", ("scale-one-over-d",), "q / self.temperature", "q / self.temperature ** 2"),
            ("dropout-in-eval", ("dropout-in-eval",), "self.dropout(F.softmax(attn, dim=-1))", "F.dropout(F.softmax(attn, dim=-1), 0.1)"),
            ("mask-after-softmax", ("mask-after-softmax",), "            attn = attn.masked_fill(mask == 0, -1e9)\n        attn = self.dropout(F.softmax(attn, dim=-1))\n",
             "            attn = self.dropout(F.softmax(attn, dim=-1)).masked_fill(mask == 0, 0)\n        else:\n            attn = self.dropout(F.softmax(attn, dim=-1))\n")]
    return dict(text=text, build=f"ScaledDotProductAttention(temperature={n['d']} ** 0.5)", n=n, layout="b h t d", muts=muts,
                inputs=dict(q="b h t d", k="b h s d", v="b h s d", mask="real b 1 1 s"), mask=lambda it, n, x: it.padding(x["mask"][:, 0, 0].bool()), names=["attn", "output"])


# --------------------------------------------------------------------------- modules


QKV = dict(sep='''        q = self.to_q(x)
        k = self.to_k(x)
        v = self.to_v(x)
''')


@template
def module_btc(rng: random.Random) -> dict:
    n = sizes(rng)
    style = rng.choice(["view", "rearrange-like", "hbtd"])
    causal = rng.random() < 0.4
    split = {"view": "q, k, v = (y.view(b, t, h, d).transpose(1, 2) for y in (q, k, v))", "rearrange-like": "q, k, v = (y.unflatten(-1, (h, d)).permute(0, 2, 1, 3) for y in (q, k, v))",
             "hbtd": "q, k, v = (y.view(b, t, h, d).permute(2, 0, 1, 3) for y in (q, k, v))"}[style]
    hb = style == "hbtd"
    merge = "y = y.permute(1, 2, 0, 3).reshape(b, t, c)" if hb else rng.choice(["y = y.transpose(1, 2).reshape(b, t, c)", "y = y.permute(0, 2, 1, 3).contiguous().view(b, t, c)"])
    mask = "        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float('-inf'))\n" if causal else ""
    text = HEAD + f'''class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.to_q = nn.Linear(dim, dim)
        self.to_k = nn.Linear(dim, dim)
        self.to_v = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        h, d = self.heads, c // self.heads
{QKV["sep"]}        {split}
        scores = q @ k.transpose(-2, -1) * self.scale
{mask}        weights = F.softmax(scores, dim=-1)
        y = weights @ v
        {merge}
        return self.proj(y)
'''
    bad_merge = "y = y.permute(1, 0, 2, 3).reshape(b, t, c)" if hb else "y = y.reshape(b, t, c)"
    bad_split = "q, k, v = (y.reshape(h, b, t, d) for y in (q, k, v))" if hb else "q, k, v = (y.reshape(b, h, t, d) for y in (q, k, v))"
    muts = [("scale-model-width", ("scale-model-width",), "(dim // heads) ** -0.5", "dim ** -0.5"), ("no-scale", ("no-scale",), " * self.scale", ""),
            ("scale-inverted", ("scale-inverted",), "* self.scale", "/ self.scale"),
            ("split-by-reshape", ("split-by-reshape", "batch-mixed") if hb else SPLIT, split, bad_split), ("merged-by-reshape", MERGED, merge, bad_merge),
            ("softmax-over-heads", OVER["h"], "dim=-1", "dim=0" if hb else "dim=1"), ("softmax-over-batch", OVER["b"], "dim=-1", "dim=1" if hb else "dim=0"),
            ("values-are-keys", ("values-are-keys",), "weights @ v", "weights @ k"),
            ("values-from-wrong-projection", ("values-are-keys", "projection-other", "projections-exchanged"), "v = self.to_v(x)", "v = self.to_k(x)"),
            ("queries-as-keys", ("projection-other", "projections-exchanged", "differs-from-reference"), "k = self.to_k(x)", "k = self.to_q(x)", {"like": 1}),
            ("projections-exchanged", ("projections-exchanged",), "q @ k.transpose", "k @ q.transpose", {"like": 1}),
            ("output-projection-missing", ("projection-other", "differs-from-reference", "weight-transposed"), "return self.proj(y)", "return y", {"like": 1}),
            ("heads-interleaved", ("heads-interleaved",), split, split.replace("(b, t, h, d)", "(b, t, d, h)").replace("(h, d))", "(d, h))").replace(".transpose(1, 2)", ".permute(0, 3, 1, 2)").replace("permute(2, 0", "permute(3, 0").replace(", 1, 3)", ", 1, 2)").replace("permute(0, 2, 1, 2)", "permute(0, 3, 1, 2)"), {"like": 1})]
    if not hb:
        muts += [("view-raises", ("view-raises",), merge, "y = y.transpose(1, 2).view(b, t, c)")]
    if not causal:
        muts += [("softmax-over-queries", OVER["q"], "dim=-1", "dim=-2"),
                 ("weights-transposed", ("softmax-over-queries", "projections-exchanged"), "weights @ v", "weights.transpose(-2, -1) @ v")]
    else:
        muts += [("mask-missing", ("mask-missing",), mask, ""), ("mask-transposed", ("mask-transposed",), ".triu(1)", ".tril(-1)"),
                 ("causal-off-by-one", ("causal-off-by-one",), ".triu(1)", ".triu(2)")]
    return dict(text=text, build=f"SelfAttention({n['c']}, {n['h']})", n=n, layout="b t c", muts=muts, inputs=dict(x="b t c"),
                mask=(lambda it, n, x: it.causal()) if causal else None, names=["q", "k", "v", "scores", "weights", "x", "y", "SelfAttention", "proj", ("to_q", "to_k", "to_v")], bare=True)


@template
def fused_qkv(rng: random.Random) -> dict:
    n = sizes(rng)
    order = rng.choice(["3hd", "h3d"])
    line, other = "q, k, v = self.qkv(x).view(b, t, 3, self.heads, d).permute(2, 0, 3, 1, 4)", "q, k, v = self.qkv(x).view(b, t, self.heads, 3, d).permute(3, 0, 2, 1, 4)"
    if order == "h3d":
        line, other = other, line
    text = HEAD + f'''class Attention(nn.Module):
    def __init__(self, dim, heads=8, qkv_bias=True):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        d = c // self.heads
        {line}
        attn = (q * d ** -0.5) @ k.transpose(-2, -1)
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(b, t, c)
        return self.proj(x)
'''
    wrong_axes = line.replace("permute(2, 0, 3, 1, 4)", "permute(2, 0, 1, 3, 4)").replace("permute(3, 0, 2, 1, 4)", "permute(3, 0, 1, 2, 4)")
    muts = [("layout-of-fused-rows", ("layout-of-fused-rows",), line, other, {"like": 1}), ("projections-exchanged", ("projections-exchanged",), "q, k, v = self", "k, q, v = self", {"like": 1}),
            ("values-first", ("projections-exchanged", "layout-of-fused-rows"), "q, k, v = self", "v, k, q = self", {"like": 1}),
            ("scale-model-width", ("scale-model-width",), "q * d ** -0.5", "q * c ** -0.5"), ("merged-by-reshape", MERGED, ".transpose(1, 2).reshape(b, t, c)", ".reshape(b, t, c)"),
            ("heads-attended", ("softmax-over-heads", "split-by-reshape", "batch-and-sequence-exchanged", "differs-from-reference"), line, wrong_axes, {"also": (".transpose(1, 2).reshape", ".reshape")}),
            ("softmax-over-queries", OVER["q"], "dim=-1", "dim=-2"), ("softmax-over-heads", OVER["h"], "dim=-1", "dim=1"), ("values-are-keys", ("values-are-keys",), "attn @ v", "attn @ k"),
            ("values-not-used", ("values-are-keys", "projections-exchanged", "projection-other"), "attn @ v", "attn @ q"), ("scale-twice", ("scale-one-over-d",), "attn = attn.softmax", "attn = (attn / d ** 0.5).softmax")]
    return dict(text=text, build=f"Attention({n['c']}, {n['h']})", n=n, layout="b t c", muts=muts, inputs=dict(x="b t c"), names=["q", "k", "v", "attn", "x", "qkv", "proj", "Attention"], bare=True)


@template
def time_first(rng: random.Random) -> dict:
    n = sizes(rng)
    text = HEAD + '''class TimeFirstAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x, key_padding_mask):
        t, b, c = x.shape
        d = c // self.heads
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        q = q.contiguous().view(t, b * self.heads, d).transpose(0, 1) * d ** -0.5
        k = k.contiguous().view(t, b * self.heads, d).transpose(0, 1)
        v = v.contiguous().view(t, b * self.heads, d).transpose(0, 1)
        scores = torch.bmm(q, k.transpose(1, 2))
        scores = scores.view(b, self.heads, t, t).masked_fill(key_padding_mask[:, None, None, :], float("-inf"))
        weights = F.softmax(scores.view(b * self.heads, t, t), dim=-1)
        y = torch.bmm(weights, v).transpose(0, 1).reshape(t, b, c)
        return self.out_proj(y)
'''
    muts = [("mask-inverted", ("mask-inverted",), "(key_padding_mask[", "(~key_padding_mask["), ("mask-on-queries", ("mask-on-queries",), "[:, None, None, :]", "[:, None, :, None]"),
            ("mask-of-other-rows", ("mask-of-other-rows",), "scores.view(b, self.heads, t, t).masked_fill(key_padding_mask[:, None, None, :]", "scores.masked_fill(key_padding_mask.repeat(self.heads, 1)[:, None, :]"),
            ("batch-mixed", ("batch-mixed", "merged-by-reshape"), ".transpose(0, 1).reshape(t, b, c)", ".reshape(t, b, c)"),
            ("softmax-over-batch", ("softmax-over-batch", "softmax-over-heads"), "dim=-1)\n        y", "dim=0)\n        y"),
            ("softmax-over-queries", OVER["q"], "dim=-1)\n        y", "dim=1)\n        y"),
            ("padding-attended", ("padding-attended",), '.masked_fill(key_padding_mask[:, None, None, :], float("-inf"))', ""), ("scale-model-width", ("scale-model-width",), "* d ** -0.5", "* c ** -0.5"),
            ("split-by-reshape", ("split-by-reshape", "batch-mixed"), "k = k.contiguous().view(t, b * self.heads, d).transpose(0, 1)", "k = k.contiguous().view(b * self.heads, t, d)"),
            ("values-are-keys", ("values-are-keys",), "bmm(weights, v)", "bmm(weights, k)")]
    return dict(text=text, build=f"TimeFirstAttention({n['c']}, {n['h']})", n=n, layout="t b c", muts=muts, inputs=dict(x="t b c", key_padding_mask="pad b t"),
                mask=lambda it, n, x: it.padding(~x["key_padding_mask"]), names=["q", "k", "v", "scores", "weights", "x", "y", "TimeFirstAttention"])


@template
def channels_first(rng: random.Random) -> dict:
    n = sizes(rng)
    text = HEAD + '''class ConvAttention(nn.Module):
    """Multi-head attention over a signal of channels first."""

    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(1, channels)
        self.qkv = nn.Conv1d(channels, channels * 3, 1)
        self.proj = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        b, c, t = x.shape
        d = c // self.heads
        q, k, v = self.qkv(x).reshape(b * self.heads, d * 3, t).split(d, dim=1)
        scores = torch.einsum("bdi,bdj->bij", q, k) / math.sqrt(d)
        weights = torch.softmax(scores, dim=-1)
        y = torch.einsum("bij,bdj->bdi", weights, v)
        return self.proj(y.reshape(b, c, t))
'''.replace("        self.norm = nn.GroupNorm(1, channels)\n", "")
    muts = [("weights-transposed", ("softmax-over-queries", "projections-exchanged"), '"bij,bdj->bdi"', '"bij,bdi->bdj"'), ("softmax-over-queries", OVER["q"], "dim=-1", "dim=1"),
            ("softmax-over-batch", ("softmax-over-batch", "softmax-over-heads"), "dim=-1", "dim=0"), ("no-scale", ("no-scale",), " / math.sqrt(d)", ""),
            ("scale-model-width", ("scale-model-width",), "math.sqrt(d)", "math.sqrt(c)"), ("values-are-keys", ("values-are-keys",), "weights, v", "weights, k"),
            ("merged-by-reshape", ("merged-by-reshape",), "y.reshape(b, c, t)", "y.transpose(1, 2).reshape(b, c, t)"),
            ("split-by-reshape", ("split-by-reshape",), 'q, k, v = self.qkv(x).reshape(b * self.heads, d * 3, t).split(d, dim=1)', 'q, k, v = self.qkv(x).reshape(b * self.heads, t, d * 3).transpose(1, 2).split(d, dim=1)'),
            ("layout-of-fused-rows", ("layout-of-fused-rows",), "q, k, v = self.qkv(x).reshape(b * self.heads, d * 3, t).split(d, dim=1)", "q, k, v = (y.reshape(b * self.heads, d, t) for y in self.qkv(x).chunk(3, dim=1))", {"like": 1})]
    return dict(text=text, build=f"ConvAttention({n['c']}, {n['h']})", n=n, layout="b c t", muts=muts, inputs=dict(x="b c t"), names=["q", "k", "v", "scores", "weights", "x", "y", "ConvAttention"])


@template
def image_attention(rng: random.Random) -> dict:
    n = sizes(rng, d=8, h=2)
    sagan = rng.random() < 0.5
    scale = "" if sagan else " / math.sqrt(q.shape[1])"
    text = HEAD + f'''class ImageAttention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.query = nn.Conv2d(channels, channels // 2, 1)
        self.key = nn.Conv2d(channels, channels // 2, 1)
        self.value = nn.Conv2d(channels, channels, 1)
        self.gamma = nn.Parameter(torch.ones(1) * 0.7)

    def forward(self, x):
        b, c, height, width = x.shape
        q = self.query(x).flatten(2)
        k = self.key(x).flatten(2)
        v = self.value(x).flatten(2)
        energy = torch.bmm(q.transpose(1, 2), k){scale}
        attention = F.softmax(energy, dim=-1)
        out = torch.bmm(v, attention.transpose(1, 2)).view(b, c, height, width)
        return self.gamma * out + x
'''
    muts = [("weights-transposed", ("softmax-over-queries", "projections-exchanged"), "attention.transpose(1, 2)", "attention"), ("softmax-over-queries", OVER["q"], "dim=-1", "dim=1"),
            ("softmax-over-batch", OVER["b"], "dim=-1", "dim=0"),
            ("split-by-reshape", ("split-by-reshape", "differs-from-reference"), "k = self.key(x).flatten(2)", "k = self.key(x).view(b, height * width, -1).transpose(1, 2)"),
            ("merged-by-reshape", ("merged-by-reshape",), "torch.bmm(v, attention.transpose(1, 2)).view", "torch.bmm(attention, v.transpose(1, 2)).view"),
            ("values-of-input", ("projection-other", "differs-from-reference", "values-are-keys"), "v = self.value(x).flatten(2)", "v = x.flatten(2)", {"like": 1}),
            ("image-transposed", ("merged-by-reshape", "differs-from-reference"), ".view(b, c, height, width)", ".view(b, c, width, height).transpose(2, 3)")]
    if not sagan:
        muts += [("no-scale", ("no-scale",), scale, ""), ("scale-of-wrong-axis", ("other-scale", "scale-model-width"), "q.shape[1]", "(height * width)", {"like": 1})]
    return dict(text=text, build=f"ImageAttention({n['c']})", n=n, layout="b c height width", muts=muts, inputs=dict(x="b c 3 4"), scale=1.0 if sagan else None,
                names=["q", "k", "v", "energy", "attention", "x", "out", "ImageAttention"])


@template
def mha_wrapper(rng: random.Random) -> dict:
    n = sizes(rng, b=3)
    n["s"] = n["t"]
    residual = rng.random() < 0.5
    text = HEAD + f'''class EncoderBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, padding):
        h = self.norm(x)
        y, _ = self.attn(h, h, h, key_padding_mask=padding)
        return {"x + y" if residual else "y"}
'''
    muts = [("batch-and-sequence-exchanged", ("batch-and-sequence-exchanged", "batch-mixed"), ", batch_first=True", "", {"also": (", key_padding_mask=padding", "")}),
            ("mask-inverted", ("mask-inverted",), "=padding", "=~padding"), ("padding-attended", ("padding-attended",), ", key_padding_mask=padding", ""),
            ("padding-as-number", ("mask-boolean-added",), "=padding", "=padding.float()"),
            ("leak-of-norm", ("batch-mixed", "differs-from-reference"), "h = self.norm(x)", "h = (x - x.mean(0)) / (x.std(0) + 1e-5)")]
    return dict(text=text, build=f"EncoderBlock({n['c']}, {n['h']})", n=n, layout="b t c", muts=muts, inputs=dict(x="b t c", padding="pad b t"),
                mask=lambda it, n, x: it.padding(~x["padding"]), names=["x", "y", "EncoderBlock", "attn"])


@template
def mha_causal(rng: random.Random) -> dict:
    n = sizes(rng)
    text = HEAD + '''class CausalBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)

    def forward(self, x):
        t = x.size(1)
        mask = torch.ones(t, t, dtype=torch.bool).triu(1)
        y = self.norm1(x)
        x = x + self.attn(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.ff(self.norm2(x))
'''
    muts = [("mask-inverted", ("mask-inverted", "mask-transposed", "causal-off-by-one"), ".triu(1)", ".triu(1).logical_not()"),
            ("mask-missing", ("mask-missing",), ", attn_mask=mask", ""), ("mask-transposed", ("mask-transposed",), ".triu(1)", ".tril(-1)"),
            ("causal-off-by-one", ("causal-off-by-one",), ".triu(1)", ".triu(2)"), ("mask-boolean-added", ("mask-boolean-added",), "attn_mask=mask", "attn_mask=(~mask).float()"),
            ("batch-and-sequence-exchanged", ("batch-and-sequence-exchanged", "batch-mixed", "mask-missing"), ", batch_first=True", "", {"also": ("t = x.size(1)", "t = x.size(0)")}),
            ("leak-later", ("leak-later",), "return x + self.ff(self.norm2(x))", "return x + self.ff(self.norm2(x - x.mean(1, keepdim=True)))"),
            ("mask-too-weak", ("mask-too-weak",), "attn_mask=mask", "attn_mask=mask * -1.0")]
    return dict(text=text, build=f"CausalBlock({n['c']}, {n['h']})", n=n, layout="b t c", muts=muts, inputs=dict(x="b t c"), mask=lambda it, n, x: it.causal(), names=["x", "y", "CausalBlock", "attn", "mask"], bare=True)


@template
def mha_cross(rng: random.Random) -> dict:
    n = sizes(rng)
    equal = rng.random() < 0.5
    n["s"] = n["t"] if equal else n["s"]
    text = HEAD + '''class CrossBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.cross = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, memory, memory_padding):
        y, weights = self.cross(query=self.norm(x), key=memory, value=memory, key_padding_mask=memory_padding)
        return x + y
'''
    muts = [("mask-inverted", ("mask-inverted",), "=memory_padding", "=~memory_padding"), ("padding-attended", ("padding-attended",), ", key_padding_mask=memory_padding", "")]
    if equal:
        muts += [("cross-ignores-context", ("cross-ignores-context",), "key=memory, value=memory", "key=self.norm(x), value=self.norm(x)"),
                 ("values-from-wrong-tensor", ("cross-ignores-context", "projections-exchanged", "values-are-keys", "projection-other", "differs-from-reference"), "value=memory", "value=self.norm(x)"),
                 ("keys-from-wrong-tensor", ("cross-ignores-context", "projections-exchanged", "projection-other", "differs-from-reference"), "key=memory,", "key=self.norm(x),"),
                 ("sides-exchanged", ("projections-exchanged", "cross-ignores-context", "differs-from-reference"), "query=self.norm(x), key=memory, value=memory", "query=memory, key=self.norm(x), value=self.norm(x)")]
    else:
        muts += [("cross-causal", ("cross-causal",), ", key_padding_mask", ", attn_mask=torch.ones(x.shape[1], memory.shape[1]).triu(1).bool(), key_padding_mask")]
    return dict(text=text, build=f"CrossBlock({n['c']}, {n['h']})", n=n, layout="b t c", muts=muts, inputs=dict(x="b t c", memory="b s c", memory_padding="pad b s"),
                mask=lambda it, n, x: it.padding(~x["memory_padding"]), names=["x", "y", "CrossBlock", "cross", "memory", "memory_padding"])


@template
def loop_over_heads(rng: random.Random) -> dict:
    n = sizes(rng)
    text = HEAD + '''class Head(nn.Module):
    def __init__(self, dim, head_size):
        super().__init__()
        self.key = nn.Linear(dim, head_size, bias=False)
        self.query = nn.Linear(dim, head_size, bias=False)
        self.value = nn.Linear(dim, head_size, bias=False)

    def forward(self, x):
        t = x.shape[1]
        k, q, v = self.key(x), self.query(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(torch.tril(torch.ones(t, t)) == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        return wei @ v


class MultiHead(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = nn.ModuleList([Head(dim, dim // heads) for _ in range(heads)])
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        out = torch.cat([head(x) for head in self.heads], dim=-1)
        return self.proj(out)
'''
    muts = [("scale-model-width", ("scale-model-width",), "k.shape[-1] ** -0.5", "x.shape[-1] ** -0.5"), ("no-scale", ("no-scale",), " * k.shape[-1] ** -0.5", ""),
            ("mask-missing", ("mask-missing",), '        wei = wei.masked_fill(torch.tril(torch.ones(t, t)) == 0, float("-inf"))\n', ""), ("mask-transposed", ("mask-transposed",), "torch.tril", "torch.triu"),
            ("mask-inverted", ("mask-inverted", "mask-transposed", "causal-off-by-one"), "== 0", "== 1"), ("softmax-over-batch", OVER["b"], "F.softmax(wei, dim=-1)", "F.softmax(wei, dim=0)"),
            ("values-are-keys", ("values-are-keys",), "wei @ v", "wei @ k"), ("merged-by-reshape", MERGED, "torch.cat([head(x) for head in self.heads], dim=-1)", "torch.stack([head(x) for head in self.heads], dim=1).reshape(x.shape)"),
            ("heads-reversed", ("differs-from-reference", "projection-other", "merged-by-reshape"), "for head in self.heads]", "for head in reversed(self.heads)]", {"like": 1}),
            ("one-head-for-all", ("projection-other", "differs-from-reference", "attentions-differ"), "[head(x) for head in self.heads]", "[self.heads[0](x) for head in self.heads]", {"like": 1}),
            ("mask-after-softmax", ("mask-after-softmax",), 'wei = wei.masked_fill(torch.tril(torch.ones(t, t)) == 0, float("-inf"))\n        wei = F.softmax(wei, dim=-1)', "wei = F.softmax(wei, dim=-1)\n        wei = wei * torch.tril(torch.ones(t, t))")]
    return dict(text=text, build=f"MultiHead({n['c']}, {n['h']})", n=n, layout="b t c", muts=muts, inputs=dict(x="b t c"), mask=lambda it, n, x: it.causal(), names=["k", "q", "v", "wei", "x", "out", "MultiHead"], bare=True)


@template
def cat_heads_on_batch(rng: random.Random) -> dict:
    n = sizes(rng)
    text = HEAD + '''class MultiHeadAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.linear_q = nn.Linear(dim, dim)
        self.linear_k = nn.Linear(dim, dim)
        self.linear_v = nn.Linear(dim, dim)

    def forward(self, queries, keys, key_mask):
        d = queries.shape[-1] // self.heads
        q = torch.cat(self.linear_q(queries).split(d, dim=2), dim=0)
        k = torch.cat(self.linear_k(keys).split(d, dim=2), dim=0)
        v = torch.cat(self.linear_v(keys).split(d, dim=2), dim=0)
        outputs = q @ k.transpose(1, 2) / d ** 0.5
        mask = key_mask.repeat(self.heads, 1).unsqueeze(1)
        outputs = torch.where(mask, outputs, torch.full_like(outputs, -2.0 ** 32))
        outputs = F.softmax(outputs, dim=-1) @ v
        return torch.cat(outputs.chunk(self.heads, dim=0), dim=2)
'''
    muts = [("mask-of-other-rows", ("mask-of-other-rows",), "key_mask.repeat(self.heads, 1)", "key_mask.repeat_interleave(self.heads, 0)"), ("mask-inverted", ("mask-inverted",), "where(mask,", "where(~mask,"),
            ("scale-model-width", ("scale-model-width",), "/ d ** 0.5", "/ queries.shape[-1] ** 0.5"), ("no-scale", ("no-scale",), " / d ** 0.5", ""),
            ("batch-mixed", ("batch-mixed", "merged-by-reshape"), "torch.cat(outputs.chunk(self.heads, dim=0), dim=2)", "outputs.view(queries.shape[0], self.heads, -1, d).transpose(1, 2).reshape(queries.shape)"),
            ("values-are-keys", ("values-are-keys",), "dim=-1) @ v", "dim=-1) @ k"), ("values-from-wrong-projection", ("values-are-keys", "projection-other"), "self.linear_v(keys)", "self.linear_k(keys)"),
            ("padding-attended", ("padding-attended",), "        outputs = torch.where(mask, outputs, torch.full_like(outputs, -2.0 ** 32))\n", ""), ("mask-too-weak", ("mask-too-weak",), "-2.0 ** 32)", "-1.0)"),
            ("softmax-over-queries", OVER["q"], "dim=-1) @ v", "dim=1) @ v"), ("softmax-over-batch", ("softmax-over-batch", "softmax-over-heads"), "dim=-1) @ v", "dim=0) @ v")]
    return dict(text=text, build=f"MultiHeadAttention({n['c']}, {n['h']})", n=n, layout="b t c", muts=muts, inputs=dict(queries="b t c", keys="b s c", key_mask="real b s"),
                mask=lambda it, n, x: it.padding(x["key_mask"]), names=["q", "k", "v", "outputs", "mask"])


@template
def stacked_layers(rng: random.Random) -> dict:
    n = sizes(rng)
    layers = rng.choice([2, 3])
    text = HEAD + f'''class Block(nn.Module):
    def __init__(self, dim, heads, causal=True):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.ln_1 = nn.LayerNorm(dim)
        self.c_attn = nn.Linear(dim, 3 * dim)
        self.c_proj = nn.Linear(dim, dim)
        self.ln_2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def attend(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.c_attn(x).split(c, dim=2))
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        if self.causal:
            att = att.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        att = F.softmax(att, dim=-1)
        y = (att @ v).transpose(1, 2).contiguous().view(b, t, c)
        return self.c_proj(y)

    def forward(self, x):
        x = x + self.attend(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class LanguageModel(nn.Module):
    def __init__(self, vocab=20, dim={n["c"]}, heads={n["h"]}, depth={layers}):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        self.wpe = nn.Embedding(32, dim)
        self.blocks = nn.ModuleList([Block(dim, heads) for i in range(depth)])
        self.ln_f = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))
'''
    muts = [("mask-missing", ("mask-missing",), "causal=True", "causal=False"), ("mask-missing-in-one-layer", ("mask-missing",), "Block(dim, heads) for", "Block(dim, heads, causal=i != 1) for"),
            ("scale-model-width", ("scale-model-width",), "math.sqrt(k.size(-1))", "math.sqrt(c)"), ("no-scale", ("no-scale",), " / math.sqrt(k.size(-1))", ""), ("softmax-over-heads", OVER["h"], "dim=-1)\n        y", "dim=1)\n        y"),
            ("merged-by-reshape", MERGED, ".transpose(1, 2).contiguous().view(b, t, c)", ".reshape(b, t, c)"), ("values-are-keys", ("values-are-keys",), "(att @ v)", "(att @ k)"),
            ("causal-off-by-one", ("causal-off-by-one",), ".triu(1)", ".triu(2)"), ("mask-transposed", ("mask-transposed",), ".triu(1)", ".tril(-1)"),
            ("split-by-reshape", SPLIT, "y.view(b, t, self.heads, -1).transpose(1, 2)", "y.reshape(b, self.heads, t, -1)"),
            ("leak-later", ("leak-later",), "return self.head(self.ln_f(x))", "return self.head(self.ln_f(x) + x.mean(dim=1, keepdim=True))"), ("gradient-cut", ("gradient-cut",), "(att @ v)", "(att.detach() @ v)", {"drive": "gradients"}),
            ("batch-mixed", ("batch-mixed",), "self.ln_1(x)", "self.ln_1(x - x.mean(0))"), ("layers-shared", ("attentions-differ", "projection-other", "differs-from-reference"), "for block in self.blocks:\n            x = block(x)", "for block in self.blocks:\n            x = self.blocks[0](x)", {"like": 1})]
    return dict(text=text, build="LanguageModel()", n=n, layout="b t", muts=muts, inputs=dict(idx="ids b t"), mask=lambda it, n, x: it.causal(), names=["q", "k", "v", "att", "idx", "LanguageModel", "Block", ("c_attn", "c_proj")])


@template
def encoder_decoder(rng: random.Random) -> dict:
    n = sizes(rng)
    text = HEAD + f'''class Attend(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, context, allowed):
        q, k, v = self.q(x), self.k(context), self.v(context)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.o(y.transpose(1, 2).flatten(2))


class Translator(nn.Module):
    def __init__(self, vocab=20, dim={n["c"]}, heads={n["h"]}, pad=0):
        super().__init__()
        self.pad = pad
        self.embed = nn.Embedding(vocab, dim)
        self.encoder = Attend(dim, heads)
        self.decoder = Attend(dim, heads)
        self.cross = Attend(dim, heads)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.out = nn.Linear(dim, vocab)

    def forward(self, src, tgt):
        real = (src != self.pad)[:, None, None, :]
        memory = self.embed(src)
        memory = self.norms[0](memory + self.encoder(memory, memory, real))
        t = tgt.shape[1]
        causal = torch.ones(t, t, dtype=torch.bool).tril()
        y = self.embed(tgt)
        y = self.norms[1](y + self.decoder(y, y, causal))
        y = self.norms[2](y + self.cross(y, memory, real))
        return self.out(y)
'''
    muts = [("mask-missing", ("mask-missing",), "self.decoder(y, y, causal)", "self.decoder(y, y, None)"), ("mask-transposed", ("mask-transposed",), ".tril()", ".triu()"),
            ("cross-ignores-context", ("cross-ignores-context",), "self.cross(y, memory, real)", "self.cross(y, y, causal)"), ("padding-in-cross", ("padding-attended",), "self.cross(y, memory, real)", "self.cross(y, memory, None)", {"like": rng.random() < 0.5}),
            ("padding-in-encoder", ("padding-attended",), "self.encoder(memory, memory, real)", "self.encoder(memory, memory, None)", {"like": rng.random() < 0.5}), ("mask-inverted", ("mask-inverted",), "(src != self.pad)", "(src == self.pad)", {"like": rng.random() < 0.5}),
            ("cross-causal", ("cross-causal",), "self.cross(y, memory, real)", "self.cross(y, memory, real & torch.ones(t, src.shape[1], dtype=torch.bool).tril())"),
            ("causal-off-by-one", ("causal-off-by-one",), ".tril()", ".tril(1)"), ("scale-inverted", ("scale-inverted",), "attn_mask=allowed)", "attn_mask=allowed, scale=q.shape[-1] ** 0.5)"),
            ("values-of-queries", ("cross-ignores-context", "values-are-keys", "projection-other"), "self.q(x), self.k(context), self.v(context)", "self.q(x), self.k(context), self.k(context)"),
            ("encoder-causal", ("mask-other", "cross-causal"), "self.encoder(memory, memory, real)", "self.encoder(memory, memory, real & torch.ones(src.shape[1], src.shape[1], dtype=torch.bool).tril())", {"like": 1})]
    return dict(text=text, build="Translator()", n=n, layout="b s, b t", muts=muts, inputs=dict(src="padded b s", tgt="ids b t"), mask=lambda it, n, x: it.causal(), mask_kinds=("mask-missing", "mask-transposed", "causal-off-by-one"), names=["q", "k", "v", "y", "Translator", "memory", "src", "tgt"])


@template
def learned_queries(rng: random.Random) -> dict:
    n = sizes(rng)
    latents = rng.choice([2, 3, 4])
    perceiver = rng.random() < 0.5
    text = HEAD + f'''class {"PerceiverBlock" if perceiver else "Pooling"}(nn.Module):
    def __init__(self, dim, heads, latents={latents}):
        super().__init__()
        self.heads = heads
        self.latents = nn.Parameter(torch.randn(latents, dim))
        self.to_q = nn.Linear(dim, dim)
        self.to_kv = nn.Linear(dim, 2 * dim)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, mask):
        b, n, c = x.shape
        latents = self.latents.expand(b, -1, -1)
        q = self.to_q(latents)
        k, v = self.to_kv({"torch.cat([x, latents], dim=1)" if perceiver else "x"}).chunk(2, dim=-1)
        q, k, v = (y.reshape(b, -1, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
        sim = torch.einsum("bhid,bhjd->bhij", q, k) * (c // self.heads) ** -0.5
        {"mask = F.pad(mask, (0, latents.shape[1]), value=True)" if perceiver else "mask = mask.bool()"}
        sim = sim.masked_fill(~mask[:, None, None, :], torch.finfo(sim.dtype).min)
        attn = sim.softmax(dim=-1)
        out = torch.einsum("bhij,bhjd->bhid", attn, v)
        return self.to_out(out.transpose(1, 2).flatten(2))
'''
    muts = [("softmax-over-queries", OVER["q"], "sim.softmax(dim=-1)", "sim.softmax(dim=-2)"), ("softmax-over-heads", OVER["h"], "sim.softmax(dim=-1)", "sim.softmax(dim=1)"), ("values-are-keys", ("values-are-keys",), "attn, v)", "attn, k)"),
            ("mask-inverted", ("mask-inverted", "mask-other"), "(~mask[", "(mask["), ("padding-attended", ("padding-attended",), "        sim = sim.masked_fill(~mask[:, None, None, :], torch.finfo(sim.dtype).min)\n", ""),
            ("scale-model-width", ("scale-model-width",), "(c // self.heads) ** -0.5", "c ** -0.5"), ("merged-by-reshape", MERGED, "out.transpose(1, 2).flatten(2)", "out.reshape(b, -1, c)"), ("split-by-reshape", SPLIT, "y.reshape(b, -1, self.heads, c // self.heads).transpose(1, 2)", "y.reshape(b, self.heads, -1, c // self.heads)"),
            ("values-first", ("projections-exchanged",), "k, v = self", "v, k = self", {"like": 1})]
    name = "PerceiverBlock" if perceiver else "Pooling"
    meant = (lambda it, n, x: it.padding(torch.cat([x["mask"], torch.ones(n["b"], latents, dtype=torch.bool)], 1))) if perceiver else (lambda it, n, x: it.padding(x["mask"]))
    return dict(text=text, build=f"{name}({n['c']}, {n['h']})", n=n, layout="b s c", muts=muts, inputs=dict(x="b s c", mask="real b s"), mask=meant, names=["q", "v", "sim", "attn", "out", name])


@template
def window_partition(rng: random.Random) -> dict:
    n = sizes(rng, b=2)
    text = HEAD + '''def partition(x, w):
    b, height, width, c = x.shape
    x = x.view(b, height // w, w, width // w, w, c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, w * w, c)


def reverse(windows, w, height, width):
    x = windows.view(-1, height // w, width // w, w, w, windows.shape[-1])
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, height, width, windows.shape[-1])


class WindowAttention(nn.Module):
    def __init__(self, dim, heads, window=2):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, height, width, c = x.shape
        windows = partition(x, self.window)
        n, t, _ = windows.shape
        qkv = self.qkv(windows).reshape(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5
        attn = F.softmax(attn, dim=-1)
        y = (attn @ v).transpose(1, 2).reshape(n, t, c)
        return self.proj(reverse(y, self.window, height, width))
'''
    muts = [("partition-by-reshape", ("split-by-reshape", "mask-other", "merged-by-reshape", "differs-from-reference"), "return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, w * w, c)", "return x.reshape(-1, w * w, c)", {"like": 1}),
            ("reverse-by-reshape", ("merged-by-reshape", "differs-from-reference"), "return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, height", "return x.reshape(-1, height", {"like": 1}),
            ("softmax-over-heads", OVER["h"], "dim=-1)\n        y", "dim=1)\n        y"), ("softmax-over-windows", ("softmax-over-batch",), "dim=-1)\n        y", "dim=0)\n        y"), ("softmax-over-queries", OVER["q"], "dim=-1)\n        y", "dim=-2)\n        y"),
            ("values-are-keys", ("values-are-keys",), "attn @ v", "attn @ k"), ("merged-by-reshape", MERGED, "(attn @ v).transpose(1, 2).reshape", "(attn @ v).reshape"), ("scale-model-width", ("scale-model-width",), "(c // self.heads) ** -0.5", "c ** -0.5"), ("no-scale", ("no-scale",), " * (c // self.heads) ** -0.5", "")]
    return dict(text=text, build=f"WindowAttention({n['c']}, {n['h']})", n=n, layout="b height width c", muts=muts, inputs=dict(x="b 4 6 c"), names=["q", "v", "attn", "y", "WindowAttention"])


@template
def pointer_network(rng: random.Random) -> dict:
    n = sizes(rng)
    text = HEAD + '''class Pointer(nn.Module):
    """Probabilities of the elements of the input, for each step of the decoder."""

    def __init__(self, hidden):
        super().__init__()
        self.w1 = nn.Linear(hidden, hidden, bias=False)
        self.w2 = nn.Linear(hidden, hidden, bias=False)
        self.vt = nn.Linear(hidden, 1, bias=False)

    def forward(self, decoder_state, encoder_outputs, mask):
        encoded = self.w1(encoder_outputs)
        decoded = self.w2(decoder_state).unsqueeze(1)
        scores = self.vt(torch.tanh(encoded + decoded)).squeeze(-1)
        scores = scores.masked_fill(~mask, float("-inf"))
        probs = F.softmax(scores, dim=-1)
        context = torch.bmm(probs.unsqueeze(1), encoder_outputs).squeeze(1)
        return context, probs
'''
    muts = [("softmax-over-batch", OVER["b"], "dim=-1)\n        context", "dim=0)\n        context"), ("mask-inverted", ("mask-inverted",), "(~mask,", "(mask,"), ("padding-attended", ("padding-attended",), '        scores = scores.masked_fill(~mask, float("-inf"))\n', ""),
            ("not-normalised", ("not-normalised",), "F.softmax(scores, dim=-1)", "torch.sigmoid(scores)"), ("values-are-keys", ("values-are-keys",), "probs.unsqueeze(1), encoder_outputs)", "probs.unsqueeze(1), encoded)"), ("mask-too-weak", ("mask-too-weak",), 'float("-inf")', "0.0"),
            ("batch-mixed", ("batch-mixed",), "decoded = self.w2(decoder_state).unsqueeze(1)", "decoded = self.w2(decoder_state).mean(0)"), ("scores-other", ("scores-other", "differs-from-reference"), "torch.tanh(encoded + decoded)", "(encoded + decoded)", {"like": 1})]
    return dict(text=text, build=f"Pointer({n['c']})", n=n, layout="b c, b s c", muts=muts, inputs=dict(decoder_state="b c", encoder_outputs="b s c", mask="real b s"), mask=lambda it, n, x: it.padding(x["mask"]), names=["scores", "probs", "Pointer", "encoded"])


@template
def attention_pooling(rng: random.Random) -> dict:
    n = sizes(rng)
    tf = rng.random() < 0.4
    dim, other = ("0", "1") if tf else ("1", "0")
    text = HEAD + f'''class AttentionPooling(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, 1))

    def forward(self, x, lengths):
        scores = self.score(x)
        real = torch.arange(x.shape[{dim}]){"[:, None]" if tf else ""} < lengths{"" if tf else "[:, None]"}
        scores = scores.masked_fill(~real.unsqueeze(-1), float("-inf"))
        weights = torch.softmax(scores, dim={dim})
        return (weights * x).sum(dim={dim})
'''
    muts = [("softmax-over-batch", OVER["b"], f"scores, dim={dim})", f"scores, dim={other})"), ("softmax-over-one", ("not-normalised", "nan-with-keys", "padding-attended"), f"scores, dim={dim})", "scores, dim=-1)"), ("lengths-off-by-one", ("lengths-off-by-one",), " < lengths", " <= lengths"),
            ("mask-inverted", ("mask-inverted",), "~real", "real"), ("padding-attended", ("padding-attended",), '        scores = scores.masked_fill(~real.unsqueeze(-1), float("-inf"))\n', ""), ("pooled-mean", ("not-normalised", "differs-from-reference"), f".sum(dim={dim})", f".mean(dim={dim})"),
            ("not-normalised", ("not-normalised",), f"torch.softmax(scores, dim={dim})", "torch.sigmoid(scores)")]
    return dict(text=text, build=f"AttentionPooling({n['c']})", n=n, layout="s b c" if tf else "b s c", muts=muts, inputs=dict(x="s b c" if tf else "b s c", lengths="lengths b s"), mask=lambda it, n, x: it.padding(x["lengths"].tolist()), names=["scores", "weights", "x", "AttentionPooling"])


@template
def bahdanau_time_first(rng: random.Random) -> dict:
    n = sizes(rng)
    kind = rng.choice(["concat", "general", "dot"])
    score = {"concat": "torch.tanh(self.attn(torch.cat([hidden.expand(encoder_outputs.size(0), -1, -1), encoder_outputs], dim=2))) @ self.v", "general": "(hidden * self.attn(encoder_outputs)).sum(dim=2)", "dot": "(hidden * encoder_outputs).sum(dim=2)"}[kind]
    init = {"concat": "        self.attn = nn.Linear(2 * hidden_size, hidden_size)\n        self.v = nn.Parameter(torch.randn(hidden_size))\n", "general": "        self.attn = nn.Linear(hidden_size, hidden_size)\n", "dot": ""}[kind]
    text = HEAD + f'''class Attn(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
{init}        self.combine = nn.Linear(2 * hidden_size, hidden_size)

    def forward(self, hidden, encoder_outputs):
        energies = {score}
        weights = F.softmax(energies.t(), dim=1)
        context = weights.unsqueeze(1).bmm(encoder_outputs.transpose(0, 1)).squeeze(1)
        output = torch.tanh(self.combine(torch.cat([hidden.squeeze(0), context], dim=1)))
        return output, weights
'''
    muts = [("softmax-over-batch", OVER["b"], "dim=1)\n        context", "dim=0)\n        context"), ("batch-mixed", ("batch-mixed", "merged-by-reshape", "values-are-keys", "cache-pairs-apart"), "encoder_outputs.transpose(0, 1)", "encoder_outputs.reshape(encoder_outputs.size(1), encoder_outputs.size(0), -1)"),
            ("not-normalised", ("not-normalised",), "F.softmax(energies.t(), dim=1)", "torch.exp(energies.t() / 8)"), ("context-of-states", ("cross-ignores-context", "differs-from-reference", "not-normalised"), "[hidden.squeeze(0), context]", "[hidden.squeeze(0), encoder_outputs.mean(0)]", {"like": 1}),
            ("values-reversed", ("cache-pairs-apart", "differs-from-reference", "projection-other"), "encoder_outputs.transpose(0, 1)", "encoder_outputs.flip(0).transpose(0, 1)", {"like": 1})]
    return dict(text=text, build=f"Attn({n['c']})", n=n, layout="1 b c, s b c", muts=muts, inputs=dict(hidden="1 b c", encoder_outputs="s b c"), scale=1.0 if kind != "concat" else None, names=["energies", "weights", "context", "output", "Attn"])


@template
def dict_inputs(rng: random.Random) -> dict:
    n = sizes(rng)
    text = HEAD + '''class Encoder(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, batch):
        x, real = batch["features"], batch["mask"]
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).unbind(2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(real[:, None, None, :] == 0, float("-inf"))
        weights = F.softmax(scores, dim=-1)
        y = torch.einsum("bhij,bjhd->bihd", weights, v).reshape(b, t, c)
        return {"features": self.out(y), "mask": real}
'''
    muts = [("mask-inverted", ("mask-inverted",), "== 0", "== 1"), ("mask-on-queries", ("mask-on-queries",), "real[:, None, None, :]", "real[:, None, :, None]"), ("padding-attended", ("padding-attended",), '        scores = scores.masked_fill(real[:, None, None, :] == 0, float("-inf"))\n', ""),
            ("scale-model-width", ("scale-model-width",), "q.shape[-1] ** 0.5", "c ** 0.5"), ("softmax-over-heads", OVER["h"], "dim=-1)\n        y", "dim=1)\n        y"), ("merged-by-reshape", MERGED, '->bihd", weights, v)', '->bhid", weights, v)'),
            ("values-are-keys", ("values-are-keys",), "weights, v)", "weights, k)"), ("mask-boolean-added", ("mask-boolean-added",), 'scores.masked_fill(real[:, None, None, :] == 0, float("-inf"))', "scores + real[:, None, None, :]"),
            ("no-scale", ("no-scale",), " / q.shape[-1] ** 0.5", "")]
    return dict(text=text, build=f"Encoder({n['c']}, {n['h']})", n=n, layout="b t c", muts=muts, inputs=dict(batch={"features": "b t c", "mask": "ones b t"}), mask=lambda it, n, x: it.padding(x["batch"]["mask"].bool()), names=["q", "k", "v", "scores", "weights", "x", "y", "Encoder"])


@template
def callable_class(rng: random.Random) -> dict:
    n = sizes(rng)
    text = HEAD + f'''class Attention:
    def __init__(self, dim, heads, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (torch.randn(dim, dim, generator=g) * 1.5 / dim ** 0.5 for _ in range(4))

    def split(self, x):
        b, t, c = x.shape
        return x.reshape(b, t, self.heads, c // self.heads).transpose(1, 2)

    def __call__(self, x):
        q, k, v = self.split(x @ self.wq), self.split(x @ self.wk), self.split(x @ self.wv)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        weights = F.softmax(scores, dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2) @ self.wo
'''
    muts = [("no-scale", ("no-scale",), " / math.sqrt(q.shape[-1])", ""), ("scale-model-width", ("scale-model-width",), "math.sqrt(q.shape[-1])", "math.sqrt(x.shape[-1])"), ("softmax-over-queries", OVER["q"], "dim=-1)\n        return", "dim=-2)\n        return"), ("softmax-over-heads", OVER["h"], "dim=-1)\n        return", "dim=1)\n        return"),
            ("split-by-reshape", SPLIT, "x.reshape(b, t, self.heads, c // self.heads).transpose(1, 2)", "x.reshape(b, self.heads, t, c // self.heads)"), ("merged-by-reshape", MERGED, ".transpose(1, 2).flatten(2)", ".reshape(x.shape)"), ("values-are-keys", ("values-are-keys",), "weights @ v", "weights @ k"),
            ("weight-transposed", ("weight-transposed",), "x @ self.wv", "x @ self.wv.T", {"like": 1}), ("values-from-wrong-projection", ("values-are-keys", "projection-other"), "self.split(x @ self.wv)", "self.split(x @ self.wk)")]
    return dict(text=text, build=f"Attention({n['c']}, {n['h']})", n=n, layout="b t c", muts=muts, inputs=dict(x="b t c"), names=["q", "k", "v", "scores", "weights", "x", "Attention"])


@template
def encoder_layer(rng: random.Random) -> dict:
    n = sizes(rng, b=3)
    text = HEAD + f'''class TextEncoder(nn.Module):
    def __init__(self, vocab=20, dim={n["c"]}, heads={n["h"]}):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids)
        return self.encoder(x, src_key_padding_mask=attention_mask == 0)
'''
    muts = [("mask-inverted", ("mask-inverted",), "attention_mask == 0", "attention_mask == 1"), ("padding-attended", ("padding-attended",), ", src_key_padding_mask=attention_mask == 0", ""),
            ("batch-and-sequence-exchanged", ("batch-and-sequence-exchanged", "batch-mixed"), "batch_first=True, ", "", {"also": (", src_key_padding_mask=attention_mask == 0", "")}), ("mask-boolean-added", ("mask-boolean-added",), "src_key_padding_mask=attention_mask == 0", "src_key_padding_mask=attention_mask.float()")]
    return dict(text=text, build="TextEncoder()", n=n, layout="b t", muts=muts, inputs=dict(input_ids="ids b t", attention_mask="ones b t"), mask=lambda it, n, x: it.padding(x["attention_mask"].bool()), names=["TextEncoder", "embed", "encoder"])


# --------------------------------------------------------------------------- NumPy, JAX, Keras


@template
def numpy_function(rng: random.Random) -> dict:
    n = sizes(rng)
    L = rng.choice(["t d", "b t d", "b h t d"])
    masked = rng.random() < 0.5
    n["s"] = n["t"] if masked else n["s"]
    swap = ".T" if L == "t d" else ".swapaxes(-1, -2)"
    line = "    scores = np.where(np.tril(np.ones(scores.shape[-2:])), scores, -np.inf)\n" if masked else ""
    text = NUMPY + f'''def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def attention(Q, K, V):
    scores = Q @ K{swap} / np.sqrt(Q.shape[-1])
{line}    return softmax(scores) @ V
'''
    muts = [("no-scale", ("no-scale",), " / np.sqrt(Q.shape[-1])", ""), ("scale-one-over-d", ("scale-one-over-d",), "np.sqrt(Q.shape[-1])", "Q.shape[-1]"), ("scale-inverted", ("scale-inverted",), " / np.sqrt", " * np.sqrt"), ("values-are-keys", ("values-are-keys",), "softmax(scores) @ V", "softmax(scores) @ K"),
            ("large-scores", ("large-scores", "nan-with-keys"), "np.exp(x - x.max(axis=axis, keepdims=True))", "np.exp(x)", {"drive": "large"} ) if not masked else None, ("softmax-over-all", ("not-normalised",), "e / e.sum(axis=axis, keepdims=True)", "e / e.sum()"),
            ("softmax-over-queries", OVER["q"], "softmax(scores)", "softmax(scores, axis=-2)") if not masked else ("mask-missing", ("mask-missing",), line, ""),
            ("mask-transposed", ("mask-transposed",), "np.tril(", "np.triu(") if masked else None, ("mask-inverted", ("mask-inverted", "mask-transposed", "causal-off-by-one"), "scores, -np.inf)", "-np.inf, scores)".replace("-np.inf", "-1e30")) if masked else None,
            ("softmax-over-batch", OVER["b"], "softmax(scores)", "softmax(scores, axis=0)") if L[0] == "b" else None, ("softmax-over-heads", OVER["h"], "softmax(scores)", "softmax(scores, axis=1)") if "h" in L else None,
            ("maximum-of-columns", ("not-normalised", "softmax-over-queries"), "e.sum(axis=axis", "e.sum(axis=-2") if not masked else None]
    return dict(text=text, build="attention", n=n, layout=L, muts=muts, numpy=True, inputs=dict(Q=L, K=L.replace("t", "s"), V=L.replace("t", "s")), mask=(lambda it, n, x: it.causal()) if masked else None, names=["Q", "K", "V", "scores", "attention"])


@template
def numpy_class(rng: random.Random) -> dict:
    n = sizes(rng)
    text = NUMPY + f'''class MultiHeadAttention:
    def __init__(self, dim, heads, seed=1):
        rng = np.random.default_rng(seed)
        self.heads = heads
        self.Wq, self.Wk, self.Wv, self.Wo = rng.normal(size=(4, dim, dim)) * 1.5 / np.sqrt(dim)

    def forward(self, x):
        b, t, c = x.shape
        d = c // self.heads
        q = (x @ self.Wq).reshape(b, t, self.heads, d).transpose(0, 2, 1, 3)
        k = (x @ self.Wk).reshape(b, t, self.heads, d).transpose(0, 2, 1, 3)
        v = (x @ self.Wv).reshape(b, t, self.heads, d).transpose(0, 2, 1, 3)
        scores = np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(d)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        weights = e / e.sum(-1, keepdims=True)
        y = (weights @ v).transpose(0, 2, 1, 3).reshape(b, t, c)
        return y @ self.Wo

    __call__ = forward
'''
    muts = [("no-scale", ("no-scale",), " / np.sqrt(d)", ""), ("scale-model-width", ("scale-model-width",), "/ np.sqrt(d)", "/ np.sqrt(c)"), ("softmax-over-heads", OVER["h"], "e.sum(-1,", "e.sum(1,", {"also": ("scores.max(-1,", "scores.max(1,")}), ("softmax-over-queries", OVER["q"], "e.sum(-1,", "e.sum(-2,", {"also": ("scores.max(-1,", "scores.max(-2,")}),
            ("split-by-reshape", SPLIT, "k = (x @ self.Wk).reshape(b, t, self.heads, d).transpose(0, 2, 1, 3)", "k = (x @ self.Wk).reshape(b, self.heads, t, d)"), ("split-by-reshape", SPLIT, ".reshape(b, t, self.heads, d).transpose(0, 2, 1, 3)", ".reshape(b, self.heads, t, d)"), ("merged-by-reshape", MERGED, "(weights @ v).transpose(0, 2, 1, 3).reshape", "(weights @ v).reshape"),
            ("values-are-keys", ("values-are-keys",), "weights @ v", "weights @ k"), ("not-normalised", ("not-normalised",), "weights = e / e.sum(-1, keepdims=True)", "weights = e")]
    return dict(text=text, build=f"MultiHeadAttention({n['c']}, {n['h']})", n=n, layout="b t c", muts=muts, numpy=True, inputs=dict(x="b t c"), names=["q", "k", "v", "scores", "weights", "x", "y"])


@template
def jax_function(rng: random.Random) -> dict:
    n = sizes(rng)
    L = rng.choice(["b t h d", "b t d"])
    masked = rng.random() < 0.5
    h = "h" if "h" in L else ""
    z = f"b{h}ts"
    jit = rng.random() < 0.3
    text = JAX + ("@jax.jit\n" if jit else "") + f'''def attention(query, key, value{", mask" if masked else ""}):
    logits = jnp.einsum("bt{h}d,bs{h}d->{z}", query, key) / jnp.sqrt(query.shape[-1])
{f"    logits = jnp.where(mask[:, {'None, ' if h else ''}None, :], logits, -1e9){chr(10)}" if masked else ""}    weights = jax.nn.softmax(logits, axis=-1)
    return jnp.einsum("{z},bs{h}d->bt{h}d", weights, value)
'''
    muts = [("no-scale", ("no-scale",), " / jnp.sqrt(query.shape[-1])", ""), ("scale-one-over-d", ("scale-one-over-d",), "jnp.sqrt(query.shape[-1])", "query.shape[-1]"), ("softmax-over-batch", OVER["b"], "axis=-1", "axis=0"), ("values-are-keys", ("values-are-keys",), "weights, value)", "weights, key)")]
    muts += [("softmax-over-heads", OVER["h"], "axis=-1", "axis=1")] if h else []
    muts += [("mask-inverted", ("mask-inverted",), "logits, -1e9)", "-1e9, logits)"), ("mask-too-weak", ("mask-too-weak",), "logits, -1e9)", "logits, -1.0)")] if masked else [("softmax-over-queries", OVER["q"], "axis=-1", "axis=-2")]
    x = dict(query=L, key=L.replace("t", "s"), value=L.replace("t", "s"))
    return dict(text=text, build="attention", n=n, layout=L, muts=muts, jax=True, inputs=dict(**x, mask="real b s") if masked else x, mask=(lambda it, n, x: it.padding(torch.from_numpy(np.asarray(x["mask"]).copy()))) if masked else None, names=["logits", "weights", "attention"])


@template
def keras_layer(rng: random.Random) -> dict:
    n = sizes(rng)
    text = KERAS + '''class SelfAttention(layers.Layer):
    def __init__(self, heads, dim, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.dim = heads, dim
        self.query_dense = layers.Dense(dim)
        self.key_dense = layers.Dense(dim)
        self.value_dense = layers.Dense(dim)
        self.combine = layers.Dense(dim)

    def separate(self, x):
        t = x.shape[1]
        x = ops.reshape(x, (-1, t, self.heads, self.dim // self.heads))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(self, inputs):
        q = self.separate(self.query_dense(inputs))
        k = self.separate(self.key_dense(inputs))
        v = self.separate(self.value_dense(inputs))
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / (self.dim // self.heads) ** 0.5
        weights = ops.softmax(scores, axis=-1)
        y = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
        return self.combine(ops.reshape(y, (-1, inputs.shape[1], self.dim)))
'''
    muts = [("no-scale", ("no-scale",), " / (self.dim // self.heads) ** 0.5", ""), ("scale-model-width", ("scale-model-width",), "(self.dim // self.heads) ** 0.5", "self.dim ** 0.5"), ("softmax-over-heads", OVER["h"], "axis=-1", "axis=1"), ("softmax-over-queries", OVER["q"], "axis=-1", "axis=2"),
            ("split-by-reshape", SPLIT, "x = ops.reshape(x, (-1, t, self.heads, self.dim // self.heads))\n        return ops.transpose(x, (0, 2, 1, 3))", "return ops.reshape(x, (-1, self.heads, t, self.dim // self.heads))"), ("merged-by-reshape", MERGED, "ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))", "ops.matmul(weights, v)"),
            ("values-are-keys", ("values-are-keys",), "ops.matmul(weights, v)", "ops.matmul(weights, k)"), ("softmax-over-batch", OVER["b"], "axis=-1", "axis=0")]
    return dict(text=text, build=f"SelfAttention({n['h']}, {n['c']})", n=n, layout="b t c", muts=muts, keras=True, inputs=dict(inputs="b t c"), names=["q", "k", "v", "scores", "weights", "y", "SelfAttention"])


@template
def keras_mha(rng: random.Random) -> dict:
    n = sizes(rng)
    text = KERAS + f'''class DecoderBlock(layers.Layer):
    def __init__(self, heads, dim, **kwargs):
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(heads, dim // heads)
        self.norm = layers.LayerNormalization()

    def call(self, x):
        t = x.shape[1]
        mask = ops.arange(t)[:, None] >= ops.arange(t)[None, :]
        y = self.attention(x, x, attention_mask=mask[None])
        return self.norm(x + y)
'''
    muts = [("mask-missing", ("mask-missing",), ", attention_mask=mask[None]", ""), ("mask-transposed", ("mask-transposed",), ">=", "<="), ("mask-inverted", ("mask-inverted", "mask-transposed", "causal-off-by-one"), ">= ops", "< ops"), ("causal-off-by-one", ("causal-off-by-one",), "[:, None] >=", "[:, None] + 1 >="),
            ("leak-later", ("leak-later",), "self.norm(x + y)", "self.norm(x + y + ops.mean(x, axis=1, keepdims=True))")]
    return dict(text=text, build=f"DecoderBlock({n['h']}, {n['c']})", n=n, layout="b t c", muts=muts, keras=True, inputs=dict(x="b t c"), mask=lambda it, n, x: it.causal(), names=["y", "DecoderBlock"])


@template
def graph_attention(rng: random.Random) -> dict:
    n = sizes(rng, t=6)
    text = HEAD + '''class GraphAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.w = nn.Linear(dim, dim, bias=False)
        self.source = nn.Parameter(torch.randn(heads, dim // heads))
        self.target = nn.Parameter(torch.randn(heads, dim // heads))

    def forward(self, x, adj):
        n = x.shape[0]
        h = self.w(x).view(n, self.heads, -1)
        s = (h * self.target).sum(-1)
        r = (h * self.source).sum(-1)
        e = F.leaky_relu(s[:, None, :] + r[None, :, :], 0.2)
        e = e.masked_fill(~adj.unsqueeze(-1), float("-inf"))
        a = F.softmax(e, dim=1)
        return torch.einsum("ijh,jhd->ihd", a, h).reshape(n, -1)
'''
    muts = [("softmax-over-heads", OVER["h"], "dim=1)\n        return", "dim=-1)\n        return"), ("mask-missing", ("mask-missing", "mask-other", "padding-attended"), '        e = e.masked_fill(~adj.unsqueeze(-1), float("-inf"))\n', ""), ("mask-after-softmax", ("mask-after-softmax",), 'e = e.masked_fill(~adj.unsqueeze(-1), float("-inf"))\n        a = F.softmax(e, dim=1)', "a = F.softmax(e, dim=1) * adj.unsqueeze(-1)"),
            ("mask-zero", ("mask-too-weak", "mask-other"), 'float("-inf")', "0.0"), ("mask-transposed", ("mask-transposed", "mask-other"), "~adj.unsqueeze", "~adj.t().unsqueeze"), ("merged-by-reshape", MERGED, '"ijh,jhd->ihd", a, h)', '"ijh,jhd->hid", a, h)'), ("not-normalised", ("not-normalised",), "F.softmax(e, dim=1)", "torch.sigmoid(e)")]
    return dict(text=text, build=f"GraphAttention({n['c']}, {n['h']})", n=n, layout="n c", muts=muts, inputs=dict(x="t c", adj="graph t t"), mask=lambda it, n, x: it.allowed(x["adj"]), names=["GraphAttention", "adj"])


# --------------------------------------------------------------------------- draw

POOL = dict(
    q=["q", "q", "query", "Q", "queries"], k=["k", "k", "key", "K", "keys"], v=["v", "v", "value", "V", "values"], Q=["Q", "q"], K=["K", "k"], V=["V", "v"],
    scores=["scores", "scores", "logits", "att", "sim", "energy", "dots"], weights=["weights", "attn", "probs", "alpha", "p_attn"], attn=["attn", "att", "a", "scores"], att=["att", "attn"], logits=["logits", "scores"],
    sim=["sim", "dots"], x=["x", "x", "inputs", "hidden_states", "X"], y=["y", "out", "z", "res"], out=["out", "o", "output"], attention=["attention", "attend", "my_attention", "self_attn", "dot_product_attention"],
    proj=["proj", "out_proj", "fc"], qkv=["qkv", "to_qkv", "in_proj"], memory=["memory", "context", "encoder_states"], energy=["energy", "scores"], src=["src", "source", "src_ids"], tgt=["tgt", "target", "tgt_ids"], idx=["idx", "input_ids", "tokens"],
)
GROUPS = {("to_q", "to_k", "to_v"): [("to_q", "to_k", "to_v"), ("w_q", "w_k", "w_v"), ("query_proj", "key_proj", "value_proj"), ("fc_q", "fc_k", "fc_v")], ("c_attn", "c_proj"): [("c_attn", "c_proj"), ("qkv", "proj_out")]}
STYLES = [(r"F\.softmax\((\w+), dim=", [r"F.softmax(\1, dim=", r"torch.softmax(\1, dim=", r"\1.softmax(dim="]), (r"math\.sqrt\((\w+)\)", [r"math.sqrt(\1)", r"\1 ** 0.5"]), (r"\.transpose\(-2, -1\)", [".transpose(-2, -1)", ".transpose(-1, -2)", ".mT"]),
          (r'float\("-inf"\)', ['float("-inf")', "float('-inf')", "-math.inf", "torch.finfo(torch.float32).min", "-1e9"])]


def tensors(spec: Any, n: dict, g: torch.Generator, how: dict) -> Any:
    if isinstance(spec, dict):
        return {k: tensors(v, n, g, how) for k, v in spec.items()}
    words = spec.split()
    special = words.pop(0) if words[0] in ("real", "pad", "ids", "padded", "lengths", "ones", "graph") else ""
    shape = [int(w) if w.isdigit() else n[w] for w in words]
    if special == "ids":
        y: Any = torch.randint(1, 20, shape, generator=g)
    elif special == "graph":
        y = (torch.rand(shape, generator=g) < 0.4) | torch.eye(shape[0], dtype=torch.bool)
    elif special:
        b, s = shape[0], shape[-1]
        lengths = torch.tensor([s - 2, s - 3, s][:b])
        real = torch.arange(s) < lengths[:, None]
        y = {"real": real, "pad": ~real, "lengths": lengths, "ones": real.long(), "padded": torch.randint(1, 20, (b, s), generator=g) * real}[special]
        if special not in ("lengths", "padded"):
            y = y.view(shape)
    else:
        y = torch.randn(*shape, generator=g) * how.get("big", 1.0)
    if how.get("numpy"):
        return y.numpy().astype(np.float64 if how.get("double") else np.float32) if y.is_floating_point() else y.numpy()
    if how.get("jax"):
        import jax.numpy as jnp

        return jnp.asarray(y.numpy())
    return y


def driven(how: str) -> Any:
    def large(subject: Any, inputs: dict) -> Any:
        names = list(inputs)
        return subject(**{k: v * 80 if k != names[-1] and np.asarray(v).dtype.kind == "f" else v for k, v in copied(inputs).items()})

    def gradients(subject: Any, inputs: dict) -> Any:
        leaves = list(subject.parameters())
        y = subject(**copied(inputs))
        g = torch.autograd.grad(y.pow(2).sum(), leaves, allow_unused=True)
        return [torch.zeros_like(p) if d is None else d for p, d in zip(leaves, g)]

    return {"large": large, "gradients": gradients}.get(how)


def variants() -> list[str]:
    """kind@template, for every pair that any draw of the template offers."""
    out: dict[str, None] = {}
    for name, f in TEMPLATES.items():
        for i in range(12):
            for m in f(random.Random(i))["muts"]:
                if m:
                    out[f"{m[0]}@{name}"] = None
    return list(out)


def draw(rng: random.Random, pair: str) -> Case | None:
    kind, name = pair.split("@")
    for _ in range(8):
        t = TEMPLATES[name](rng)
        found = [m for m in t["muts"] if m and m[0] == kind]
        if found:
            break
    else:
        return None
    _, expect, old, new, *more = rng.choice(found)
    opts = more[0] if more else {}
    right_text = t["text"]
    if old not in right_text:
        raise AssertionError(f"{pair}: not in the text: {old!r}")
    wrong_text = right_text.replace(old, new)
    if "also" in opts:
        a, b = opts["also"]
        if a not in wrong_text:
            raise AssertionError(f"{pair}: not in the text: {a!r}")
        wrong_text = wrong_text.replace(a, b)
    n = t["n"]
    if kind == "scale-model-width" and n["h"] == n["d"]:
        expect = ("scale-model-width", "scale-one-over-d")
    if kind == "scale-of-wrong-axis" and n["t"] == n["d"]:
        return None
    # style, the same for both twins
    names: dict[str, str] = {}
    used = set(re.findall(r"\b\w+\b", right_text + wrong_text))
    theme = rng.randrange(5)
    for x in t.get("names", ()):
        if x in ("q", "k", "v"):
            to = POOL[x][theme]
            if to == x or (to not in used and to not in names.values()):
                names[x] = to
        elif isinstance(x, tuple):
            to = rng.choice(GROUPS[x])
            names.update(zip(x, to))
        elif x in POOL:
            to = rng.choice(POOL[x])
            if to == x or (to not in used and to not in names.values()):
                names[x] = to
    framed = not (t.get("numpy") or t.get("jax") or t.get("keras"))
    seed_style = rng.getrandbits(30)

    def styled(text: str) -> str:
        r = random.Random(seed_style)
        head, body = (HEAD, text[len(HEAD):]) if text.startswith(HEAD) else ("", text)
        body = renamed(body, names) if names else body
        # a name that is also an attribute of self or a keyword of a library must stay: checked by verify
        for pattern, options in STYLES:
            to = r.choice(options)
            if framed:
                body = re.sub(pattern, to, body)
        return head + body

    wrong_text, right_text = styled(wrong_text), styled(right_text)
    if wrong_text == right_text:
        return None
    build = renamed(t["build"], names) if names else t["build"]
    seed = rng.randrange(10**6)
    how = {k: t.get(k) for k in ("numpy", "jax")}

    def raw(rename: bool) -> dict:
        g = torch.Generator().manual_seed(seed)
        return {(names.get(k, k) if rename else k): tensors(v, n, g, how) for k, v in t["inputs"].items()}

    spread = 1.5 if framed and "nn.Module" in right_text else 0.0
    keras = bool(t.get("keras"))

    def made(text: str) -> Callable[[], Any]:
        make = maker(text, build, seed, spread)

        def build_keras() -> Any:
            subject = make()
            subject(**raw(True))
            g = np.random.default_rng(seed)
            subject.set_weights([g.normal(size=w.shape) * 1.5 / w.shape[0] ** 0.5 if w.ndim > 1 else w for w in subject.get_weights()])
            return subject

        return build_keras if keras else make

    wrong, right = made(wrong_text), made(right_text)
    bare = t.get("bare") and rng.random() < 0.3

    def asks() -> dict:
        import intently as it

        out: dict[str, Any] = {} if bare else {"inputs": raw(True)}
        meant = t["mask"](it, n, raw(False)) if t.get("mask") and kind in t.get("mask_kinds", (kind,)) else None
        if meant is not None:
            out["mask"] = meant
        if t.get("scale") is not None:
            out["scale"] = t["scale"]
        if opts.get("scale"):
            out["scale"] = n["d"] ** -0.5
        if opts.get("like"):
            out["like"] = right()
        return out

    case = Case(f"layout-{name}-{kind}", kind, tuple(expect), asks, wrong, right, lambda: (wrong_text, right_text), t.get("layout", ""), driven(opts.get("drive", "")), lambda: raw(True), dict(template=name))
    if opts.get("drive") == "large":
        case.tags["nan ok"] = False
    return case


KINDS = variants()


def cases(seed: int, n: int) -> list[Case]:
    """n verified cases; every pair of a mistake and a template comes once before any comes twice."""
    return drawn(draw, KINDS, seed, n)
