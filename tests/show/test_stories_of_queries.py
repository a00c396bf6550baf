"""Stories of one query say the numbers that came out, and nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import intently as it
from intently.core.matrix import Dense
from intently.errors import ArgumentError, KindError, RangeError
from intently.show import animate
from intently.show.animate.stage import number

from .refusals import refusals
from .telling import random, shapes, written

WORDS = ("Harry", "is", "a", "wizard", "today")


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
    masked = shapes(story, list(story.captions).index(story.captions[-4]) - 1)
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
    assert all("products" not in shapes(story, n) for n in range(len(story) - 1))
    scores = it.attend(random(2, 3), random(3, 5), score=score).scores[1, :]
    assert written(story, "score") == told(scores)


def test_grouped_heads_take_their_own_values():
    q, k, v = random(1, 4, 3, 8), random(1, 2, 3, 8, seed=1), random(1, 2, 3, 2, seed=2)
    A = it.attend(q, k)
    story = animate.product(A, v, head=2, query=1)
    out = (A @ v)[0, 2, 1]
    assert shapes(story)["sum"].texts == tuple(told(out))


def test_wide_vectors_are_means_of_neighbours_and_say_so():
    x = random(4, 256)
    story = animate.product(it.attend(x, x), x)
    key = shapes(story, 0)["key.1"]
    assert len(key.shades[0]) == 86
    means = [float(part.mean()) for part in x[1].split(3)]
    largest = float(x.abs().max())
    assert key.shades[0] == pytest.approx([m / largest for m in means], abs=6e-4)
    assert "each cell the mean of 3 of 256" in story.captions[1]


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
        ({"save": "x.png"}, ArgumentError, r"ends in .html; got 'x.png'.*x.html"),
    ],
)
def test_a_product_refuses_what_it_cannot_tell(change, error, text):
    given = {"matrix": it.attend(random(3, 4), random(3, 4)), "values": random(3, 2)} | change
    with pytest.raises(error, match=text):
        animate.product(given.pop("matrix"), given.pop("values"), **given)


LONG = it.attend(random(1, 4), random(25, 4))
BATCH = it.attend(random(2, 1, 3, 4), random(2, 1, 3, 4))
test_too_many_keys_are_refused_with_advice = refusals(
    {
        ArgumentError: {
            r"at most 24 keys; got shape \(1, 25\).*k\[…, :24, :\]": lambda: animate.product(
                LONG, random(25, 2)
            ),
            "Pick a text": lambda: animate.product(BATCH, random(3, 2), head=0),
            "g heads, a divisor of h=4": lambda: animate.product(
                it.attend(random(4, 3, 4), random(4, 3, 4)), random(3, 3, 2), head=0
            ),
        }
    }
)


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


MINUTES = torch.ones(3, 1)
ADDITIVE = it.Additive(random(4, 3), random(4, 3), random(4))
test_a_dictionary_is_checked = refusals(
    {
        ArgumentError: {
            "features: expected d=3 names, or none; got 2": lambda: animate.dictionary(
                it.attend(USERS, FILMS), MINUTES, features=("a", "b")
            ),
            "at most 8 queries and 16 keys": lambda: animate.dictionary(
                it.attend(random(9, 3), FILMS), MINUTES
            ),
            "scores that are dot products; got Additive": lambda: animate.dictionary(
                it.attend(USERS, FILMS, score=ADDITIVE), MINUTES
            ),
        }
    }
)
