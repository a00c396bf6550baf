"""What *it* looks at, and whether that decides how *it* is translated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from intently import edits
from intently.core.masks import allowed
from intently.core.matrix import LazyMatrix
from intently.errors import ArgumentError, build
from intently.observe import edit
from intently.tasks.corpora import Pair, Pronoun
from intently.tasks.text import EOS, SOS
from intently.tasks.text.words import word_spans
from intently.tasks.translation.evaluation import forced
from intently.tasks.translation.translator import AlignmentHead, Translator


def noun_choices(translator: Translator, pairs: Sequence[Pair]) -> dict[AlignmentHead, float]:
    """Return how often *it* prefers the right noun to the wrong one, for every encoder head."""

    def prefers(matrix: LazyMatrix, pair: Pair, p: Pronoun) -> torch.Tensor:
        row = matrix[..., p.source, :]
        return row[:, p.right] > row[:, p.wrong]

    return _shares(translator, pairs, "encoder", prefers)


def telling_choices(translator: Translator, pairs: Sequence[Pair]) -> dict[AlignmentHead, float]:
    """Return how often each cross-attention head attends most to the word that decides il or elle.

    That word is the adjective at the end of a because-sentence, seen from the row that writes the
    pronoun: *tired* means that *it* is the animal, *wide* that it is the road.
    """

    def tells(matrix: LazyMatrix, pair: Pair, p: Pronoun) -> torch.Tensor:
        telling = len(pair.source_words) - 2  # before the full stop
        return matrix[..., p.target, :].argmax(-1) == telling

    return _shares(translator, pairs, "decoder", tells)


def _shares(
    translator: Translator,
    pairs: Sequence[Pair],
    side: str,
    right: Callable[[LazyMatrix, Pair, Pronoun], torch.Tensor],
) -> dict[AlignmentHead, float]:
    """Return the share of marked pairs in which a head is right, for every head over the source.

    ``side`` is "encoder" or "decoder"; ``right`` returns a boolean for each head (h,). Raises
    `ArgumentError` if no pair has a marked pronoun.
    """
    marked = _marked(pairs)
    count: dict[AlignmentHead, int] = defaultdict(int)
    sides = [(pair.source, pair.target) for pair, _ in marked]
    for (pair, pronoun), matrices in zip(marked, forced(translator, sides)):
        for name, matrix in matrices.items():
            if name.startswith(side):
                for head, found in enumerate(right(matrix, pair, pronoun).tolist()):
                    count[AlignmentHead(name, head)] += found
    return {head: n / len(marked) for head, n in count.items()}


def _marked(pairs: Sequence[Pair]) -> list[tuple[Pair, Pronoun]]:
    """Return the pairs with a marked pronoun, and that; raise `ArgumentError` if there are none."""
    found = [(pair, pair.pronoun) for pair in pairs if pair.pronoun]
    if not found:
        raise build(ArgumentError, "pairs", "because-sentences with a marked pronoun", "none")
    return found


class Flips(NamedTuple):
    """How often one forbidden cell of a head turns *il* into *elle*, or the other way round.

    ``noun`` is the share of ``sentences`` in which the cell (*it*, its noun) does, ``others`` the
    share of all other cells of the row of *it*.
    """

    noun: float
    others: float
    sentences: int


@torch.no_grad()
def flips(translator: Translator, pairs: Sequence[Pair], head: AlignmentHead) -> Flips:
    """Forbid each cell in the row of *it*, one at a time, in an encoder head, and count the flips.

    Of ``pairs`` count those whose two nouns differ in gender and whose pronoun the unedited model
    gets right. The pronoun is that of the two with the larger logit after the reference's words up
    to there. The forbidden cell's weight goes to the other keys, see
    `intently.edits.forbid`. Raises `ArgumentError` if there is no such pair.
    """
    noun, others = [], []
    for pair, p in _marked(pairs):
        if p.expected == p.other:
            continue
        read, written = translator.source_tokenizer, translator.target_tokenizer
        source = [*read.encode(pair.source), EOS]
        ids = written.encode(pair.target)
        at = written.word_groups(pair.target, ids)[p.target][0]
        start, end = word_spans(pair.target)[p.target]
        other = written.encode(pair.target[:start] + p.other + pair.target[end:])
        right, wrong = ids[at], other[at]
        cells = read.word_groups(pair.source, source)
        rows = len(source)
        forbidden = torch.zeros(1 + rows, 1, rows, rows, dtype=torch.bool)
        for key in range(rows):  # the first text of the batch stays as it is
            forbidden[1 + key, :, cells[p.source], key] = True
        done = edits.forbid(allowed(forbidden), heads=[head.head])
        with edit(translator.model, {head.layer: done}):
            logits = translator.model(
                torch.tensor([source]).expand(1 + rows, -1),
                torch.tensor([[SOS, *ids[:at]]]).expand(1 + rows, -1),
            )[:, -1]
        prefers = (logits[:, right] > logits[:, wrong]).tolist()
        if prefers[0]:
            for key, stays in enumerate(prefers[1:]):
                (noun if key in cells[p.right] else others).append(not stays)
    if not noun:
        expected = "because-sentences with nouns of two genders that the model gets right"
        raise build(ArgumentError, "pairs", expected, "none")
    return Flips(sum(noun) / len(noun), sum(others) / len(others), len(noun))
