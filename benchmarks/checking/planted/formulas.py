"""What each base must compute, on `intently.reference`: the plain formula around its weights.

`FORMULAS` maps the name of a base to a function of a draw, a correct subject and a case's inputs.
Those that are missing should be like another attention, which their user has at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import intently as it
from benchmarks.checking.planted.draw import Draw
from intently import reference

Inputs = dict[str, Any]
Formula = Callable[[Draw, Any, Inputs], Tensor]
Map = tuple[Tensor, Tensor | None]


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any = None, **options: Any) -> Tensor:
    """The reference's attention, as a tensor."""
    q, k, v = (x.detach().numpy() for x in (q, k, v))
    mask = mask.numpy() if isinstance(mask, Tensor) else mask
    return torch.from_numpy(reference.attention(q, k, v, mask=mask, **options))


def linear(x: Tensor, of: nn.Linear | Map) -> Tensor:
    """A linear map, of a module or of its weight and bias."""
    return F.linear(x, of.weight, of.bias) if isinstance(of, nn.Linear) else F.linear(x, *of)


def heads(x: Tensor, h: int) -> Tensor:
    """(b, t, h·d) as (b, h, t, d)."""
    b, t, _ = x.shape
    return torch.stack(x.chunk(h, -1), 1).reshape(b, h, t, -1)


def joined(y: Tensor) -> Tensor:
    """(b, h, t, d) as (b, t, h·d)."""
    return torch.cat(list(y.unbind(1)), -1)


def layer(x: Tensor, context: Tensor, maps: Any, h: int, mask: Any = None, **o: Any) -> Tensor:
    """Four maps around attention; ``maps`` are those of q, k, v and out."""
    q, k, v, out = maps
    q, k, v = (heads(linear(y, f), h) for y, f in ((x, q), (context, k), (context, v)))
    return linear(joined(attend(q, k, v, mask, **o)), out)


def thirds(of: nn.Linear) -> list[Map]:
    """The three maps in one."""
    biases = (None,) * 3 if of.bias is None else of.bias.chunk(3)
    return list(zip(of.weight.chunk(3), biases))


def torch_maps(of: nn.MultiheadAttention) -> list[Any]:
    """The four maps of PyTorch's layer."""
    assert of.in_proj_weight is not None and of.in_proj_bias is not None
    return [*zip(of.in_proj_weight.chunk(3), of.in_proj_bias.chunk(3)), of.out_proj]


def our_maps(of: Any) -> list[Any]:
    """The four maps of Intently's layer."""
    if of.fused:
        three = zip(of.qkv_weight.split(of._split), of.qkv_bias.split(of._split))
    else:
        three = ((getattr(of, f"{x}_weight"), getattr(of, f"{x}_bias")) for x in "qkv")
    return [*three, (of.out_weight, of.out_bias)]


def allowed(ignored: Tensor | None) -> Tensor | None:
    """(b, 1, 1, s), True where a key does not pad, of (b, s), True where it does."""
    return None if ignored is None else ~ignored[:, None, None, :].bool()


def rotated(x: Tensor, base: float) -> Tensor:
    """Pairs (i, i + d/2) of x (b, h, t, d) turned as complex numbers."""
    half = x.shape[-1] // 2
    rates = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * rates
    turn = torch.polar(torch.ones_like(angles), angles)
    turned = torch.complex(x[..., :half].contiguous(), x[..., half:].contiguous()) * turn
    return torch.cat([turned.real, turned.imag], -1)


def _masked(draw: Draw, f: Any, i: Inputs) -> Tensor:
    return attend(i["q"], i["k"], i["v"], i.get("mask"))


def _biased(draw: Draw, f: Any, i: Inputs) -> Tensor:
    q, k, v = (i[name].transpose(1, 2) for name in ("query", "key", "value"))
    bias = i.get("bias")
    return attend(q, k, v, bias=None if bias is None else bias.numpy()).transpose(1, 2)


def _causal_module(draw: Draw, m: Any, i: Inputs) -> Tensor:
    return layer(i["x"], i["x"], [*thirds(m.qkv), m.proj], m.heads, it.causal())


def _cross(draw: Draw, m: Any, i: Inputs) -> Tensor:
    maps = [m.to_q, m.to_k, m.to_v, m.to_out[0]]
    return layer(i["x"], i["context"], maps, m.heads, allowed(i.get("context_pad")))


def _bert(draw: Draw, m: Any, i: Inputs) -> Tensor:
    x, keep = i["x"], i.get("attention_mask")
    mask = None if keep is None else allowed(keep == 0)
    return m.norm(x + layer(x, x, [m.query, m.key, m.value, m.dense], draw.h, mask))


def _sequence_first(draw: Draw, m: Any, i: Inputs) -> Tensor:
    x = i["query"].transpose(0, 1)
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    if "key_padding_mask" in i:
        mask = mask & ~i["key_padding_mask"][:, None, None, :]
    if "attn_mask" in i:
        mask = mask & (i["attn_mask"] == 0)
    maps = [m.q_proj, m.k_proj, m.v_proj, m.out_proj]
    return layer(x, x, maps, m.heads, mask).transpose(0, 1)


def _convolved(draw: Draw, m: Any, i: Inputs) -> Tensor:
    y = m.norm(i["x"])
    t, taps = y.shape[1], m.conv.weight[:, 0]
    past = F.pad(y, (0, 0, m.kernel - 1, 0))
    y = sum(past[:, j : j + t] * taps[:, j] for j in range(m.kernel)) + m.conv.bias
    return i["x"] + layer(y, y, [*thirds(m.qkv), m.out], m.heads, it.causal())


def _relative(draw: Draw, m: Any, i: Inputs) -> Tensor:
    x, t = i["x"], i["x"].shape[1]
    bias = torch.empty(m.heads, t, t, dtype=x.dtype)
    for row in range(t):
        for column in range(t):
            near = max(-m.reach, min(m.reach, column - row))
            bias[:, row, column] = m.table.weight[near + m.reach].detach()
    return layer(x, x, [m.q, m.k, m.v, m.o], m.heads, bias=bias.numpy())


def _padded_layer(draw: Draw, m: Any, i: Inputs) -> Tensor:
    y, keep = m.norm(i["x"]), i.get("keep")
    mask = None if keep is None else allowed(~keep)
    return i["x"] + layer(y, y, torch_maps(m.mha), draw.h, mask)


def _causal_layer(draw: Draw, m: Any, i: Inputs) -> Tensor:
    return layer(i["x"], i["x"], torch_maps(m.attn), draw.h, it.causal())


def _decoder_layer(draw: Draw, m: Any, i: Inputs) -> Tensor:
    x, f = i["tgt"], m.layer
    y = f.norm1(x)
    x = x + layer(y, y, torch_maps(f.self_attn), draw.h, it.causal())
    mask = allowed(i.get("memory_pad"))
    x = x + layer(f.norm2(x), i["memory"], torch_maps(f.multihead_attn), draw.h, mask)
    return x + f.linear2(f.linear1(f.norm3(x)).relu())


def _cached_block(draw: Draw, m: Any, i: Inputs) -> Tensor:
    y, (q, k, v, out) = m.norm(i["x"]), our_maps(m.attention)
    q, k = (rotated(heads(linear(y, f), n), 1e4) for f, n in ((q, draw.h), (k, draw.g)))
    return i["x"] + linear(joined(attend(q, k, heads(linear(y, v), draw.g), it.causal())), out)


def _padded(draw: Draw, m: Any, i: Inputs) -> Tensor:
    context = i.get("context", i["x"])
    mask = it.padding(i["lengths"]) if "lengths" in i else None
    return layer(i["x"], context, our_maps(m), draw.h, mask)


def _rotary(draw: Draw, m: Any, i: Inputs) -> Tensor:
    y, base = m.norm(i["x"]), draw.random("rope").choice([100.0, 1000.0])
    q, k = (rotated(heads(linear(y, f), n), base) for f, n in ((m.wq, draw.h), (m.wk, draw.g)))
    return i["x"] + m.wo(joined(attend(q, k, heads(m.wv(y), draw.g), it.causal())))


def _alibi_module(draw: Draw, m: Any, i: Inputs) -> Tensor:
    bias = it.alibi(slopes=m.slopes)
    return layer(i["x"], i["x"], [*thirds(m.qkv), m.dense], m.heads, it.causal(), bias=bias)


def _rolling(draw: Draw, m: Any, i: Inputs) -> Tensor:
    mask = it.causal() & it.window(draw.window - 1, 0)
    return layer(i["x"], i["x"], [*thirds(m.qkv), m.out], m.heads, mask)


def _gpt(draw: Draw, m: Any, i: Inputs) -> Tensor:
    ids, keep = i["ids"], i.get("attention_mask", torch.ones_like(i["ids"]))
    mask = (
        torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril() & (keep == 1)[:, None, None]
    )
    x = m.wte(ids) + m.wpe((keep.cumsum(-1) - 1).clamp(min=0))
    for block in m.blocks:
        y = block.ln_1(x)
        x = x + layer(y, y, [*thirds(block.c_attn), block.c_proj], draw.h, mask)
        x = x + block.mlp(block.ln_2(x))
    return m.head(m.ln_f(x))


def _encoder_decoder(draw: Draw, m: Any, i: Inputs) -> Tensor:
    real = it.padding(i["source_lengths"])

    def maps(of: Any) -> list[Any]:
        return [of.q, *zip(of.kv.weight.chunk(2), of.kv.bias.chunk(2)), of.out]

    source, x = (m.embed(i[n]) + m.places.weight[: i[n].shape[1]] for n in ("source", "target"))
    source, x = m.norms[0](source), m.norms[2](x)
    memory = m.norms[1](source + layer(source, source, maps(m.encode), draw.h, real))
    x = x + layer(x, x, maps(m.decode), draw.h, it.causal())
    return m.generator(x + layer(m.norms[3](x), memory, maps(m.cross), draw.h, real))


def _diffusers(draw: Draw, m: Any, i: Inputs) -> Tensor:
    x, bias = i["hidden_states"], i.get("attention_mask")
    mask = None if bias is None else allowed(bias[:, 0] != 0)
    maps = [m.to_q, m.to_k, m.to_v, m.to_out[0]]
    return layer(x, i.get("encoder_hidden_states", x), maps, draw.h, mask)


def of_qkv(mask: Callable[[Draw, Inputs], Any]) -> Formula:
    """The formula of a function of q, k and v with a mask."""
    return lambda draw, f, i: attend(i["q"], i["k"], i["v"], mask(draw, i))


FORMULAS: dict[str, Formula] = {
    "function with a mask": _masked,
    "causal function with einsum": of_qkv(lambda draw, i: it.causal()),
    "function with an additive mask": _biased,
    "function with heads folded into the batch": of_qkv(lambda draw, i: allowed(i.get("pad"))),
    "function of lengths": of_qkv(lambda draw, i: it.padding(i["lengths"])),
    "function whose mask may empty a row": of_qkv(lambda draw, i: i["attn_mask"]),
    "causal window function": of_qkv(lambda draw, i: it.causal() & it.window(draw.window - 1, 0)),
    "local function": of_qkv(lambda draw, i: it.window(draw.window, draw.window)),
    "causal self-attention module": _causal_module,
    "cross-attention module": _cross,
    "bidirectional self-attention module with padding": _bert,
    "sequence-first module": _sequence_first,
    "causal module with a convolution": _convolved,
    "module with a relative bias": _relative,
    "nn.MultiheadAttention with padding": _padded_layer,
    "nn.MultiheadAttention, causal": _causal_layer,
    "nn.TransformerDecoderLayer": _decoder_layer,
    "intently block with a cache": _cached_block,
    "intently subclass with lengths": _padded,
    "rotary grouped-query module with a cache": _rotary,
    "ALiBi module with a cache": _alibi_module,
    "window module with a rolling cache": _rolling,
    "GPT with a cache": _gpt,
    "encoder and decoder": _encoder_decoder,
    "diffusers cross-attention block": _diffusers,
    "diffusers self-attention block": _diffusers,
}
