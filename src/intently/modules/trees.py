"""The trees of blocks (`intently.foundation.parts`), read off the modules that are there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from intently.foundation.parts import HasTree, Part, Place, shape

if TYPE_CHECKING:
    from intently.modules.blocks import _Residual
    from intently.modules.feed_forward import _Maps
    from intently.modules.image.attention import ImageAttention, SpatialTransformer
    from intently.modules.projected import Projected
    from intently.modules.recurrent import AdditiveAttention, LuongAttention

NORMS = {
    nn.LayerNorm: "Layer norm",
    nn.RMSNorm: "RMS norm",
    nn.GroupNorm: "Group norm",
    nn.BatchNorm2d: "Batch norm",
}
ACTIVATIONS = {"relu": "ReLU", "gelu": "GELU", "silu": "SiLU", "tanh": "tanh"}


def count(module: nn.Module | None, recurse: bool = True) -> int:
    """Return the number of parameters of a module."""
    return 0 if module is None else sum(p.numel() for p in module.parameters(recurse))


def of_module(module: nn.Module, name: str, takes: str, place: Place = Place()) -> list[Part]:
    """Return the part of any module that keeps the shape of its input; none for `nn.Identity`."""
    if isinstance(module, nn.Identity):
        return []
    if isinstance(module, HasTree):
        return [module.tree(place).under(name)]  # pyright: ignore[reportCallIssue]
    own = type(module)
    title = next((said for kind, said in NORMS.items() if own is kind), None) or _words(own)
    notes = (f"{module.num_groups} groups",) if isinstance(module, nn.GroupNorm) else ()
    kind = "norm" if "Norm" in own.__name__ else "module"
    return [Part(kind, title, name, takes, takes, count(module), notes)]


def linear(module: nn.Linear, title: str, name: str, *sizes: str | int) -> Part:
    """Return the part of a linear map of inputs whose leading ``sizes`` are these."""
    takes, gives = shape(*sizes, module.in_features), shape(*sizes, module.out_features)
    return Part("projection", title, name, takes, gives, count(module))


def attention_tree(block: Projected, place: Place) -> Part:
    """Return the tree of a head or of several: projections, weights, product, output."""
    h, g, d, e = block.heads, block.kv_heads, block.d, block.e
    c, k, t, s = block.width, block.context_width, place.steps, place.steps
    single = type(block).__name__ == "AttentionHead"
    x = context = shape("b", t, c)
    reads: tuple[tuple[str, str], ...] = ()
    if place.reads is not None or k != c:
        origin, s = place.reads or ("context", "s")
        context = shape("b", s, k)
        reads = ((origin, context),)
    many: tuple[str | int, ...] = ("b",) if single else ("b", h)
    few: tuple[str | int, ...] = ("b",) if single else ("b", g)
    made = [
        _projection(block, 0, "Queries", x, shape(*many, t, d)),
        _projection(block, 1, "Keys", context, shape(*few, s, d)),
        _projection(block, 2, "Values", context, shape(*few, s, e)),
    ]
    options, before = block.attention, []
    for name, norm, whose in (("q_norm", block.q_norm, many), ("k_norm", block.k_norm, few)):
        if norm is not None:
            steps = t if name == "q_norm" else s
            [part] = of_module(norm, name, shape("b", steps, *whose[1:], d))
            before.append(part)
    masks = (*filter(None, [place.mask]), *([] if block.mask is None else [repr(block.mask)]))
    grouped = () if g == h else (f"{g} key/value {'head' if g == 1 else 'heads'}",)
    turned = ("rotary",) if options.positions is not None and not reads else ()
    learned = {n: getattr(block, n) for n in ("score", "bias", "sinks")}
    extra = tuple(_said(n, value) for n, value in learned.items() if value is not None)
    weights = Part(
        "weights",
        _formula(block),
        "",
        shape(*many, t, d),
        shape(*many, t, s),
        sum(count(value) for value in learned.values() if isinstance(value, nn.Module)),
        (*turned, *masks, *extra),
    )
    product = Part("product", "weights · v", "", weights.gives, shape(*many, t, e))
    parts = [*made, *before, weights, product]
    gives = shape("b", t, e)
    if not single:
        gives = shape("b", t, len(block.out_weight))  # pyright: ignore[reportArgumentType]
        parts += [
            Part("reshape", "Heads joined", "", product.gives, shape("b", t, h * e)),
            Part(
                "projection",
                "Output",
                "out_weight",
                shape("b", t, h * e),
                gives,
                _own(block, "out"),
            ),
        ]
    heads = f"{h} {'head' if h == 1 else 'heads'}"
    return Part(
        "attention",
        "Attention head" if single else "Multi-head attention",
        takes=x,
        gives=gives,
        notes=((f"d = {d}",) if single else (heads, f"d = {d}")) + (*grouped, *weights.notes),
        reads=reads,
        parts=tuple(parts),
    )


def feed_forward_tree(layer: _Maps, place: Place) -> Part:
    """Return the tree of a feed-forward layer: up, activation, down."""
    steps = ("b", place.steps)
    gated = hasattr(layer, "gate_up")
    first: Any = layer.get_submodule("gate_up" if gated else "up")
    down: nn.Module = layer.down
    wide, inner = _features(first)[1], _features(down)[0]
    x, y = shape(*steps, layer.width), shape(*steps, inner)
    name = getattr(layer.activation, "__name__", type(layer.activation).__name__)
    said = ACTIVATIONS.get(name, name)
    parts = (
        Part(
            "projection",
            "Gate and up" if gated else "Up",
            "gate_up" if gated else "up",
            x,
            shape(*steps, wide),
            count(first),
        ),
        Part("activation", f"{said}(gate) · up" if gated else said, "", shape(*steps, wide), y),
        Part("projection", "Down", "down", y, x, count(down)),
    )
    title = "Gated feed-forward" if gated else "Feed-forward"
    notes = (f"{layer.width} → {inner} → {layer.width}", said)
    return Part("feed-forward", title, takes=x, gives=x, notes=notes, parts=parts)


def layer_tree(layer: _Residual, place: Place) -> Part:
    """Return the tree of a Transformer layer: residuals around blocks, norms in or after them."""
    own = _inner(layer.get_submodule("self_attention"))
    x = shape("b", place.steps, own.width)
    asked = [("self", Place(place.steps, place.mask))]
    cross = getattr(layer, "cross_attention", None)
    if cross is not None:
        asked.append(("cross", Place(place.steps, reads=place.reads or ("states", "s"))))
    blocks = [
        (f"{name}_norm", f"{name}_attention", named(part, name))
        for name, where in asked
        for part in of_module(getattr(layer, f"{name}_attention"), f"{name}_attention", x, where)
    ]
    fed = of_module(layer.get_submodule("feed_forward"), "feed_forward", x, Place(place.steps))
    blocks += [("feed_norm", "feed_forward", part) for part in fed]
    parts: list[Part] = []
    for norm_name, _, block in blocks:
        norm = of_module(getattr(layer, norm_name), norm_name, x)
        inside = (*norm, block) if layer.norm == "pre" else (block,)
        parts.append(Part("residual", "Residual", takes=x, gives=x, parts=inside))
        parts += [] if layer.norm == "pre" else norm
    title = "Encoder layer" if cross is None else "Decoder layer"
    reads = tuple(read for _, _, block in blocks for read in block.reads)
    return Part(
        "layer", title, "", x, x, notes=(f"{layer.norm}-norm",), reads=reads, parts=tuple(parts)
    )


def named(part: Part, name: str) -> Part:
    """Return an attention with the name of its role in its title: self- or cross-attention."""
    if part.kind != "attention":
        return part
    masked = any(note.startswith("causal") for note in part.notes)
    title = (
        "Cross-attention"
        if name == "cross"
        else "Masked self-attention"
        if masked
        else "Self-attention"
    )
    return replace(part, title=title)


def alone(part: Part) -> Part:
    """Return the layer of a model that has no encoder and decoder."""
    return replace(part, title="Layer") if part.kind == "layer" else part


def recurrent_attention_tree(block: AdditiveAttention | LuongAttention, place: Place) -> Part:
    """Return the tree of a recurrent decoder's attention: keys once, then weights and context."""
    c, k, t = block.width, block.context_width, place.steps
    origin, s = place.reads or ("states", "s")
    states, x = shape("b", s, k), shape("b", t, c)
    parts: list[Part] = []
    if block.key is not None:
        parts.append(linear(block.key, "Keys", "key", "b", s))
    if block.query is not None:
        parts.append(linear(block.query, "Queries", "query", "b", t))
    layered = block.energy is not None
    formula = "softmax(vᵀ tanh(W q + U k))" if layered else "softmax(q · k)"
    if not layered and block.key is not None:
        formula = "softmax(qᵀ W k)"
    own = 0 if block.energy is None else block.energy.numel()
    weights = Part("weights", formula, "energy" if own else "", x, shape("b", t, s), own)
    parts += [weights, Part("product", "weights · states", "", weights.gives, shape("b", t, k))]
    said = getattr(block, "score", "additive")
    return Part(
        "attention",
        "Attention",
        takes=x,
        gives=shape("b", t, k),
        notes=(said, formula),
        reads=((origin, states),),
        parts=tuple(parts),
    )


def image_tree(
    block: ImageAttention | SpatialTransformer, inside: Iterable[Part], out: int, residual: bool
) -> Part:
    """Return the tree of a block over pixels: norm, pixels, ``inside``, image, residual."""
    c = block.channels
    image, pixels = (lambda c: shape("b", c, "height", "width"), lambda c: shape("b", "pixels", c))
    parts = (
        *of_module(block.norm, "norm", image(c)),
        Part("reshape", "Pixels as a sequence", "", image(c), pixels(c)),
        *inside,
        Part("reshape", "Back to an image", "", pixels(out), image(out)),
    )
    whole = Part("residual", "Residual", "", image(c), image(out), parts=parts)
    return Part(
        "layer",
        _words(type(block)),
        "",
        whole.takes,
        whole.gives,
        reads=tuple(read for part in parts for read in part.reads),
        parts=(whole,) if residual else parts,
    )


def _inner(attention: nn.Module) -> Any:
    """The attention itself, or the one inside a wrapper."""
    return next(m for m in attention.modules() if hasattr(m, "kv_heads"))


def _projection(block: Projected, which: int, title: str, takes: str, gives: str) -> Part:
    own = "qkv"[which]
    if not block.fused:
        return Part("projection", title, f"{own}_weight", takes, gives, _own(block, own))
    rows = block._split[which]
    each = block.width + (block.qkv_bias is not None)
    return Part("projection", title, "qkv_weight", takes, gives, rows * each)


def _own(block: nn.Module, name: str) -> int:
    tensors = (getattr(block, f"{name}_{part}") for part in ("weight", "bias"))
    return sum(tensor.numel() for tensor in tensors if tensor is not None)


def _formula(block: Projected) -> str:
    score = block.score
    if score is not None:
        return f"softmax({_words(type(score)).lower().removesuffix(' score')} score)"
    scale = block.attention.scale
    return "softmax(q · k / √d)" if scale is None else f"softmax({scale:.3g} · q · k)"


def _said(name: str, value: object) -> str:
    if isinstance(value, nn.Module):
        return _words(type(value)).lower()
    return {"score": f"{_words(type(value)).lower()} score", "sinks": "sinks"}.get(
        name, _words(type(value)).lower()
    )


def _features(module: Any) -> tuple[int, int]:
    return module.in_features, module.out_features


def _words(kind: type) -> str:
    """The name of a class as words: "ChannelNorm" is "Channel norm"."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+", kind.__name__)
    return " ".join([words[0], *(w if w.isupper() else w.lower() for w in words[1:])])
