"""`load`: a transformers model, live or from a local folder, as a model on our attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from intently.errors import DataError, KindError, build
from intently.interop.foreign import (
    check_options,
    kind_of,
    loaded,
    reading,
    rows,
    tensors_of,
    transfer,
    under,
)
from intently.interop.transformers.families import CLASSES, Family, Model


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
    family, headed = _family_of(model)
    pooled = any("pooler" in path.split(".") for path, _ in model.named_modules())
    with torch.device("meta"):
        ours = family.make(model.config, headed, pooled)
    theirs = tensors_of(model, "source")
    for name in family.repeated:
        theirs.pop(name, None)
    body = under("", f"{family.body}." if headed else "", rows(family.table))
    ours = transfer(ours, body + rows(family.head), theirs, type(model).__name__, family.turn)
    return ours.train(model.training)


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


def _family_of(model: nn.Module) -> tuple[Family, bool]:
    """Return the family of a model, and whether the model has a head."""
    name = type(model).__name__
    config: Any = getattr(model, "config", None)
    if name in CLASSES:
        is_causal = name.startswith("Bert") or getattr(config, "is_causal", True)
        cause = "decoders are read as causal ones"
        check_options("config", ("is_causal", is_causal, True, cause))
        return CLASSES[name]
    family = getattr(config, "model_type", None)
    raise build(
        KindError,
        "source",
        f"one of {', '.join(CLASSES)}",
        name if family is None else f"{name}, of the family {family!r}",
        "other families have no counterpart here",
        'to run them on our attention: register(), then model.set_attn_implementation("intently")',
    )
