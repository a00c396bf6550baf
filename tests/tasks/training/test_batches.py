"""Batches: every pair once, little padding, the same from the same seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from intently.errors import DataError
from intently.tasks.text import EOS, PAD, SOS
from intently.tasks.training.batches import Pairs, epoch


def corpus(count: int = 3000, seed: int = 0) -> tuple[list[list[int]], list[list[int]]]:
    random = np.random.default_rng(seed)
    lengths = np.maximum(1, random.normal(9, 3, count).astype(int))
    sources = [random.integers(4, 99, n).tolist() for n in lengths]
    targets = [random.integers(4, 99, max(1, n + random.integers(-2, 3))).tolist() for n in lengths]
    return sources, targets


def unpadded(row: torch.Tensor) -> tuple[int, ...]:
    return tuple(row[row != PAD].tolist())


def test_every_pair_once_an_epoch_and_intact() -> None:
    sources, targets = corpus()
    batches = epoch(Pairs(sources, targets), batch_tokens=500, seed=1)
    seen = sorted(
        (unpadded(source), unpadded(target))
        for batch in batches
        for source, target in zip(batch.source, batch.target_out, strict=True)
    )
    expected = (((*s, EOS), (*t, EOS)) for s, t in zip(sources, targets, strict=True))
    assert seen == sorted(expected)


def test_shapes_lengths_and_shift() -> None:
    for batch in epoch(Pairs(*corpus()), batch_tokens=500, seed=1):
        assert {t.dtype for t in batch if t is not None} == {torch.int64}
        assert batch.target_in.shape == batch.target_out.shape
        assert (batch.target_in[:, 0] == SOS).all()
        assert torch.equal(batch.target_in[:, 1:], batch.target_out[:, :-1])
        counted = (batch.source != PAD).sum(1)
        if batch.source_lengths is None:
            assert (counted == batch.source.shape[1]).all()
        else:
            assert torch.equal(counted, batch.source_lengths)
            assert (counted < batch.source.shape[1]).any()


def test_batches_are_full_and_hardly_padded() -> None:
    batches = epoch(Pairs(*corpus()), batch_tokens=500, seed=1)
    sizes = [batch.target_out.numel() for batch in batches]
    assert max(sizes) <= 500
    assert np.mean(sizes) > 480
    for side, most in (("source", 0.08), ("target_out", 0.02)):
        tokens = torch.cat([getattr(batch, side).flatten() for batch in batches])
        assert (tokens == PAD).float().mean() < most


def test_a_pure_function_of_seed_and_epoch() -> None:
    pairs = Pairs(*corpus())
    first, again = epoch(pairs, 500, seed=1, number=3), epoch(pairs, 500, seed=1, number=3)
    assert all(torch.equal(a.source, b.source) for a, b in zip(first, again, strict=True))
    for other in (epoch(pairs, 500, seed=1, number=4), epoch(pairs, 500, seed=2, number=3)):
        assert not torch.equal(first[0].source, other[0].source)


def test_batches_change_their_members_from_epoch_to_epoch() -> None:
    pairs = Pairs([[i] for i in range(4, 104)], [[i] for i in range(4, 104)])
    rows = {
        tuple(sorted(b.source[:, 0].tolist())) for n in range(2) for b in epoch(pairs, 20, 1, n)
    }
    assert len(rows) == 20


def test_a_pair_longer_than_a_batch_is_one_of_its_own() -> None:
    pairs = Pairs([[5] * 30, [6], [7]], [[5] * 30, [6], [7]])
    assert sorted(len(batch.source) for batch in epoch(pairs, 10, seed=0)) == [1, 2]


def test_pairs_left_out_are_counted() -> None:
    pairs = Pairs([[5] * 9, [5], [5], []], [[5], [5] * 9, [5], [5]], max_length=8)
    assert (len(pairs), pairs.too_long, pairs.empty) == (1, 2, 1)
    for sources, targets, message in (
        ([[5]], [], "targets: expected as many as sources, 1; got 0 sentences"),
        ([], [], "sources, targets: expected a pair of sentences of 1 to 8 tokens; got 0 pairs"),
        ([[5] * 9, []], [[5], [5]], "got 2 pairs, 1 too long, 1 with an empty side"),
    ):
        with pytest.raises(DataError, match=message):
            Pairs(sources, targets, max_length=8)


def test_the_fingerprint_sees_every_token_and_border() -> None:
    base, again, token, border = (
        Pairs(sources, [[8], [9]]).fingerprint
        for sources in ([[5, 6], [7]], [[5, 6], [7]], [[5, 6], [8]], [[5], [6, 7]])
    )
    assert base == again and base not in (token, border)
