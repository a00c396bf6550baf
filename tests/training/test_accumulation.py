"""Several batches that make one step: the gradient of all their tokens, and an exact position."""

from __future__ import annotations

import signal

import numpy as np
import pytest
import tiny_run as tiny
import torch

from intently.errors import ArgumentError
from intently.training import Stepped, TrainingOptions, epoch, train
from intently.training.groups import OptimiserOptions

PLAIN = {"dropout": 0.0, "label_smoothing": 0.0, "weight_decay": 0.0, "clip": 0.5}


def test_a_step_is_that_of_one_big_batch(tmp_path) -> None:
    """Three batches of 60 tokens, against cross_entropy over all their tokens written out."""
    options = tiny.OPTIONS.with_flags(
        steps=2, accumulate=3, schedule="constant", warmup=0, cooldown=0.0, **PLAIN
    )
    net, other = (tiny.model(options=options).double() for _ in range(2))
    losses = []
    train(net, tiny.pairs(), options, tmp_path, progress=_losses(losses))
    adam = torch.optim.AdamW(
        other.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-9, weight_decay=0
    )
    batches = list(epoch(tiny.pairs(), 60, seed=5))
    for step in range(2):
        adam.zero_grad()
        logits, targets = [], []
        for batch in batches[3 * step : 3 * step + 3]:
            logits.append(other(batch.source, batch.target_in, batch.source_lengths).flatten(0, 1))
            targets.append(batch.target_out.flatten())
        loss = torch.nn.functional.cross_entropy(
            torch.cat(logits), torch.cat(targets), ignore_index=0
        )
        assert losses[step] == pytest.approx(loss.item(), rel=1e-9)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        adam.step()
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def _losses(into: list[float]):
    return lambda event: into.append(event.loss) if isinstance(event, Stepped) else None


def test_what_an_epoch_leaves_over_goes_on_in_the_next(tmp_path) -> None:
    """Every batch of two epochs is taken once, in order, though 4 does not divide their number."""
    options = tiny.OPTIONS.with_flags(steps=5, accumulate=4)
    taken = []

    class Spying(type(tiny.pairs())):
        def batch(self, which: np.ndarray):
            taken.append(which.tolist())
            return super().batch(which)

    spying = tiny.pairs()
    spying.__class__ = Spying
    train(tiny.model(), spying, options, tmp_path)
    expected = []
    for number in (0, 1, 2):
        of_epoch = epoch(tiny.pairs(), 60, seed=5, number=number)
        expected += [of_epoch._order[start:stop].tolist() for start, stop in of_epoch._cuts]
    assert len(epoch(tiny.pairs(), 60, seed=5)) % 4
    assert taken == expected[:20]


def test_it_goes_on_to_the_last_bit(tmp_path) -> None:
    options = tiny.OPTIONS.with_flags(steps=9, accumulate=3)

    def stop(event) -> None:
        if isinstance(event, Stepped) and event.step == 4:
            signal.raise_signal(signal.SIGTERM)

    whole, _ = tiny.run(tmp_path / "whole", options)
    tiny.run(tmp_path / "broken", options, progress=stop)
    resumed, history = tiny.run(tmp_path / "broken", options, resume=True)
    assert history.records[-1].step == 9
    assert tiny.same_weights(whole, resumed)


def test_another_number_is_another_run(tmp_path) -> None:
    tiny.run(tmp_path, tiny.OPTIONS.with_flags(steps=2))
    with pytest.raises(ArgumentError, match=r"accumulate: expected 1, with which the run began"):
        tiny.run(tmp_path, tiny.OPTIONS.with_flags(steps=4, accumulate=2), resume=True)


def test_less_than_one_is_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"accumulate: expected an integer from 1 to 10,000; got 0"
    ):
        OptimiserOptions(accumulate=0)
    assert TrainingOptions().optimiser.accumulate == 1
