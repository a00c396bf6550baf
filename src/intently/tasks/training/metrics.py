"""Scores of translations (BLEU and chrF by sacrebleu, exact match), and of a dev set."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from intently.errors import ArgumentError, build
from intently.foundation.files import digest
from intently.nn.models.kinds import EncoderDecoder
from intently.tasks.decoding import SearchOptions, search
from intently.tasks.training.batches import Pairs, epoch
from intently.tasks.training.loss import batch_loss
from intently.tasks.training.progress import Evaluation

Interval = tuple[float, float, float]
"""A number, and the lower and upper end of its interval."""

CONFIDENT = 1.959964
"""Standard deviations on either side of the mean that hold 95 % of a normal distribution."""

RESAMPLED = 1000
"""The usual number of bootstrap resamples for an interval."""

UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf"  # Thai to Tai Tham
    "\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua4cf"  # kana, Chinese, Yi
    "\ua980-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f"
    "\U00020000-\U0003ffff]"
)
"""Letters of scripts without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer and more."""

A_WORD = 5
"""Letters of a word, on average, at most, in these scripts."""

GREEDY, TOKENS = SearchOptions(beam=1), 8192
"""How a dev set is translated, and target tokens in a batch of it."""


@dataclass(frozen=True)
class Metric:
    """A score from 0 to 100, with the signature that others need to compare it.

    ``interval`` holds 95 % of the scores of resampled corpora; None without resampling.
    """

    name: str
    value: float
    signature: str
    interval: tuple[float, float] | None = None

    def __str__(self) -> str:
        where = "" if self.interval is None else "[{:.2f}, {:.2f}] ".format(*self.interval)
        return f"{self.name} {self.value:.2f} {where}({self.signature})"


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    lowercase: bool = False,
    bootstrap: int = 0,
) -> Metric:
    """Return the BLEU of a corpus of plain, detokenised text, one reference each.

    Papineni et al. 2002, "BLEU: a Method for Automatic Evaluation of Machine Translation",
    computed by sacrebleu with its own tokenizer, 13a, so that it can be compared (Post 2018, "A
    Call for Clarity in Reporting BLEU Scores"). ``lowercase`` ignores case.

    ``bootstrap`` corpora (usually `RESAMPLED`) of as many sentences are drawn with replacement for
    the 95 % interval (Koehn 2004, "Statistical Significance Tests for Machine Translation
    Evaluation"), the same at every call: the signature holds sacrebleu's seed. Raises ArgumentError
    if the two differ in number or are empty.

    >>> bleu(["The Cat sat on it."], ["The cat sat on it."], lowercase=True).value
    100.0
    """
    from sacrebleu.metrics.bleu import BLEU

    return _score("BLEU", BLEU(lowercase=lowercase), hypotheses, references, bootstrap)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Metric:
    """Return the chrF of a corpus, one reference each.

    Popović 2015, "chrF: character n-gram F-score for automatic MT evaluation", computed by
    sacrebleu. Raises ArgumentError if the two differ in number or are empty.
    """
    from sacrebleu.metrics.chrf import CHRF

    return _score("chrF", CHRF(), hypotheses, references)


def suitable(references: Sequence[str]) -> str:
    """Return the score that suits references: "bleu", or "chrf" where BLEU cannot see words.

    BLEU counts sequences of four words, and takes words to be between spaces. It cannot see them in
    text of a script without spaces (Japanese, Chinese, Thai, Khmer, Lao, Burmese …) unless a
    segmenter put some there, nor where no sentence has four words: a translation may then be right
    throughout and score 0.

    >>> suitable(["Je bois du lait."]), suitable(["私は牛乳を飲みます。"])
    ('bleu', 'chrf')
    >>> suitable(["私 は 牛乳 を 飲み ます 。"]), suitable(["lait", "le pain"])
    ('bleu', 'chrf')
    """
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    cut = Tokenizer13a()
    if not any(len(cut(text).split()) >= 4 for text in references):
        return "chrf"
    pieces = " ".join(references).split()
    letters = sum(sum(map(str.isalpha, piece)) for piece in pieces)
    unspaced = len(UNSPACED.findall("".join(pieces)))
    return "chrf" if 2 * unspaced > letters > A_WORD * len(pieces) else "bleu"


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return the share, from 0 to 1, of hypotheses equal to their reference."""
    check_references("hypotheses", hypotheses, references)
    return sum(map(str.__eq__, hypotheses, references)) / len(references)


def _score(
    name: str, metric: Any, hypotheses: Sequence[str], references: Sequence[str], bootstrap: int = 0
) -> Metric:
    check_references("hypotheses", hypotheses, references)
    if bootstrap < 0 or bootstrap == 1:  # one resample has no interval
        raise build(ArgumentError, "bootstrap", "0, or at least 2 resamples", bootstrap)
    result = metric.corpus_score(list(hypotheses), [list(references)], n_bootstrap=bootstrap)

    def percent(score: float) -> float:  # rounding can give 100.00000000000004
        return min(100.0, max(0.0, score))

    interval = None
    if bootstrap:
        interval = percent(result._mean - result._ci), percent(result._mean + result._ci)
    return Metric(name, percent(result.score), str(metric.get_signature()), interval)


def check_references(name: str, given: Sequence[Any], references: Sequence[str]) -> None:
    """Raise ArgumentError unless ``given`` has one entry for each reference, and at least one."""
    if len(given) != len(references) or not references:
        expected = f"one for each of {len(references)} references, and at least one"
        raise build(ArgumentError, name, expected, f"{len(given)} sentences")


def share_interval(right: int, total: int) -> Interval:
    """Return a share with the ends of its 95 % interval.

    Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference": it stays
    within 0 and 1, and has a positive width even if none or all are right.

    >>> [round(x, 3) for x in share_interval(0, 100)]
    [0.0, 0.0, 0.037]
    """
    share, z = right / total, CONFIDENT**2 / total
    middle = (share + z / 2) / (1 + z)
    half = math.sqrt(z * (share * (1 - share) + z / 4)) / (1 + z)
    return share, min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))


@dataclass(frozen=True)
class DevSet:
    """A dev set, translated at each evaluation: pass it to ``train(validate=…)``.

    ``sources`` (token ids without specials) are translated greedily; ``decode`` turns the ids of an
    output into a sentence, which is compared with its reference. The loss is measured on ``pairs``,
    where given.

    >>> from intently.nn.models.transformer import Transformer, TransformerOptions
    >>> dev = DevSet([[4], [5]], ["Il boit.", "Elle dort."], decode=lambda ids: "Il boit.")
    >>> model = Transformer(TransformerOptions(8, 8, width=16))
    >>> sorted(dev(model)), dev(model)["exact"]
    (['bleu', 'chrf', 'exact'], 50.0)
    """

    sources: Sequence[Sequence[int]]
    references: Sequence[str]
    decode: Callable[[list[int]], str]
    pairs: Pairs | None = None

    def __post_init__(self) -> None:
        check_references("sources", self.sources, self.references)

    @property
    def fingerprint(self) -> str:
        """A checksum of sources and references: all scores of a run are on one dev set."""
        content = json.dumps([[list(ids) for ids in self.sources], list(self.references)])
        return digest(content.encode())[:16]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the scores."""
        return ("bleu", "chrf", "exact", *(("loss",) if self.pairs is not None else ()))

    @cached_property
    def suitable(self) -> str:
        """The score that chooses the best checkpoint by default, see `suitable`."""
        return suitable(self.references)

    def __call__(self, model: EncoderDecoder) -> dict[str, float]:
        """Return "bleu", "chrf", "exact" (matches), from 0 to 100, and "loss" where known."""
        found = search(model, self.sources, GREEDY, batch_tokens=TOKENS, keep_attention=False)
        hypotheses = [self.decode(best.ids) for best, *_ in found]
        scores = {
            "bleu": bleu(hypotheses, self.references).value,
            "chrf": chrf(hypotheses, self.references).value,
            "exact": 100 * exact_match(hypotheses, self.references),
        }
        if self.pairs is not None:
            scores["loss"] = dev_loss(model, self.pairs)
        return scores


@torch.no_grad()
def dev_loss(model: EncoderDecoder, pairs: Pairs) -> float:
    """Return the mean cross entropy, in nats per target token, without label smoothing.

    The model stays in its mode.

    >>> from intently.nn.models.transformer import Transformer, TransformerOptions
    >>> model = Transformer(TransformerOptions(8, 8, width=16)).eval()
    >>> _ = torch.nn.init.zeros_(model.target_embedding.weight)
    >>> round(dev_loss(model, Pairs([[4]], [[5]])), 4)  # log 8
    2.0794
    """
    device = next(model.parameters()).device
    total, tokens = 0.0, 0
    for batch in epoch(pairs, TOKENS, seed=0):
        loss, count = batch_loss(model, batch.to(device))
        total, tokens = total + loss.item(), tokens + count
    return total / tokens


def best_by(name: str, scores: Mapping[str, float]) -> tuple[float, float]:
    """Return what chooses the best checkpoint, higher is better: the score, then the loss."""
    if not math.isfinite(scores.get(name, math.nan)):
        got = ", ".join(f"{key}={score}" for key, score in scores.items()) or "none"
        raise build(ArgumentError, "validate", f"a finite score {name!r} (the option best_by)", got)
    loss = scores.get("loss", math.inf)
    loss = loss if math.isfinite(loss) else math.inf
    return -loss if name == "loss" else scores[name], -loss


def without_better(name: str, evaluations: Sequence[Evaluation], every: int = 1) -> int:
    """Return the number of evaluations since the best one, by `best_by`.

    Only steps that ``every`` divides count: other steps were evaluated only because a run ended
    there.
    """
    scores = [best_by(name, at.scores) for at in evaluations if at.step % every == 0]
    return len(scores) - 1 - scores.index(max(scores)) if scores else 0


def check_patience(patience: int, validated: bool) -> None:
    """Raise ArgumentError for a patience without a dev set."""
    if patience and not validated:
        fix = "give a dev set (in Python dev=… or validate=…), or patience=0"
        raise build(ArgumentError, "patience", "0 without a dev set", patience, fix=fix)
