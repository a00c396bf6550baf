"""JoeyNMT 2.3's Transformer with our weights: its model, loss, batches and beam search."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.translation.models import (
    SPECIALS,
    Rates,
    Shape,
    Side,
    Writers,
    padded,
    translate,
    unending,
)
from intently.nn.models import Transformer
from intently.tasks.text import PAD
from intently.tasks.training.batches import Batch

PARTS = {
    "encoder": {"self_attention": "src_src_att", "self_norm": "layer_norm"},
    "decoder": {
        "self_attention": "trg_trg_att",
        "self_norm": "x_layer_norm",
        "cross_attention": "src_trg_att",
        "cross_norm": "dec_layer_norm",
    },
}


def side(shape: Shape, rates: Rates, ours: Transformer) -> Side:
    """Its model and loss, from the logits; the accuracy that its loop counts is counted too."""
    model = _model(shape, rates.dropout, ours).train()
    model.loss_function = ("crossentropy", rates.smoothing)

    def loss(batch: Any) -> Tensor:
        total, *_ = model(return_type="loss", **vars(batch))
        return batch.normalize(total, normalization="tokens")

    return Side(model, loss, _batch)


def writers(shape: Shape, ours: Transformer) -> Writers:
    """Its beam search, which reads the whole output again at every step."""
    search: Any = importlib.import_module("joeynmt.search")
    model = _model(shape, 0.0, unending(ours)).eval()

    def write(sources: list[list[int]], beam: int, tokens: int) -> list[list[int]]:
        found, *_ = search.search(
            model, _batch_of(_ids(padded(sources))), tokens, beam, 1.0, n_best=1
        )
        return torch.as_tensor(found).tolist()

    return Writers(write, lambda *given: translate(ours, *given))


def _model(shape: Shape, dropout: float, ours: Transformer) -> Any:
    build: Any = importlib.import_module("joeynmt.model").build_model
    special = {"unk": "<unk>", "pad": "<pad>", "bos": "<s>", "eos": "</s>"}
    told = {f"{name}_token": text for name, text in special.items()}
    told |= {f"{name}_id": i for i, name in enumerate(special)}
    names = SimpleNamespace(**told, sep_token=None, lang_tags=[])
    made: Any = importlib.import_module("joeynmt.vocabulary").Vocabulary
    vocabulary = made([f"word {i}" for i in range(SPECIALS, shape.vocabulary)], names)
    half = {
        "type": "transformer",
        "num_layers": shape.layers,
        "num_heads": shape.heads,
        "hidden_size": shape.width,
        "ff_size": shape.inner,
        "dropout": dropout,
        "layer_norm": "pre",
        "embeddings": {"embedding_dim": shape.width, "scale": True},
    }
    options = {"tied_embeddings": True, "tied_softmax": True, "encoder": half, "decoder": half}
    model = build(options, vocabulary, vocabulary)
    with torch.no_grad():
        model.src_embed.lut.weight[_ids(torch.arange(shape.vocabulary))] = (
            ours.target_embedding.weight
        )
    for name, parts in PARTS.items():
        stack: Any = getattr(model, name)
        stack.layer_norm.load_state_dict(getattr(ours, f"{name}_norm").state_dict())
        for theirs, layer in zip(stack.layers, getattr(ours, name), strict=True):
            for own, other in parts.items():
                _fill(getattr(theirs, other), getattr(layer, own))
            feed = theirs.feed_forward
            feed.layer_norm.load_state_dict(layer.feed_norm.state_dict())
            feed.pwff_layer[0].load_state_dict(layer.feed_forward.up.state_dict())
            feed.pwff_layer[3].load_state_dict(layer.feed_forward.down.state_dict())
            feed.pwff_layer[2].p = 0.0  # dropout where ours acts
    for module in model.modules():
        if hasattr(module, "k_layer"):
            module.dropout.p = 0.0
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5
    return model


def _fill(theirs: Any, ours: Any) -> None:
    if isinstance(theirs, nn.LayerNorm):
        theirs.load_state_dict(ours.state_dict())
        return
    maps = zip("qkv", ours.qkv_weight.chunk(3), ours.qkv_bias.chunk(3), strict=True)
    for letter, weight, bias in maps:
        getattr(theirs, f"{letter}_layer").load_state_dict({"weight": weight, "bias": bias})
    theirs.output_layer.load_state_dict({"weight": ours.out_weight, "bias": ours.out_bias})


def _ids(ours: Tensor) -> Tensor:
    """Its ids: PAD, SOS and EOS are one higher, and the unknown word is 0."""
    return torch.where(ours < SPECIALS, (ours + 1) % SPECIALS, ours)


def _batch(batch: Batch) -> Any:
    target = torch.cat([batch.target_in[:, :1], batch.target_out], 1)
    return _batch_of(_ids(batch.source), _ids(target))


def _batch_of(source: Tensor, target: Tensor | None = None) -> Any:
    made: Any = importlib.import_module("joeynmt.batch").Batch
    pad = int(_ids(torch.tensor(PAD)))
    given = source, (source != pad).sum(1), None, target, None, torch.arange(len(source))
    return made(*given, source.device, pad, 3, is_train=target is not None)
