"""The models that translate, by the name of their kind: options in, model out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intently.foundation.checks import check_word
from intently.nn.models.recurrent import RecurrentOptions, RecurrentSeq2Seq
from intently.nn.models.transformer import Transformer, TransformerOptions

EncoderDecoder = Transformer | RecurrentSeq2Seq
"""A model that reads a source by ``encode`` and writes a target by ``decode``."""

EncoderDecoderOptions = TransformerOptions | RecurrentOptions

KINDS: dict[str, type[EncoderDecoderOptions]] = {
    "transformer": TransformerOptions,
    "recurrent": RecurrentOptions,
}


def kind_of(options: EncoderDecoderOptions) -> str:
    """Return the name of the kind of model that options describe.

    >>> kind_of(RecurrentOptions(source_vocabulary=9, target_vocabulary=9))
    'recurrent'
    """
    return next(name for name, kind in KINDS.items() if isinstance(options, kind))


def options_of(kind: str, values: Mapping[str, Any]) -> EncoderDecoderOptions:
    """Return the options of a model of that kind from plain values.

    Raises `ArgumentError` for another kind, `TypeError` for other names.

    >>> options_of("recurrent", {"source_vocabulary": 9, "target_vocabulary": 8}).cell
    'gru'
    """
    check_word(kind, "kind", KINDS)
    return KINDS[kind](**values)


def new_model(options: EncoderDecoderOptions) -> EncoderDecoder:
    """Return a new model of the kind that its options describe, randomly drawn.

    >>> type(new_model(TransformerOptions(source_vocabulary=9, target_vocabulary=9))).__name__
    'Transformer'
    """
    if isinstance(options, RecurrentOptions):
        return RecurrentSeq2Seq(options)
    return Transformer(options)


def cross_heads(options: EncoderDecoderOptions) -> dict[str, int]:
    """Return the number of heads of every cross-attention of a model, by name.

    >>> cross_heads(TransformerOptions(9, 9, heads=4, decoder_layers=1))
    {'decoder.0.cross_attention': 4}
    """
    if isinstance(options, RecurrentOptions):
        return {} if options.cross is None else {options.cross: 1}
    return {f"decoder.{i}.cross_attention": options.heads for i in range(options.decoder_layers)}


def source_heads(options: EncoderDecoderOptions) -> dict[str, int]:
    """Return the number of heads of every attention over the source, by name.

    >>> source_heads(TransformerOptions(9, 9, heads=4, encoder_layers=1, decoder_layers=1))
    {'encoder.0.self_attention': 4, 'decoder.0.cross_attention': 4}
    """
    if isinstance(options, RecurrentOptions):
        return cross_heads(options)
    own = {f"encoder.{i}.self_attention": options.heads for i in range(options.encoder_layers)}
    return own | cross_heads(options)


def path_of(saved: str, options: EncoderDecoderOptions) -> str:
    """Return the module path of an attention that a saved file may name as folders once did.

    >>> path_of("encoder.1.self", TransformerOptions(9, 9, encoder_layers=2))
    'encoder.1.self_attention'
    >>> path_of("decoder.0.cross", RecurrentOptions(source_vocabulary=9, target_vocabulary=9))
    'attention'
    """
    if isinstance(options, RecurrentOptions):
        once = {f"decoder.{options.decoder_layers - 1}.cross": options.cross or saved}
    else:
        once = {name.removesuffix("_attention"): name for name in source_heads(options)}
    return once.get(saved, saved)
