"""The options of a search, and the length penalty that compares hypotheses."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from intently.errors import ArgumentError, KindError, build
from intently.foundation.checks import is_number, whole_number

PAD, SOS, EOS = 0, 1, 2  # the same in every tokenizer: intently.tasks.text.SPECIALS


WIDEST = 10_000
"""The widest beam: one step of it takes seconds."""

LONGEST = 100_000
"""The longest output, in tokens."""

STEEPEST = 6
"""The largest α, either way: in float32 scores stay far from 0 and ∞ after 100,000 tokens."""


@dataclass(frozen=True)
class SearchOptions:
    """The options of `search`.

    ``beam`` is how many hypotheses are followed at once, at most 10,000; 1 takes the likeliest
    token at every step. ``n_best`` ≤ ``beam`` are returned. ``length_penalty`` is α of
    `penalty`, from −6 to 6: 0 compares plain log-probabilities, more prefers longer outputs. An
    output holds at least ``min_length`` tokens (EOS not counted) and is cut after ``max_length``
    (by default twice the number of source tokens plus ten; at most 100,000). PAD and SOS are never
    produced, nor are the ids in ``forbid``.

    Raises `ArgumentError` if the numbers contradict each other, `KindError` for wrong types.

    >>> SearchOptions(beam=4, n_best=2).limit(6)
    22
    """

    beam: int = 5
    n_best: int = 1
    length_penalty: float = 0.6
    max_length: int | None = None
    min_length: int = 0
    forbid: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        whole_number(self.beam, "beam", 1, WIDEST)
        whole_number(self.n_best, "n_best", 1)
        whole_number(self.min_length, "min_length", 0, LONGEST)
        if self.n_best > self.beam:
            raise build(
                ArgumentError,
                "n_best",
                f"at most beam={self.beam}",
                self.n_best,
                "a beam of that width ends with that many hypotheses",
                "widen the beam",
            )
        alpha = self.length_penalty
        if not is_number(alpha):
            raise build(KindError, "length_penalty", "a number", repr(alpha))
        if not -STEEPEST <= alpha <= STEEPEST:
            expected = f"a number from −{STEEPEST} to {STEEPEST}"
            raise build(ArgumentError, "length_penalty", expected, alpha)
        if self.max_length is not None:
            whole_number(self.max_length, "max_length", 1, LONGEST)
            if self.min_length >= self.max_length:
                raise build(
                    ArgumentError,
                    "min_length",
                    f"less than max_length={self.max_length}",
                    self.min_length,
                    "EOS needs a step of its own",
                )
        if not isinstance(self.forbid, Collection):
            raise build(KindError, "forbid", "a tuple of token ids", repr(self.forbid))
        for token in self.forbid:
            whole_number(token, "forbid", 0)
        if EOS in self.forbid:
            raise build(
                ArgumentError,
                "forbid",
                f"ids other than EOS={EOS}",
                f"{EOS} among them",
                "without it no output ends",
                "set min_length",
            )

    def limit(self, source_length: int) -> int:
        """Return the maximum output length for a source of this many tokens without EOS."""
        if self.max_length is not None:
            return self.max_length
        return max(2 * source_length + 10, self.min_length + 1)

    def penalty(self, length: float) -> float:
        """Return ((5 + length) / 6)^α, the divisor of an output's log-probability.

        ``length`` counts the produced tokens, EOS included.

        Source: Wu et al. 2016, "Google's Neural Machine Translation System", equation 14.

        >>> SearchOptions(length_penalty=1.0).penalty(7)
        2.0
        """
        return ((5 + length) / 6) ** self.length_penalty


def checked(options: SearchOptions | None) -> SearchOptions:
    """Return the options, or the defaults for None; raises `KindError` for other types.

    >>> checked(None) == SearchOptions()
    True
    """
    if options is None:
        return SearchOptions()
    if not isinstance(options, SearchOptions):
        expected, fix = "SearchOptions or None", "write SearchOptions(beam=3)"
        raise build(KindError, "options", expected, repr(options)[:60], fix=fix)
    return options
