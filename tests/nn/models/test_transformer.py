"""The Transformer against PyTorch's layers: what its options share and count, what it refuses.

Steps, caches, beams, padding and gradients are tested in `test_variants.py`.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intently as it
from intently.errors import ArgumentError, KindError
from intently.nn.models import RecurrentOptions, RecurrentSeq2Seq, Transformer

from ...messages import raises
from ...nn.test_blocks import TORCHS
from ...tensors import close, renamed
from .plain_transformer import LENGTHS, SOURCE, TARGET, drawn


def torchs(ours: Transformer) -> tuple[nn.TransformerEncoder, nn.TransformerDecoder]:
    """PyTorch's encoder and decoder with the same weights."""
    o = ours.options
    options: dict[str, Any] = {
        "dropout": 0.0,
        "batch_first": True,
        "norm_first": o.norm == "pre",
        "dtype": torch.float64,
    }
    pre = o.norm == "pre"
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(o.width, o.heads, o.inner, **options),
        o.encoder_layers,
        norm=nn.LayerNorm(o.width, dtype=torch.float64) if pre else None,
        enable_nested_tensor=False,
    )
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(o.width, o.heads, o.inner, **options),
        o.decoder_layers,
        norm=nn.LayerNorm(o.width, dtype=torch.float64) if pre else None,
    )
    for side, theirs in (("encoder", encoder), ("decoder", decoder)):
        layers = getattr(ours, side)
        for a, b in zip(layers, theirs.layers):
            b.load_state_dict(renamed(a.state_dict(), TORCHS[type(a)]))
        if pre:
            theirs.norm.load_state_dict(getattr(ours, f"{side}_norm").state_dict())
    return encoder.eval(), decoder.eval()


def embedded(table: Tensor, ids: Tensor) -> Tensor:
    """Scaled embeddings plus positions (Vaswani et al. 2017, sections 3.4 and 3.5)."""
    c = table.shape[1]
    return table[ids] * math.sqrt(c) + it.sinusoidal(ids.shape[1], c).double()


@pytest.mark.parametrize("share", ["output", "all"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_it_is_torchs(norm: str, share: str) -> None:
    sizes = {"source_vocabulary": 19} if share == "all" else {}
    ours = drawn(norm=norm, share=share, decoder_layers=3, **sizes)
    encoder, decoder = torchs(ours)
    hidden = torch.arange(5) >= LENGTHS[:, None]
    tables = ours.source_embedding.weight, ours.target_embedding.weight
    states = encoder(embedded(tables[0], SOURCE), src_key_padding_mask=hidden)
    y = decoder(
        embedded(tables[1], TARGET),
        states,
        tgt_mask=~torch.ones(4, 4, dtype=torch.bool).tril(),
        memory_key_padding_mask=hidden,
    )
    memory, logits = ours.encode(SOURCE, LENGTHS), ours(SOURCE, TARGET, LENGTHS)
    close(memory.states[~hidden], states[~hidden])
    expected = y @ tables[1].T
    close(logits, expected)
    close(ours.hidden(TARGET, memory), y)
    close(F.linear(ours.hidden(TARGET, memory), ours.output_weight), logits)
    close(
        torch.autograd.grad(logits.square().sum(), tables),
        torch.autograd.grad(expected.square().sum(), tables),
        1e-8,
        1e-8,
    )


def test_attentions_cost_no_gradient_and_change_nothing() -> None:
    model = drawn()
    before = model(SOURCE, TARGET, LENGTHS)
    found = model.attentions(SOURCE, TARGET, LENGTHS)
    assert not any(A.q.requires_grad for A in found.values())
    assert torch.equal(model(SOURCE, TARGET, LENGTHS), before)


@pytest.mark.parametrize(("rows", "targets", "t"), [(0, 0, 4), (3, 3, 0), (3, 0, 4), (1, 3, 0)])
def test_attention_of_nothing_is_empty(rows: int, targets: int, t: int) -> None:
    for lengths in (None, LENGTHS[:rows]):
        found = drawn().attentions(SOURCE[:rows], TARGET[:targets, :t], lengths)
        assert found["decoder.1.cross_attention"].dense().shape == (targets, 4, t, 5)
        assert found["decoder.0.self_attention"].dense().shape == (targets, 4, t, t)


def test_which_tables_are_one() -> None:
    joint, model = drawn(share="all", source_vocabulary=19), drawn()
    assert joint.source_embedding.weight is joint.target_embedding.weight is joint.output_weight
    assert sum("embedding" in name for name, _ in joint.named_parameters()) == 1
    assert model.output_weight is model.target_embedding.weight
    assert model.source_embedding.weight is not model.output_weight


def test_no_decoder_or_encoder_layers() -> None:
    assert drawn(decoder_layers=0)(SOURCE, TARGET).shape == (3, 4, 19)
    found = drawn(encoder_layers=0).attentions(SOURCE, TARGET)
    assert found["decoder.0.cross_attention"].shape == (3, 4, 4, 5)


def recurrent_memory() -> Any:
    return RecurrentSeq2Seq(RecurrentOptions(17, 19, width=16)).double().encode(SOURCE)


test_errors = raises(
    {
        ArgumentError: {
            "decoder_layers: expected 1 or more to go step": lambda: drawn(
                decoder_layers=0
            ).new_cache(),
            'share: expected "output" where the vocabularies differ; got "all" with 17 and 19. '
            "Train one joint tokenizer.": lambda: drawn(share="all"),
            "source: expected integer token ids (b, steps); got torch.int64, shape (2,). Add the "
            "batch axis with ids[None] where it is missing.": lambda: drawn().encode(
                torch.tensor([5, 6])
            ),
            "source: expected integer token ids (b, steps); got torch.float32, shape "
            "(1, 2).": lambda: drawn().encode(torch.ones(1, 2)),
            "source: expected ids from 0 to 16; got 17 to 17. They come from another tokenizer "
            "than the model's.": lambda: drawn().encode(torch.tensor([[17]])),
            "target: expected ids from 0 to 18; got -1 to 7.": lambda: drawn()(SOURCE, TARGET - 2),
            "target: expected m rows for each of the n=3 of memory; got shape (2, 4). The memory "
            "belongs to another batch. Pick rows: memory.expand.": lambda: drawn().decode(
                TARGET[:2], drawn().encode(SOURCE)
            ),
            "target: expected m rows for each of the n=2 of memory; got shape (3, 4).": lambda: (
                drawn().attentions(SOURCE[:2], TARGET)
            ),
            "target: expected m rows for each of the n=0 of memory; got shape (3, 4).": lambda: (
                drawn().decode(TARGET, drawn().encode(SOURCE[:0]))
            ),
            "lengths: expected shape (b=3,); got shape (2,).": lambda: drawn().encode(
                SOURCE, torch.tensor([1, 2])
            ),
        },
        KindError: {
            "memory: expected a Memory; got RecurrentMemory. A": lambda: drawn().decode(
                TARGET, recurrent_memory()
            )
        },
    }
)
