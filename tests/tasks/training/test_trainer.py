"""The loop: its steps, of one batch or several; what it tells, refuses, and leaves as it was."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tiny_run as tiny
import torch

from intently.errors import ArgumentError, CheckpointError
from intently.tasks.training import (
    Checkpoints,
    DivergedError,
    Evaluated,
    Event,
    Pairs,
    Stepped,
    TrainingOptions,
    dev_loss,
    epoch,
    train,
)
from intently.tasks.training.progress import Saved, TimeUp

PLAIN = {"dropout": 0.0, "weight_decay": 0.0, "clip": 0.5, "steps": 2}
CONSTANT = {"schedule": "constant", "warmup": 0, "cooldown": 0.0}


def test_it_learns(tmp_path) -> None:
    before = dev_loss(tiny.model().eval(), tiny.pairs())
    options = tiny.OPTIONS.with_flags(steps=80, label_smoothing=0.0, dropout=0.0)
    net, history = tiny.run(tmp_path, options)
    assert dev_loss(net, tiny.pairs()) < 0.75 * before
    assert history.records[0].loss > history.records[-1].loss
    assert not net.training


def test_the_history_is_told_and_stored(tmp_path) -> None:
    events = []
    _, history = tiny.run(tmp_path, progress=events.append)
    stepped = [event for event in events if isinstance(event, Stepped)]
    assert [event.step for event in stepped] == list(range(1, 41))
    assert [(r.step, r.loss, r.learning_rate) for r in history.records] == [
        (event.step, event.loss, event.learning_rate) for event in stepped
    ]
    assert [e.step for e in events if isinstance(e, Evaluated)] == [8, 16, 24, 32, 40]
    assert all(e.path.name.startswith("step-") for e in events if isinstance(e, Saved))
    assert stepped[-1].seconds_left == 0
    state = Checkpoints(tmp_path / "checkpoints").load().state
    assert state["history"] == json.loads(json.dumps(history.to_dict()))
    stored = TrainingOptions.from_json(tmp_path / "options.json")
    assert stored == tiny.OPTIONS.with_flags(best_by="chrf")  # no sentence has four words


def test_validation_and_training_leave_no_trace(tmp_path) -> None:
    def noisy(model) -> dict[str, float]:
        torch.rand(100)
        assert not model.training
        return {"bleu": float(torch.rand(()))}

    threads, nets = torch.get_num_threads(), [tiny.model(), tiny.model()]
    options = tiny.OPTIONS.with_flags(steps=10, evaluate_every=2, threads=threads + 1)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    train(nets[0], tiny.pairs(), options, tmp_path / "a", validate=noisy)
    assert torch.equal(torch.rand(3), expected) and torch.get_num_threads() == threads
    train(nets[1], tiny.pairs(), options, tmp_path / "b")
    assert tiny.same_weights(*nets)


def test_a_validation_that_fails_loses_no_step(tmp_path) -> None:
    options = tiny.OPTIONS.with_flags(steps=10, evaluate_every=8, save_every=100)
    given = tiny.model(), tiny.pairs(), options, tmp_path
    with pytest.raises(ZeroDivisionError):
        train(*given, validate=lambda m: {"bleu": 1 / 0})
    assert Checkpoints(tmp_path / "checkpoints").names() == ["step-000008"]
    with pytest.raises(ArgumentError, match=r"a finite score 'bleu' \(.*best_by\); got loss=1.0"):
        train(*given, validate=lambda m: {"loss": 1.0}, resume=True)


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good(tmp_path) -> None:
    net = tiny.model()
    poison = tiny.when(Stepped, 8, lambda: net.output_weight.data[5].fill_(float("nan")))
    with pytest.raises(
        DivergedError, match=r"loss nan.*at step 9.*step-000006.safetensors holds the last"
    ):
        tiny.run(tmp_path, tiny.OPTIONS.with_flags(evaluate_every=100), progress=poison, net=net)
    kept = Checkpoints(tmp_path / "checkpoints").load().model
    assert all(tensor.isfinite().all() for tensor in kept.values())


class Clock:
    """A clock on which every step takes a second, and anything else next to nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("intently.tasks.training.trainer.time.perf_counter", self)

    def __call__(self) -> float:
        self.now += 1e-9
        return self.now

    def listen(self, event: Event) -> None:
        self.now += isinstance(event, Stepped)


def test_the_warm_up_takes_a_fifth_of_the_time_at_most(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    options = tiny.OPTIONS.with_flags(steps=10_000, seconds=50, warmup=500, cooldown=0.0)
    rates: list[float] = []
    ends: list[Event] = []

    def listen(event: Event) -> None:
        clock.listen(event)
        ends.extend([event] if isinstance(event, TimeUp) else [])
        rates.extend([event.learning_rate] if isinstance(event, Stepped) else [])

    _, history = tiny.run(tmp_path / "whole", options, listen)
    assert history.stopped == "time" and ends == [TimeUp(len(rates), 10_000)]
    assert history.checkpoint is not None and history.checkpoint.is_file()
    peak = options.schedule.learning_rate
    top = rates.index(max(rates))
    assert 0.9 * peak < rates[top] <= peak and top <= 12 and 50 <= len(rates) <= 51
    assert rates[:top] == sorted(rates[:top]) and rates[top:] == sorted(rates[top:], reverse=True)
    whole, rates[:] = list(rates), []
    halt = tiny.interrupt(Stepped, 25)
    tiny.run(tmp_path / "cut", options, lambda event: (listen(event), halt(event)))
    tiny.run(tmp_path / "cut", options, listen, resume=True)
    assert rates == pytest.approx(whole)
    free = tiny.OPTIONS.with_flags(steps=15)
    patient = free.with_flags(seconds=10_000)  # time enough for its steps
    runs = [tiny.run(tmp_path / "a", patient, clock.listen), tiny.run(tmp_path / "b", free)]
    a, b = ([at.learning_rate for at in history.records] for _, history in runs)
    assert a == b


def test_a_folder_with_a_run_is_not_overwritten(tmp_path) -> None:
    tiny.run(tmp_path, tiny.OPTIONS.with_flags(steps=2))
    with pytest.raises(
        ArgumentError, match=r"out: .*with step-000002\. Resume it \(--resume, in Py"
    ):
        tiny.run(tmp_path)


def test_a_finished_run_resumed_is_still_finished_and_can_be_lengthened(tmp_path) -> None:
    options = tiny.OPTIONS.with_flags(steps=6, cooldown=0.0)
    first, _ = tiny.run(tmp_path, options)
    again, history = tiny.run(tmp_path, options, resume=True, net=tiny.model(seed=50))
    assert tiny.same_weights(first, again) and history.stopped == "finished"
    longer = options.with_flags(steps=9)
    lengthened, _ = tiny.run(tmp_path, longer, resume=True)
    whole, _ = tiny.run(tmp_path / "whole", longer)
    assert tiny.same_weights(lengthened, whole)


def unsaid(**flags) -> TrainingOptions:
    """The options of the small run without a warm-up and threads."""
    values = tiny.OPTIONS.with_flags(cooldown=0.0, **flags).to_dict()
    values["schedule"]["warmup"] = values["run"]["threads"] = None
    return TrainingOptions.from_dict(values)


def test_what_is_not_given_is_that_of_the_run_wherever_it_goes_on(tmp_path) -> None:
    whole, _ = tiny.run(tmp_path / "whole", unsaid(steps=20).with_flags(warmup=2))
    tiny.run(tmp_path / "run", unsaid(steps=10))
    assert TrainingOptions.from_json(tmp_path / "run" / "options.json").schedule.warmup == 2
    threads, usual = set(), torch.get_num_threads()
    torch.set_num_threads(usual + 1)
    lengthened, _ = tiny.run(
        tmp_path / "run",
        unsaid(steps=20),
        lambda event: threads.add(torch.get_num_threads()),
        resume=True,
    )
    torch.set_num_threads(usual)
    assert threads == {usual} and tiny.same_weights(whole, lengthened)
    with pytest.raises(ArgumentError, match="warmup: expected 2, with which the run began; got 4"):
        tiny.run(tmp_path / "run", unsaid(steps=20).with_flags(warmup=4), resume=True)


def test_from_a_good_checkpoint_before_a_damaged_one(tmp_path) -> None:
    options = tiny.OPTIONS.with_flags(steps=9)
    whole, _ = tiny.run(tmp_path, options)
    damaged = tmp_path / "checkpoints" / "step-000009.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    good = sorted(path.stem for path in damaged.parent.glob("step-*"))[-2]
    with pytest.raises(CheckpointError, match=f"newest good checkpoint is {good}"):
        tiny.run(tmp_path, options, resume=True)
    resumed, history = tiny.run(tmp_path, options, resume=good)
    assert tiny.same_weights(whole, resumed)
    assert history.checkpoint is not None and history.checkpoint.stem == "step-000009"


def test_other_options_and_other_data_are_refused(tmp_path) -> None:
    options = tiny.OPTIONS.with_flags(steps=2)
    tiny.run(tmp_path, options)
    for told, flags in (
        (r"^clip, seed: .*got 9\.0, 6\. Resume with clip=1\.0, seed=5", {"seed": 6, "clip": 9.0}),
        (r"seed: expected 5, with which.*Resume with seed=5", {"seed": 6}),
        ("accumulate: expected 1, with which the run began", {"steps": 4, "accumulate": 2}),
    ):
        with pytest.raises(ArgumentError, match=told):
            tiny.run(tmp_path, options.with_flags(**flags), resume=True)
    with pytest.raises(ArgumentError, match="data: expected the data the run began with"):
        train(tiny.model(), Pairs([[4]], [[4]]), options, tmp_path, resume=True)


def test_other_threads_versions_and_devices_are_told(tmp_path, monkeypatch) -> None:
    options = tiny.OPTIONS.with_flags(steps=2)
    tiny.run(tmp_path, options)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    last = checkpoints.load()
    last.state["device"] = "cuda"
    checkpoints.save("step-000002", last, None)
    monkeypatch.setattr("torch.__version__", "99.0")
    said = r"torch .* → 99\.0, threads 1 → 2, device cuda → cpu\): its weights may differ in their"
    with pytest.warns(UserWarning, match=said):
        tiny.run(tmp_path, options.with_flags(threads=2), resume=True)


@pytest.mark.parametrize(("count", "smoothing"), [(1, 0.0), (3, 0.1)])
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
    taken: list[list[int]] = []

    class Spying(Pairs):
        def batch(self, which: np.ndarray):
            taken.append(which.tolist())
            return super().batch(which)

    spying = tiny.pairs()
    spying.__class__ = Spying
    train(tiny.model(), spying, options, tmp_path)
    steps, taken[:] = list(taken), []
    for number in range(3):
        assert [batch.target_in.shape for batch in epoch(spying, 60, seed=5, number=number)]
    assert len(epoch(spying, 60, seed=5)) % 4
    assert steps == taken[:20]
