"""The translators that are compared: ours and the same in other libraries, with the same weights.

Each library is used as its documentation does, and nothing of it is patched. What differs in
meaning is set alike: dropout acts where ours does, on embeddings and on what is added to the
residual. PAD, SOS and EOS have embeddings of zeros where sentences are written, so their logits are
0, never among the best: every output runs to the length asked for, on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import measure
from intently.core.positions import sinusoidal
from intently.nn.models import Transformer, TransformerOptions
from intently.tasks.corpora import read_parallel, sample
from intently.tasks.decoding import SearchOptions, search
from intently.tasks.text import EOS, PAD, SOS
from intently.tasks.text.words import words
from intently.tasks.training.batches import Batch, Pairs, epoch
from intently.tasks.training.loss import batch_loss
from intently.tasks.training.optimiser import Optimiser
from intently.tasks.training.options import OptimiserOptions

RATE, CLIP = 5e-4, 1.0
SPECIALS = 4
"""Ids that stand for no word."""

Loss = Callable[[Any], Tensor]
"""The mean loss of a batch."""


class Shape(NamedTuple):
    """What all sides have in common; one vocabulary and one embedding for both languages."""

    vocabulary: int = 8_000
    width: int = 128
    heads: int = 4
    layers: int = 3
    inner: int = 512
    batch_tokens: int = 4_096
    pairs: int = 30_000

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """Width, heads, layers of the encoder and of the decoder, and the width inside."""
        return self.width, self.heads, self.layers, self.layers, self.inner


class Rates(NamedTuple):
    """Dropout and label smoothing."""

    dropout: float = 0.1
    smoothing: float = 0.1


def as_it_is(batch: Batch) -> Any:
    """Return the batch: what needs no other form."""
    return batch


class Side(NamedTuple):
    """A model, its loss, and what makes its own form of a batch beforehand."""

    model: nn.Module
    loss: Loss
    ready: Callable[[Batch], Any] = as_it_is


# --- data -----------------------------------------------------------------------------------------


def batches(shape: Shape, files: Sequence[Any]) -> list[Batch]:
    """Batches with the lengths of a corpus, its words drawn anew by rank (Zipf)."""
    if files:
        text = read_parallel(*files)
        sources, targets = text.sources[: shape.pairs], text.targets[: shape.pairs]
    else:
        shown = sample("train", shape.pairs)
        sources, targets = [x.source for x in shown], [x.target for x in shown]
    shares = 1 / np.arange(1, shape.vocabulary - SPECIALS + 1)
    drawn = np.random.default_rng(measure.SEED)

    def ids(texts: Sequence[str]) -> list[list[int]]:
        ends = np.cumsum([len(words(text)) for text in texts])
        found = drawn.choice(len(shares), ends[-1], p=shares / shares.sum()) + SPECIALS
        return [part.tolist() for part in np.split(found, ends[:-1])]

    pairs = Pairs(ids(sources), ids(targets))
    return list(epoch(pairs, shape.batch_tokens, measure.SEED))


def step(side: Side, update: Callable[[float], None], batch: Any) -> float:
    """Forward, loss, backward, clipping, optimiser; return the loss."""
    loss = side.loss(batch)
    loss.backward()
    nn.utils.clip_grad_norm_(side.model.parameters(), CLIP)
    update(RATE)
    return loss.item()


def fused_adamw(model: nn.Module) -> Callable[[float], None]:
    """PyTorch's AdamW in its fastest form, with our numbers."""
    options = OptimiserOptions(weight_decay=0.0)
    made = torch.optim.AdamW(
        model.parameters(), betas=options.betas, eps=1e-9, weight_decay=0.0, fused=True
    )

    def update(rate: float) -> None:
        for group in made.param_groups:
            group["lr"] = rate
        made.step()
        made.zero_grad(set_to_none=True)

    return update


# --- ours -----------------------------------------------------------------------------------------


def transformer(shape: Shape, dropout: float = 0.0, norm: Any = "pre") -> Transformer:
    """Our model of a shape."""
    torch.manual_seed(measure.SEED)
    words = shape.vocabulary, shape.vocabulary
    return Transformer(TransformerOptions(*words, *shape.sizes, norm, dropout, "all"))


def ours(shape: Shape, rates: Rates) -> Side:
    """Our model and our loss, which is fused with the output projection."""
    model = transformer(shape, rates.dropout).train()

    def loss(batch: Batch) -> Tensor:
        total, tokens = batch_loss(model, batch, rates.smoothing)
        return total / tokens

    return Side(model, loss)


def own_optimiser(model: nn.Module) -> Callable[[float], None]:
    """Our AdamW, as the trainer makes it."""
    return Optimiser(model, OptimiserOptions(weight_decay=0.0)).step


def translate(
    model: Transformer, sources: list[list[int]], beam: int, tokens: int
) -> list[list[int]]:
    """Write so many tokens for each source, which ends with EOS."""
    options = SearchOptions(beam=beam, max_length=tokens)
    return [best.ids for [best] in search(model, sources, options, keep_attention=False)]


def unending(model: Transformer) -> Transformer:
    """Zero the embeddings of the specials; random weights then never choose one."""
    with torch.no_grad():
        model.target_embedding.weight[:SPECIALS] = 0
    return model.eval()


# --- nn.Transformer -------------------------------------------------------------------------------


class Plain(nn.Module):
    """A translator on `nn.Transformer`, as tutorials write it."""

    positions: Tensor

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.scale = math.sqrt(shape.width)
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.dropout = nn.Dropout(dropout)
        self.transformer = nn.Transformer(*shape.sizes, dropout, batch_first=True, norm_first=True)
        self.register_buffer("positions", sinusoidal(256, shape.width))

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.embedding(ids) * self.scale + self.positions[: ids.shape[1]])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        t = target.shape[1]
        ahead = torch.ones(t, t, dtype=torch.bool, device=target.device).triu(1)
        padded = source == PAD
        hidden = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=ahead,
            tgt_is_causal=True,
            src_key_padding_mask=padded,
            memory_key_padding_mask=padded,
        )
        return F.linear(hidden, self.embedding.weight)


def plain(shape: Shape, rates: Rates, like: nn.Module, *, everywhere: bool = False) -> Side:
    """`nn.Transformer`, whose random weights are given to our model ``like`` too.

    With ``everywhere`` its dropout also acts where it does by default: on the weights of attention
    and inside the feed-forward.
    """
    from intently.interop.torch import load

    torch.manual_seed(measure.SEED)
    model = Plain(shape, rates.dropout).train()
    nn.init.normal_(model.embedding.weight, std=shape.width**-0.5)
    tensors = {
        name.replace(".layers", "").replace("coder.norm", "coder_norm"): x
        for name, x in load(model.transformer).state_dict().items()
    }
    table = model.embedding.weight
    like.load_state_dict(
        {**tensors, "source_embedding.weight": table, "target_embedding.weight": table}
    )
    for module in () if everywhere else model.transformer.modules():
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
        elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            module.dropout.p = 0.0

    def loss(batch: Batch) -> Tensor:
        logits = model(batch.source, batch.target_in).flatten(0, 1)
        return F.cross_entropy(
            logits, batch.target_out.flatten(), ignore_index=PAD, label_smoothing=rates.smoothing
        )

    return Side(model, loss)


# --- MarianMT -------------------------------------------------------------------------------------


class Writers(NamedTuple):
    """Two translators of (sources, beam, tokens) with the same weights."""

    theirs: Callable[[list[list[int]], int, int], list[list[int]]]
    ours: Callable[[list[list[int]], int, int], list[list[int]]]


def marian(shape: Shape) -> Writers:
    """`MarianMTModel` of transformers, and its `generate`."""
    from transformers import MarianConfig, MarianMTModel

    from intently.interop.transformers import load

    torch.manual_seed(measure.SEED)
    half = {"layers": shape.layers, "attention_heads": shape.heads, "ffn_dim": shape.inner}
    config = MarianConfig(
        vocab_size=shape.vocabulary,
        d_model=shape.width,
        max_position_embeddings=256,
        **{f"{side}_{n}": x for side in ("encoder", "decoder") for n, x in half.items()},
        activation_function="relu",
        dropout=0.0,
        scale_embedding=True,
        init_std=shape.width**-0.5,
        pad_token_id=PAD,
        eos_token_id=EOS,
        forced_eos_token_id=None,
        decoder_start_token_id=SOS,
    )
    theirs: Any = MarianMTModel(config).eval()
    with torch.no_grad():
        theirs.get_input_embeddings().weight[:SPECIALS] = 0
    read: Any = load(theirs)
    model = transformer(shape, norm="post")
    with torch.no_grad():
        model.target_embedding.weight.copy_(read.target.tokens.weight)
        model.positions = read.target.places.weight.detach().clone()  # sines first, then cosines
    for side in ("encoder", "decoder"):
        getattr(model, side).load_state_dict(getattr(read, side).layers.state_dict())

    def generate(sources: list[list[int]], beam: int, tokens: int) -> list[list[int]]:
        ids = padded(sources)
        found = theirs.generate(
            ids,
            attention_mask=(ids != PAD).long(),
            max_new_tokens=tokens,
            num_beams=beam,
            do_sample=False,
        )
        return found[:, 1:].tolist()

    return Writers(generate, partial(translate, unending(model)))


def padded(sources: list[list[int]]) -> Tensor:
    """Return the sources (n, longest), filled up with PAD."""
    rows = [torch.tensor(ids) for ids in sources]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
