"""A run so small that it takes a second: copying tokens, with dropout and every kind of state."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from intently.nn.models.kinds import new_model
from intently.nn.models.transformer import Transformer
from intently.tasks.training import DevSet, Event, History, Pairs, Stepped, TrainingOptions, train
from intently.tasks.training.progress import Listener

OPTIONS = TrainingOptions().with_flags(
    width=16,
    heads=2,
    encoder_layers=1,
    decoder_layers=1,
    inner=32,
    dropout=0.2,
    steps=40,
    warmup=10,
    cooldown=0.2,
    batch_tokens=60,
    save_every=3,
    evaluate_every=8,
    keep=2,
    threads=1,
    seed=5,
    learning_rate=0.01,
)


def pairs(count: int = 60, seed: int = 0) -> Pairs:
    """Random sentences, to be copied."""
    random = np.random.default_rng(seed)
    sentences = [random.integers(4, 16, random.integers(1, 8)).tolist() for _ in range(count)]
    return Pairs(sentences, sentences)


def model(seed: int = 3, options: TrainingOptions = OPTIONS) -> Transformer:
    """A new model with weights from ``seed``."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        made = new_model(options.shape(16, 16))
    assert isinstance(made, Transformer)
    return made


def dev_set() -> DevSet:
    """Two sentences; a short search, since an untrained model does not end."""
    return DevSet([[4, 5], [6]], ["4 5", "6"], decode=lambda ids: " ".join(map(str, ids)))


def run(
    out: Path | str,
    options: TrainingOptions = OPTIONS,
    progress: Listener | None = None,
    resume: bool | str = False,
    net: Transformer | None = None,
) -> tuple[Transformer, History]:
    """Train and return the model with the history."""
    net = model() if net is None else net
    history = train(
        net, pairs(), options, out, validate=dev_set(), progress=progress, resume=resume
    )
    return net, history


def when(kind: type, step: int, act: Callable[[], object]) -> Listener:
    """A listener that acts when it is told this kind of event at this step."""

    def listen(event: Event) -> None:
        if isinstance(event, kind) and event.step == step:
            act()

    return listen


def interrupt(kind: type, step: int, number: int = signal.SIGINT) -> Listener:
    """A listener that sends the process a signal at an event, as Ctrl-C does."""
    return when(kind, step, lambda: signal.raise_signal(number))


def losses(found: list[float]) -> Listener:
    """A listener that appends the loss of every step to ``found``."""
    return lambda event: found.append(event.loss) if isinstance(event, Stepped) else None


def same_weights(one: Transformer, other: Transformer) -> bool:
    """Whether the two models are equal to the last bit."""
    return all(
        torch.equal(a.view(torch.int32), b.view(torch.int32))
        for a, b in zip(one.parameters(), other.parameters(), strict=True)
    )


def _say(event: Event) -> None:
    """Print the event, and wait for a line: who reads is never behind."""
    print(type(event).__name__, event.step, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    run(sys.argv[1], progress=_say, resume=True)
