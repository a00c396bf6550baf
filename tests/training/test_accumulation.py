"""The step of one batch or several: the gradient of all their tokens, and an exact position."""

from __future__ import annotations

import numpy as np
import pytest
import tiny_run as tiny
import torch

from intently.training import epoch, train

PLAIN = {"dropout": 0.0, "weight_decay": 0.0, "clip": 0.5, "steps": 2}
CONSTANT = {"schedule": "constant", "warmup": 0, "cooldown": 0.0}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("count", [1, 3])
def test_a_step_is_that_of_one_big_batch(tmp_path, count: int, smoothing: float) -> None:
    """Batches of 60 tokens, against cross_entropy, clip_grad_norm_ and AdamW written out."""
    options = tiny.OPTIONS.with_flags(
        accumulate=count, label_smoothing=smoothing, **PLAIN, **CONSTANT
    )
    net, other = (tiny.model(options=options).double() for _ in range(2))
    losses = []
    train(net, tiny.pairs(), options, tmp_path, progress=tiny.losses(losses))
    adam = torch.optim.AdamW(
        other.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-9, weight_decay=0
    )
    batches = list(epoch(tiny.pairs(), 60, seed=5))
    for step in range(2):
        adam.zero_grad()
        logits, targets = [], []
        for batch in batches[count * step : count * step + count]:
            logits.append(other(batch.source, batch.target_in, batch.source_lengths).flatten(0, 1))
            targets.append(batch.target_out.flatten())
        loss = torch.nn.functional.cross_entropy(
            torch.cat(logits), torch.cat(targets), ignore_index=0, label_smoothing=smoothing
        )
        assert losses[step] == pytest.approx(loss.item(), rel=1e-9)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        adam.step()
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


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
    epochs = [epoch(tiny.pairs(), 60, seed=5, number=number) for number in range(3)]
    expected = [one._order[start:stop].tolist() for one in epochs for start, stop in one._cuts]
    assert len(epoch(tiny.pairs(), 60, seed=5)) % 4
    assert taken == expected[:20]
