"""What the stories say are the numbers that came out, and nothing else."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from torch import nn

import intently as it
from intently.errors import ArgumentError, KindError, RangeError
from intently.matrix import Dense
from intently.modules import (
    AttentionHead,
    AttentionOptions,
    MultiHeadAttention,
    convolution_as_attention,
)
from intently.show import animate
from intently.show.animate.operands import without_dropout
from intently.show.animate.shapes import Curve, Grid, Text
from intently.show.animate.stage import number

from .refusals import refuses

WORDS = ("Harry", "is", "a", "wizard", "today")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def shapes(story: animate.Animation, scene: int = -1) -> dict:
    return {shape.key: shape for shape in story.scenes[scene].shapes}


def written(story: animate.Animation, prefix: str, scene: int = -1) -> list[str]:
    found = shapes(story, scene)
    count = sum(key.startswith(f"{prefix}.") for key in found)
    return [found[f"{prefix}.{n}"].text for n in range(count)]


def told(values) -> list[str]:
    return [number(float(value)) for value in values]


# --- product --------------------------------------------------------------------------------------


def test_a_product_tells_every_step_of_the_formula():
    q, k, v = random(5, 4), random(5, 4, seed=1), random(5, 3, seed=2)
    A = it.attend(q, k, mask=it.causal()).label(WORDS, WORDS)
    story = animate.product(A, v, query="a")
    dots = k @ q[2]
    z = dots / 2
    w = [*(z[:3].exp() / z[:3].exp().sum()).tolist(), 0.0, 0.0]
    assert written(story, "q · k") == told(dots)
    assert written(story, "× 0.5") == told(z)
    assert written(story, "mask") == [*told(z[:3]), "−∞", "−∞"]
    assert written(story, "weight") == told(w)
    found = shapes(story)
    assert [found[f"bar.{j}"].cell[0] for j in range(3)] == pytest.approx(
        [max(1, 92 * x) for x in w[:3]], abs=1e-3
    )
    assert found["sum"].texts == tuple(told(np.array(w) @ v.numpy()))
    best = int(np.argmax(w))
    assert story.captions[-1] == f"‘a’ takes most from ‘{WORDS[best]}’: {number(w[best])}" + (
        " of its weight."
    )
    assert any("2 keys that ‘a’ may not see" in said for said in story.captions)
    masked = shapes(story, list(story.captions).index(story.captions[-4]))
    assert masked["key.4"].texts == () and masked["key.1"].texts != ()


def test_the_products_of_a_key_are_shown_while_it_is_met():
    q, k = random(2, 3), random(4, 3, seed=1)
    story = animate.product(it.attend(q, k), random(4, 2), query=1)
    for j in range(4):
        found = shapes(story, 1 + j)
        assert found["products"].texts == tuple(told(q[1] * k[j]))
        assert found["frame"].y == found[f"key.{j}"].y
        assert f"q · k.{j}" in found and f"q · k.{j + 1}" not in found


def test_bias_softcap_and_sink_are_told_where_they_are():
    q, k, bias = random(3, 4), random(3, 4, seed=1), random(3, 3, seed=2)
    sinks = torch.tensor(0.7)
    A = it.attend(q, k, bias=bias, softcap=2.0, sinks=sinks, scale=1.5)
    story = animate.product(A, random(3, 2), query=0)
    scaled = 1.5 * (k @ q[0])
    capped = 2 * torch.tanh(scaled / 2)
    z = capped + bias[0]
    w = z.exp() / (z.exp().sum() + math.exp(0.7))
    assert written(story, "× 1.5") == told(scaled)
    assert written(story, "softcap") == told(capped)
    assert written(story, "+ bias") == told(z)
    assert written(story, "weight") == told(w)
    assert f"the sink takes {number(float(1 - w.sum()))} of it" in " ".join(story.captions)


def test_a_bias_is_added_before_the_mask_hides():
    q, k, bias = random(3, 4), random(3, 4, seed=1), random(3, 3, seed=2)
    A = it.attend(q, k, bias=bias, mask=it.causal())
    story = animate.product(A, random(3, 2), query=1)
    z = k @ q[1] / 2 + bias[1]
    assert written(story, "+ bias") == told(z)
    assert written(story, "mask") == [*told(z[:2]), "−∞"]
    assert "one key that ‘1’ may not see" in " ".join(story.captions)


def test_additive_scores_have_no_products():
    score = it.Additive(random(4, 3), random(4, 5), random(4))
    story = animate.product(it.attend(random(2, 3), random(3, 5), score=score), random(3, 2))
    assert all("products" not in shapes(story, n) for n in range(len(story)))
    scores = it.attend(random(2, 3), random(3, 5), score=score).scores[1, :]
    assert written(story, "score") == told(scores)


def test_grouped_heads_take_their_own_values():
    q, k, v = random(1, 4, 3, 8), random(1, 2, 3, 8, seed=1), random(1, 2, 3, 2, seed=2)
    A = it.attend(q, k)
    story = animate.product(A, v, head=3, query=2)
    out = (A @ v)[0, 3, 2]
    assert shapes(story)["sum"].texts == tuple(told(out))


def test_wide_vectors_are_means_of_neighbours_and_say_so():
    x = random(4, 256)
    story = animate.product(it.attend(x, x), x)
    key = shapes(story, 0)["key.1"]
    assert len(key.shades[0]) == 86
    means = [float(part.mean()) for part in x[1].split(3)]
    largest = float(x.abs().max())
    assert key.shades[0] == pytest.approx([m / largest for m in means], abs=6e-4)
    assert "each cell the mean of 3 of 256" in story.captions[0]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"matrix": Dense(torch.eye(3))}, KindError, "matrix: expected an attention of queries"),
        ({"matrix": it.attend(random(2, 3, 4), random(2, 3, 4))}, ArgumentError, "head: expected"),
        ({"values": random(4, 2)}, ArgumentError, r"values: expected shape \(s=3, e\)"),
        ({"values": [1, 2, 3]}, ArgumentError, r"values: expected .*; got shape \(3,\)"),
        ({"values": "abc"}, KindError, "values: expected a tensor, an array or nested lists"),
        ({"query": "nobody"}, ArgumentError, "query: expected a position"),
        ({"query": 9}, RangeError, "query: expected a position from 0 to 2"),
        ({"save": "x.png"}, ArgumentError, r"ends in .gif or .html; got 'x.png'.*x.gif"),
    ],
)
def test_a_product_refuses_what_it_cannot_tell(change, error, text):
    given = {"matrix": it.attend(random(3, 4), random(3, 4)), "values": random(3, 2)} | change
    with pytest.raises(error, match=text):
        animate.product(given.pop("matrix"), given.pop("values"), **given)


def test_too_many_keys_are_refused_with_advice():
    A = it.attend(random(1, 4), random(25, 4))
    with pytest.raises(
        ArgumentError, match=r"at most 24 keys; got shape \(1, 25\).*k\[…, :24, :\]"
    ):
        animate.product(A, random(25, 2))
    batch = it.attend(random(2, 1, 3, 4), random(2, 1, 3, 4))
    refuses(
        ArgumentError,
        {
            "Pick a text": lambda: animate.product(batch, random(3, 2), head=0),
            "g heads, a divisor of h=4": lambda: animate.product(
                it.attend(random(4, 3, 4), random(4, 3, 4)), random(3, 3, 2), head=0
            ),
        },
    )


# --- temperature ----------------------------------------------------------------------------------


def test_temperature_goes_from_uniform_to_argmax():
    q, k = random(2, 6), random(5, 6, seed=1)
    A = it.attend(q, k, mask=it.allowed(torch.tensor([True, True, True, False, True])))
    story = animate.temperature(A, query=1, temperatures=(math.inf, 2.0, 1.0, 0.0))
    z = k @ q[1] / 6**0.5
    z[3] = -math.inf
    assert written(story, "weight", 0) == ["0.25", "0.25", "0.25", "0", "0.25"]
    assert written(story, "weight", 1) == told((z / 2).softmax(0))
    assert written(story, "weight", 2) == told(A[1, :])
    assert written(story, "weight", 3) == told(torch.eye(5)[int(z.argmax())])
    assert written(story, "score") == [*told(z[:3]), "hidden", *told(z[4:])]
    w = (z / 2).softmax(0)
    assert f"entropy {number(float(torch.special.entr(w).sum()))} nats" in story.captions[1]
    assert "the weights of the matrix itself" in story.captions[2]


def test_a_sink_is_one_more_row():
    A = it.attend(random(1, 4), random(2, 4), sinks=torch.tensor(3.0))
    story = animate.temperature(A, temperatures=(1,))
    assert written(story, "weight")[:2] == told(A[0, :])
    assert written(story, "name")[2] == "(sink)"


def test_equal_scores_share_at_zero():
    story = animate.temperature(it.attend(torch.ones(1, 2), torch.ones(3, 2)), temperatures=(0,))
    assert written(story, "weight") == ["0.33"] * 3
    assert story.captions == ("τ → 0: ‘0’ and 2 equal to it share all.",)


def test_temperatures_are_checked():
    A = it.attend(random(2, 4), random(2, 4))
    refuses(
        ArgumentError,
        {
            "temperatures: expected numbers from 0 to infinity": lambda: animate.temperature(
                A, temperatures=(1, -1)
            ),
            "temperatures: expected numbers": lambda: animate.temperature(
                A, temperatures=(math.nan,)
            ),
            "at least one number": lambda: animate.temperature(A, temperatures=()),
            "at most 32 keys": lambda: animate.temperature(it.attend(random(2, 4), random(33, 4))),
        },
    )
    blind = it.attend(random(2, 4), random(2, 4), mask=it.padding(torch.tensor(0)))
    with pytest.raises(ArgumentError, match="query: expected a query that may see a key"):
        animate.temperature(blind)


# --- dictionary -----------------------------------------------------------------------------------

USERS = torch.tensor([[2.0, 0, 1], [0, 2, 1]])
FILMS = torch.tensor([[2.0, -1, 0], [-1, 2, 1], [0, 1, -2]])
NAMES = (("Ada", "Alan"), ("Alien", "Amélie", "Titanic"))


def test_a_dictionary_gives_every_user_a_mixture():
    A = it.attend(USERS, FILMS, scale=1).label(*NAMES)
    minutes = torch.tensor([[117.0], [122.0], [195.0]])
    story = animate.dictionary(A, minutes, features=("action", "romance", "humour"))
    W = (USERS @ FILMS.T).softmax(-1)
    found = shapes(story)
    for i in range(2):
        assert found[f"row.{i}"].texts == tuple(told(W[i]))
    answers = [said for said in story.captions if "mostly from" in said]
    assert answers == [
        f"‘{user}’ gets {number(float(w @ minutes[:, 0]))}, mostly from ‘{film}’"
        f" ({number(float(w.max()))})."
        for user, film, w in zip(NAMES[0], ("Alien", "Amélie"), W)
    ]
    assert [found[f"head.{n}"].text for n in range(3)] == ["action", "romance", "humour"]
    assert written(story, "match") == ["−2", "5", "0"]


def test_a_dictionary_is_checked():
    minutes = torch.ones(3, 1)
    refuses(
        ArgumentError,
        {
            "features: expected d=3 names, or none; got 2": lambda: animate.dictionary(
                it.attend(USERS, FILMS), minutes, features=("a", "b")
            ),
            "at most 8 queries and 16 keys": lambda: animate.dictionary(
                it.attend(random(9, 3), FILMS), minutes
            ),
        },
    )
    score = it.Additive(random(4, 3), random(4, 3), random(4))
    with pytest.raises(ArgumentError, match="scores that are dot products; got Additive"):
        animate.dictionary(it.attend(USERS, FILMS, score=score), minutes)


# --- heads ----------------------------------------------------------------------------------------


def test_heads_show_weights_mixtures_and_outputs():
    block, x = MultiHeadAttention(8, 2), random(3, 8)
    story = animate.heads(block, x, labels=("a", "b", "c"))
    found = shapes(story)
    W = block.attend(x[None])[0].dense().detach()
    for n in range(2):
        assert np.array(found[f"weights.{n}"].shades) == pytest.approx(
            (W[n] / W.max()).numpy(), abs=6e-4
        )
    y = block(x[None])[0].detach()
    assert np.array(found["y"].shades) == pytest.approx((y / y.abs().max()).numpy(), abs=6e-4)
    parts = np.concatenate([np.array(found[f"joined.{n}"].shades) for n in range(2)], 1)
    made = parts @ block.out_weight.detach().numpy().T
    assert made / np.abs(made).max() == pytest.approx((y / y.abs().max()).numpy(), abs=0.01)
    assert found["joined.1"].x == pytest.approx(found["joined.0"].x + found["joined.0"].width)
    assert "2 × 4 = 8 wide" in story.captions[-2]


def test_one_head_and_many_wide_ones():
    assert len(animate.heads(MultiHeadAttention(4, 1), random(2, 4))) == 5
    story = animate.heads(MultiHeadAttention(768, 12), random(10, 768))
    assert "each cell the mean of 8 of 768" in story.captions[0]
    assert story.size[0] < 1000


def test_heads_are_checked():
    with pytest.raises(
        KindError, match=r"block: expected an intently\.modules\.MultiHeadAttention"
    ):
        animate.heads(nn.Linear(2, 2), random(2, 2))
    block = MultiHeadAttention(8, 2)
    refuses(
        ArgumentError,
        {
            r"x: expected shape \(t, c\), 1 ≤ t ≤ 24": lambda: animate.heads(block, random(25, 8)),
            "labels: expected t=2 labels; got 1": lambda: animate.heads(
                block, random(2, 8), labels=("a",)
            ),
            "at most 16 heads; got 17": lambda: animate.heads(
                MultiHeadAttention(34, 17), random(2, 34)
            ),
        },
    )


# --- permutation ----------------------------------------------------------------------------------


def test_permuted_inputs_permute_outputs():
    block, x, order = MultiHeadAttention(8, 2), random(4, 8), [2, 1, 0, 3]
    story = animate.permutation(block, x, order=order, labels=("Mary", "gave", "Susan", "roses"))
    before, after = shapes(story, 2), shapes(story)
    W = block.attend(x[None])[0].mean_heads().dense().detach()
    for i in range(4):
        row = [before[f"w.{i}.{j}"].shades[0][0] for j in range(4)]
        assert row == pytest.approx((W[i] / W.max()).tolist(), abs=6e-4)
    for row, n in enumerate(order):
        assert after[f"x.{n}"].y == before[f"x.{row}"].y
        assert after[f"y.{n}"].shades[0] == pytest.approx(before[f"y.{n}"].shades[0], abs=2e-3)
        assert after[f"y.{n}"].y == before[f"y.{row}"].y
        for column, m in enumerate(order):
            moved, old = after[f"w.{n}.{m}"], before[f"w.{row}.{column}"]
            assert (moved.x, moved.y) == (old.x, old.y)
    assert story.captions[3] == "Now they change places: Susan gave Mary roses."
    assert story.captions[-1].startswith("The same rows in another order")


def test_a_block_that_knows_the_order_is_told_so():
    for options in ({"mask": it.causal()}, {"positions": it.Rotary(4)}):
        block = AttentionHead(8, 4, attention=AttentionOptions(**options))
        story = animate.permutation(block, random(3, 8))
        assert story.captions[-1].startswith("Not the same rows: they differ by up to")


def test_permutations_are_checked():
    block, x = AttentionHead(8, 4), random(3, 8)
    refuses(
        ArgumentError,
        {
            "order: expected each number from 0 to 2 once": lambda: animate.permutation(
                block, x, order=[0, 0, 1]
            ),
            "labels: expected t=3 labels; got 2": lambda: animate.permutation(
                block, x, labels=("a", "b")
            ),
            "2 ≤ t ≤ 16": lambda: animate.permutation(block, random(17, 8)),
        },
    )
    refuses(
        KindError,
        {
            "block: expected a layer with forward and attend": lambda: animate.permutation(
                nn.Linear(8, 8), x
            )
        },
    )


# --- readings, writing ----------------------------------------------------------------------------

TEXT = ("because", "it", "was", "tired")


def reading(*weights: float) -> Dense:
    W = torch.eye(4)
    W[1] = torch.tensor(weights)
    return Dense(W, labels=(TEXT, TEXT))


def test_two_readings_of_one_word():
    first, second = (0.1, 0.2, 0.0, 0.7), (0.6, 0.1, 0.3, 0.0)
    story = animate.readings({"head 0": reading(*first), "head 3": reading(*second)}, "it")
    for n, weights in enumerate((first, second)):
        found = shapes(story, 1 + n)
        arcs = {j: found[f"arc.{j}"] for j in range(4) if f"arc.{j}" in found}
        wanted = {j: 1 + 10 * w for j, w in enumerate(weights) if j != 1 and w >= 0.02}
        assert {j: arc.width for j, arc in arcs.items()} == pytest.approx(wanted)
        assert all(isinstance(arc, Curve) for arc in arcs.values())
        assert [found[f"word.{j}"].shades[0][0] for j in range(4)] == pytest.approx(
            [w / 0.7 for w in weights], abs=6e-4
        )
    assert story.captions[-1] == (
        "head 0: ‘it’ looks most at ‘tired’ (0.70); head 3: ‘it’ looks most at ‘because’ (0.60)."
    )
    kept = shapes(story)
    assert kept["kept.0.3"].shades == ((1.0,),) and kept["kept.1.3"].shades == ((0.0,),)


def test_two_sentences_and_rows_that_are_the_next_words():
    words = ("it", "was", "wide")
    W = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.1, 0.7]])
    other = Dense(W, labels=(("was", "wide", "."), words))
    story = animate.readings({"a": reading(0, 0, 0, 1), "b": other}, "it")
    assert "looks most at itself (1.00)" in story.captions[2]


def test_readings_are_checked():
    A = reading(0, 0, 0, 1)
    refuses(KindError, {"matrices: expected readings by name": lambda: animate.readings(A, "it")})
    refuses(
        ArgumentError,
        {
            "matrices: expected two to 6 readings; got 1": lambda: animate.readings({"a": A}, "it"),
            "token: expected a position, or the text": lambda: animate.readings(
                {"a": A, "b": A}, "road"
            ),
        },
    )
    crossed = Dense(torch.ones(2, 4) / 4)
    with pytest.raises(ArgumentError, match=r"matrices\['b'\]: expected one text.*animate.writing"):
        animate.readings({"a": A, "b": crossed}, 1)
    other = Dense(torch.eye(4), labels=(("a", "b", "c", "d"), TEXT))
    with pytest.raises(ArgumentError, match="rows named like columns"):
        animate.readings({"a": A, "b": other}, "it")
    many = ["attention"] * 60
    wide = Dense(torch.eye(60), labels=(tuple(many), tuple(many)))
    with pytest.raises(ArgumentError, match="at most 1,180 pixels wide"):
        animate.readings({"a": wide, "b": wide}, 3)


def test_a_decoder_writes_word_by_word():
    W = torch.tensor([[0.9, 0.1, 0.0], [0.02, 0.08, 0.9]])
    A = Dense(W, labels=(("Je", "bois"), ("I", "drink", "milk")))
    story = animate.writing(A)
    assert len(story) == 4
    first = shapes(story, 1)
    assert "made.1" not in first and first["made.0"].texts == ("Je",)
    assert [first[f"source.{j}"].shades[0][0] for j in range(3)] == pytest.approx([0.9, 0.1, 0])
    second = shapes(story, 2)
    ribbons = {key: shape.width for key, shape in second.items() if key.startswith("ribbon.1.")}
    assert ribbons == pytest.approx({"ribbon.1.1": 1 + 13 * 0.08, "ribbon.1.2": 1 + 13 * 0.9})
    assert second["ribbon.0.0"].opacity < 0.3 < shapes(story, 3)["ribbon.0.0"].opacity
    assert written(story, "got") == ["0.9", "0.2", "0.9"]
    middle = second["made.1"].x + second["made.1"].width / 2
    assert second["ribbon.1.2"].x == pytest.approx(middle)


def test_writing_is_checked():
    with pytest.raises(ArgumentError, match="at most 64 words a side"):
        animate.writing(Dense(torch.ones(2, 65) / 65))
    words = ("Donaudampfschiff",) * 30
    A = Dense(torch.ones(2, 30) / 30, labels=(("a", "b"), words))
    with pytest.raises(ArgumentError, match=r"at most 1,180 pixels wide.*alignment"):
        animate.writing(A)


def empty() -> Dense:
    return Dense(torch.zeros(3, 3), labels=(("a", "b", "c"), ("a", "b", "c")))


def test_who_looks_at_nothing_is_said_to():
    A = empty()
    assert animate.writing(A).captions[1] == "‘a’ is written, looking at nothing."
    story = animate.readings({"x": A, "y": A}, "a")
    assert story.captions[-1] == "x: ‘a’ looks at nothing; y: ‘a’ looks at nothing."
    q, hidden = random(3, 4), torch.zeros(3, 3, dtype=torch.bool)
    captions = animate.product(it.attend(q, q, mask=hidden), q).captions
    assert captions[-1] == "‘2’ looks at nothing: its output is 0."
    assert sum(caption.startswith("Softmax has nothing to share out") for caption in captions) == 1
    assert not any("add up to 1" in caption for caption in captions)
    captions = animate.dictionary(it.attend(q, q, mask=hidden), q).captions
    assert captions[-2] == "‘2’ looks at nothing, and gets 0."
    assert "‘1’ may see no key." in captions and not any("mostly" in one for one in captions)


UNKNOWN = {
    "product": lambda x: animate.product(it.attend(x, x), random(3, 4)),
    "product of values": lambda x: animate.product(it.attend(random(3, 4), random(3, 4)), x),
    "temperature": lambda x: animate.temperature(it.attend(x, x), query=0),
    "dictionary": lambda x: animate.dictionary(it.attend(x, random(3, 4)), random(3, 4)),
    "heads": lambda x: animate.heads(MultiHeadAttention(4, 2), x),
    "permutation": lambda x: animate.permutation(MultiHeadAttention(4, 2), x),
    "readings": lambda x: animate.readings({"a": empty(), "b": Dense(x[:, :3])}, 1),
    "writing": lambda x: animate.writing(Dense(x)),
    "convolution": lambda x: animate.convolution(
        convolution_as_attention(nn.Conv2d(1, 1, 3, padding=1)), x[None]
    ),
}


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", UNKNOWN)
def test_no_story_is_told_of_what_is_not_finite(name, value):
    x = random(3, 4)
    x[1, 0] = value
    with pytest.raises(ArgumentError, match="expected finite numbers; got NaN or ∞"):
        UNKNOWN[name](x)


@pytest.mark.parametrize("tell", [animate.permutation, animate.heads])
def test_nothing_drops_out_of_a_block_in_training_and_its_mode_stays(tell):
    block = MultiHeadAttention(8, 2, dropout=0.5).train()
    story = tell(block, random(4, 8))
    assert block.training
    assert story.scenes == tell(block.eval(), random(4, 8)).scenes
    if tell is animate.permutation:
        assert story.captions[-1].startswith("The same rows in another order")


def test_every_part_gets_its_mode_back_also_after_an_error():
    block = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5)).train()
    block[1].eval()
    with pytest.raises(KeyError), without_dropout(block):
        assert not any(part.training for part in block.modules())
        raise KeyError
    assert [part.training for part in block.modules()] == [True, True, False]


@pytest.mark.parametrize("number", [np.int64(1), torch.tensor(1)])
def test_whole_numbers_of_any_library_choose_heads_and_queries(number):
    A, v = it.attend(random(1, 4, 5, 6), random(1, 2, 5, 6)), random(2, 5, 3, seed=2)
    wanted = animate.product(A, v, head=1, query=1)
    assert animate.product(A, v, head=number, query=number) == wanted
    for wrong in (True, -1, 4):
        with pytest.raises(ArgumentError, match="head: expected a head from 0 to 3; got"):
            animate.product(A, v, head=wrong)
    layer = convolution_as_attention(nn.Conv2d(1, 2, 2))
    assert animate.convolution(layer, random(1, 4, 4), channel=number).captions
    with pytest.raises(RangeError, match="channel: expected a channel from 0 to 1; got 'x'"):
        animate.convolution(layer, random(1, 4, 4), channel="x")


def test_titles_of_stories_are_texts():
    with pytest.raises(KindError, match="title: expected a text; got int"):
        animate.writing(empty(), title=3)
    with pytest.raises(KindError, match="title: expected a text; got int"):
        animate.product(it.attend(random(3, 4), random(3, 4)), random(3, 4), title=3)


# --- convolution ----------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 4])
def test_a_convolution_is_the_sum_of_what_its_heads_read(channels):
    conv = nn.Conv2d(channels, 4, 3, padding=1, groups=2 if channels > 1 else 1)
    layer, image = convolution_as_attention(conv), random(channels, 5, 5)
    story = animate.convolution(layer, image, channel=3)
    out = conv(image).detach()[3]
    found = shapes(story)
    assert np.array(found["output"].shades) == pytest.approx(
        (out / out.abs().max()).numpy(), abs=1e-3
    )
    first = shapes(story, 2)
    assert f"= {number(float(out[0, 0]))}" in first["total"].text
    hot = {key for key in first if key.startswith("hot.")}
    assert hot == {"hot.4", "hot.5", "hot.7", "hot.8"}  # the corner: the others are in the padding
    adds = np.array(first["adds"].shades[0])
    weight = conv.weight.detach()[3]
    mine = image[2:] if channels > 1 else image
    padded = nn.functional.pad(mine, (1, 1, 1, 1))[:, :3, :3]
    contributions = (padded * weight).sum(0).flatten().numpy()
    scale = adds[np.abs(contributions).argmax()] / contributions[np.abs(contributions).argmax()]
    assert adds == pytest.approx(contributions * scale, abs=2e-3)
    (apart,) = re.findall(r"to within (\S+)\.$", story.captions[-1]) or ["0"]
    assert float(apart) < 1e-5


def test_strides_and_bare_images():
    layer = convolution_as_attention(nn.Conv2d(1, 1, 2, stride=2))
    story = animate.convolution(layer, random(1, 6, 6))
    assert len(shapes(story)["output"].shades) == 3
    assert story.captions[1].startswith("Output pixel (0, 0): 4 of the 4 heads look")


def test_convolutions_are_checked():
    layer = convolution_as_attention(nn.Conv2d(1, 1, 3, padding=1))
    refuses(
        KindError,
        {
            r"layer: expected a convolution as attention; got Conv2d": lambda: animate.convolution(
                nn.Conv2d(1, 1, 3), random(1, 4, 4)
            )
        },
    )
    refuses(
        ArgumentError,
        {
            r"at most 32 pixels a side; got shape \(1, 33, 4\)": lambda: animate.convolution(
                layer, random(1, 33, 4)
            ),
            "at most 25 taps": lambda: animate.convolution(
                convolution_as_attention(nn.Conv2d(1, 1, 6)), random(1, 8, 8)
            ),
        },
    )
    refuses(
        RangeError,
        {
            "channel: expected a channel from 0 to 0; got 1": lambda: animate.convolution(
                layer, random(1, 4, 4), channel=1
            )
        },
    )
    grown = convolution_as_attention(nn.Conv2d(1, 1, 1, padding=1))
    with pytest.raises(ArgumentError, match="an output of at most 32 pixels"):
        animate.convolution(grown, random(1, 32, 32))


# --- all of them ----------------------------------------------------------------------------------


def stories() -> dict[str, animate.Animation]:
    A = it.attend(random(4, 4), random(4, 4, seed=1)).label(TEXT, TEXT)
    conv = convolution_as_attention(nn.Conv2d(1, 1, 3, padding=1))
    return {
        "product": animate.product(A, random(4, 2)),
        "temperature": animate.temperature(A),
        "dictionary": animate.dictionary(A, random(4, 1)),
        "heads": animate.heads(MultiHeadAttention(8, 2), random(3, 8)),
        "permutation": animate.permutation(AttentionHead(8, 4), random(3, 8)),
        "readings": animate.readings({"a": A, "b": A}, "it"),
        "writing": animate.writing(A),
        "convolution": animate.convolution(conv, random(1, 5, 5)),
    }


def test_nothing_leaves_the_sheet_and_all_numbers_are_finite():
    for name, story in stories().items():
        wide, high = story.size
        for scene in story.scenes:
            assert scene.caption and scene.hold > 0
            keys = [shape.key for shape in scene.shapes]
            assert len(keys) == len(set(keys)), name
            for shape in scene.shapes:
                assert math.isfinite(shape.x) and 0 <= shape.x <= wide, (name, shape.key)
                assert math.isfinite(shape.y) and -1 <= shape.y <= high, (name, shape.key)
                if isinstance(shape, Grid):
                    assert shape.x + shape.width <= wide and shape.y + shape.height <= high
                    every = [x for row in shape.shades for x in row if x is not None]
                    assert all(-1 <= x <= 1 for x in every if x == x), (name, shape.key)
                if isinstance(shape, Text) and shape.anchor == "start":
                    assert shape.size >= 10


def test_stories_run_where_gradients_are_on():
    x = random(3, 4).requires_grad_()
    A = it.attend(x, x)
    animate.product(A, x)
    animate.temperature(A)
    animate.readings({"a": A, "b": A}, 0)
    animate.writing(A)


def test_of_many_keys_the_first_four_are_met_one_by_one():
    A = it.attend(random(1, 4), random(12, 4))
    story = animate.product(A, random(12, 2))
    assert [written(story, "q · k", n) == [] for n in (0, 1)] == [True, False]
    assert [len(written(story, "q · k", n)) for n in (1, 2, 3, 4, 5)] == [1, 2, 3, 4, 12]
    assert story.captions[5] == "So it meets all 12 of them."
