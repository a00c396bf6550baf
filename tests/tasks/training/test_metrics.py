"""Scores come from sacrebleu, with their signatures; the dev set gives them to a model."""

from __future__ import annotations

import math

import pytest
import sacrebleu
import tiny_run as tiny
import torch
import torch.nn.functional as F

from intently.errors import ArgumentError
from intently.tasks.training import DevSet, Pairs, dev_loss
from intently.tasks.training.metrics import bleu, chrf, exact_match, share_interval, suitable

HYPOTHESES = ["The cat sat on a mat today.", "I drink milk."]
REFERENCES = ["The cat sat on the mat today.", "I drank some milk."]


def test_equal_to_sacrebleu() -> None:
    assert bleu(HYPOTHESES, REFERENCES).value == pytest.approx(
        sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    )
    assert chrf(HYPOTHESES, REFERENCES).value == pytest.approx(
        sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    )


def test_a_score_says_how_it_was_computed() -> None:
    text = str(bleu(HYPOTHESES, REFERENCES))
    assert text.startswith("BLEU ") and "tok:13a" in text and sacrebleu.__version__ in text
    louder = [text.upper() for text in HYPOTHESES]
    lowercased = bleu(louder, REFERENCES, lowercase=True)
    assert "case:mixed" in text and "case:lc" in str(lowercased)
    assert bleu(louder, REFERENCES).value < lowercased.value


def test_the_interval_is_that_of_resampled_corpora() -> None:
    hypotheses = [f"a man number {n} sits on the {n % 7} mat" for n in range(60)]
    references = [f"a man number {n} sits on the {n % 9} mat" for n in range(60)]
    assert bleu(hypotheses, references).interval is None
    score = bleu(hypotheses, references, bootstrap=200)
    assert score == bleu(hypotheses, references, bootstrap=200)
    low, high = score.interval
    assert 0 < low < score.value < high < 100
    assert "bs:200" in score.signature and "seed:" in score.signature
    few = bleu(hypotheses[:15], references[:15], bootstrap=200).interval
    assert few[1] - few[0] > high - low
    assert f"[{low:.2f}, {high:.2f}]" in str(score)
    assert bleu(REFERENCES * 4, REFERENCES * 4, bootstrap=20).interval == (100, 100)
    with pytest.raises(
        ArgumentError, match="bootstrap: expected 0, or at least 2 resamples; got 1"
    ):
        bleu(hypotheses, references, bootstrap=1)


def test_as_many_hypotheses_as_references() -> None:
    for metric in (bleu, chrf, exact_match):
        for hypotheses, references in (([], []), (["one"], REFERENCES)):
            with pytest.raises(ArgumentError, match="hypotheses: expected one for each of"):
                metric(hypotheses, references)
    with pytest.raises(ArgumentError, match="sources: expected one for each of 0 references"):
        DevSet([], [], decode=str)


def test_the_dev_loss_is_that_of_one_sentence_after_another() -> None:
    net = tiny.model().eval()
    sentences = [[4, 5, 6], [7], [8, 9]]
    total = 0.0
    for ids in sentences:
        logits = net(torch.tensor([[*ids, 2]]), torch.tensor([[1, *ids]]))[0]
        total += F.cross_entropy(logits, torch.tensor([*ids, 2]), reduction="sum").item()
    assert dev_loss(net, Pairs(sentences, sentences)) == pytest.approx(total / 9, rel=1e-5)


def test_scores_and_loss() -> None:
    pairs = tiny.pairs(5)
    dev = DevSet([[4], [5]], ["a b c d", "x"], decode=lambda ids: "a b c d", pairs=pairs)
    scores = dev(tiny.model().eval())
    assert list(scores) == ["bleu", "chrf", "exact", "loss"]
    assert scores["exact"] == 50.0
    assert scores["loss"] == dev_loss(tiny.model().eval(), pairs)


UNSPACED = {
    "Japanese": [
        "私は朝に牛乳を飲みます。",
        "お元気ですか。",
        "その動物は疲れすぎていたので、道を渡らなかった。",
    ],
    "Chinese": ["我早上喝牛奶。", "那只动物太累了,没有过马路. (Tom 3.5)"],
    "Thai": ["ฉันดื่มนมตอนเช้า", "สัตว์ไม่ได้ข้ามถนน เพราะมันเหนื่อยเกินไป แต่ว่าฉันข้ามถนน ในตอนเช้า"],
    "Khmer": ["ខ្ញុំផឹកទឹកដោះគោនៅពេលព្រឹក។"],
    "Lao": ["ຂ້ອຍດື່ມນົມໃນຕອນເຊົ້າ"],
    "Burmese": ["ကျွန်တော်မနက်မှာနို့သောက်တယ်။"],
    "words alone": ["lait", "pain", "le chat"],
}
SPACED = {
    "French": ["Je bois du lait.", "Oui."],
    "German": ["Donaudampfschifffahrtsgesellschaften fahren hier nicht."],
    "Korean": ["나는 아침에 우유를 마십니다 .", "그 동물은 너무 피곤해서 길을 건너지 않았다."],
    "Hindi": ["मैं सुबह दूध पीता हूँ।"],
    "segmented Japanese": ["私 は 朝 に 牛乳 を 飲み ます 。"],
    "segmented Chinese": ["我 早上 喝 牛奶 。", "那 只 动物 太 累 了 。"],
    "French with a quoted word": ["Le mot 牛乳 veut dire lait."],
}


def test_where_bleu_sees_no_words_chrf_suits() -> None:
    for name, references in UNSPACED.items():
        dev = DevSet([[4]] * len(references), references, decode=str)
        assert suitable(references) == dev.suitable == "chrf", name
    for name, references in SPACED.items():
        assert suitable(references) == "bleu", name
        assert bleu(references, references).value == 100, name


@pytest.mark.parametrize(("right", "total"), [(0, 20), (1, 20), (10, 20), (20, 20), (299, 300)])
def test_the_ends_of_a_share_are_where_it_is_unlikely(right: int, total: int) -> None:
    """Wilson's ends are the shares from which what was seen is 1.96 standard deviations away."""
    share, low, high = share_interval(right, total)
    assert share == right / total
    assert 0 <= low <= share <= high <= 1
    for end in (low, high):
        if 0 < end < 1:
            deviation = math.sqrt(end * (1 - end) / total)
            assert abs(share - end) / deviation == pytest.approx(1.959964, rel=1e-4)
    assert high > low
