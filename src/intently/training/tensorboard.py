"""The events of a run as curves for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from intently.errors import MissingLibraryError, build
from intently.training.events import Evaluated, Event, Saved, Stepped

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def check_installed() -> None:
    """Raise `MissingLibraryError` where tensorboard is not installed."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise build(
            MissingLibraryError,
            "tensorboard",
            "the library tensorboard",
            "an environment without it",
            fix="install it by pip install 'intently[tensorboard]', or leave tensorboard off",
        ) from None


class TensorBoard:
    """Writes loss, learning rate, tokens per second and dev scores of each step into a folder.

    A listener for `train(progress=…)`, used in a ``with`` statement. A resumed run writes into the
    same folder and replaces the curves after its checkpoint.
    Raises `MissingLibraryError` if tensorboard is not installed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:  # doctest: +SKIP
    ...     with TensorBoard(folder) as board:
    ...         history = train(model, pairs, options, "run", progress=board)
    """

    def __init__(self, folder: Path | str) -> None:
        check_installed()
        from torch.utils.tensorboard import SummaryWriter

        self._folder, self._make = Path(folder), SummaryWriter
        self._writer: SummaryWriter | None = None

    def __call__(self, event: Event) -> None:
        """Take an event."""
        writer = self._writer
        if isinstance(event, Saved) and writer is not None:
            writer.flush()
        if not isinstance(event, Stepped | Evaluated):
            return
        if writer is None:
            # an evaluation of step n comes after its loss, which stays
            first = event.step if isinstance(event, Stepped) else event.step + 1
            writer = self._writer = self._make(str(self._folder), purge_step=first)
        if isinstance(event, Stepped):
            writer.add_scalar("train/loss", event.loss, event.step)
            writer.add_scalar("train/learning_rate", event.learning_rate, event.step)
            writer.add_scalar("train/tokens_per_second", event.tokens_per_second, event.step)
        else:
            for name, score in event.scores.items():
                writer.add_scalar(f"dev/{name}", score, event.step)
            writer.flush()

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.close()
