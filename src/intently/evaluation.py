"""How good a translator is: exact match, BLEU, chrF, alignment error, and what *it* looks at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from intently.corpora import Alignment, Pair, alignment_error_rate
from intently.decoding import SearchOptions
from intently.errors import ArgumentError, build
from intently.matrix import Dense, LazyMatrix, Merged
from intently.modules import MultiHeadAttention
from intently.text import EOS, PAD, SOS, words
from intently.training.metrics import Score, bleu, chrf, exact_match
from intently.translator import AlignmentHead, Translation, Translator

GREEDY = SearchOptions(beam=1)
BATCH = 64
"""Sentences whose attention is computed together."""

FINAL = (".", "?", "!", "。")


@dataclass(frozen=True)
class Evaluation:
    """Scores of a translator on a list of sentence pairs.

    ``exact`` is the share of outputs equal to the reference; ``pronouns`` the share of pronouns of
    because-sentences with the right gender, None where the corpus does not mark them.
    """

    sentences: int
    exact: float
    bleu: Score
    chrf: Score
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
) -> tuple[Evaluation, list[Translation]]:
    """Translate ``sources`` and score the outputs against one reference each."""
    found = translator.translate(sources, options)
    texts = [translation.text for translation in found]
    scores = Evaluation(
        len(texts), exact_match(texts, references), bleu(texts, references), chrf(texts, references)
    )
    return scores, found


def evaluate_pairs(translator: Translator, pairs: Sequence[Pair]) -> Evaluation:
    """Score greedy translations of built-in pairs, their pronouns too."""
    scores, found = evaluate(
        translator, [pair.source for pair in pairs], [pair.target for pair in pairs]
    )
    marked = [(pair, made) for pair, made in zip(pairs, found) if pair.pronoun]
    if not marked:
        return scores
    right = sum(_pronoun(made.text) == pair.pronoun.expected for pair, made in marked if pair.pronoun)
    return Evaluation(
        scores.sentences, scores.exact, scores.bleu, scores.chrf, right / len(marked), len(marked)
    )


def _pronoun(text: str) -> str | None:
    """Return the last il, elle, ils or elles of a sentence, the one of the because-clause."""
    found = [word for word in words(text.lower()) if word in ("il", "elle", "ils", "elles")]
    return found[-1] if found else None


# --- word alignment -----------------------------------------------------------------------------


@torch.no_grad()
def forced(
    translator: Translator, pairs: Sequence[tuple[str, str]]
) -> Iterator[dict[str, LazyMatrix]]:
    """Yield every layer's attention merged to words while the model is made to write each target.

    Rows of a decoder's cross-attention belong to the produced words; EOS is left out.
    """
    for start in range(0, len(pairs), BATCH):
        batch = pairs[start : start + BATCH]
        s_ids = [[*ids, EOS] for ids in translator.source_tokenizer.encode_batch(s for s, _ in batch)]
        t_ids = [[SOS, *ids] for ids in translator.target_tokenizer.encode_batch(t for _, t in batch)]
        lengths = torch.tensor([len(ids) for ids in s_ids])
        attentions = translator.model.attentions(_padded(s_ids), _padded(t_ids), lengths)
        weights = {name: matrix.dense() for name, matrix in attentions.items()}
        for i, (source, target) in enumerate(batch):
            s, t = len(s_ids[i]), len(t_ids[i])
            columns = translator.source_tokenizer.group_ids(s_ids[i])
            rows = translator.target_tokenizer.group_ids(t_ids[i][1:])
            s_words, t_words = words(source), words(target)
            yield {
                name: Merged(Dense(w[i, :, :s, :s]), columns, columns).label(s_words, s_words)
                if name.startswith("encoder")
                else Merged(Dense(w[i, :, :t, :s]), rows, columns).label(t_words, s_words)
                for name, w in weights.items()
                if not name.startswith("decoder") or name.endswith("cross")
            }


def _padded(sentences: list[list[int]]) -> torch.Tensor:
    longest = max(map(len, sentences))
    return torch.tensor([ids + [PAD] * (longest - len(ids)) for ids in sentences])


def links(weights: torch.Tensor, target: Sequence[str]) -> set[tuple[int, int]]:
    """Return the links (source, target) of weights (words, words): each row's heaviest column.

    A final full stop says nothing and is left out, as row and as column.
    """
    last = len(target) - 1 if target and target[-1] in FINAL else len(target)
    return {(int(j), i) for i, j in enumerate(weights.argmax(-1).tolist()) if i < last}


def alignment_errors(
    translator: Translator, pairs: Sequence[Pair]
) -> dict[AlignmentHead, float]:
    """Return the alignment error rate of every cross-attention head, forced to write the reference.

    Gold links of the final full stop are left out too. Source: Och & Ney 2003, section 4.
    """
    predicted: dict[AlignmentHead, list[set[tuple[int, int]]]] = defaultdict(list)
    gold = [_without_stop(pair) for pair in pairs]
    sides = [(pair.source, pair.target) for pair in pairs]
    for pair, matrices in zip(pairs, forced(translator, sides)):
        for name, matrix in matrices.items():
            if name.endswith("cross"):
                for head, weights in enumerate(matrix.dense()):
                    found = links(weights, pair.target_words)
                    predicted[AlignmentHead(name, head)].append(found)
    return {head: alignment_error_rate(found, gold) for head, found in predicted.items()}


def _without_stop(pair: Pair) -> Alignment:
    stop = len(pair.target_words) - 1 if pair.target_words[-1] in FINAL else -1
    sure, possible = (
        frozenset(link for link in side if link[1] != stop)
        for side in (pair.alignment.sure, pair.alignment.possible)
    )
    return Alignment(sure, possible)


def best_alignment_head(translator: Translator, pairs: Sequence[Pair]) -> tuple[AlignmentHead, float]:
    """Return the head with the lowest alignment error on ``pairs``, and that error."""
    errors = alignment_errors(translator, pairs)
    head = min(errors, key=lambda h: errors[h])
    return head, errors[head]


# --- what *it* looks at ---------------------------------------------------------------------------


def noun_choices(translator: Translator, pairs: Sequence[Pair]) -> dict[AlignmentHead, float]:
    """Return, for every encoder head, how often *it* weighs the right noun above the wrong one."""
    right: dict[AlignmentHead, int] = defaultdict(int)
    marked = [pair for pair in pairs if pair.pronoun]
    if not marked:
        raise build(ArgumentError, "pairs", "because-sentences with a marked pronoun", "none")
    sides = [(pair.source, pair.target) for pair in marked]
    for pair, matrices in zip(marked, forced(translator, sides)):
        assert pair.pronoun is not None
        p = pair.pronoun
        for name, matrix in matrices.items():
            if name.startswith("encoder"):
                row = matrix[..., p.source, :]
                for head, better in enumerate((row[:, p.right] > row[:, p.wrong]).tolist()):
                    right[AlignmentHead(name, head)] += better
    return {head: count / len(marked) for head, count in right.items()}


@contextmanager
def switched_off(model: nn.Module, head: AlignmentHead) -> Iterator[None]:
    """Within the block the head's values do not reach the output: its columns of the output map are 0."""
    module = attention_module(model, head.layer)
    with torch.no_grad():
        columns = slice(head.head * module.e, (head.head + 1) * module.e)
        kept = module.out_weight[:, columns].clone()
        module.out_weight[:, columns] = 0
        try:
            yield
        finally:
            module.out_weight[:, columns] = kept


def attention_module(model: nn.Module, layer: str) -> MultiHeadAttention:
    """Return the module that a name such as "decoder.1.cross" stands for."""
    side, number, kind = layer.split(".")
    found = model.get_submodule(f"{side}.{number}.{kind}_attention")
    assert isinstance(found, MultiHeadAttention)
    return found
