"""The steps of a recurrent decoder: how the context is combined with the next word.

Three papers, three rules. x is the word read, s the decoder's state, c the context:

    fixed        s = cell([x; c], s)                           one c for all steps (Cho)
    searching    c = look(s);  s = cell([x; c], s)             attended before the step (Bahdanau)
    attentional  s = cell([x; h], s);  h = tanh(W [look(s); s])    attended after it (Luong)

Without input feeding, the cell reads only x, so all steps run in parallel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from intently.nn.linear import Linear, xavier
from intently.nn.recurrent import AttentionalVector

CELLS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
"""Elman 1990; Hochreiter & Schmidhuber 1997; Cho et al. 2014."""

Look = Callable[[Tensor], Tensor]
"""The contexts (n, t, c) that states (n, t, c) take."""


class Carried(NamedTuple):
    """The state between two steps: states (layers, n, c), the attentional vector (n, 1, c).

    An LSTM has two states, its output and its memory cell; only `Attentional` feeds a vector.
    """

    state: tuple[Tensor, ...]
    feed: Tensor | None = None

    def rows(self, pick: Callable[[Tensor], Tensor]) -> Carried:
        """Return ``pick`` applied to the rows (n, …) of each part."""
        state = tuple(pick(x.transpose(0, 1)).transpose(0, 1).contiguous() for x in self.state)
        return Carried(state, None if self.feed is None else pick(self.feed))


class RecurrentSteps(nn.Module):
    """Cells of ``layers`` layers, which with ``feeding`` read another vector beside the word.

    Called with the embedded words x, the states before and a `Look`, they return the states
    (n, t, c) before the output projection, and those to continue from.
    """

    def __init__(self, cell: str, width: int, layers: int, feeding: bool, dropout: float) -> None:
        super().__init__()
        self.feeding = feeding
        between = dropout if layers > 1 else 0.0
        wide = 2 * width if feeding else width
        self.cell = CELLS[cell](wide, width, layers, batch_first=True, dropout=between)

    def _run(
        self, x: Tensor, beside: Tensor | None, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The states (n, t, c) of the top layer, and the last ones of all layers."""
        read = x if beside is None else torch.cat([x, beside], -1)
        y, last = self.cell(read, state[0] if len(state) == 1 else state)
        return y, last if isinstance(last, tuple) else (last,)


class Maxout(nn.Module):
    """The larger of two linear maps of [s; x; c], unit by unit: the deep output.

    Source: Bahdanau et al. 2015, section 3.1, equation 4 and appendix A.2.2, where the state is
    taken before the step; here it is taken after it, as in equation 4 and in Cho et al. 2014,
    "Learning Phrase Representations", appendix A.1.2.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.join = Linear(3 * width, 2 * width)
        xavier(self.join)

    def forward(self, states: Tensor, x: Tensor, contexts: Tensor) -> Tensor:
        return self.join(torch.cat([states, x, contexts], -1)).unflatten(-1, (-1, 2)).amax(-1)


class Fixed(RecurrentSteps):
    """Every step has the same context: the fixed vector.

    Source: Cho et al. 2014, "Learning Phrase Representations using RNN Encoder–Decoder", section
    2.2 and appendix A.1.2. Without feeding, only the cell's first state contains it, as in
    Sutskever et al. 2014, "Sequence to Sequence Learning with Neural Networks"; only the output
    then reads it at every step.
    """

    def __init__(self, cell: str, width: int, layers: int, feeding: bool, dropout: float) -> None:
        super().__init__(cell, width, layers, feeding, dropout)
        self.output = Maxout(width)

    def forward(self, x: Tensor, carried: Carried, look: Look) -> tuple[Tensor, Carried]:
        contexts = look(x)
        y, state = self._run(x, contexts if self.feeding else None, carried.state)
        return self.output(y, x, contexts), Carried(state)


class Searching(Fixed):
    """Every step attends with the state before it, as in Bahdanau et al. 2015.

    Source: section 3.1, equations 4 to 6 and appendix A.2.2.
    """

    def forward(self, x: Tensor, carried: Carried, look: Look) -> tuple[Tensor, Carried]:
        state = carried.state
        if self.feeding:
            ys, taken = [], []
            for word in x.split(1, 1):
                taken.append(look(state[0][-1][:, None]))
                y, state = self._run(word, taken[-1], state)
                ys.append(y)
            y, contexts = torch.cat(ys, 1), torch.cat(taken, 1)
        else:
            before = state[0][-1][:, None]
            y, state = self._run(x, None, state)
            contexts = look(torch.cat([before, y[:, :-1]], 1))
        return self.output(y, x, contexts), Carried(state)


class Attentional(RecurrentSteps):
    """Every step attends with its own state; the next step reads the attentional vector.

    Source: Luong et al. 2015, section 3, equation 5, and section 3.3 (input feeding).
    """

    def __init__(self, cell: str, width: int, layers: int, feeding: bool, dropout: float) -> None:
        super().__init__(cell, width, layers, feeding, dropout)
        self.vector = AttentionalVector(width, width, bias=False)

    def forward(self, x: Tensor, carried: Carried, look: Look) -> tuple[Tensor, Carried]:
        state, feed = carried
        if not self.feeding:
            y, state = self._run(x, None, state)
            return self.vector(look(y), y), Carried(state)
        made = []
        for word in x.split(1, 1):
            y, state = self._run(word, torch.zeros_like(word) if feed is None else feed, state)
            feed = self.vector(look(y), y)
            made.append(feed)
        return torch.cat(made, 1), Carried(state, feed)
