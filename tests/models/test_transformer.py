"""The Transformer against PyTorch's layers; its caches, padding and what it says it attended."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intently as it
from intently.errors import ArgumentError, KindError
from intently.models import RecurrentOptions, RecurrentSeq2Seq, Transformer, TransformerOptions

from ..messages import refused

S_VOCABULARY, T_VOCABULARY = 17, 19


def model(**options: Any) -> Transformer:
    """A tiny model in float64 with all parameters drawn."""
    shape = {"width": 12, "heads": 3, "inner": 20, "encoder_layers": 2, "decoder_layers": 3}
    sizes = {"source_vocabulary": S_VOCABULARY, "target_vocabulary": T_VOCABULARY}
    found = Transformer(TransformerOptions(**(sizes | shape | options))).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in found.named_parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=p.dtype) * 0.3
            p.copy_(noise + (1 if "norm" in name and name.endswith("weight") else 0))
    return found


SOURCE = torch.tensor([[5, 6, 7, 8, 2], [9, 10, 2, 0, 0], [4, 2, 0, 0, 0]])
LENGTHS = torch.tensor([5, 3, 2])
TARGET = torch.tensor([[1, 5, 6, 7], [1, 9, 8, 7], [1, 4, 4, 5]])


@pytest.fixture
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-11)


def torchs(ours: Transformer) -> tuple[nn.TransformerEncoder, nn.TransformerDecoder]:
    """PyTorch's encoder and decoder with the same weights."""
    from ..modules.test_caches import renamed

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
            b.load_state_dict(renamed(a.state_dict(), encoder=side == "encoder"))
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
    sizes = {"source_vocabulary": T_VOCABULARY} if share == "all" else {}
    ours = model(norm=norm, share=share, **sizes)
    encoder, decoder = torchs(ours)
    hidden = torch.arange(5) >= LENGTHS[:, None]
    with torch.enable_grad():
        states = encoder(
            embedded(ours.source_embedding.weight, SOURCE), src_key_padding_mask=hidden
        )
        y = decoder(
            embedded(ours.target_embedding.weight, TARGET),
            states,
            tgt_mask=~torch.ones(4, 4, dtype=torch.bool).tril(),
            memory_key_padding_mask=hidden,
        )
    expected = y @ ours.target_embedding.weight.T
    memory = ours.encode(SOURCE, LENGTHS)
    seen = ~hidden
    close(memory.states[seen], states[seen])
    logits = ours(SOURCE, TARGET, LENGTHS)
    close(logits, expected)
    close(ours.hidden(TARGET, memory), y)
    close(F.linear(ours.hidden(TARGET, memory), ours.output_weight), logits)
    names, params = zip(*ours.named_parameters())
    grads = torch.autograd.grad(logits.square().sum(), params)
    assert all(bool(g.abs().sum() > 0) for g in grads), names
    tables = [ours.source_embedding.weight, ours.target_embedding.weight]
    truth = torch.autograd.grad(expected.square().sum(), tables)
    torch.testing.assert_close(
        torch.autograd.grad(ours(SOURCE, TARGET, LENGTHS).square().sum(), tables),
        truth,
        atol=1e-8,
        rtol=1e-8,
    )


@pytest.mark.usefixtures("_no_gradients")
class TestPadding:
    """Contract 5: it never matters."""

    @pytest.mark.parametrize("norm", ["pre", "post"])
    def test_a_batch_is_its_rows_alone(self, norm: str) -> None:
        m = model(norm=norm)
        batch = m(SOURCE, TARGET, LENGTHS)
        for i, n in enumerate(LENGTHS.tolist()):
            close(batch[i], m(SOURCE[i : i + 1, :n], TARGET[i : i + 1])[0])

    def test_what_stands_in_it_never_matters(self) -> None:
        m = model()
        other = SOURCE.masked_fill(torch.arange(5) >= LENGTHS[:, None], 16)
        assert torch.equal(m(SOURCE, TARGET, LENGTHS), m(other, TARGET, LENGTHS))

    @pytest.mark.parametrize("poison", [math.nan, math.inf])
    def test_nan_in_its_embedding_is_harmless(self, poison: float) -> None:
        """Only padding is embedded as id 16, whose vector is not a number."""
        m = model()
        other = SOURCE.masked_fill(torch.arange(5) >= LENGTHS[:, None], 16)
        expected = m(other, TARGET, LENGTHS)
        m.source_embedding.weight[16] = poison
        assert torch.equal(m(other, TARGET, LENGTHS), expected)
        cache, found = m.new_cache(), []
        memory = m.encode(other, LENGTHS)
        for i in range(4):
            found.append(m.decode(TARGET[:, i : i + 1], memory, cache))
        close(torch.cat(found, 1), expected)
        for name, A in m.attentions(other, TARGET, LENGTHS).items():
            if not name.startswith("encoder"):
                assert bool(A.dense().isfinite().all()), name

    def test_later_targets_do_not_change_earlier_ones(self) -> None:
        m = model()
        other = TARGET.clone()
        other[:, 2:] = 18
        close(m(SOURCE, TARGET, LENGTHS)[:, :2], m(SOURCE, other, LENGTHS)[:, :2])


@pytest.mark.usefixtures("_no_gradients")
class TestCache:
    @pytest.mark.parametrize("chunks", [[1, 1, 1, 1], [3, 1], [1, 3], [2, 2], [4]], ids=str)
    @pytest.mark.parametrize("norm", ["pre", "post"])
    def test_steps_are_the_whole(self, norm: str, chunks: list[int]) -> None:
        m = model(norm=norm)
        memory, cache = m.encode(SOURCE, LENGTHS), m.new_cache()
        expected, found, first = m.decode(TARGET, memory), [], 0
        for n in chunks:
            found.append(m.decode(TARGET[:, first : first + n], memory, cache))
            first += n
            assert cache.length == first
        close(torch.cat(found, 1), expected)

    def test_positions_beyond_the_table_grow_it(self) -> None:
        m = model(decoder_layers=1, encoder_layers=1)
        long = torch.randint(4, 17, (1, 300))
        memory, cache = m.encode(long), m.new_cache()
        whole = m.decode(long, memory)
        m.decode(long[:, :255], memory, cache)
        found = [m.decode(long[:, i : i + 1], memory, cache) for i in range(255, 300)]
        close(torch.cat(found, 1), whole[:, 255:])
        assert "positions" not in m.state_dict()

    def test_rows_reordered_between_steps(self) -> None:
        m = model()
        memory, cache = m.encode(SOURCE, LENGTHS), m.new_cache()
        m.decode(TARGET[:, :2], memory, cache)
        index = torch.tensor([2, 0, 0])
        cache.reorder(index)
        found = m.decode(TARGET[index][:, 2:], memory.expand(index), cache)
        close(found, m(SOURCE[index], TARGET[index], LENGTHS[index])[:, 2:])

    def test_beams_share_a_row_of_the_memory(self) -> None:
        m = model()
        memory, repeat = m.encode(SOURCE, LENGTHS), torch.tensor([0, 0, 1, 1, 2, 2])
        targets = torch.randint(4, 17, (6, 4))
        close(m.decode(targets, memory), m.decode(targets, memory.expand(repeat)))

    def test_the_history_is_what_was_attended(self) -> None:
        m = model()
        memory, cache = m.encode(SOURCE, LENGTHS), m.new_cache(keep_queries=True)
        for i in range(4):
            m.decode(TARGET[:, i : i + 1], memory, cache)
        for name, A in m.attentions(SOURCE, TARGET, LENGTHS).items():
            if name.startswith("encoder"):
                continue
            steps = cache.history[name]
            close(torch.cat([q for q, _ in steps], 2), A.q)
            keys = [k for _, k in steps if k is not None]
            close(torch.cat(keys, 2) if keys else cache.cross_keys[name], A.k)


@pytest.mark.usefixtures("_no_gradients")
class TestAttentions:
    def test_names_and_shapes(self) -> None:
        found = model().attentions(SOURCE, TARGET, LENGTHS)
        assert {name: A.shape for name, A in found.items()} == {
            "encoder.0.self": (3, 3, 5, 5),
            "encoder.1.self": (3, 3, 5, 5),
            "decoder.0.self": (3, 3, 4, 4),
            "decoder.0.cross": (3, 3, 4, 5),
            "decoder.1.self": (3, 3, 4, 4),
            "decoder.1.cross": (3, 3, 4, 5),
            "decoder.2.self": (3, 3, 4, 4),
            "decoder.2.cross": (3, 3, 4, 5),
        }

    @pytest.mark.parametrize("norm", ["pre", "post"])
    @pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "padded"])
    def test_they_are_what_forward_multiplied_by(self, norm: str, lengths: Tensor | None) -> None:
        """Recompute each attention layer's output from its dense matrix and compare."""
        m = model(norm=norm)
        calls: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        handles = []
        for side, layers in (("encoder", m.encoder), ("decoder", m.decoder)):
            for i, layer in enumerate(layers):
                for part in ("self", "cross"):
                    attend = getattr(layer, f"{part}_attention", None)
                    if attend is None:
                        continue

                    def keep(
                        module: Any, args: Any, y: Tensor, name: str = f"{side}.{i}.{part}"
                    ) -> None:
                        calls[name] = (args[0], args[-1], y)

                    handles.append(attend.register_forward_hook(keep))
        m(SOURCE, TARGET, lengths)
        for handle in handles:
            handle.remove()
        found = m.attentions(SOURCE, TARGET, lengths)
        assert list(found) == list(calls)
        for name, (_, context, y) in calls.items():
            side, i, part = name.split(".")
            attend = getattr(getattr(m, side)[int(i)], f"{part}_attention")
            c = 12
            v = context @ attend.qkv_weight[-c:].T + attend.qkv_bias[-c:]
            mixed = found[name].dense() @ v.unflatten(-1, (3, 4)).transpose(1, 2)
            close(mixed.transpose(1, 2).flatten(2) @ attend.out_weight.T + attend.out_bias, y)

    def test_rows_sum_to_one_over_what_may_be_seen(self) -> None:
        for name, A in model().attentions(SOURCE, TARGET, LENGTHS).items():
            w = A.dense()
            close(w.sum(-1), torch.ones_like(w.sum(-1)))
            if name.endswith("cross") or name.startswith("encoder"):
                assert not w[1, ..., 3:].any() and not w[2, ..., 2:].any()
            else:
                assert not w.triu(1).any()

    def test_they_cost_no_gradient_and_change_nothing(self) -> None:
        m = model()
        before = m(SOURCE, TARGET, LENGTHS)
        with torch.enable_grad():
            found = m.attentions(SOURCE, TARGET, LENGTHS)
        assert not any(A.q.requires_grad for A in found.values())
        assert torch.equal(m(SOURCE, TARGET, LENGTHS), before)


class TestOptions:
    def test_all_tables_are_one(self) -> None:
        m = model(share="all", source_vocabulary=T_VOCABULARY)
        assert m.source_embedding.weight is m.target_embedding.weight is m.output_weight
        assert sum("embedding" in name for name, _ in m.named_parameters()) == 1

    def test_the_output_is_the_targets_table(self) -> None:
        m = model()
        assert m.output_weight is m.target_embedding.weight
        assert m.source_embedding.weight is not m.output_weight

    def test_dropout_only_while_training(self) -> None:
        m = model(dropout=0.5)
        assert torch.equal(m(SOURCE, TARGET), m(SOURCE, TARGET))
        m.train()
        assert not torch.equal(m(SOURCE, TARGET), m(SOURCE, TARGET))

    def test_it_saves_and_loads(self) -> None:
        m, other = model(), Transformer(model().options).double().eval()
        other.load_state_dict(m.state_dict())
        assert torch.equal(other(SOURCE, TARGET, LENGTHS), m(SOURCE, TARGET, LENGTHS))

    def test_no_decoder_or_encoder_layers(self) -> None:
        assert model(decoder_layers=0)(SOURCE, TARGET).shape == (3, 4, T_VOCABULARY)
        assert model(encoder_layers=0).attentions(SOURCE, TARGET)["decoder.0.cross"].shape == (
            3,
            3,
            4,
            5,
        )
        with pytest.raises(ArgumentError, match="decoder_layers: expected 1 or more to go step"):
            model(decoder_layers=0).new_cache()

    @pytest.mark.parametrize(("rows", "targets", "t"), [(0, 0, 4), (3, 3, 0), (3, 0, 4), (1, 3, 0)])
    def test_attention_of_nothing_is_empty(self, rows: int, targets: int, t: int) -> None:
        for lengths in (None, LENGTHS[:rows]):
            found = model().attentions(SOURCE[:rows], TARGET[:targets, :t], lengths)
            assert found["decoder.2.cross"].dense().shape == (targets, 3, t, 5)
            assert found["decoder.0.self"].dense().shape == (targets, 3, t, t)


@pytest.mark.usefixtures("as_users_call")
class TestErrors:
    def test_messages(self) -> None:
        m = model()
        refused(
            lambda: model(share="all"),
            ArgumentError,
            'share: expected "output" where the vocabularies differ; got "all" with 17 and 19. '
            "Train one joint tokenizer.",
        )
        refused(
            lambda: m.encode(torch.tensor([5, 6])),
            ArgumentError,
            "source: expected integer token ids (b, steps); got torch.int64, shape (2,). Add the "
            "batch axis with ids[None] where it is missing.",
        )
        refused(
            lambda: m.encode(torch.ones(1, 2)),
            ArgumentError,
            "source: expected integer token ids (b, steps); got torch.float32, shape (1, 2).",
        )
        refused(
            lambda: m.encode(torch.tensor([[17]])),
            ArgumentError,
            "source: expected ids from 0 to 16; got 17 to 17. They come from another tokenizer "
            "than the model's.",
        )
        text = "target: expected ids from 0 to 18; got -1 to 7."
        refused(lambda: m(SOURCE, TARGET - 2), ArgumentError, text)
        refused(
            lambda: m.decode(TARGET[:2], m.encode(SOURCE)),
            ArgumentError,
            "target: expected m rows for each of the n=3 of memory; got shape (2, 4). The memory "
            "belongs to another batch. Pick rows: memory.expand.",
        )
        refused(
            lambda: m.attentions(SOURCE[:2], TARGET),
            ArgumentError,
            "target: expected m rows for each of the n=2 of memory; got shape (3, 4).",
        )
        refused(
            lambda: m.decode(TARGET, m.encode(SOURCE[:0])),
            ArgumentError,
            "target: expected m rows for each of the n=0 of memory; got shape (3, 4).",
        )
        refused(
            lambda: m.encode(SOURCE, torch.tensor([1, 2])),
            ArgumentError,
            "lengths: expected shape (b=3,); got shape (2,).",
        )
        options = RecurrentOptions(S_VOCABULARY, T_VOCABULARY, width=12)
        other: Any = RecurrentSeq2Seq(options).double().encode(SOURCE)
        with pytest.raises(KindError, match=r"^memory: expected a Memory; got RecurrentMemory\. A"):
            m.decode(TARGET, other)
