"""Attention programs that vary in the formula, with a planted mistake and the right twin."""

from __future__ import annotations

import random
from typing import Any

import torch

from benchmarks.checking.field.generated.common import HEAD, Case, apart, call, copied, drawn, flat, load, maker, renamed  # noqa: E402,F401

# kind: (acceptable names, what the program must have); a list is a choice; like: a reference is needed to see it
CORE: dict[str, tuple[tuple[str, ...], dict]] = {
    "no-scale": (("no-scale",), dict(score="dot")),
    "scale-one-over-d": (("scale-one-over-d",), dict(score="dot")),
    "scale-model-width": (("scale-model-width",), dict(score="dot", form=["self", "cross"])),
    "scale-inverted": (("scale-inverted",), dict(score="dot")),
    "other-scale": (("other-scale",), dict(score="dot", said_scale=True)),
    "softmax-over-queries": (("softmax-over-queries",), dict(score=["dot", "additive", "general", "cosine"], mask=["none", "keys", "lengths"], sinks=False)),
    "softmax-over-heads": (("softmax-over-heads",), dict(score=["dot", "cosine", "general"], sinks=False, mask=["none", "causal"])),
    "softmax-over-batch": (("softmax-over-batch",), dict(score=["dot", "additive", "cosine"], sinks=False, mask=["none", "causal"])),
    "not-normalised": (("not-normalised",), dict(score=["dot", "cosine", "additive"], sinks=False)),
    "linear-not-normalised": (("not-normalised",), dict(score="linear")),
    "linear-mask-missing": (("mask-missing", "leak-later"), dict(score="linear", mask="causal")),
    "linear-normaliser-of-all": (("not-normalised", "leak-later", "mask-after-softmax"), dict(score="linear", mask="causal")),
    "linear-padding": (("padding-attended", "not-normalised", "mask-after-softmax"), dict(score="linear", mask="keys")),
    "sinks-missing": (("sinks-missing",), dict(sinks=True, like=True)),
    "sinks-other": (("sinks-other",), dict(sinks=True, like=True)),
    "softcap-missing": (("softcap-missing",), dict(softcap=True, like=True)),
    "softcap-other": (("softcap-other",), dict(softcap=True, like=True)),
    "softcap-after-mask": (("softcap-after-mask", "mask-too-weak"), dict(softcap=True, mask=["causal", "keys", "lengths", "window"])),
    "scores-other": (("scores-other", "differs-from-reference"), dict(score=["cosine", "additive"], like=True)),
    "scores-other-cosine-wrong-axis": (("scores-other", "differs-from-reference"), dict(score="cosine", like=True)),
    "weight-transposed": (("weight-transposed", "projections-exchanged", "scores-other", "projection-other", "differs-from-reference"), dict(score="general", like=True)),
    "mask-missing": (("mask-missing",), dict(mask="causal")),
    "mask-inverted-causal": (("mask-inverted", "mask-transposed", "causal-off-by-one"), dict(mask="causal", form="self")),
    "mask-inverted": (("mask-inverted",), dict(mask=["keys", "lengths", "additive", "bool"])),
    "mask-transposed": (("mask-transposed",), dict(mask="causal", form=["self", "function"])),
    "mask-top-left": (("mask-top-left",), dict(mask="causal", form="function", longer=True)),
    "causal-one-more": (("causal-off-by-one",), dict(mask="causal")),
    "causal-one-less": (("causal-off-by-one", "nan-with-keys"), dict(mask="causal")),
    "mask-after-softmax": (("mask-after-softmax",), dict(mask=["causal", "keys", "lengths", "window"], sinks=False)),
    "mask-too-weak": (("mask-too-weak",), dict(mask=["causal", "keys", "lengths", "window"])),
    "mask-boolean-added": (("mask-boolean-added",), dict(mask=["causal", "keys", "bool"])),
    "mask-times-score": (("mask-too-weak", "mask-other", "mask-missing", "padding-attended"), dict(mask=["causal", "keys"])),
    "mask-on-queries": (("mask-on-queries",), dict(mask=["keys", "lengths"], form="self")),
    "mask-of-other-rows": (("mask-of-other-rows",), dict(mask="bh")),
    "prefix-ignored": (("mask-other",), dict(mask="prefix")),
    "prefix-one-less": (("mask-other",), dict(mask="prefix")),
    "documents-ignored": (("mask-other", "mask-missing", "padding-attended"), dict(mask="documents")),
    "documents-inverted": (("mask-inverted", "mask-other"), dict(mask="documents")),
    "window-off-by-one": (("window-off-by-one",), dict(mask="window")),
    "window-missing": (("window-missing",), dict(mask="window")),
    "window-forward": (("mask-transposed", "mask-other", "mask-missing"), dict(mask="window")),
    "padding-attended": (("padding-attended",), dict(mask=["keys", "lengths"])),
    "padding-side": (("padding-side",), dict(mask="lengths")),
    "lengths-off-by-one": (("lengths-off-by-one",), dict(mask="lengths")),
    "key-heads-tiled": (("key-heads-tiled",), dict(gqa=True, like=True)),
    "values-are-keys": (("values-are-keys",), dict()),
    "values-rotated": (("values-rotated",), dict(pos=["pairs", "halves"])),
    "rotation-off-by-one": (("rotation-off-by-one",), dict(pos=["pairs", "halves"], like=True)),
    "rotation-missing": (("rotation-missing",), dict(pos=["pairs", "halves"], like=True)),
    "keys-not-rotated": (("keys-not-rotated",), dict(pos=["pairs", "halves"])),
    "rotary-pairs": (("rotary-pairs",), dict(pos=["pairs", "halves"], like=True)),
    "rotary-over-heads": (("rotary-over-heads",), dict(pos=["pairs", "halves"], like=True)),
    "rotary-base": (("rotary-base",), dict(pos=["pairs", "halves"], like=True)),
    "rotary-direction": (("rotary-direction",), dict(pos=["pairs", "halves"], like=True)),
    "rotary-width": (("rotation-other", "rotary-base"), dict(pos=["pairs", "halves"], like=True)),
    "bias-sign": (("bias-sign",), dict(pos="alibi", mask=["causal", "window"])),
    "bias-missing": (("bias-missing",), dict(pos=["alibi", "table"], like=True)),
    "bias-twice": (("bias-twice", "bias-scaled"), dict(pos=["alibi", "table"], like=True)),
    "bias-scaled": (("bias-scaled",), dict(pos=["alibi", "table"], score="dot", like=True)),
    "bias-slopes": (("bias-slopes",), dict(pos="alibi", like=True)),
    "bias-other-flipped": (("bias-other", "bias-sign"), dict(pos="table", like=True)),
    "bias-other-heads": (("bias-other", "bias-slopes"), dict(pos="table", like=True)),
    "cross-ignores-context": (("cross-ignores-context",), dict(form="cross", mask="none")),
    "cross-causal": (("cross-causal",), dict(form="cross", mask="none")),
    "projections-exchanged": (("projections-exchanged",), dict(form="self", fused=True, like=True)),
    "values-of-queries": (("projections-exchanged", "projection-other", "values-are-keys", "differs-from-reference"), dict(form="self", fused=True, like=True)),
    "split-by-reshape": (("split-by-reshape",), dict(form=["self", "cross"])),
    "merged-by-reshape": (("merged-by-reshape",), dict(form=["self", "cross"])),
    "gate-missing": (("gated", "differs-from-reference"), dict(form="self", gate=True, like=True)),
    "gate-of-other-heads": (("gated", "differs-from-reference"), dict(form="self", gate=True, like=True)),
    "dropout-in-eval": (("dropout-in-eval",), dict(form="self", dropout=True)),
    "dropout-before-softmax": (("dropout-before-softmax",), dict(form="self", dropout=True, drive="train")),
    "dropout-twice": (("dropout-twice",), dict(form="self", dropout=True, drive="train")),
    "gradient-cut": (("gradient-cut",), dict(drive="gradients")),
    "rounded": (("rounded",), dict(least=1e-4)),
    "input-changed": (("input-changed",), dict(score="dot", form="function", drive="inputs")),
    "large-scores": (("large-scores", "nan-with-keys"), dict(score="dot", drive="large", softcap=False, sinks=False, mask=["none", "causal"])),
    "nan-without-keys": (("nan-without-keys",), dict(mask="keys", drive="without", sinks=False, hazard=True)),
    "mean-without-keys": (("mean-without-keys",), dict(mask="keys", drive="without", sinks=False, hazard=True)),
    "state-left": (("state-left",), dict(form="self", score="dot", drive="twice")),
    "leak-later": (("leak-later",), dict(form="self", mask="causal")),
    "batch-mixed": (("batch-mixed",), dict(form="self")),
}

STEPS: dict[str, tuple[tuple[str, ...], dict]] = {
    "rotation-offset-lost": (("rotation-offset-lost", "cached-step-differs"), dict(pos="rotary")),
    "position-offset-lost": (("position-offset-lost", "cached-step-differs"), dict(pos="learned")),
    "bias-offset-lost": (("bias-offset-lost", "cached-step-differs"), dict(pos="alibi")),
    "cache-overwritten": (("cache-overwritten", "cached-step-differs"), dict()),
    "cache-prepended": (("cache-prepended", "cached-step-differs"), dict()),
    "cache-pairs-apart": (("cache-pairs-apart", "cached-step-differs"), dict()),
    "cache-rotated-twice": (("cache-rotated-twice", "rotation-other", "cached-step-differs"), dict(pos="rotary")),
    "keys-not-rotated-in-cache": (("keys-not-rotated", "rotation-other", "cached-step-differs"), dict(pos="rotary")),
    "rotation-off-by-one-in-cache": (("rotation-off-by-one", "rotation-offset-lost", "cached-step-differs"), dict(pos="rotary")),
    "mask-in-cache": (("mask-in-cache", "cached-step-differs"), dict()),
    "mask-top-left-in-cache": (("mask-top-left", "mask-in-cache", "cached-step-differs"), dict(window=False)),
    "window-off-in-cache": (("window-off-in-cache", "cached-step-differs"), dict(window=True)),
    "cache-rows-exchanged": (("cache-rows-exchanged", "cached-step-differs"), dict()),
}

PATHS: dict[str, tuple[tuple[str, ...], dict]] = {
    "mask-in-one-path": (("mask-in-one-path", "setting-matters"), dict()),
    "mask-in-other-path": (("mask-in-one-path", "mask-missing", "setting-matters"), dict()),
    "softcap-in-one-path": (("softcap-in-one-path", "setting-matters"), dict(softcap=True)),
    "sinks-in-one-path": (("sinks-in-one-path", "setting-matters"), dict(sinks=True)),
    "bias-in-one-path": (("bias-in-one-path", "setting-matters"), dict(bias=True)),
    "paths-differ": (("paths-differ",), dict(grad=True)),
}

KINDS = list(CORE) + list(STEPS) + list(PATHS)


class Text:
    """Writes one program. Choices of style are kept in `cfg`, so that the twins share them."""

    def __init__(self, rng: random.Random, cfg: dict, mistake: str = ""):
        self.rng, self.cfg, self.m = rng, cfg, mistake
        self.lines: list[str] = []

    def pick(self, name: str, *options: Any) -> Any:
        if name not in self.cfg:
            self.cfg[name] = self.rng.choice(options)
        return self.cfg[name]

    def add(self, *lines: str) -> None:
        self.lines += lines


def rotary_source(t: Text) -> str:
    pairs, m, base = t.cfg["pos"] == "pairs", t.m, t.pick("base", 10000, 10000, 500000, 100)
    if m == "rotary-pairs":
        pairs = not pairs
    if m == "rotary-base":
        base = 10000 if base != 10000 else t.pick("base2", 1000, 500000)
    sin = "-" if m == "rotary-direction" else ""
    top = "torch.arange(x.shape[-1] // 2) / x.shape[-1]" if m == "rotary-width" else "torch.arange(0, x.shape[-1], 2) / x.shape[-1]"
    # freq: base ** -(2n/d); the wrong width takes half of the exponent
    tail = "positions[:, None]" if m == "rotary-over-heads" else "positions[:, None]"
    out = ["def rotate(x, positions):",
           f"    freq = {float(base)} ** -({top})",
           f"    angles = {tail}.to(x.dtype) * freq"]
    if m == "rotary-over-heads":
        out += ["    angles = angles[:, None, :]"]
    if pairs:
        out += [f"    cos, sin = angles.cos(), {sin}angles.sin()", "    a, b = x[..., 0::2], x[..., 1::2]",
                "    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)"]
    elif t.pick("halves", 0, 1):
        out += [f"    cos, sin = angles.cos(), {sin}angles.sin()", "    a, b = x.chunk(2, dim=-1)",
                "    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)"]
    else:
        out += ["    angles = torch.cat([angles, angles], dim=-1)",
                "    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]",
                f"    return x * angles.cos() {'-' if sin else '+'} torch.cat([-b, a], dim=-1) * angles.sin()"]
    return "\n".join(out) + "\n\n\n"


def core(t: Text, P: Any, module: bool) -> None:
    """From Q_ (b, h, t, d), K_ and V_ (b, g, s, d) to Y_ (b, h, t, d)."""
    c, m, add = t.cfg, t.m, t.add
    h, score, mask, pos = c["heads"], c["score"], c["mask"], c["pos"]
    S = t.pick("s name", "s", "n", "kv_len", "S")
    T = {"s": "t", "n": "t", "kv_len": "q_len", "S": "T"}[S]
    add(f"{T}, {S} = Q_.shape[-2], K_.shape[-2]")
    if m == "gradient-cut":
        which = t.pick("cut", "K_", "Q_", "V_")
        add(f"{which} = {which}.detach()")
    if pos in ("pairs", "halves"):
        if m == "rotary-over-heads":
            add(f"Q_ = rotate(Q_, torch.arange({h}))", f"K_ = rotate(K_, torch.arange({h}))" if not c["gqa"] else f"K_ = rotate(K_, torch.arange({c['groups']}))")
        elif m != "rotation-missing":
            shift = f"{S} - {T}, {S}" if c["longer"] else f"{T}"
            if m == "rotation-off-by-one":
                shift = f"1 + {S} - {T}, 1 + {S}" if c["longer"] else f"1, {T} + 1"
            add(f"Q_ = rotate(Q_, torch.arange({shift}))")
            if m != "keys-not-rotated":
                add(f"K_ = rotate(K_, torch.arange({S}))")
            if m == "values-rotated":
                add(f"V_ = rotate(V_, torch.arange({S}))")
    if c["gqa"]:
        r = h // c["groups"]
        style = t.pick("repeat", "ri", "expand")
        for x in ("K_", "V_"):
            if style == "ri":
                add(f"{x} = {x}.repeat(1, {r}, 1, 1)" if m == "key-heads-tiled" else f"{x} = {x}.repeat_interleave({r}, dim=1)")
            else:
                e = f"{x}[:, None].expand(-1, {r}, -1, -1, -1)" if m == "key-heads-tiled" else f"{x}[:, :, None].expand(-1, -1, {r}, -1, -1)"
                add(f"{x} = {e}.reshape({x}.shape[0], {h}, {S}, -1)")
    if score == "linear":
        linear(t, S, T)
        return
    # scores
    bias = []
    if pos == "alibi":
        p = t.pick("slope", 8, 8, 4) if False else 8
        ex = f"2.0 ** (-{p}.0 * torch.arange(1, {h} + 1) / {h})"
        if m == "bias-slopes":
            ex = t.pick("slopes2", f"2.0 ** -torch.arange(1.0, {h} + 1)" if h not in (8,) else f"2.0 ** -torch.arange(0.0, {h})",
                        f"2.0 ** (-8.0 * torch.arange({h}) / {h})", f"1.0 / torch.arange(1, {h} + 1)")
        off = f" + {S} - {T}" if c["longer"] else ""
        dist = f"torch.arange({T})[:, None]{off} - torch.arange({S})"
        style = t.pick("alibi", 0, 1) if mask in ("causal", "window") else 0
        sign = "+" if (m == "bias-sign") else "-"
        bias = [f"slopes = {ex}", f"distance = {dist}" if style else f"distance = ({dist}).abs()",
                f"Z_ = Z_ {sign} slopes[:, None, None] * distance"]
    if pos == "table":
        r = c["reach"]
        ref = P("table", f"torch.randn({h}, {2 * r + 1})", lambda g: torch.randn(h, 2 * r + 1, generator=g))
        off = f" - ({S} - {T})" if c["longer"] else ""
        d = f"torch.arange({S}) - torch.arange({T})[:, None]{off}"
        if m == "bias-other-flipped":
            d = f"torch.arange({T})[:, None]{off.replace('-', '+', 1)} - torch.arange({S})"
        ref2 = f"{ref}.flip(0)" if m == "bias-other-heads" else ref
        bias = [f"distance = ({d}).clamp(-{r}, {r}) + {r}", f"Z_ = Z_ + {ref2}[:, distance]"]
    if m == "bias-missing":
        bias = []
    if m == "bias-twice":
        bias = [*bias, bias[-1]]
    if score == "dot":
        root = t.pick("root", "math.sqrt({})", "{} ** 0.5")
        d = "Q_.shape[-1]"
        where = t.pick("where", "after", "after", "before", "both") if m not in ("bias-scaled",) else t.pick("where", "after", "after", "before", "both")
        if c.get("need after"):
            where = "after"
        prod = t.pick("prod", "Q_ @ K_.transpose(-2, -1)", "torch.matmul(Q_, K_.transpose(2, 3))", "Q_ @ K_.mT",
                      f"torch.einsum('bhid,bhjd->bhij', Q_, K_)")
        e = root.format(d)
        if m == "scale-model-width":
            e = root.format(f"({h} * {d})") if t.pick("wide", 0, 1) else root.format(P("dim", f"{c['heads'] * c['width']}", None))
        if m == "other-scale":
            e = t.pick("other scale", root.format(f"({d} / 2)"), f"{d} ** 0.25", *([root.format(f"({d} * 2)")] if h != 2 else []), *([f"({d} ** 0.5 - 1)"] if c["width"] > 4 else []))
        if m == "scale-one-over-d":
            e = d
        plain = f"Z_ = {prod}"
        if m == "input-changed":
            add(f"Q_ {t.pick('inplace', '/=', '/=')} {root.format(d)}", plain)
        elif m == "no-scale":
            add(plain)
        elif m == "scale-inverted":
            add(f"Z_ = {prod} * {e}" if " @ " not in prod else f"Z_ = ({prod}) * {e}")
        elif m == "scale-one-over-d" and where == "both":
            add(f"Q_ = Q_ / {root.format(d)}", f"Z_ = {prod} / {root.format(d)}" if " @ " not in prod else f"Z_ = ({prod}) / {root.format(d)}")
        elif where == "before":
            add(f"Q_ = Q_ / {e}" if m or t.pick("times", 0, 1) else f"Q_ = Q_ * {d} ** -0.5", plain)
        elif where == "both" and not m.startswith(("scale", "other")):
            add(f"Z_ = ({prod.replace('Q_,', '(Q_ / ROOT),').replace('Q_ @', 'Q_ / ROOT @').replace(', K_)', ', K_ / ROOT)').replace('@ K_.', '@ (K_ / ROOT).').replace(', K_.', ', (K_ / ROOT).')})".replace("ROOT", "Q_.shape[-1] ** 0.25"))
        elif m == "bias-scaled":
            add(plain, *bias, f"Z_ = Z_ / {e}")
            bias = []
        else:
            add(f"Z_ = {prod} / {e}" if " @ " not in prod else f"Z_ = ({prod}) / {e}")
    elif score == "cosine":
        tau = c["tau"]
        if m == "scores-other":
            add(f"Z_ = {tau} * Q_ @ F.normalize(K_, dim=-1).transpose(-2, -1)" if t.pick("half cosine", 0, 1) else f"Z_ = (Q_ @ K_.transpose(-2, -1)) / math.sqrt(Q_.shape[-1])")
        else:
            dim = "2" if m == "scores-other-cosine-wrong-axis" else "-1"
            if t.pick("normalize", 0, 1):
                add(f"Q_, K_ = F.normalize(Q_, dim={dim}), F.normalize(K_, dim={dim})")
            else:
                add(f"Q_ = Q_ / Q_.norm(dim={dim}, keepdim=True)", f"K_ = K_ / K_.norm(dim={dim}, keepdim=True)")
            add(f"Z_ = {tau} * Q_ @ K_.transpose(-2, -1)")
    elif score == "additive":
        d = c["width"]
        w = P("w", f"torch.randn({d})", lambda g: torch.randn(d, generator=g))
        f = "torch.tanh"
        if m == "scores-other":
            f = t.pick("act", "torch.relu", "torch.sigmoid")
        if t.pick("own weights", 0, 1):
            a = P("wa", f"torch.randn({d}, {d}) / {d} ** 0.5", lambda g: torch.randn(d, d, generator=g) / d**0.5)
            u = P("ua", f"torch.randn({d}, {d}) / {d} ** 0.5", lambda g: torch.randn(d, d, generator=g) / d**0.5)
            add(f"Z_ = {f}((Q_ @ {a}).unsqueeze(3) + (K_ @ {u}).unsqueeze(2)) @ {w}")
        else:
            add(f"Z_ = ({f}(Q_[:, :, :, None] + K_[:, :, None]) * {w}).sum(-1)")
    elif score == "general":
        d = c["width"]
        a = P("wa", f"torch.randn({d}, {d}) / {d}", lambda g: torch.randn(d, d, generator=g) / d)
        add(f"Z_ = Q_ @ {a}{'.T' if m == 'weight-transposed' else ''} @ K_.transpose(-2, -1)")
    capped = []
    if c["softcap"]:
        cap = c["cap"]
        if m == "softcap-other":
            cap = t.pick("cap2", c["cap"] * 2, c["cap"] / 2, c["cap"] * 5)
        if m != "softcap-missing":
            capped = [f"Z_ = {cap} * torch.tanh(Z_ / {cap})"]
    if m != "softcap-after-mask":
        add(*capped)
    add(*bias)
    after = masking(t, P, S, T, module)
    if m == "softcap-after-mask":
        add(*capped)
    if m == "dropout-before-softmax":
        add("Z_ = F.dropout(Z_, self.p, self.training)")
    # softmax
    if c["sinks"]:
        ref = P("sinks", f"torch.randn({h})", lambda g: torch.randn(h, generator=g) + 1)
        if m == "sinks-other":
            ref = t.pick("sinks2", f"{ref}.flip(0)", f"(2 * {ref})")
        if m == "sinks-missing":
            add("W_ = Z_.softmax(dim=-1)")
        elif t.pick("sink", 0, 1):
            add(f"sink = {ref}.reshape(1, -1, 1, 1).expand(Z_.shape[0], -1, {T}, 1)",
                f"W_ = torch.cat([Z_, sink], dim=-1).softmax(dim=-1)[..., :-1]")
        else:
            add(f"top = torch.maximum(Z_.amax(-1, keepdim=True), {ref}[:, None, None])", "W_ = (Z_ - top).exp()",
                f"W_ = W_ / (W_.sum(-1, keepdim=True) + ({ref}[:, None, None] - top).exp())")
    else:
        dim = {"softmax-over-queries": t.pick("dimq", "-2", "2"), "softmax-over-heads": "1", "softmax-over-batch": "0"}.get(m, t.pick("dim", "-1", "-1", "3"))
        style = t.pick("softmax", "F", "method", "torch", "hand")
        if m == "rounded":
            kind = t.pick("half", "bfloat16", "float16")
            add(f"W_ = Z_.to(torch.{kind}).softmax(dim={dim}).to(V_.dtype)")
        elif m == "large-scores":
            if t.pick("overflow", 0, 1):
                add("W_ = torch.exp(Z_)", "W_ = W_ / W_.sum(dim=-1, keepdim=True)")
            else:
                add("W_ = torch.exp(Z_.clamp(max=50.0))", "W_ = W_ / W_.sum(dim=-1, keepdim=True)")
        elif m == "not-normalised":
            u = t.pick("unnormalised", 0, 1, 2)
            add(*(["W_ = (Z_ - Z_.amax(dim=-1, keepdim=True)).exp()"] if u == 0 else
                  ["W_ = torch.sigmoid(Z_)"] if u == 1 else
                  ["W_ = (Z_ - Z_.amax(dim=-1, keepdim=True)).exp()", "W_ = W_ / W_.sum()"]))
        elif style == "F":
            add(f"W_ = F.softmax(Z_, dim={dim})")
        elif style == "method":
            add(f"W_ = Z_.softmax({dim})")
        elif style == "torch":
            add(f"W_ = torch.softmax(Z_, dim={dim})")
        else:
            add(f"W_ = torch.exp(Z_ - Z_.amax(dim={dim}, keepdim=True))", f"W_ = W_ / W_.sum(dim={dim}, keepdim=True)")
    add(*after)
    if c["dropout"]:
        style = t.pick("dropout style", "F", "module", "F")
        if m == "dropout-before-softmax":
            pass
        elif m == "dropout-in-eval":
            add("W_ = F.dropout(W_, self.p)" if style == "F" else "W_ = F.dropout(W_, p=self.p, training=True)")
        else:
            line = "W_ = F.dropout(W_, self.p, self.training)"
            add(*([line] * (2 if m == "dropout-twice" else 1)))
    value = "K_" if m == "values-are-keys" else "V_"
    if m == "dropout-before-softmax":
        pass
    add(t.pick("sum", f"Y_ = W_ @ VV", f"Y_ = torch.matmul(W_, VV)", f"Y_ = torch.einsum('bhij,bhjd->bhid', W_, VV)").replace("VV", value))


def linear(t: Text, S: str, T: str) -> None:
    c, m, add = t.cfg, t.m, t.add
    phi = t.pick("phi", "F.elu({}) + 1", "torch.relu({}) + 0.01", "torch.exp({} * 0.5)")
    add(f"Q_ = {phi.format('Q_')}", f"K_ = {phi.format('K_')}")
    if c["mask"] == "keys":
        name = c["mask name"]
        keep = f"{name}" if c["true is real"] else f"~{name}"
        if m != "linear-padding":
            add(f"K_ = K_ * ({keep})[:, None, :, None]")
        elif t.pick("half padding", 0, 1):
            add(f"V_ = V_ * ({keep})[:, None, :, None]")
    if c["mask"] == "causal" and m != "linear-mask-missing":
        add("kv = torch.einsum('bhsd,bhse->bhsde', K_, V_).cumsum(2)", "Y_ = torch.einsum('bhtd,bhtde->bhte', Q_, kv)")
        den = "(Q_ * K_.cumsum(2)).sum(-1, keepdim=True)"
        if m == "linear-normaliser-of-all":
            den = "(Q_ * K_.sum(2, keepdim=True)).sum(-1, keepdim=True)"
    else:
        add("kv = K_.transpose(-2, -1) @ V_", "Y_ = Q_ @ kv")
        den = "(Q_ @ K_.sum(2).unsqueeze(-1))"
    if m == "linear-not-normalised":
        return
    add(f"Y_ = Y_ / {den}")


def masking(t: Text, P: Any, S: str, T: str, module: bool) -> list[str]:
    """Writes the mask; returns lines that belong after the softmax."""
    c, m, add = t.cfg, t.m, t.add
    mask = c["mask"]
    if m == "cross-causal":
        style = t.pick("cross causal", 0, 1)
        add(f"hidden = torch.ones({T}, {S}, dtype=torch.bool).triu(1)" if style else f"hidden = torch.arange({S}) > torch.arange({T})[:, None]",
            "Z_ = Z_.masked_fill(hidden, float('-inf'))")
        return []
    if mask == "none":
        return []
    low = t.pick("low", "float('-inf')", "-1e9", "torch.finfo(Z_.dtype).min", "-1e30")
    if m in ("nan-without-keys",) or (c.get("hazard") and m == ""):
        low = "float('-inf')"
    if m == "mean-without-keys":
        low = t.pick("low mean", "-1e9", "torch.finfo(Z_.dtype).min")
    if m == "mask-too-weak":
        low = t.pick("weak", "-1.0", "-2.0", "-5.0", "-3")
    off = f" + {S} - {T}" if c["longer"] and m != "mask-top-left" else ""
    dia = f"{S} - {T}" if off else "0"
    keep = ""
    i, j = f"(torch.arange({T})[:, None]{off})", f"torch.arange({S})"
    if mask == "causal":
        if m == "mask-missing":
            return []
        style = t.pick("causal", "tril", "triu", "arange")
        n = {"causal-one-more": 1, "causal-one-less": -1}.get(m, 0)
        if m == "mask-transposed":
            keep = f"{j} >= {i}" if style == "arange" else f"torch.ones({T}, {S}, dtype=torch.bool).triu({dia})"
        elif style == "arange":
            cmp = {1: "<= 1 +", -1: "<", 0: "<="}[n]
            keep = f"{j} {cmp} {i}"
        else:
            k = dia if n == 0 else (f"{n}" if dia == "0" else f"{dia} {'+ 1' if n > 0 else '- 1'}")
            if style == "tril":
                keep = f"torch.ones({T}, {S}, dtype=torch.bool).tril({k})" if k != "0" else f"torch.tril(torch.ones({T}, {S}, dtype=torch.bool))"
            else:
                k2 = {"0": "1", "1": "2", "-1": "0"}.get(k, f"{k} + 1")
                keep = f"~torch.triu(torch.ones({T}, {S}, dtype=torch.bool), {k2})"
        if m == "mask-inverted-causal":
            keep = f"~({keep})" if not keep.startswith("~") else keep[1:]
    elif mask == "window":
        n = c["window"]
        if m == "window-off-by-one":
            n += t.pick("window by", 1, -1) if n > 2 else 1
        if m == "window-forward":
            keep = f"({j} >= {i}) & ({j} - {i} < {n})"
        elif m == "window-missing":
            keep = f"{j} <= {i}"
        else:
            keep = t.pick("window style", f"({j} <= {i}) & ({i} - {j} < NN)", f"(({i} - {j}) >= 0) & (({i} - {j}) < NN)").replace("NN", str(n))
    elif mask == "prefix":
        n = c["prefix"] - (1 if m == "prefix-one-less" else 0)
        keep = f"{j} <= {i}" if m == "prefix-ignored" else f"({j} <= {i}) | ({j} < {n})"
    elif mask == "documents":
        ids = c["mask name"]
        if m == "documents-ignored":
            if c["also causal"]:
                keep = f"{j} <= {i}"
            else:
                return []
        else:
            keep = f"({ids}[:, None, :, None] {'!=' if m == 'documents-inverted' else '=='} {ids}[:, None, None, :])"
            if c["also causal"]:
                keep += f" & ({j} <= {i})"
    elif mask in ("keys", "lengths"):
        name = c["mask name"]
        if m == "padding-attended":
            return []
        if mask == "keys":
            real = name if c["true is real"] else f"~{name}"
            if m == "mask-inverted":
                real = f"~{name}" if c["true is real"] else name
        else:
            cmp = "<"
            if m == "lengths-off-by-one":
                cmp = t.pick("len", "<=", "+ 1 <")
            real = f"(torch.arange({S}) {cmp} {name}[:, None])"
            if m == "padding-side":
                real = f"(torch.arange({S}) >= {S} - {name}[:, None])"
            if m == "mask-inverted":
                real = f"(torch.arange({S}) >= {name}[:, None])"
        axis = "[:, None, :, None]" if m == "mask-on-queries" else "[:, None, None, :]"
        keep = (f"({real})" if real.startswith("~") else real) + axis
    elif mask == "bool":  # a boolean mask (t, s) or (b, 1, t, s) of the caller
        name = c["mask name"]
        real = name if c["true is real"] else f"~{name}"
        if m == "mask-inverted":
            real = f"~{name}" if c["true is real"] else name
        keep = real
    elif mask == "additive":
        add(f"Z_ = Z_ {'-' if m == 'mask-inverted' else '+'} {c['mask name']}" if m != "mask-inverted" else
            f"Z_ = Z_ + torch.where({c['mask name']} < 0, 0.0, -1e9)")
        return []
    elif mask == "bh":
        name, h = c["mask name"], c["heads"]
        real = name if c["true is real"] else f"~{name}"
        e = f"{name}.repeat({h}, 1)" if m == "mask-of-other-rows" else f"{name}.repeat_interleave({h}, 0)"
        add(f"rows = {e}[:, None, :]", f"Z_ = Z_.flatten(0, 1).masked_fill({'~' if c['true is real'] else ''}rows, {low}).view(Q_.shape[0], {h}, {T}, {S})")
        return []
    if m == "mask-after-softmax":
        return [f"W_ = W_ * ({keep})" if t.pick("after style", 0, 1) else f"W_ = W_.masked_fill(~({keep}), 0.0)"]
    if m == "mask-boolean-added":
        add(f"Z_ = Z_ + {keep}" if keep[0] != "~" and "<" not in keep and "=" not in keep.replace("dtype=", "") else f"Z_ = Z_ + ({keep})")
        return []
    if m == "mask-times-score":
        add(f"Z_ = Z_ * ({keep})")
        return []
    style = t.pick("fill", "fill", "where", "add")
    if m == "mask-too-weak" or c.get("hazard"):
        style = "fill" if style == "where" and m != "mask-too-weak" else style
    if style == "add" and "inf" in low:
        add(f"Z_ = Z_ + torch.zeros_like(Z_).masked_fill(~({keep}), {low})")
    elif style == "add":
        add(f"Z_ = Z_ + (1.0 - ({keep}).float()) * {low}")
    elif m == "mask-too-weak":
        add(f"Z_ = torch.where({keep}, Z_, Z_ + {low})")
    elif style == "where":
        add(f"Z_ = torch.where({keep}, Z_, {low})")
    else:
        inner = keep[1:] if keep.startswith("~") and "&" not in keep else f"~({keep})"
        add(f"Z_ = Z_.masked_fill({inner}, {low})")
    if c.get("hazard") and m == "":
        return ["W_ = torch.nan_to_num(W_)"]
    return []


NAMES = [
    dict(Q_="q", K_="k", V_="v", Z_="scores", W_="weights", Y_="out", X_="x", C_="context"),
    dict(Q_="query", K_="key", V_="value", Z_="scores", W_="attn", Y_="output", X_="hidden_states", C_="memory"),
    dict(Q_="q", K_="k", V_="v", Z_="logits", W_="probs", Y_="y", X_="x", C_="ctx"),
    dict(Q_="q", K_="k", V_="v", Z_="sim", W_="attn", Y_="out", X_="x", C_="context"),
    dict(Q_="queries", K_="keys", V_="values", Z_="energy", W_="alpha", Y_="result", X_="inputs", C_="encoder_outputs"),
    dict(Q_="Q", K_="K", V_="V", Z_="att", W_="A", Y_="O", X_="X", C_="M"),
]


def settle(rng: random.Random, need: dict) -> dict:
    """Features of a program: those the mistake needs, the others at random."""
    c: dict[str, Any] = {}

    def take(name: str, *options: Any) -> Any:
        x = need.get(name)
        if isinstance(x, list):
            c[name] = rng.choice(x)
        elif x is not None:
            c[name] = x
        else:
            c[name] = rng.choice(options)
        return c[name]

    form = take("form", "function", "self", "self", "cross")
    take("gate", False)
    take("fused", True, False) if form == "self" else c.update(fused=False)
    take("heads", 2, 4, 4, 3)
    take("width", 4, 8, 8, 16)
    mask = take("mask", *(["none", "keys", "lengths"] if form == "cross" else
                          ["none", "none", "causal", "causal", "keys", "lengths", "additive", "window", "prefix", "documents", "bool"]))
    take("score", *(["dot"] * 6 + ["cosine", "additive", "general"] + (["linear"] if mask in ("none", "causal") else [])))
    if form == "cross" and mask in ("causal", "window", "prefix", "documents"):
        c["form"] = form = "self"
    if c["score"] == "linear" and mask not in ("none", "causal", "keys"):
        c["score"] = "dot"
    plain = c["score"] == "dot"
    take("pos", *(["none"] * 5 + (["pairs", "halves", "alibi", "table"] if plain and form != "cross" else [])))
    if c["pos"] == "alibi" and c["heads"] == 3:
        c["heads"] = 4
    if c["score"] == "linear":
        c["pos"] = "none"
    if c["pos"] in ("pairs", "halves", "table", "alibi") and form == "cross":
        c["form"] = form = "self"
    take("softcap", *[False] * 7, True)
    take("sinks", *[False] * 7, True)
    take("gqa", *[False] * 4, plain and c["heads"] == 4)
    if c["gqa"]:
        c["heads"] = 4
        c["groups"] = rng.choice([1, 2, 2]) if need.get("gqa") is None else 2
    if c["score"] == "linear":
        c["softcap"] = c["sinks"] = False
    take("dropout", *([False, False, True] if form == "self" else [False]))
    if c["score"] == "linear":
        c["dropout"] = False
    take("longer", *([False, False, True] if form == "function" and mask in ("causal", "window") and c["score"] != "linear" else [False]))
    c.update(batch=rng.choice([2, 3]), t=rng.choice([5, 6, 7, 9]), window=rng.choice([2, 3, 4]), prefix=rng.choice([2, 3]),
             cap=rng.choice([2.0, 3.0, 5.0]), tau=rng.choice([5.0, 8.0, 10.0]), reach=rng.choice([2, 3, 4]))
    c["s"] = c["t"]
    if form == "cross" or (form == "function" and mask in ("none", "keys", "lengths") and c["pos"] == "none"):
        c["s"] = rng.choice([x for x in (4, 6, 7, 8, 10) if x != c["t"]])
    if c["longer"]:
        c["s"] = c["t"] + rng.choice([2, 3])
    c["true is real"] = rng.random() < 0.6
    c["also causal"] = rng.random() < 0.5
    c["mask name"] = {
        "keys": rng.choice(["mask", "key_mask"]) if c["true is real"] else "key_padding_mask",
        "bh": rng.choice(["mask", "key_mask"]) if c["true is real"] else "key_padding_mask",
        "lengths": rng.choice(["lengths", "lengths", "key_lengths"]) if form != "cross" else rng.choice(["lengths", "context_lengths"]),
        "documents": rng.choice(["segment_ids", "document_ids", "doc_ids"]),
        "bool": rng.choice(["mask", "attn_mask"]), "additive": rng.choice(["attn_bias", "attention_mask", "mask"]),
    }.get(mask, "")
    c["true is real"] = c["true is real"] or (mask == "bool" and rng.random() < 0.5)
    for name in ("hazard",):
        if need.get(name):
            c[name] = True
    c["names"] = rng.choice(NAMES)
    return c


def mask_of(c: dict, mistake: str, form: str) -> tuple[dict, Any]:
    """Inputs the mask needs, and the mask as it is meant, for asks()."""
    import intently as it

    b, t, s, mask, name = c["batch"], c["t"], c["s"], c["mask"], c["mask name"]
    g = torch.Generator().manual_seed(c["seed"] + 1)
    lengths = torch.tensor([s - 2, s - 3, s][:b]) if s > 4 else torch.tensor([s - 1, s - 2, s][:b])
    if mask == "causal":
        return {}, it.causal()
    if mask == "window":
        return {}, it.causal() & it.window(c["window"] - 1, 0)
    if mask == "prefix":
        return {}, it.causal() | it.prefix(c["prefix"])
    if mask == "documents":
        cut = torch.tensor([2, 3, 1][:b])[:, None]
        ids = (torch.arange(s) >= cut).long() + (torch.arange(s) >= cut + 2).long()
        meant = it.segments(ids)
        return {name: ids}, (meant & it.causal()) if c["also causal"] else meant
    if mask == "lengths":
        return {name: lengths}, it.padding(lengths.tolist())
    if mask in ("keys", "bh"):
        real = torch.arange(s) < lengths[:, None]
        return {name: real if c["true is real"] else ~real}, it.padding(real)
    if mask in ("bool", "additive"):
        allowed = torch.rand(t, s, generator=g) < 0.6
        allowed |= torch.eye(t, s, dtype=torch.bool)
        if c.setdefault("four", random.Random(c["seed"]).random() < 0.4):
            allowed = (torch.rand(b, 1, t, s, generator=g) < 0.6) | torch.eye(t, s, dtype=torch.bool)
        if mask == "bool":
            return {name: allowed if c["true is real"] else ~allowed}, it.allowed(allowed)
        return {name: torch.zeros(allowed.shape).masked_fill(~allowed, -1e9)}, it.allowed(allowed)
    return {}, None


def program(rng: random.Random, c: dict, mistake: str) -> tuple[str, str, dict]:
    """Source, expression that builds the subject, additional arguments of a function (tensors)."""
    t = Text(rng, c, mistake)
    form, h, d = c["form"], c["heads"], c["width"]
    g = c.get("groups", h)
    init: list[str] = []
    extra: dict[str, Any] = {}
    m = mistake

    def P(name: str, expression: str, make: Any) -> str:
        if form == "function":
            extra[name] = make(torch.Generator().manual_seed(c["seed"] + len(extra))) if make else None
            return name
        line = f"self.{name} = nn.Parameter({expression})" if make else f"self.{name} = {expression}"
        if line not in init:
            init.append(line)
        return f"self.{name}"

    text = HEAD + (rotary_source(t) if c["pos"] in ("pairs", "halves") else "")
    has_mask = [c["mask name"]] if c["mask name"] else []
    if form == "function":
        core(t, P, False)
        name = t.pick("fname", "attention", "attend", "scaled_dot_product", "self_attention", "multi_head_attention", "my_attention")
        args = ", ".join(["Q_", "K_", "V_", *extra, *has_mask])
        body = t.lines[:-1] + [t.lines[-1].replace("Y_ =", "return", 1)] if t.lines[-1].startswith("Y_ = ") and t.pick("direct", 0, 1) else [*t.lines, "return Y_"]
        text += f"def {name}({args}):\n" + "".join(f"    {x}\n" for x in body)
        return renamed(text, c["names"]), name, extra
    dim = h * d
    names = t.pick("names of projections", ("to_q", "to_k", "to_v", "to_out"), ("q_proj", "k_proj", "v_proj", "out_proj"), ("query_layer", "key_layer", "value_layer", "proj"), ("wq", "wk", "wv", "wo"))
    bias = t.pick("bias", "", ", bias=False")
    init0 = [f"self.heads = heads", ]
    f: list[str] = []
    src = "X_" if form == "self" else ("X_" if m == "cross-ignores-context" else "C_")
    bq = t.pick("shape style", 0, 1)
    if c["fused"] and g == h:
        init0 += [f"self.qkv = nn.Linear(dim, 3 * dim{bias})"]
        order = {"projections-exchanged": "K_, Q_, V_", "values-of-queries": "V_, K_, Q_"}.get(m, "Q_, K_, V_")
        f += [f"{order} = self.qkv(X_).chunk(3, dim=-1)"]
    else:
        kd = "dim" if g == h else f"{g} * (dim // heads)"
        init0 += [f"self.{names[0]} = nn.Linear(dim, dim{bias})"] + [f"self.{x} = nn.Linear(dim, {kd}{bias})" for x in names[1:3]]
        f += [f"Q_ = self.{names[0]}(X_)", f"K_ = self.{names[1]}({src})", f"V_ = self.{names[2]}({src})"]
    if m == "state-left":
        f += ["if self.last is not None:", "    K_ = K_ + 0.5 * self.last.mean()", "self.last = K_.detach()"] if False else []
    split = t.pick("split", "view", "reshape", "unflatten")
    for x, n in (("Q_", "heads"), ("K_", "groups"), ("V_", "groups")):
        hh = "self.heads" if n == "heads" or g == h else str(g)
        if m == "split-by-reshape":
            f += [f"{x} = {x}.reshape({x}.shape[0], {hh}, -1, {d})" if split != "view" else f"{x} = {x}.contiguous().view({x}.shape[0], {hh}, {x}.shape[1], {d})"]
        elif split == "view":
            f += [f"{x} = {x}.view({x}.shape[0], {x}.shape[1], {hh}, {d}).transpose(1, 2)"]
        elif split == "reshape":
            f += [f"{x} = {x}.reshape(*{x}.shape[:2], {hh}, -1).permute(0, 2, 1, 3)"]
        else:
            f += [f"{x} = {x}.unflatten(-1, ({hh}, -1)).transpose(1, 2)"]
    if m == "state-left":
        init0 += ["self.bank = None"]
        f += ["if self.bank is not None and self.bank.shape == K_.shape:", "    K_ = 0.9 * K_ + 0.1 * self.bank", "self.bank = K_.detach()"]
    if m == "batch-mixed":
        u = t.pick("mixed", 0, 1)
        f = (["X_ = X_ - X_.mean(dim=0, keepdim=True)"] if u else ["X_ = (X_ - X_.mean(dim=(0, 1))) / (X_.std(dim=(0, 1)) + 1e-5)"]) + f
    if m == "leak-later":
        u = t.pick("leak", 0, 1, 2)
        f = ([["X_ = X_ + X_.mean(dim=1, keepdim=True)"], ["X_ = torch.cat([X_[:, 1:], X_[:, -1:]], dim=1) * 0.5 + X_ * 0.5"],
              ["X_ = (X_ - X_.mean(dim=1, keepdim=True)) / (X_.std(dim=1, keepdim=True) + 1e-5)"]][u]) + f
    t.lines = f
    core(t, P, True)
    if c["gate"]:
        init0 += ["self.gate = nn.Linear(dim, heads)"]
        if m == "gate-of-other-heads":
            t.add("Y_ = Y_ * torch.sigmoid(self.gate(X_)).flip(-1).transpose(1, 2).unsqueeze(-1)")
        elif m != "gate-missing":
            t.add("Y_ = Y_ * torch.sigmoid(self.gate(X_)).transpose(1, 2).unsqueeze(-1)")
    merge = t.pick("merge", "reshape", "contiguous", "flatten")
    if m == "merged-by-reshape":
        t.add("Y_ = Y_.reshape(X_.shape[0], X_.shape[1], -1)" if merge != "contiguous" else "Y_ = Y_.contiguous().view(X_.shape[0], -1, X_.shape[2])")
    elif merge == "flatten":
        t.add("Y_ = Y_.transpose(1, 2).flatten(2)")
    elif merge == "contiguous":
        t.add("Y_ = Y_.transpose(1, 2).contiguous().view(X_.shape[0], -1, self.heads * %d)" % d)
    else:
        t.add("Y_ = Y_.permute(0, 2, 1, 3).reshape(X_.shape[0], X_.shape[1], -1)")
    if t.pick("output", 1, 1, 0):
        init0 += [f"self.{names[3]} = nn.Linear(dim, dim)"]
        t.add(f"return self.{names[3]}(Y_)")
    else:
        t.add("return Y_")
    if c["dropout"]:
        init0 += [f"self.p = {t.pick('p', 0.1, 0.2, 0.5)}"]
    cls = t.pick("cls", "Attention", "SelfAttention", "MultiHeadAttention", "Attn", "MHA") if form == "self" else t.pick("cls", "CrossAttention", "DecoderAttention", "Attention")
    args = ", ".join(["X_"] + (["C_"] if form == "cross" else []) + [f"{x}=None" if False else x for x in has_mask])
    text += (f"class {cls}(nn.Module):\n    def __init__(self, dim={dim}, heads={h}):\n        super().__init__()\n"
             + "".join(f"        {x}\n" for x in init0 + init) + f"\n    def forward(self, {args}):\n" + "".join(f"        {x}\n" for x in t.lines))
    return renamed(text, c["names"]), f"{cls}({dim}, {h})", {}


def driven(how: str) -> Any:
    def train(subject: Any, inputs: dict) -> Any:
        subject.train()
        torch.manual_seed(3)
        x = copied(inputs)
        return [torch.stack([subject(**x) for _ in range(4)])]

    def gradients(subject: Any, inputs: dict) -> Any:
        x = copied(inputs)
        leaves = [v.requires_grad_() for v in x.values() if v.is_floating_point()]
        leaves += list(subject.parameters()) if isinstance(subject, torch.nn.Module) else []
        g = torch.autograd.grad(subject(**x).pow(2).sum(), leaves, allow_unused=True)
        return [torch.zeros_like(p) if d is None else d for p, d in zip(leaves, g)]

    def changed(subject: Any, inputs: dict) -> Any:
        x = copied(inputs)
        subject(**x)
        return x

    def large(subject: Any, inputs: dict) -> Any:
        x = {n: v * 60 if v.is_floating_point() and n not in ("table", "sinks") else v for n, v in copied(inputs).items()}
        return subject(**x)

    def without(subject: Any, inputs: dict) -> Any:
        x = copied(inputs)
        for n, v in x.items():
            if v.dtype == torch.bool:
                v[0] = n == "key_padding_mask"
        return subject(**x)

    def twice(subject: Any, inputs: dict) -> Any:
        subject(**{n: v.flip(0) if v.is_floating_point() else v for n, v in copied(inputs).items()})
        return subject(**copied(inputs))

    return {"train": train, "gradients": gradients, "inputs": changed, "large": large, "without": without, "twice": twice}.get(how)


def core_case(rng: random.Random, kind: str) -> Case | None:
    expect, need = CORE[kind]
    need = dict(need)
    need.pop("said_scale", None)
    like, drive, least = need.pop("like", False), need.pop("drive", ""), need.pop("least", None)
    c = settle(rng, need)
    c["seed"] = seed = rng.randrange(10**6)
    if kind in ("gradient-cut", "large-scores") and c["score"] == "linear":
        return None
    if kind in ("values-are-keys", "split-by-reshape", "merged-by-reshape") and c["heads"] == 1:
        return None
    if kind in ("mask-times-score", "mask-boolean-added", "mask-after-softmax", "mask-too-weak", "padding-attended", "mask-inverted",
                "mask-missing", "causal-one-more", "causal-one-less", "mask-inverted-causal", "mask-transposed",
                "lengths-off-by-one", "padding-side", "mask-on-queries", "rounded") and c["score"] == "linear":
        return None
    if kind.startswith("causal") or "mask" in kind or "padding" in kind or "window" in kind or "keys" in kind:
        c["sinks"] = c["sinks"] and rng.random() < 0.3
    if kind == "rounded" and (c["sinks"]):
        return None
    if kind == "bias-scaled":
        c["need after"] = True
    if kind == "split-by-reshape" and c["t"] == c["heads"]:
        return None
    if kind in ("projections-exchanged", "values-of-queries") and c["gqa"]:
        return None
    wrong_text, build, extra = program(rng, c, kind)
    right_text, _, extra2 = program(rng, c, "")
    if wrong_text == right_text:
        return None
    if set(extra) != set(extra2):  # a parameter that only one of the twins reads: take it from both
        every = {**extra2, **extra}
        names = renamed(", ".join(every), c["names"])
        return None if kind not in ("sinks-missing", "bias-missing", "scores-other") else _both(rng, c, kind, expect, like, wrong_text, right_text, build, every)
    return _case(rng, c, kind, expect, like, drive, least, wrong_text, right_text, build, extra2)


def _both(rng: random.Random, c: dict, kind: str, expect: tuple[str, ...], like: bool, wrong_text: str, right_text: str, build: str, every: dict) -> Case | None:
    """The mistaken function forgets a parameter, but still takes it."""
    import re

    line = next(x for x in right_text.splitlines() if x.startswith(f"def {build}("))
    mine = next(x for x in wrong_text.splitlines() if x.startswith(f"def {build}("))
    return _case(rng, c, kind, expect, like, "", None, wrong_text.replace(mine, line), right_text, build, {n: v for n, v in every.items() if re.search(rf"\b{n}\b", line)})


def _case(rng: random.Random, c: dict, kind: str, expect: tuple[str, ...], like: bool, drive: str, least: float | None,
          wrong_text: str, right_text: str, build: str, extra: dict) -> Case:
    seed, h, d, form, names = c["seed"], c["heads"], c["width"], c["form"], c["names"]
    big = 2.0 if c["softcap"] or c["score"] in ("additive", "cosine") else 1.0
    spread = 1.5 if form != "function" else 0.0
    wrong, right = maker(wrong_text, build, seed, spread), maker(right_text, build, seed, spread)

    def inputs() -> dict:
        g = torch.Generator().manual_seed(seed)
        rand = lambda *shape: torch.randn(*shape, generator=g)  # noqa: E731
        b, t, s = c["batch"], c["t"], c["s"]
        if form == "function":
            k = c.get("groups", h)
            x = {names["Q_"]: rand(b, h, t, d) * big, names["K_"]: rand(b, k, s, d) * big, names["V_"]: rand(b, k, s, d), **extra}
        else:
            x = {names["X_"]: rand(b, t, h * d)}
            if form == "cross":
                x[names["C_"]] = rand(b, s, h * d)
        return {**x, **mask_of(c, kind, form)[0]}

    bare = form == "self" and c["mask"] in ("none", "causal", "window", "prefix") and rng.random() < 0.25

    def asks() -> dict:
        meant = mask_of(c, kind, form)[1]
        out: dict[str, Any] = {} if bare else {"inputs": inputs()}
        if meant is not None:
            out["mask"] = meant
        if c["score"] == "general" and not like:
            out["scale"] = 1.0
        if kind == "other-scale":
            out["scale"] = d**-0.5
        if like:
            out["like"] = right()
        return out

    if kind == "scale-model-width" and h == d or kind == "scale-one-over-d" and h == d:
        expect = ("scale-model-width", "scale-one-over-d")
    if kind == "bias-slopes" and "-8.0 * torch.arange(%d) /" % h in wrong_text:
        expect = ("bias-slopes", "bias-scaled", "bias-twice")
    tags = {n: c[n] for n in ("form", "score", "mask", "pos", "softcap", "sinks", "gqa", "gate", "dropout")}
    if least:
        tags["least"] = least
    layout = "b h t d" if form == "function" else "b t c"
    return Case(f"formula-{kind}-{form}", kind, expect, asks, wrong, right, lambda: (wrong_text, right_text), layout, driven(drive), inputs, tags)


def step_case(rng: random.Random, kind: str) -> Case | None:
    expect, need = STEPS[kind]
    c = dict(pos=need.get("pos") or rng.choice(["none", "rotary", "alibi", "learned"]), window=need.get("window", rng.random() < 0.3),
             heads=rng.choice([2, 4]), width=rng.choice([4, 8]), n=rng.choice([3, 4]), names=rng.choice(NAMES), gqa=rng.random() < 0.3)
    if kind == "cache-overwritten":
        c["window"] = False
    if kind == "cache-prepended" and c["pos"] == "none" and not c["window"]:
        pass
    if kind == "mask-top-left-in-cache" and c["pos"] == "alibi":
        expect = (*expect, "bias-offset-lost")
    seed, h, d = rng.randrange(10**6), c["heads"], c["width"]
    past = rng.choice(["past_key_value", "past", "cache", "layer_past", "kv_cache"])
    pairs = rng.random() < 0.5
    fused = rng.random() < 0.5 and not c["gqa"]
    always = rng.random() < 0.5
    groups = h // 2 if c["gqa"] else h
    rand = rng.random()

    def text(m: str) -> str:
        f: list[str] = []
        head = HEAD
        if c["pos"] == "rotary":
            head += rotary_source(Text(random.Random(1), dict(pos="pairs" if pairs else "halves", base=10000, halves=int(rand * 2)), ""))
        init = ["self.heads = heads"]
        init += ["self.qkv = nn.Linear(dim, 3 * dim)"] if fused else ["self.q_proj = nn.Linear(dim, dim)", f"self.k_proj = nn.Linear(dim, {groups * d})", f"self.v_proj = nn.Linear(dim, {groups * d})"]
        init += ["self.out_proj = nn.Linear(dim, dim)"]
        f += ["b, t, _ = X_.shape", f"offset = {past}[0].shape[2] if {past} is not None else 0"]
        if c["pos"] == "learned":
            init += ["self.positions = nn.Embedding(64, dim)"]
            f += ["X_ = X_ + self.positions(torch.arange(t))" if m == "position-offset-lost" else "X_ = X_ + self.positions(torch.arange(offset, offset + t))"]
        f += ["Q_, K_, V_ = self.qkv(X_).chunk(3, dim=-1)"] if fused else ["Q_, K_, V_ = self.q_proj(X_), self.k_proj(X_), self.v_proj(X_)"]
        f += [f"Q_ = Q_.view(b, t, self.heads, -1).transpose(1, 2)", f"K_ = K_.view(b, t, {groups}, -1).transpose(1, 2)", f"V_ = V_.view(b, t, {groups}, -1).transpose(1, 2)"]
        late = m == "cache-rotated-twice" or m == "keys-not-rotated-in-cache"
        if c["pos"] == "rotary":
            q0 = "torch.arange(t)" if m == "rotation-offset-lost" else "torch.arange(offset, offset + t)"
            if m == "rotation-off-by-one-in-cache":
                q0 = f"torch.arange(offset, offset + t) + int({past} is not None)"
            f += [f"Q_ = rotate(Q_, {q0})"]
            k0 = "torch.arange(t)" if m == "rotation-offset-lost" and rand < 0.5 else "torch.arange(offset, offset + t)"
            if m != "keys-not-rotated-in-cache":
                f += [f"K_ = rotate(K_, {k0})"]
            else:
                f += ["present = (K_, V_)", f"K_ = rotate(K_, {k0})"]
        f += [f"if {past} is not None:"]
        if m == "cache-prepended":
            f += [f"    K_ = torch.cat([K_, {past}[0]], dim=2)", f"    V_ = torch.cat([V_, {past}[1]], dim=2)"]
        elif m == "cache-pairs-apart":
            f += [f"    K_ = torch.cat([{past}[0], K_], dim=2)", f"    V_ = torch.cat([V_, {past}[1]], dim=2)"] if rand < 0.5 else [
                f"    K_ = torch.cat([{past}[0], K_], dim=2)", f"    V_ = torch.cat([{past}[1].roll(1, dims=2), V_], dim=2)"]
        elif m == "cache-rows-exchanged":
            f += [f"    K_ = torch.cat([{past}[0].flip(0), K_], dim=2)", f"    V_ = torch.cat([{past}[1].flip(0), V_], dim=2)"] if rand < 0.5 else [
                f"    K_ = torch.cat([{past}[0].roll(1, 0), K_], dim=2)", f"    V_ = torch.cat([{past}[1].roll(1, 0), V_], dim=2)"]
        else:
            f += [f"    K_ = torch.cat([{past}[0], K_], dim=2)", f"    V_ = torch.cat([{past}[1], V_], dim=2)"]
        if m == "keys-not-rotated-in-cache":
            f += [f"if {past} is not None:", f"    present = (torch.cat([{past}[0], present[0]], dim=2), V_)"]
        elif m == "cache-overwritten":
            f += [f"present = (K_[:, :, -{2 + int(rand * 2)}:], V_[:, :, -{2 + int(rand * 2)}:])" if rand < 0.6 else f"present = (K_[:, :, -t:], V_[:, :, -t:])"]
        elif m == "cache-rotated-twice":
            f += ["present = (rotate(K_, torch.arange(K_.shape[2])), V_)"] if rand < 0.5 else ["present = (K_, V_)", f"if {past} is not None:", f"    K_ = rotate(K_, torch.arange(K_.shape[2]))"]
        else:
            f += ["present = (K_, V_)"]
        if groups != h:
            f += [f"K_, V_ = K_.repeat_interleave(2, 1), V_.repeat_interleave(2, 1)"]
        f += ["s = K_.shape[2]", "Z_ = Q_ @ K_.transpose(-2, -1) / math.sqrt(Q_.shape[-1])"]
        if m == "cache-overwritten":
            f += ["rows = torch.arange(s - t, s)[:, None]"]
        else:
            f += ["rows = torch.arange(offset, offset + t)[:, None]"]
        if m == "mask-top-left-in-cache":
            f[-1] = "rows = torch.arange(t)[:, None]"
        if c["pos"] == "alibi":
            rows = "torch.arange(t)[:, None]" if m == "bias-offset-lost" else "rows"
            f += [f"slopes = 2.0 ** (-8.0 * torch.arange(1, self.heads + 1) / self.heads)",
                  f"Z_ = Z_ - slopes[:, None, None] * ({rows} - torch.arange(s)).abs()"]
        f += ["hidden = torch.arange(s) > rows"]
        if c["window"]:
            if m == "window-off-in-cache":
                f += [f"if {past} is None:", f"    hidden = hidden | (torch.arange(s) <= rows - {c['n']})"]
            else:
                f += [f"hidden = hidden | (torch.arange(s) <= rows - {c['n']})"]
        if m == "mask-in-cache":
            f += [f"if {past} is None:" if rand < 0.5 else "if t == s:", "    Z_ = Z_.masked_fill(hidden, float('-inf'))"]
        else:
            f += ["Z_ = Z_.masked_fill(hidden, float('-inf'))"]
        f += ["W_ = Z_.softmax(-1)", "Y_ = (W_ @ V_).transpose(1, 2).reshape(b, t, -1)"]
        f += ["return self.out_proj(Y_), present"] if always else ["Y_ = self.out_proj(Y_)", "return (Y_, present) if use_cache else Y_"]
        args = f"X_, {past}=None" + ("" if always else ", use_cache=False")
        head += f"class CausalSelfAttention(nn.Module):\n    def __init__(self, dim, heads):\n        super().__init__()\n"
        head += "".join(f"        {x}\n" for x in init) + f"\n    def forward(self, {args}):\n" + "".join(f"        {x}\n" for x in f)
        return renamed(head, c["names"])

    wrong_text, right_text = text(kind), text("")
    build, b, t = f"CausalSelfAttention({h * d}, {h})", rng.choice([2, 3]), rng.choice([6, 7, 8])
    x_name = c["names"]["X_"]
    wrong, right = maker(wrong_text, build, seed, 1.5), maker(right_text, build, seed, 1.5)

    def drive(subject: Any, inputs: dict) -> Any:
        x = inputs[x_name]
        more = {} if always else {"use_cache": True}
        out = []
        for pieces in ([t], [1] * t, [3, t - 3], [2, 2, t - 4]):
            kept = None
            for piece in x.split(pieces, dim=1):
                y, kept = subject(piece, **{past: kept}, **more)
                out.append(y)
        return out

    def asks() -> dict:
        import intently as it

        g = torch.Generator().manual_seed(seed)
        m = it.causal() & it.window(c["n"] - 1, 0) if c["window"] else it.causal()
        return dict(inputs={x_name: torch.randn(b, t, h * d, generator=g)}, mask=m)

    # right: pieces agree with the whole pass
    whole = flat(drive(right(), asks()["inputs"]))
    if max(float((torch.cat(whole[1 : 1 + t], 1) - whole[0]).abs().max()), float((torch.cat(whole[1 + t : 3 + t], 1) - whole[0]).abs().max())) > 1e-4:
        raise AssertionError("the right cache differs from the whole pass\n" + right_text)
    return Case(f"formula-{kind}", kind, expect, asks, wrong, right, lambda: (wrong_text, right_text), "b t c", drive, None,
                dict(form="cached", pos=c["pos"], window=c["window"], gqa=c["gqa"]))


def path_case(rng: random.Random, kind: str) -> Case | None:
    expect, need = PATHS[kind]
    softcap, sinks, bias, grad = (need.get(x, False) for x in ("softcap", "sinks", "bias", "grad"))
    h, d = rng.choice([2, 4]), rng.choice([4, 8])
    seed, names, b, t, rand = rng.randrange(10**6), rng.choice(NAMES), rng.choice([2, 3]), rng.choice([5, 6, 7]), rng.random()
    option = rng.choice(["need_weights", "output_attentions", "return_attention", "return_weights"])
    kinds = rng.choice(["option", "config"]) if not grad else "grad"
    cap = rng.choice([1.0, 2.0, 3.0])

    def text(m: str) -> str:
        init = ["self.heads = heads", "self.qkv = nn.Linear(dim, 3 * dim)", "self.proj = nn.Linear(dim, dim)"]
        if sinks:
            init += ["self.sinks = nn.Parameter(torch.randn(heads) + 1)"]
        if bias:
            init += ["self.bias = nn.Parameter(torch.randn(heads, 16, 16))"]
        f = ["b, t, c = X_.shape", "Q_, K_, V_ = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(X_).chunk(3, dim=-1))"]
        hidden = "torch.ones(t, t, dtype=torch.bool).triu(1)"
        slow = ["Z_ = Q_ @ K_.transpose(-2, -1) / math.sqrt(Q_.shape[-1])"]
        if softcap:
            slow += [f"Z_ = {cap} * torch.tanh(Z_ / {cap})"]
        if bias:
            slow += ["Z_ = Z_ + self.bias[:, :t, :t]"]
        if m != "mask-in-one-path":
            slow += [f"Z_ = Z_.masked_fill({hidden}, float('-inf'))"]
        if m == "bias-in-one-path" and rand < 0.5:
            slow = [x for x in slow if "self.bias" not in x]
        if m == "paths-differ" and rand < 0.3:
            slow[0] = "Z_ = Q_ @ K_.transpose(-2, -1) / Q_.shape[-1]"
        sinking = ["Z_ = torch.cat([Z_, self.sinks[:, None, None].expand(b, -1, t, 1)], dim=-1)", "W_ = Z_.softmax(-1)[..., :-1]"] if sinks else ["W_ = Z_.softmax(-1)"]
        slow += sinking + ["Y_ = W_ @ V_"]
        if not (softcap or sinks):
            if bias:
                fast = ["bias = " + ("torch.zeros(t, t)" if m == "bias-in-one-path" and rand >= 0.5 else "self.bias[:, :t, :t]"),
                        f"Y_ = F.scaled_dot_product_attention(Q_, K_, V_, attn_mask=bias.masked_fill({hidden}, float('-inf')))"]
            elif m == "mask-in-other-path":
                fast = ["Y_ = F.scaled_dot_product_attention(Q_, K_, V_)"]
            elif m == "paths-differ" and rand >= 0.3:
                fast = ["Y_ = F.scaled_dot_product_attention(Q_, K_, V_, is_causal=True, scale=1.0)"] if rand < 0.6 else ["Y_ = F.scaled_dot_product_attention(Q_, K_, V_)"]
            else:
                fast = ["Y_ = F.scaled_dot_product_attention(Q_, K_, V_, is_causal=True)"]
        elif m in ("softcap-in-one-path", "sinks-in-one-path"):
            fast = ["Y_ = F.scaled_dot_product_attention(Q_, K_, V_, is_causal=True)"]
        else:  # the other way of computing: one query after the other
            fast = ["rows = []", "for i in range(t):", "    z = (Q_[:, :, i : i + 1] @ K_[:, :, : i + 1].transpose(-2, -1)) / math.sqrt(Q_.shape[-1])"]
            if softcap:
                fast += [f"    z = {cap} * torch.tanh(z / {cap})"]
            if sinks:
                fast += ["    z = torch.cat([z, self.sinks[:, None, None].expand(b, -1, 1, 1)], dim=-1)", "    rows.append(z.softmax(-1)[..., :-1] @ V_[:, :, : i + 1])"]
            else:
                fast += ["    rows.append(z.softmax(-1) @ V_[:, :, : i + 1])"]
            fast += ["Y_ = torch.cat(rows, dim=2)"]
        ifs = {"option": f"if {option}:", "config": "if self.implementation == 'eager':", "grad": "if torch.is_grad_enabled():"}[kinds]
        if kinds == "config":
            init += ["self.implementation = implementation"]
        f += [ifs, *("    " + x for x in slow), "else:", *("    " + x for x in (["W_ = None"] if kinds == "option" else []) + fast)]
        f += ["Y_ = self.proj(Y_.transpose(1, 2).reshape(b, t, c))"]
        f += [f"return (Y_, W_) if {option} else Y_"] if kinds == "option" else ["return Y_"]
        args = f"X_, {option}=False" if kinds == "option" else "X_"
        out = HEAD + f"class CausalAttention(nn.Module):\n    def __init__(self, dim, heads{', implementation=' + repr('sdpa') if kinds == 'config' else ''}):\n        super().__init__()\n"
        return renamed(out + "".join(f"        {x}\n" for x in init) + f"\n    def forward(self, {args}):\n" + "".join(f"        {x}\n" for x in f), names)

    # with a config, only an attribute chooses the path; the examined one is the mistaken one
    build = f"CausalAttention({h * d}, {h})"
    wrong_text, right_text = text(kind), text("")
    if wrong_text == right_text:
        return None
    if kinds == "config":
        slow = kind in ("mask-in-one-path",) or (kind == "bias-in-one-path" and rand < 0.5)
        build = f"CausalAttention({h * d}, {h}, implementation={'eager' if slow else 'sdpa'!r})"
        # a plain call of this one shows the mistake itself
        expect = {"mask-in-one-path": ("mask-missing", *expect), "mask-in-other-path": ("mask-missing", *expect),
                  "softcap-in-one-path": ("softcap-missing", *expect), "sinks-in-one-path": ("sinks-missing", *expect),
                  "bias-in-one-path": ("bias-missing", *expect)}[kind]
    wrong, right = maker(wrong_text, build, seed, 1.5), maker(right_text, build, seed, 1.5)
    x_name = names["X_"]

    def drive(subject: Any, inputs: dict) -> Any:
        x = inputs[x_name]
        if kinds == "config":
            return subject(x)
        if kinds == "grad":
            with torch.no_grad():
                y = subject(x)
            return [y, subject(x)]
        return [subject(x), subject(x, **{option: True})[0]]

    def asks() -> dict:
        import intently as it

        g = torch.Generator().manual_seed(seed)
        out = dict(inputs={x_name: torch.randn(b, t, h * d, generator=g)}, mask=it.causal())
        if kinds == "config" and kind[:4] in ("soft", "sink", "bias"):
            out["like"] = right()
        return out

    return Case(f"formula-{kind}-{kinds}", kind, expect, asks, wrong, right, lambda: (wrong_text, right_text), "b t c", drive, None, dict(form="paths", by=kinds))


def draw(rng: random.Random, kind: str) -> Case | None:
    return core_case(rng, kind) if kind in CORE else step_case(rng, kind) if kind in STEPS else path_case(rng, kind)


def cases(seed: int, n: int) -> list[Case]:
    """n verified cases; every kind comes once before any comes twice."""
    return drawn(draw, KINDS, seed, n)
