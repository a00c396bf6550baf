"""The trees of models (`intently.foundation.parts`), read off the modules that are there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from intently.foundation.parts import Part, Place, shape
from intently.modules.trees import alone, count, linear, of_module, recurrent_attention_tree

if TYPE_CHECKING:
    from intently.models.language import LanguageModel
    from intently.models.recurrent import RecurrentSeq2Seq
    from intently.models.transformer import Transformer
    from intently.models.vision import VisionTransformer

CELLS = {"rnn": "RNN cell", "gru": "GRU cell", "lstm": "LSTM cell"}


def transformer_tree(model: Transformer) -> Part:
    """Return the tree of an encoder–decoder Transformer."""
    memory = shape("b", "s", model.options.width)
    encoder = _transformer_side(model, "source", Place("s"))
    decoder = _transformer_side(model, "target", Place("t", "causal", reads=("encoder", "s")))
    decoder = (*decoder, _tied_output(model, decoder[-1].gives, model.options.target_vocabulary))
    return _both_sides("Transformer", encoder, decoder, (("encoder", memory),))


def recurrent_tree(model: RecurrentSeq2Seq) -> Part:
    """Return the tree of a recurrent encoder–decoder, in the order in which a step runs."""
    o, c = model.options, model.options.width
    states, x, summary = shape("b", "s", c), shape("b", "t", c), shape("b", c)
    encoder = (_embedding(model, "source", "s"), *_cells(model.encoder.cell, "encoder.cell", "s"))
    start = linear(model.bridge, "tanh(W · last state)", "bridge", "b")
    start = replace(start, reads=(("encoder", summary),))
    steps: Any = model.decoder
    cells = _cells(steps.cell, "decoder.cell", "t")
    looks: list[Part] = []
    if model.attention is not None:
        attention = recurrent_attention_tree(model.attention, Place("t", reads=("encoder", "s")))
        looks = [attention.under("attention")]
    if hasattr(steps, "vector"):
        last = linear(steps.vector.join, "tanh(W [context; state])", "decoder.vector", "b", "t")
        order = [*cells, *looks, last]
    else:
        said = "Max of two maps of [state; word; context]"
        last = linear(steps.output.join, said, "decoder.output", "b", "t")
        order = [*looks, *cells] if steps.feeding else [*cells, *looks]
        order.append(replace(last, gives=x))
    decoder = (
        _embedding(model, "target", "t"),
        start,
        *order,
        _tied_output(model, x, o.target_vocabulary),
    )
    reads = (("encoder", states if looks else summary),)
    notes = (
        o.attention if looks else "no attention",
        *(["input feeding"] if steps.feeding else []),
    )
    made = _both_sides("Recurrent encoder–decoder", encoder, decoder, reads)
    return replace(made, notes=notes)


def language_tree(model: LanguageModel) -> Part:
    """Return the tree of a decoder-only model."""
    o, x = model.options, shape("b", "t", model.options.width)
    parts = [
        Part("embedding", "Embedding", "embedding", shape("b", "t"), x, count(model.embedding))
    ]
    if model.positions is not None:
        parts.append(_learned_positions("positions", x, model.positions.numel()))
    parts += [alone(part) for part in _layers(model.decoder, "decoder", x, Place("t"))]
    parts += of_module(model.norm, "norm", x)
    logits = shape("b", "t", o.vocabulary)
    if model.output is None:
        parts.append(Part("projection", "Output", "", x, logits, tied="embedding"))
    else:
        parts.append(linear(model.output, "Output", "output", "b", "t"))
    return Part("model", "Language model", "", shape("b", "t"), logits, parts=tuple(parts))


def vision_tree(model: VisionTransformer) -> Part:
    """Return the tree of a Vision Transformer."""
    o = model.options
    images = shape("b", o.channels, *o.image)
    cut, x = shape("b", o.patches, o.width), shape("b", o.patches + 1, o.width)
    height, width = (side // o.patch for side in o.image)
    grid = shape("b", o.width, height, width)
    parts = [
        Part(
            "embedding",
            f"Patches of {o.patch} × {o.patch}",
            "patches",
            images,
            grid,
            count(model.patches),
        ),
        Part("reshape", "Patches as a sequence", "", grid, cut),
        Part("embedding", "Class token in front", "class_token", cut, x, model.class_token.numel()),
        _learned_positions("positions", x, model.positions.numel()),
        *map(alone, _layers(model.encoder, "encoder", x, Place(str(o.patches + 1)))),
        *of_module(model.norm, "norm", x),
        Part("reshape", "Class token alone", "", x, shape("b", o.width)),
    ]
    if model.head is not None:
        parts.append(linear(model.head, "Classes", "head", "b"))
    return Part("model", "Vision Transformer", "", images, parts[-1].gives, parts=tuple(parts))


def _both_sides(
    title: str,
    encoder: tuple[Part, ...],
    decoder: tuple[Part, ...],
    reads: tuple[tuple[str, str], ...],
) -> Part:
    first = Part("stack", "Encoder", "encoder", encoder[0].takes, encoder[-1].gives, parts=encoder)
    second = Part(
        "stack",
        "Decoder",
        "decoder",
        decoder[0].takes,
        decoder[-1].gives,
        reads=reads,
        parts=decoder,
    )
    return Part("model", title, "", first.takes, second.gives, parts=(first, second))


def _transformer_side(model: Transformer, side: str, place: Place) -> tuple[Part, ...]:
    o, stack = model.options, "encoder" if side == "source" else "decoder"
    x = shape("b", place.steps, o.width)
    parts = [_embedding(model, side, place.steps)]
    if o.positions == "sinusoidal":
        parts.append(Part("positions", "Sinusoidal positions", "", x, x))
    elif o.positions == "learned":
        table = getattr(model, f"{side}_positions")
        parts.append(_learned_positions(f"{side}_positions", x, count(table)))
    parts += _layers(getattr(model, stack), stack, x, place)
    parts += of_module(getattr(model, f"{stack}_norm"), f"{stack}_norm", x)
    return tuple(parts)


def _layers(layers: Any, stack: str, x: str, place: Place) -> list[Part]:
    return [
        part
        for i, layer in enumerate(layers)
        for part in of_module(layer, f"{stack}.{i}", x, place)
    ]


def _embedding(model: Transformer | RecurrentSeq2Seq, side: str, steps: str) -> Part:
    table: Any = model.source_embedding if side == "source" else model.target_embedding
    shared = side == "target" and model.source_embedding is model.target_embedding
    return Part(
        "embedding",
        f"{side.capitalize()} embedding",
        f"{side}_embedding",
        shape("b", steps),
        shape("b", steps, model.options.width),
        0 if shared else count(table),
        ("× √c",),
        tied="source_embedding" if shared else "",
    )


def _tied_output(model: Transformer | RecurrentSeq2Seq, takes: str, vocabulary: int) -> Part:
    gives = takes.rsplit(",", 1)[0] + f", {vocabulary})"
    return Part("projection", "Output", "", takes, gives, tied="target_embedding")


def _learned_positions(name: str, x: str, parameters: int) -> Part:
    return Part("positions", "Learned positions", name, x, x, parameters)


def _cells(cell: nn.RNNBase, name: str, steps: str) -> list[Part]:
    """A part for each layer of a recurrent network."""
    ways = 2 if cell.bidirectional else 1
    both = ("both directions",) if ways == 2 else ()
    made = []
    for layer in range(cell.num_layers):
        ends = (f"_l{layer}", f"_l{layer}_reverse")
        own = sum(p.numel() for n, p in cell.named_parameters() if n.endswith(ends))
        wide = cell.input_size if layer == 0 else ways * cell.hidden_size
        made.append(
            Part(
                "cell",
                CELLS[type(cell).__name__.lower()],
                name,
                shape("b", steps, wide),
                shape("b", steps, ways * cell.hidden_size),
                own,
                (
                    *([f"layer {layer + 1} of {cell.num_layers}"] if cell.num_layers > 1 else []),
                    *both,
                ),
            )
        )
    return made
