"""Beam search over one batch of sentences, without a loop over sentences or hypotheses.

Every sentence has m slots. In a step all continuations of its live beams compete for the slots
that are left; a winner that is EOS has ended and keeps its slot, so the beam narrows until all
slots are taken. With one slot this is greedy decoding. A sentence stops earlier if no live beam can
still reach its n best. A live beam of log-probability p after t tokens ends, if ever, with p' ≤ p
at a length between t + 1 and its limit. The penalty is monotone in the length, so its score is at
most

    bound = max(p / penalty(t + 1), p / penalty(limit)),

and the sentence is done once its n-th best ended hypothesis scores at least the bound of its best
live beam. The n best are then the same as without stopping. (A cut output ranks behind ended ones,
so it cannot displace them.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intently.errors import ArgumentError, build
from intently.nn.models import fast_step
from intently.nn.replay import Replay
from intently.tasks.decoding.hypothesis import Hypothesis, SearchTrace
from intently.tasks.decoding.options import EOS, PAD, SOS, SearchOptions


class SearchModel(Protocol):
    """What a search needs of a model: see `intently.nn.models.Transformer`.

    ``decode`` takes m consecutive target rows for each row of the memory. A memory has
    ``expand(index)``; a cache ``reorder_targets(index)`` and ``reorder_memory(index)``, and records
    the attention in ``history`` and ``cross_keys``; ``replays`` returns the attention settings.
    """

    def encode(self, source: Tensor, lengths: Tensor | None = None, cache: Any = None) -> Any: ...

    def decode(self, target: Tensor, memory: Any, cache: Any = None) -> Tensor: ...

    def new_cache(self, *, keep_queries: bool = False) -> Any: ...

    def new_encoder_cache(self) -> Any: ...

    def replays(self) -> Mapping[str, Replay]: ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...


def decode_batch(
    model: SearchModel,
    source: Tensor,
    lengths: list[int],
    options: SearchOptions,
    keep_attention: bool,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each row of ``source`` (n, s), best first."""
    sizes = torch.tensor(lengths, device=source.device) if min(lengths) < source.shape[1] else None
    read = model.new_encoder_cache() if keep_attention else None
    memory, cache = model.encode(source, sizes, read), model.new_cache(keep_queries=keep_attention)
    step = fast_step.SearchStep(model, memory, cache) if fast_step.serves(model) else None
    cross_keys: dict[str, Tensor] = {}
    beams = Beams([options.limit(n - 1) for n in lengths], options, source.device)
    while True:
        if step is None:
            logits = model.decode(beams.tokens[:, None], memory, cache)[:, -1].clone()
        else:
            logits = step(beams.tokens, memory)
        if keep_attention and not cross_keys:
            cross_keys = cache.cross_keys
        stay = beams.step(logits)
        if not beams.size:
            break
        if stay is not None:
            memory = memory.expand(stay)
            cache.reorder_memory(stay)
        if stay is not None or options.beam > 1:
            cache.reorder_targets(beams.parents[-1])
    trace = None
    if read is not None:
        trace = SearchTrace(
            tuple(lengths), read.history, cache.history, cross_keys, model.replays()
        )
    return beams.hypotheses(trace)


class _Left(NamedTuple):
    """The finished hypotheses, one entry each: ended or cut."""

    sentence: Tensor
    ended: Tensor
    score: Tensor
    step: Tensor
    log_probability: Tensor
    row: Tensor
    token: Tensor
    """The last token: EOS where it ended."""


class Beams:
    """The beams of a batch: n sentences still searched, m slots each, and all past steps."""

    def __init__(self, limits: list[int], options: SearchOptions, device: torch.device) -> None:
        self.options = options
        n = self.size = len(limits)
        self.sentence = torch.arange(n, device=device)
        """Which sentence of the batch each of the remaining ones is, (n,)."""
        self.limit = torch.tensor(limits, device=device)
        self.free = torch.full((n,), options.beam, device=device)
        self.live = torch.zeros(n, 1, device=device)
        """Log-probability of each beam (n, m), −∞ in slots that are taken; m is 1 at first."""
        self.best = torch.full((n, options.n_best), -math.inf, device=device)
        """Scores of the n best that ended, (n, n_best)."""
        self.tokens = torch.full((n,), SOS, device=device)
        """The next input of the decoder, (n·m,)."""
        self.inputs: list[Tensor] = []
        """The `tokens` of each step."""
        self.parents: list[Tensor] = []
        """For each step but the first, (n·m,): the row of the step before that a row continues."""
        self._left: list[_Left] = []
        self._limits = set(limits)
        self._penalties = torch.tensor(
            [options.penalty(i) for i in range(max(limits) + 2)], device=device
        )
        self._latest = self._penalties[self.limit]
        self._forbidden = torch.tensor([PAD, SOS, *options.forbid], device=device)
        self._rows = torch.arange(n * options.beam, device=device)
        self._rank = self._rows[: options.beam]
        self._count = n

    def step(self, logits: Tensor) -> Tensor | None:
        """Choose the next beams from the logits (n·m, V) of the tokens after `tokens`.

        The logits are overwritten. Returns the sentences that stay, None if all do;
        `tokens` and the last of `parents` are those of the next step.
        """
        self.inputs.append(self.tokens)
        length = len(self.inputs)
        n, m = self.live.shape
        scores = self._continuations(logits, length)
        values, index = best_continuations(scores.view(n, m, -1), self.live, self.options.beam)
        row, token = self._rows[: n * m : m, None], index
        if m > 1:
            vocabulary = logits.shape[-1]
            row, token = row + index // vocabulary, index % vocabulary
        row = row.expand_as(token)
        if self._left:  # else all slots are free
            values = values.masked_fill(self._rank >= self.free[:, None], -math.inf)

        left = token == EOS
        if length in self._limits:
            left = left | (self.limit == length)[:, None]
        if bool(left.any()):
            left = left & (values > -math.inf)
            ended = left & (token == EOS)
            score = values / self._penalties[length]
            step = torch.full_like(row, length - 1)
            sentence = self.sentence[:, None].expand_as(row)
            columns = (sentence, ended, score, step, values, row, token)
            self._left.append(_Left(*(x[left] for x in columns)))
            self.free = self.free - ended.sum(-1)
            competing = torch.cat([self.best, score.masked_fill(~ended, -math.inf)], -1)
            self.best = competing.topk(self.options.n_best).values
            values = values.masked_fill(left, -math.inf)
        self.live = values
        stay = None
        if self._may_be_done() and bool((done := self._done(length)).any()):
            if bool(self.live.isnan().any()):
                raise build(
                    ArgumentError,
                    "model",
                    "finite logits",
                    f"NaN in step {length}",
                    "training diverged, or its weights are damaged",
                    "check the training loss",
                )
            stay = (~done).nonzero()[:, 0]
            self._keep(stay)
            row, token = row[stay], token[stay]
        self.tokens = token.flatten()
        self.parents.append(row.flatten())
        return stay

    def _continuations(self, logits: Tensor, length: int) -> Tensor:
        """Log-probabilities (n·m, V) of every token after the beams, in place of the logits."""
        if logits.element_size() < 4:
            logits = logits.float()
        scores = torch.log_softmax(logits, -1, out=logits)
        if length == 1 and max(self.options.forbid, default=0) >= scores.shape[-1]:
            raise build(
                ArgumentError,
                "forbid",
                f"ids below the vocabulary's size {scores.shape[-1]}",
                max(self.options.forbid),
            )
        scores.index_fill_(-1, self._forbidden, -math.inf)
        if length <= self.options.min_length:
            scores[:, EOS] = -math.inf
        return scores

    def _may_be_done(self) -> bool:
        """Whether a hypothesis has ended, or a beam is dead or NaN: a cheap test."""
        return bool(self._left) or not math.isfinite(self.live.sum())

    def _done(self, length: int) -> Tensor:
        """Sentences (n,) whose n best are final."""
        alive = self.live.amax(-1)
        if not self._left:
            return ~(alive > -math.inf)
        bound = torch.maximum(alive / self._penalties[length + 1], alive / self._latest)
        return ~(alive > -math.inf) | (self.best[:, -1] >= bound)

    def _keep(self, stay: Tensor) -> None:
        self.size = len(stay)
        self.sentence, self.limit = self.sentence[stay], self.limit[stay]
        self._latest = self._latest[stay]
        self.free, self.live, self.best = self.free[stay], self.live[stay], self.best[stay]

    def hypotheses(self, trace: SearchTrace | None) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each sentence of the batch, best first."""
        left = _Left(*(torch.cat(parts) for parts in zip(*self._left))) if self._left else None
        chosen = [[]] if left is None else self._choose(left)
        if left is None or not all(chosen):
            raise build(
                ArgumentError,
                "forbid",
                "a token that may be produced at every step",
                f"{len(self.options.forbid):,} forbidden",
                "all others are forbidden, or have probability 0",
            )
        pick = torch.tensor(list(chain.from_iterable(chosen)), device=left.row.device)
        left = _Left(*(column[pick] for column in left))
        paths, inputs = self._trace_back(left.step, left.row)
        found: list[list[Hypothesis]] = [[] for _ in chosen]
        for path, read, (sentence, ended, score, step, total, _, token) in zip(
            paths.cpu(), inputs.tolist(), zip(*(column.tolist() for column in left))
        ):
            ids = read[1 : step + 1] + ([] if ended else [token])
            rows = None if trace is None else path[: step + 1]
            found[sentence].append(Hypothesis(ids, total, score, ended, trace, sentence, rows))
        return found

    def _choose(self, left: _Left) -> list[list[int]]:
        """Return the indices in ``left`` of the n best of each sentence, best first."""
        ended, score = left.ended.tolist(), left.score.tolist()
        found: list[list[int]] = [[] for _ in range(self._count)]
        for i, sentence in enumerate(left.sentence.tolist()):
            found[sentence].append(i)
        for of_one in found:
            of_one.sort(key=lambda i: (not ended[i], -score[i], i))
        return [of_one[: self.options.n_best] for of_one in found]

    def _trace_back(self, step: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows and input tokens (k, steps) on the paths to ``row`` (k,) at ``step`` (k,)."""
        last = int(step.max())
        rows, inputs = [], []
        at = torch.zeros_like(row)
        for t in range(last, -1, -1):
            at = torch.where(step == t, row, at)
            rows.append(at)
            inputs.append(self.inputs[t][at])
            if t:
                at = self.parents[t - 1][at]
        return torch.stack(rows[::-1], -1), torch.stack(inputs[::-1], -1)


BLOCK = 64
"""Scores that one maximum stands for."""

SMALL = 2**15
"""Scores that are searched directly: finding blocks takes longer."""


def best_continuations(scores: Tensor, live: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best of scores (n, m, V) + live (n, m, 1) and their indices in m·V, best first.

    Ties are broken by index. Where m·V < k, −∞ fills up.
    """
    size = scores[0].numel()
    if k == live.shape[1] == 1 and scores.numel() < SMALL:
        values, index = scores[:, 0].max(-1, keepdim=True)  # the first of equal ones
        return values + live, index
    values, index = largest(scores, live, min(k + 1, size))
    tied = (values[:, 1:] == values[:, :-1]).any(-1)
    values, index = values[:, :k], index[:, :k]
    if bool(tied.any()):
        which = tied.nonzero()[:, 0]
        sums = (scores[which] + live[which][..., None]).flatten(1)
        ordered = sums.sort(dim=-1, descending=True, stable=True)
        values[which] = ordered.values[:, :k]
        index[which] = ordered.indices[:, :k]
    if size < k:
        values = F.pad(values, (0, k - size), value=-math.inf)
        index = F.pad(index, (0, k - size))
    return values, index


def largest(scores: Tensor, live: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best as `best_continuations` does, ties in any order; fast for long rows.

    Each block of scores is represented by its maximum. A score outside the k blocks with the
    largest maxima has at least k scores that are no smaller, so these blocks are enough. Sums are
    formed only where needed.
    """
    n, m, size = scores.shape
    blocks = size // BLOCK
    if m * blocks < 4 * k or scores.numel() < SMALL:
        values, index = (scores + live[..., None]).flatten(1).topk(k)
        return values, index
    whole, device = blocks * BLOCK, scores.device
    most = scores[..., :whole].unflatten(-1, (blocks, BLOCK)).amax(-1)
    top = (most + live[..., None]).flatten(1).topk(k).indices
    first = top * BLOCK if whole == size else top // blocks * size + top % blocks * BLOCK
    near = (first[..., None] + torch.arange(BLOCK, device=device)).flatten(1)
    if whole < size:
        rest = torch.arange(m * size, device=device).view(m, size)[:, whole:]
        near = torch.cat([near, rest.reshape(1, -1).expand(n, -1)], 1)
    sums = scores.flatten(1).gather(1, near) + live.gather(1, near // size)
    values, index = sums.topk(k)
    return values, near.gather(1, index)
