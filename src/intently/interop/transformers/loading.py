"""`load`: a transformers model, live or from a local folder, as a model on our attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from intently.errors import DataError, KindError, build
from intently.interop.folders import kind_of, loaded, reading
from intently.interop.transformers import bert, gpt2, llama, marian
from intently.interop.transformers.models import TextModel, TextToText
from intently.interop.transformers.parts import Tensors
from intently.interop.weights import Weights, fill, refuse

Model = TextModel | TextToText
Parts = tuple[Callable[[], Model], Callable[[Weights], Tensors]]


@torch.inference_mode(False)
def load(source: str | Path | nn.Module) -> Model:
    """Return our model with the weights of a transformers model.

    ``source`` is a live model, or a local folder with ``config.json`` and safetensors; nothing is
    downloaded. It reads GPT-2, Llama, Mistral, Qwen2, Qwen3, BERT and Marian, bare or with the head
    of a language model. The result computes the same outputs, logits with a head and states
    without; ``attentions`` of the same arguments gives every layer's lazy matrix. Weights are
    copied with dtype and device, tied ones stay tied, frozen ones frozen; dropout and train or
    eval mode are kept.

    In masks, True means attend. A query that may attend to nothing (padding on the left) is zero;
    in transformers it is the mean of all values, which affects no other query.

    Raises `KindError` for other families, `CheckpointError` naming tensors that are missing or
    left over, `ArgumentError` for options without a counterpart, `DataError` for a folder without a
    model.

    >>> import torch, transformers
    >>> config = transformers.GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=10)
    >>> model = load(transformers.GPT2LMHeadModel(config).eval())
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 10])
    >>> model.attentions(torch.tensor([[1, 2, 3]]))["stack.layers.0.self_attention"].shape
    (1, 2, 3, 3)
    """
    model = source if isinstance(source, nn.Module) else _from_folder(Path(source))
    make, read = _parts(model)
    weights = Weights.of(model, "source")
    tensors = read(weights)
    weights.finish()
    ours = fill(make, tensors)
    _tie(ours, model)
    return ours.train(model.training)


_CLASSES = {
    "GPT2Model": (gpt2, False),
    "GPT2LMHeadModel": (gpt2, True),
    "LlamaModel": (llama, False),
    "LlamaForCausalLM": (llama, True),
    "MistralModel": (llama, False),
    "MistralForCausalLM": (llama, True),
    "Qwen2Model": (llama, False),
    "Qwen2ForCausalLM": (llama, True),
    "Qwen3Model": (llama, False),
    "Qwen3ForCausalLM": (llama, True),
    "MarianModel": (marian, False),
    "MarianMTModel": (marian, True),
    "BertModel": (bert, False),
    "BertForMaskedLM": (bert, True),
}
"""For each class of theirs the module that reads it, and whether it has a head."""


def _parts(model: nn.Module) -> Parts:
    """Return how to make our model and read its tensors, by the class of the source model."""
    name = type(model).__name__
    config: Any = getattr(model, "config", None)
    if name in _CLASSES:
        family, headed = _CLASSES[name]
        options = {"headed": headed}
        if family is bert:
            paths = (path.split(".") for path, _ in model.named_modules())
            options["pooled"] = any("pooler" in path for path in paths)
        elif not getattr(config, "is_causal", True):
            refuse("config", "is_causal", "True", False, "decoders are read as causal ones")
        return partial(family.make, config, **options), lambda w: family.read(config, w, **options)
    family = getattr(config, "model_type", None)
    raise build(
        KindError,
        "source",
        f"one of {', '.join(_CLASSES)}",
        name if family is None else f"{name}, of the family {family!r}",
        "other families have no counterpart here",
        'to run them on our attention: register(), then model.set_attn_implementation("intently")',
    )


def _from_folder(folder: Path) -> nn.Module:
    """Return the model of a local folder, of the class in its config, with all tensors checked."""
    if not (folder / "config.json").is_file():
        raise build(
            DataError,
            "source",
            "a folder with config.json and safetensors",
            str(folder),
            "nothing is downloaded",
            "save one with model.save_pretrained(folder)",
        )
    expected = "a transformers model in safetensors"
    with reading(folder, expected) as transformers:
        kind = kind_of(transformers, folder, expected)
        return loaded(kind, folder)


def _tie(ours: Model, theirs: Any) -> None:
    """Tie tables and heads if the source model ties them."""
    outputs = theirs.get_output_embeddings()
    if isinstance(ours, TextToText):
        encoder, decoder = (
            side.embed_tokens.weight for side in (theirs.get_encoder(), theirs.get_decoder())
        )
        if encoder is decoder:
            ours.target.tokens.weight = ours.source.tokens.weight
        if outputs is not None and outputs.weight is decoder:
            assert isinstance(ours.head, nn.Linear)
            ours.head.weight = ours.target.tokens.weight
    elif (
        isinstance(ours, TextModel)
        and outputs is not None
        and outputs.weight is theirs.get_input_embeddings().weight
    ):
        last = ours.head[-1] if isinstance(ours.head, nn.Sequential) else ours.head
        last.weight = ours.embed.tokens.weight
