"""What models share: the base of those that translate, factories, weights by name, checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from intently.errors import ArgumentError, CheckpointError, KindError, build, one_line, shape_of
from intently.foundation.arrays import valued
from intently.foundation.checks import check_kind, probability, whole_number
from intently.nn.caches.key_value import AsBefore, KeyValueCache
from intently.nn.caches.rows import row_lengths
from intently.nn.feed_forward import FeedForward
from intently.nn.linear import linear
from intently.nn.options import AttentionOptions
from intently.nn.projected_attention import Projections
from intently.nn.weights.copying import AllOrNothing

Side = Literal["source", "target"]
States = dict[str, Tensor]
"""States (b, t, c) by name, in the order in which a model computes them."""


class EncoderCache:
    """The queries and keys of every encoder layer, kept by `Transformer.encode`."""

    def __init__(self, layers: int) -> None:
        self.layers = tuple(KeyValueCache(keep_queries=True) for _ in range(layers))

    @property
    def history(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Queries (b, h, s, d) and keys (b, g, s, d) by name: "encoder.0.self_attention", …"""
        layers = enumerate(self.layers)
        return {f"encoder.{i}.self_attention": layer.history[0] for i, layer in layers}


class TargetCache:
    """Base of decoder caches: rows of targets and rows of the memory can be reordered."""

    def reorder(self, index: Int[Tensor, " n"]) -> None:
        """Continue with rows ``index`` of the targets and of the memory."""
        self.reorder_targets(index)
        self.reorder_memory(index)

    def reorder_targets(self, index: Int[Tensor, " n"]) -> None:
        """Continue with rows ``index`` of the targets; the memory that beams share stays."""
        raise NotImplementedError

    def reorder_memory(self, index: Int[Tensor, " n"]) -> None:
        """Continue with rows ``index`` of the memory, as its ``expand`` does."""
        raise NotImplementedError


class Seq2Seq(AllOrNothing):
    """Token ids of a source in, logits of the next target token out: `encode`, then `decode`."""

    def __init__(self, options: Any) -> None:
        super().__init__()
        o = self.options = options
        self.target_embedding = nn.Embedding(o.target_vocabulary, o.width)
        self.source_embedding = self.target_embedding
        if o.share != "all":
            self.source_embedding = nn.Embedding(o.source_vocabulary, o.width)
        for embedding in (self.target_embedding, self.source_embedding):
            nn.init.normal_(embedding.weight, std=o.width**-0.5)

    @property
    def output_weight(self) -> Tensor:
        """The output projection (V, c), tied to the target's embedding."""
        return self.target_embedding.weight

    def encode(self, source: Any, lengths: Any = None, cache: Any = None, keep: Any = None) -> Any:
        """Read source ids (b, s); ``lengths`` (b,) where rows are padded."""
        raise NotImplementedError

    def hidden(self, target: Any, memory: Any, cache: Any = None, keep: Any = None) -> Any:
        """Return the states (b, t, c) before the output projection."""
        raise NotImplementedError

    def decode(
        self, target: Int[Tensor, "b t"], memory: Any, cache: Any = None
    ) -> Float[Tensor, "b t v"]:
        """Return the logits (b, t, V) of the token after each of ``target`` (b, t).

        With a cache, ``target`` holds only the new tokens. A memory of n rows serves a target of
        n·m rows: m consecutive rows, the beams of a sentence, share one row of the memory. A call
        that raises leaves the cache unchanged.
        """
        return linear(self.hidden(target, memory, cache), self.output_weight)

    def forward(
        self,
        source: Int[Tensor, "b s"],
        target: Int[Tensor, "b t"],
        lengths: Int[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b t v"]:
        """Return the logits (b, t, V): `encode`, then `decode`."""
        return self.decode(target, self.encode(source, lengths))

    def states(
        self,
        source: Int[Tensor, "n s"],
        target: Int[Tensor, "b t"] | None = None,
        lengths: Int[Tensor, " n"] | None = None,
    ) -> States:
        """Return the states of every layer by name, in order: (n, s, c), of a target (b, t, c).

        "encoder.embedding" holds the scaled embeddings of the words alone, "encoder.input" what the
        first layer reads (with the positions that are added), "encoder.0", … the states after each
        layer, and "encoder.output" what the decoder reads. With a target, the same of the decoder
        follow: row i of "decoder.output" is the step that reads ``target[:, i]`` and is projected
        to the logits of the token after it. The cell of a recurrent model runs all its layers in
        one call: it has no states between input and output. They are the tensors of `forward`, with
        its dropout and its gradients; states after a row's length mean nothing.

        >>> from intently.nn.models import Transformer, TransformerOptions
        >>> model = Transformer(TransformerOptions(20, 30, width=16, encoder_layers=1))
        >>> states = model.states(torch.tensor([[5, 6, 2]]))
        >>> list(states)
        ['encoder.embedding', 'encoder.input', 'encoder.0', 'encoder.output']
        >>> states["encoder.0"].shape
        torch.Size([1, 3, 16])
        """
        found: States = {}
        memory = self.encode(source, lengths, keep=found)
        if target is not None:
            self.hidden(target, memory, keep=found)
        return found

    def _read(self, source: Tensor, lengths: Any) -> Tensor | None:
        """Check the input of `encode`; return the lengths as a tensor."""
        check_ids(source, "source", self.options.source_vocabulary)
        return None if lengths is None else row_lengths(lengths, source, "source")

    def _embedded(
        self, side: Side, ids: Tensor, keep: States | None, added: Tensor | float = 0.0
    ) -> Tensor:
        """Embeddings (b, t, c) scaled by √c, plus ``added``."""
        embedding = self.source_embedding if side == "source" else self.target_embedding
        stack = "encoder" if side == "source" else "decoder"
        x = kept(keep, f"{stack}.embedding", embedding(ids) * math.sqrt(self.options.width))
        x = F.dropout(x + added, self.options.dropout, self.training)
        return kept(keep, f"{stack}.input", x)


def kept(keep: States | None, name: str, x: Tensor) -> Tensor:
    """Return x, after keeping it under its name if there is a dict to keep it in."""
    if keep is not None:
        keep[name] = x
    return x


def check_joint(options: Any) -> None:
    """Raise if both sides share their embedding but not their vocabulary."""
    source, target = options.source_vocabulary, options.target_vocabulary
    if options.share == "all" and source != target:
        expected = '"output" where the vocabularies differ'
        got = f'"all" with {source} and {target}'
        raise build(ArgumentError, "share", expected, got, fix="train one joint tokenizer")


def run_layers(
    stack: str,
    layers: nn.ModuleList,
    norm: nn.Module,
    x: Tensor,
    keep: States | None,
    caches: Sequence[Any],
    *given: Any,
    **options: Any,
) -> Tensor:
    """Return the normed states after all layers, and keep them all; errors change no cache."""
    with AsBefore(caches):
        for i, (layer, own) in enumerate(zip(layers, caches)):
            x = kept(keep, f"{stack}.{i}", layer(x, *given, cache=own, **options))
        return kept(keep, f"{stack}.output", norm(x))


def caches_of(cache: Any, kind: type, layers: int, none: Any = None) -> Sequence[Any]:
    """Return the caches of all layers, each ``none`` without a cache; raise for another cache."""
    if cache is None:
        return (none,) * layers
    made = "new_encoder_cache" if kind is EncoderCache else "new_cache"
    cause = "a model has a cache for every layer"
    check_kind(cache, kind, "cache", f"a {kind.__name__}", cause, f"make one: model.{made}()")
    if len(cache.layers) != layers:
        cause = "it belongs to another model"
        raise build(ArgumentError, "cache", f"one of {layers} layers", len(cache.layers), cause)
    return cache.layers


def check_memory(memory: object, kind: type) -> None:
    """Raise unless a memory is of the kind that the model's encoder returns."""
    cause = "a decoder reads what the encoder of its model passes on"
    check_kind(memory, kind, "memory", f"a {kind.__name__}", cause, "make one: model.encode(…)")


def check_rows(target: Tensor, n: int) -> None:
    """Raise unless each of the n rows of a memory serves as many rows of ``target``."""
    if len(target) % n if n else len(target):
        raise build(
            ArgumentError,
            "target",
            f"m rows for each of the n={n} of memory",
            shape_of(target),
            "the memory belongs to another batch",
            "pick rows: memory.expand",
        )


def rows_read(source: Tensor, target: Tensor) -> Tensor:
    """Return the row of ``source`` (n, s) that each row of ``target`` (n·m, t) reads, (n·m,)."""
    rows = torch.arange(len(source), device=source.device)
    return rows.repeat_interleave(len(target) // max(1, len(source)))


def check_ids(ids: Tensor, name: str, vocabulary: int) -> None:
    """Raise unless ids are integers (b, steps), below the size of the vocabulary."""
    if ids.ndim != 2 or ids.is_floating_point():
        raise build(
            ArgumentError,
            name,
            "integer token ids (b, steps)",
            f"{ids.dtype}, {shape_of(ids)}",
            fix="add the batch axis with ids[None] where it is missing",
        )
    if ids.device.type == "cpu" and ids.numel() and valued(ids):
        least, most = (int(x) for x in ids.aminmax())
        if least < 0 or most >= vocabulary:
            raise build(
                ArgumentError,
                name,
                f"ids from 0 to {vocabulary - 1}",
                f"{least} to {most}",
                "they come from another tokenizer than the model's",
            )


Factory = Callable[[int], nn.Module]
"""Makes a part of a layer from the model width c: ``nn.LayerNorm``, ``nn.RMSNorm``, `mlp`."""


@dataclass(frozen=True)
class _FeedForwards:
    """Makes feed-forward layers; a class, so that models that hold one can be pickled."""

    inner: int | None
    activation: Callable[[Tensor], Tensor]

    def __call__(self, width: int) -> FeedForward:
        inner = 4 * width if self.inner is None else self.inner
        return FeedForward(width, inner, activation=self.activation)


def mlp(inner: int | None = None, activation: Callable[[Tensor], Tensor] = F.gelu) -> Factory:
    """Return a factory of feed-forward layers, ``inner`` (4c unless given) wide inside.

    >>> mlp()(8).up.out_features
    32
    """
    return _FeedForwards(inner, activation)


FOURFOLD = mlp()
"""GELU inside, four times as wide as the model: Radford et al. 2019 and Dosovitskiy et al. 2021."""


def check_options(options: Any) -> None:
    """Raise for invalid options that all layers of a model share: sizes, factories, values."""
    o = options
    for name, least in (("width", 1), ("heads", 1), ("layers", 0)):
        whole_number(getattr(o, name), name, least)
    for name in ("norm", "feed_forward"):
        factory = getattr(o, name)
        if isinstance(factory, nn.Module) or not callable(factory):
            raise build(
                KindError,
                name,
                "a function that makes the part from the width c",
                type(factory).__name__,
                fix="write nn.RMSNorm, say, not nn.RMSNorm(c)",
            )
    for name, kind in (("attention", AttentionOptions), ("projections", Projections)):
        check_kind(getattr(o, name), kind, name, f"intently.nn.{kind.__name__}(…)")
    probability(o.dropout, "dropout")


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and stored buffers of a model by name, tied ones once.

    >>> tied = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False)})
    >>> tied["b"] = tied["a"]
    >>> list(weights(tied))
    ['a.weight']
    """
    seen: set[int] = set()
    found = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor.detach()
    return found


@torch.no_grad()
def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], where: str = "") -> None:
    """Copy ``tensors`` into the model they came from by :func:`weights`.

    Raises CheckpointError, naming the origin ``where``, if names, shapes or dtypes differ; the
    model is then unchanged.
    """
    own = weights(model)
    check_alike(own, tensors, "the weights are of a model with other options", where)
    for name, tensor in own.items():
        tensor.copy_(tensors[name])


def check_alike(
    own: Mapping[str, Tensor], other: Mapping[str, Tensor], cause: str, where: str = ""
) -> None:
    """Raise CheckpointError for ``cause`` unless the two have the same names and shapes.

    Floating-point numbers may differ in precision; other dtypes may not differ. Tensors may be on
    the device "meta".
    """
    for name in sorted(own.keys() | other.keys()):
        expected, got = (
            _form(group[name]) if name in group else "no such tensor" for group in (own, other)
        )
        if expected != got:
            place = f"{where}: {name}" if where else name
            raise one_line(build(CheckpointError, place, expected, got, cause))


def _form(x: Tensor) -> str:
    shape = f"shape {tuple(x.shape)}"
    return shape if x.is_floating_point() else f"{shape} of {x.dtype}"
