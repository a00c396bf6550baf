"""Scores of a translator: exact match, BLEU, chrF, alignment error, and what its *it* looks at."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch

from intently import edits
from intently.core.masks import allowed
from intently.core.matrix import Dense, LazyMatrix, Merged
from intently.core.matrix.alignment import Alignment, alignment_error_rate
from intently.errors import ArgumentError, build
from intently.nn.models.kinds import cross_heads
from intently.observe import edit
from intently.tasks.corpora import Pair, Pronoun
from intently.tasks.decoding import SearchOptions
from intently.tasks.decoding.search import padded
from intently.tasks.text import EOS, SOS, words
from intently.tasks.text.words import word_spans
from intently.tasks.training.metrics import (
    Metric,
    bleu,
    check_references,
    chrf,
    exact_match,
    suitable,
)
from intently.tasks.translation.translator import AlignmentHead, TranslationWarning, Translator

GREEDY = SearchOptions(beam=1)
BATCH = 64
"""Sentences per batch when attention is computed."""

FINAL = (".", "?", "!", "。")


@dataclass(frozen=True)
class Scores:
    """Scores of a translator on a list of sentence pairs.

    ``exact`` is the share of outputs equal to the reference. ``bleu`` and ``lowercased`` are of
    detokenised text. ``suitable`` names the score that suits the references: see
    `training.metrics.suitable`.
    ``pronouns`` is the share of the ``because`` sentences whose pronoun has the right gender, None
    if the corpus does not mark pronouns.
    """

    sentences: int
    exact: float
    bleu: Metric
    lowercased: Metric
    chrf: Metric
    suitable: str = "bleu"
    pronouns: float | None = None
    because: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def evaluate(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    options: SearchOptions = GREEDY,
    *,
    bootstrap: int = 0,
) -> tuple[Scores, list[str]]:
    """Translate ``sources``, score the outputs against one reference each, and return both.

    With ``bootstrap``, a number of resampled corpora, every BLEU has a 95 % interval. Raises
    `ArgumentError` if the two differ in number or are empty. One `TranslationWarning` counts the
    lines with notes.
    """
    check_references("sources", sources, references)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TranslationWarning)
        made = [(found.text, found.notes) for found in translator.stream(sources, options)]
    texts = [text for text, _ in made]
    noted = [f"line {i}: {notes[0]}" for i, (_, notes) in enumerate(made) if notes]
    if noted:
        told = f"{len(noted):,} of {len(made):,} lines have notes, the first is {noted[0]}"
        warnings.warn(told, TranslationWarning, stacklevel=2)
    scores = Scores(
        sentences=len(texts),
        exact=exact_match(texts, references),
        bleu=bleu(texts, references, bootstrap=bootstrap),
        lowercased=bleu(texts, references, lowercase=True, bootstrap=bootstrap),
        chrf=chrf(texts, references),
        suitable=suitable(references),
    )
    return scores, texts


def evaluate_pairs(translator: Translator, pairs: Sequence[Pair]) -> Scores:
    """Score greedy translations of built-in pairs, including their pronouns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TranslationWarning)
        scores, texts = evaluate(
            translator, [pair.source for pair in pairs], [pair.target for pair in pairs]
        )
    right = [
        pronoun(text) == pair.pronoun.expected for pair, text in zip(pairs, texts) if pair.pronoun
    ]
    if not right:
        return scores
    return replace(scores, pronouns=sum(right) / len(right), because=len(right))


def pronoun(text: str) -> str | None:
    """Return the last il, elle, ils or elles of a sentence, the one of the because-clause.

    >>> pronoun("Il n'a pas bu le lait parce qu'elle était fatiguée.")
    'elle'
    """
    found = [word for word in words(text.lower()) if word in ("il", "elle", "ils", "elles")]
    return found[-1] if found else None


# --- word alignment -----------------------------------------------------------------------------


@torch.no_grad()
def forced(
    translator: Translator, pairs: Sequence[tuple[str, str]]
) -> Iterator[dict[str, LazyMatrix]]:
    """Yield every layer's attention, merged to words, under forced decoding of each target.

    Rows of cross-attention belong to the produced words; EOS is left out.
    """
    for start in range(0, len(pairs), BATCH):
        batch = pairs[start : start + BATCH]
        read, written = translator.source_tokenizer, translator.target_tokenizer
        s_ids = [[*ids, EOS] for ids in read.encode_batch(s for s, _ in batch)]
        t_ids = [[SOS, *ids] for ids in written.encode_batch(t for _, t in batch)]
        device = next(translator.model.parameters()).device
        lengths = torch.tensor([len(ids) for ids in s_ids], device=device)
        attentions = translator.model.attentions(
            padded(s_ids).to(device), padded(t_ids).to(device), lengths
        )
        weights = {name: matrix.dense() for name, matrix in attentions.items()}
        for i, (source, target) in enumerate(batch):
            s, t = len(s_ids[i]), len(t_ids[i])
            columns = read.word_groups(source, s_ids[i])
            rows = written.word_groups(target, t_ids[i][1:])
            s_words, t_words = words(source), words(target)
            cross = cross_heads(translator.model.options)
            yield {
                name: Merged(Dense(w[i, :, :s, :s]), columns, columns).label(s_words, s_words)
                if name.startswith("encoder")
                else Merged(Dense(w[i, :, :t, :s]), rows, columns).label(t_words, s_words)
                for name, w in weights.items()
                if name.startswith("encoder") or name in cross
            }


def links(
    weights: torch.Tensor, source: Sequence[str], target: Sequence[str]
) -> set[tuple[int, int]]:
    """Return the links (source, target) of weights (words, words): each row's largest weight.

    The final full stop of either side gets no links: neither its own row, nor a row that attends to
    it most.

    >>> weights = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.1, 0.8]])
    >>> sorted(links(weights, ["He", "sleeps", "."], ["Il", "dort", "."]))
    [(0, 0), (1, 1)]
    """
    rows, columns = (
        len(words) - 1 if words and words[-1] in FINAL else len(words) for words in (target, source)
    )
    heaviest = weights.argmax(-1).tolist()
    return {(j, i) for i, j in enumerate(heaviest) if i < rows and j < columns}


def alignment_errors(translator: Translator, pairs: Sequence[Pair]) -> dict[AlignmentHead, float]:
    """Return the alignment error rate of every cross-attention head under forced decoding.

    Rows are produced words; the final full stop and its gold links are left out. Raises
    `ArgumentError` if there are no pairs, or the model has no attention. Source: Och & Ney 2003,
    section 5.1.
    """
    if not pairs:
        raise build(ArgumentError, "pairs", "at least one pair with its gold alignment", "none")
    cross = cross_heads(translator.model.options)
    if not cross:
        raise build(ArgumentError, "translator", "a model with attention", "one without")
    predicted: dict[AlignmentHead, list[set[tuple[int, int]]]] = defaultdict(list)
    gold = [without_stop(pair) for pair in pairs]
    sides = [(pair.source, pair.target) for pair in pairs]
    for pair, matrices in zip(pairs, forced(translator, sides)):
        for name, matrix in matrices.items():
            if name in cross:
                for head, weights in enumerate(matrix.dense()):
                    found = links(weights, pair.source_words, pair.target_words)
                    predicted[AlignmentHead(name, head)].append(found)
    return {head: alignment_error_rate(found, gold) for head, found in predicted.items()}


def without_stop(pair: Pair) -> Alignment:
    """Return the gold links of a pair except those of the final full stop, see `links`."""
    stop = len(pair.target_words) - 1 if pair.target_words[-1] in FINAL else -1
    sure, possible = (
        frozenset(link for link in side if link[1] != stop)
        for side in (pair.alignment.sure, pair.alignment.possible)
    )
    return Alignment(sure, possible)


def best_alignment_head(
    translator: Translator, pairs: Sequence[Pair]
) -> tuple[AlignmentHead, float]:
    """Return the head with the lowest alignment error on ``pairs``, and that error.

    Raises `ArgumentError` if there are no pairs, or the model has no attention.
    """
    errors = alignment_errors(translator, pairs)
    head = min(errors, key=lambda h: errors[h])
    return head, errors[head]


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
