"""The translator in the browser against Python's: outputs, weights, log-probabilities, changes."""

from __future__ import annotations

import base64
import random
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import intently as it
from intently import edits
from intently.nn.models import Transformer, TransformerOptions
from intently.show.page.script import joined
from intently.tasks.corpora import language
from intently.tasks.decoding import SearchOptions
from intently.tasks.play import save_play
from intently.tasks.text import Tokenizer
from intently.tasks.translation import Translator

WIDE = "The animal didn't cross the road because it was too wide."
NEAR = 1e-4
ODD = [
    *("", "   ", "the road was too wide", "HELLO", "Zorglub eats an apple.", "Hello 🦊 fox!"),
    *(
        "猫は眠る。",
        "a\u0301 e\u0308 o",
        "“Where” is Mary?",
        "I’m tired.",
        "don't, can't; it's",
        "½ and ² are\u00adn't",
    ),
    *(
        " ".join(["the animal"] * 60),
        "Mary gave Paul an apple",
        "how are you",
        "<s> </s> <unk>",
        "a\tb\nc\u2028d",
    ),
    *(
        "Ça va ?",
        "e-mail -- x-- -y",
        "ſ K ﬁ",
        "👩‍👩‍👧 family",
        "مرحبا",
        "ok.",
        "…",
        "'s's",
        "l'l'l' d’d",
    ),
]

LOADED = """
const description = JSON.parse(document.querySelector("#intently-translator").textContent);
const texts = [...document.querySelectorAll("script[data-block]")].map(x => x.textContent);
const blocks = await Promise.all(texts.map((text, n) => decode(text, description.blocks[n])));
const translator = createTranslator(description, name => blocks[description.weights[name]] ?? null);
"""

ASKED = """
const numbers = [];
const found = asked.map(([text, beams, changes]) => {
  const made = translator.translate({ text, beams, changes });
  const { layers, logProbabilities, likely, ...now } = made.now;
  numbers.push(...layers.map(layer => layer.weights), Float32Array.from(logProbabilities));
  return { ...now, layers: layers.map(({ weights, ...about }) => about),
    count: logProbabilities.length, likely: likely.map(step => step[0]), forced: made.forced,
    before: made.before && made.before.text };
});
const all = new Uint8Array(await new Blob(numbers).arrayBuffer());
let letters = "";
for (let at = 0; at < all.length; at += 32768) {
  letters += String.fromCharCode(...all.subarray(at, at + 32768));
}
return { found, numbers: btoa(letters) };
"""


class Browser:
    """Translators in pages, asked by the modules of their worker."""

    def __init__(self, chromium: Any, path: Path) -> None:
        self.page = chromium.new_page()
        self.page.goto(path.as_uri())
        modules = joined(["data", "translator"])
        self.code = f'async asked => {{ "use strict";\n{modules}\n{LOADED}\n{ASKED}\n}}'

    def translate(
        self, texts: Sequence[str], beams: int = 1, changes: Sequence[list[Any]] | None = None
    ) -> list[dict[str, Any]]:
        """Translate texts; weights are arrays (h, t, s) by layer."""
        found: list[dict[str, Any]] = []
        for start in range(0, len(texts), 100):
            some = texts[start : start + 100]
            own = [[]] * len(some) if changes is None else changes[start : start + 100]
            told = self.page.evaluate(
                self.code, [[*one] for one in zip(some, [beams] * len(some), own)]
            )
            numbers, at = np.frombuffer(base64.b64decode(told["numbers"]), "<f4"), 0
            for one in told["found"]:
                one["weights"] = {}
                for layer in one["layers"]:
                    shape = layer["heads"], layer["t"], layer["s"]
                    size = int(np.prod(shape))
                    one["weights"][layer["name"]] = numbers[at : at + size].reshape(shape)
                    at += size
                one["logs"] = numbers[at : at + one["count"]]
                at += one["count"]
            found += told["found"]
        return found


@pytest.fixture(scope="module")
def browsers(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """``browsers(translator)`` runs a translator in a page."""
    opened: list[Browser] = []

    def open_(translator: Translator) -> Browser:
        path = tmp_path_factory.mktemp("play") / "play.html"
        opened.append(Browser(chromium, save_play(translator, path)))
        return opened[-1]

    yield open_
    for one in opened:
        one.page.close()


@pytest.fixture(scope="module")
def embedded(browsers: Any) -> tuple[Translator, Browser]:
    translator = Translator.load()
    return translator, browsers(translator)


def sentences(count: int) -> list[str]:
    """Return sentences of every split of the built-in language."""
    each = [islice(language(split), count // 4) for split in ("train", "test", "novel", "deeper")]
    return [pair.source for pairs in each for pair in pairs]


def same(made: Any, told: dict[str, Any]) -> None:
    """Assert that a translation of Python and one of the page are the same."""
    assert told["text"] == made.text, (made.source, told["text"], made.text)
    assert told["notes"] == list(made.notes)
    if not made.sides[0].ids:
        return
    assert told["read"] == made.read
    assert told["logProbability"] == pytest.approx(
        made.hypothesis.log_probability, abs=NEAR, rel=1e-6
    )
    assert told["score"] == pytest.approx(made.score, abs=NEAR, rel=1e-6)
    assert told["weights"].keys() == made.attention.keys()
    for name, matrix in made.attention.items():
        theirs = told["weights"][name]
        assert np.abs(theirs - matrix.dense().numpy()).max() <= NEAR, (made.source, name)
        layer = next(one for one in told["layers"] if one["name"] == name)
        assert [layer["rows"], layer["columns"]] == [list(side) for side in matrix.labels]


def python(translator: Translator, texts: Sequence[str], beams: int = 1) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [translator.translate([text], SearchOptions(beam=beams))[0] for text in texts]


def test_500_sentences_greedy(embedded: tuple[Translator, Browser]) -> None:
    translator, browser = embedded
    texts = sentences(500 - len(ODD)) + ODD
    for made, told in zip(python(translator, texts), browser.translate(texts), strict=True):
        same(made, told)


@pytest.mark.parametrize("beams", [2, 5])
def test_beams(embedded: tuple[Translator, Browser], beams: int) -> None:
    translator, browser = embedded
    texts = sentences(80) + ODD
    told = browser.translate(texts, beams)
    for made, one in zip(python(translator, texts, beams), told, strict=True):
        same(made, one)


def setting(head: int, row: int, column: int, weight: float) -> Any:
    """Return an edit that sets one weight and rescales the others of its row."""

    def change(weights: torch.Tensor) -> torch.Tensor:
        new = weights.clone()
        own = new[..., head, row, :]
        rest = own.sum(-1, keepdim=True) - own[..., column : column + 1]
        own *= (1 - weight) / rest
        own[..., column] = weight
        return new

    return edits.weights(change)


def edited(translator: Translator, text: str, ids: list[int], change: dict[str, Any]) -> Any:
    """Return the log-probabilities of these ids and the attention, in Python, under a change."""
    from intently.tasks.text import EOS, SOS

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = translator.translate([text], SearchOptions(beam=1))[0]
    source = torch.tensor([[*made.sides[0].ids, EOS]])
    target = torch.tensor([[SOS, *ids[:-1]]])
    head, kind = change["head"], change["kind"]
    heads = {} if head is None else {"heads": [head]}
    if kind == "off":
        edit = edits.off(**heads)
    elif kind == "sharpen":
        edit = edits.sharpen(change["power"], **heads)
    elif kind == "forbid":
        edit = edits.forbid([change["column"]], rows=[change["row"]], **heads)
    else:
        edit = setting(head, change["row"], change["column"], change["weight"])
    with torch.no_grad(), it.edit(translator.model, {change["layer"]: edit}):
        logits = translator.model(source, target)
    logs = logits[0].log_softmax(-1)
    return [float(logs[n, i]) for n, i in enumerate(ids)]


def changes_of(told: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Return a random change that fits a translation."""
    layer = chance.choice(told["layers"])
    kind = chance.choice(["forbid", "weight", "off", "sharpen"])
    head = (
        chance.choice([*range(layer["heads"]), None])
        if kind != "weight"
        else chance.randrange(layer["heads"])
    )
    change = {"kind": kind, "layer": layer["name"], "head": head}
    if kind == "sharpen":
        change["power"] = chance.choice([0.25, 0.5, 2, 4])
    if kind in ("forbid", "weight"):
        own = layer["name"].startswith("decoder") and layer["name"].endswith("self_attention")
        row = chance.randrange(1, layer["t"])
        change |= {"row": row, "column": chance.randrange(row + 1 if own else layer["s"])}
    if kind == "weight":
        change["weight"] = round(chance.uniform(0.05, 0.95), 2)
        row = told["weights"][layer["name"]][change["head"], change["row"]]
        if row.sum() - row[change["column"]] < 0.001:  # in float32 little is left to rescale
            return changes_of(told, chance)
    return change


def test_changes_are_those_of_python(embedded: tuple[Translator, Browser]) -> None:
    translator, browser = embedded
    chance = random.Random(1)
    texts = [*sentences(76), *[WIDE] * 4]
    plain = browser.translate(texts)
    changes = [changes_of(told, chance) for told in plain]
    told = browser.translate(texts, 1, [[change] for change in changes])
    moved = 0
    for text, before, change, after in zip(texts, plain, changes, told, strict=True):
        ids = [int(i) for i in before["ids"]]
        wanted = edited(translator, text, ids, change)
        assert np.abs(np.array(after["forced"]) - wanted).max() <= NEAR, (text, change)
        assert after["before"] == before["text"]
        moved += np.abs(np.array(wanted) - before["logs"]).max() > NEAR
    assert moved > 30


def test_one_click_makes_elle_il(embedded: tuple[Translator, Browser]) -> None:
    _, browser = embedded
    cell = {"kind": "forbid", "layer": "encoder.1.self_attention", "head": 0, "row": 7, "column": 5}
    made, other = browser.translate([WIDE, WIDE], 1, [[cell], [{**cell, "column": 1}]])
    assert [made["layers"][1]["rows"][i].strip("▁") for i in (7, 5)] == ["it", "road"]
    assert "qu'elle" in made["before"] and "qu'il" in made["text"] and "qu'elle" in other["text"]
    assert made["weights"]["encoder.1.self_attention"][0, 7, 5] == 0
    assert made["weights"]["encoder.1.self_attention"][0, 7].sum() == pytest.approx(1, abs=1e-6)


def test_set_weights_hold_together_and_rows_without_keys_are_zero(embedded: Any) -> None:
    _, browser = embedded
    place = {"layer": "encoder.0.self_attention", "head": 1, "row": 2}
    two = [{"kind": "weight", **place, "column": n, "weight": w} for n, w in ((0, 0.2), (3, 0.5))]
    full = [{"kind": "weight", **place, "column": n, "weight": 0.8} for n in (0, 3)]
    none = [{"kind": "forbid", **place, "column": n} for n in range(20)]
    text = "The road was too wide."
    plain, a, b, c = browser.translate([text] * 4, 1, [[], two, full, none])
    row = [one["weights"]["encoder.0.self_attention"][1, 2] for one in (plain, a, b, c)]
    assert row[1][[0, 3]] == pytest.approx([0.2, 0.5], abs=1e-6)
    others = [1, 2, 4, 5]
    assert row[1][others] / row[1][others].sum() == pytest.approx(
        row[0][others] / row[0][others].sum(), abs=1e-5
    )
    assert row[2] == pytest.approx([0.5, 0, 0, 0.5, 0, 0, 0][: len(row[2])], abs=1e-6)
    assert not row[3].any()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("word", {"norm": "pre", "positions": "sinusoidal", "heads": 8}),
        ("subword", {"norm": "post", "positions": "learned", "kv_heads": 1, "learned_steps": 300}),
        (
            "character",
            {"norm": "pre", "positions": "rotary", "feed_forward": "gated", "kv_heads": 2},
        ),
        (
            "subword",
            {"share": "all", "encoder_layers": 3, "decoder_layers": 1, "width": 36, "heads": 3},
        ),
    ],
)
def test_other_transformers_and_tokenizers(
    browsers: Any, kind: str, options: dict[str, Any]
) -> None:
    torch.manual_seed(4)
    texts = sentences(200)
    source = Tokenizer.train(texts, kind, 400)
    target = source if options.get("share") == "all" else Tokenizer.train(texts[:100], kind, 380)
    model = Transformer(
        TransformerOptions(source.size, target.size, **{"width": 32, "inner": 64, **options})
    )
    translator = Translator(model, source, target, max_length=60)
    browser = browsers(translator)
    asked = texts[:12] + ODD
    for beams in (1, 3):
        for made, told in zip(
            python(translator, asked, beams), browser.translate(asked, beams), strict=True
        ):
            same(made, told)


def test_words_of_every_character(embedded: tuple[Translator, Browser]) -> None:
    from intently.tasks.text import words

    _, browser = embedded
    code = f'texts => {{ "use strict";\n{joined(["tokenizer"])}\nreturn texts.map(wordsIn);\n}}'
    marks = [chr(n) for n in range(0x3200) if not 0xD800 <= n < 0xE000]
    texts = [f"a{mark}b {mark}{mark} x{mark}" for mark in marks]
    found = browser.page.evaluate(code, texts)
    wrong = [t for t, own in zip(texts, found, strict=True) if own != words(t)]
    assert len(wrong) <= 40, (len(wrong), [f"{ord(t[1]):04X}" for t in wrong[:60]])
