"""Sampling: what is drawn, from which distribution, and that caches and padding do not matter."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import intently as it
from intently.errors import ArgumentError, KindError
from intently.nn.caches.window import WindowCache
from intently.nn.models.language import LanguageModel, LanguageOptions
from intently.nn.options import AttentionOptions
from intently.tasks.decoding.sampling import distribution, sample

from ...combinations import pairs
from ...messages import raises

PROMPTS = [[5, 6, 7, 8, 9], [4], [11, 3, 2]]


def model(**options) -> LanguageModel:
    net = LanguageModel(LanguageOptions(13, width=16, heads=2, **options))
    with torch.no_grad():
        net.embedding.weight.mul_(30)  # so that tokens differ in probability
    return net.eval()


def greedy(net: LanguageModel, prompt: list[int], steps: int) -> list[int]:
    """Slow and plain: the whole text again at every step."""
    ids = list(prompt)
    for _ in range(steps):
        ids.append(int(net(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


KINDS = {
    "rotary": {},
    "learned": {"positions": 16},
    "none": {"positions": None},
    "grouped": {"kv_heads": 1},
    "window": {"attention": AttentionOptions(mask=it.window(3, 0))},
    "alibi": {"positions": None, "attention": AttentionOptions(bias=it.alibi(2))},
}


@pytest.mark.parametrize("kind", KINDS)
def test_top_1_is_greedy_for_prompts_of_any_lengths(kind: str) -> None:
    net = model(**KINDS[kind])
    expected = [greedy(net, prompt, 6) for prompt in PROMPTS]
    assert sample(net, PROMPTS, steps=6, top_k=1) == expected
    assert sample(net, PROMPTS, steps=6, temperature=0) == expected
    assert sample(net, PROMPTS, steps=6, top_p=1e-6) == expected
    assert sample(net, PROMPTS[:1], steps=6, top_k=1) == expected[:1]


def test_draws_follow_the_distribution() -> None:
    net = model()
    generator = torch.Generator().manual_seed(1)
    n = 4000
    drawn = sample(net, [[5, 6]] * n, steps=1, temperature=2.0, top_k=6, generator=generator)
    counts = torch.bincount(torch.tensor(drawn).flatten(), minlength=13)
    chances = distribution(net(torch.tensor([[5, 6]]))[0, -1].detach(), 2.0, top_k=6)
    kept = chances > 0
    assert int(kept.sum()) == 6 and not counts[~kept].any()
    expected = chances[kept] * n
    chi_squared = float(((counts[kept] - expected) ** 2 / expected).sum())
    assert chi_squared < 20.5  # 99.9 % of draws, 5 degrees of freedom


def test_the_same_generator_draws_the_same() -> None:
    net = model()
    one, other = (
        sample(net, PROMPTS, steps=8, generator=torch.Generator().manual_seed(3)) for _ in range(2)
    )
    assert one == other
    assert one != sample(net, PROMPTS, steps=8, generator=torch.Generator().manual_seed(4))


def test_stop_ends_a_row() -> None:
    net = model()
    whole = sample(net, PROMPTS, steps=6, top_k=1)
    stop = whole[0][2]
    found = sample(net, PROMPTS, steps=6, top_k=1, stop=stop)
    assert found == [ids[: ids.index(stop)] if stop in ids else ids for ids in whole]


def test_the_model_keeps_its_mode_and_no_random_state_is_touched_by_a_generator() -> None:
    net = model(dropout=0.5).train()
    before = torch.get_rng_state()
    generator = torch.Generator().manual_seed(0)
    drawn = sample(net, [[5]], steps=3, generator=generator)
    assert net.training and torch.equal(before, torch.get_rng_state())
    assert drawn == sample(net.eval(), [[5]], steps=3, generator=generator.manual_seed(0))


logits = st.lists(st.floats(-20, 20), min_size=2, max_size=12).map(torch.tensor)


@settings(deadline=None, max_examples=60)
@given(logits, st.floats(0.05, 4), st.integers(1, 14), st.floats(0.01, 1))
def test_properties_of_the_distribution(z, temperature, top_k, top_p) -> None:
    plain = torch.softmax(z.double() / temperature, -1)
    p = distribution(z.double(), temperature, top_k, top_p)
    kept = p > 0
    assert abs(float(p.sum()) - 1) < 1e-9
    assert 1 <= int(kept.sum()) <= top_k
    assert bool(kept[z.argmax()]) or float(z.max()) == float(z[kept].max())
    if not kept.all():
        assert plain[kept].min() >= plain[~kept].max() - 1e-12
    ratio = plain[kept] / p[kept]  # what is kept keeps its proportions
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))
    by_k = distribution(z.double(), temperature, top_k)
    mass = float(by_k[kept].sum())
    assert mass >= top_p - 1e-9
    assert int(kept.sum()) == 1 or mass - float(by_k[kept].min()) < top_p + 1e-9


def test_equal_tokens_are_kept_by_id() -> None:
    assert distribution(torch.zeros(4), top_k=2).tolist() == [0.5, 0.5, 0, 0]
    assert distribution(torch.zeros(4), top_p=0.5).tolist() == [0.5, 0.5, 0, 0]
    assert distribution(torch.zeros(5000), top_k=3).nonzero()[:, 0].tolist() == [0, 1, 2]
    assert distribution(torch.zeros(3, 4), 0).tolist() == [[1, 0, 0, 0]] * 3


@pairs(
    {
        "top_p": [None, 1e-3, 0.3, 0.9, 0.999, 1.0],
        "top_k": [None, 1, 7, 50, 1000],
        "temperature": [0.3, 1.0, 2.5],
    }
)
def test_it_is_what_transformers_draws_from(temperature, top_k, top_p) -> None:
    """Temperature, then top-k, then top-p, as `generate` orders its warpers."""
    process = pytest.importorskip("transformers.generation.logits_process")
    z = torch.randn(64, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    z[::5, ::7] = -torch.inf
    theirs, ids = process.TemperatureLogitsWarper(temperature)(None, z), torch.zeros(64, 1)
    if top_k is not None:
        theirs = process.TopKLogitsWarper(top_k)(ids, theirs)
    if top_p is not None:
        theirs = process.TopPLogitsWarper(top_p)(ids, theirs)
    ours = distribution(z, temperature, top_k, top_p)
    torch.testing.assert_close(ours, theirs.softmax(-1))
    assert torch.equal(ours > 0, theirs.isfinite())
    assert torch.equal(ours, distribution(z, temperature, top_k, top_p))


def test_where_transformers_keeps_more_of_equal_tokens() -> None:
    process = pytest.importorskip("transformers.generation.logits_process")
    z = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    theirs = process.TopKLogitsWarper(2)(None, z).isfinite()
    assert theirs.tolist() == [[True, True, True, True, False]]
    assert (distribution(z, top_k=2) > 0).tolist() == [[True, True, False, False, False]]
    mass = float(z.softmax(-1)[0, :2].sum()) - 1e-3
    ours = distribution(z, top_p=mass) > 0
    assert ours.tolist() == [[True, True, False, False, False]]
    assert int(process.TopPLogitsWarper(mass)(None, z).isfinite().sum()) == 2


def test_a_mass_of_one_keeps_every_token() -> None:
    """Their sum may be rounded to more than 1 before the last of them."""
    z = torch.randn(8, 60_000, generator=torch.Generator().manual_seed(0))
    chances = z.softmax(-1).sort(descending=True).values
    assert bool((chances.cumsum(-1) - chances >= 1).any())
    assert bool((distribution(z, top_p=1.0) > 0).all())
    assert torch.equal(distribution(z, top_p=1.0), distribution(z))
    assert torch.equal(distribution(z, top_k=60_000), distribution(z))


def test_a_cache_that_does_not_grow() -> None:
    near = it.prefix(1) | it.window(3, 0)
    net, plain = model(), model(attention=AttentionOptions(mask=near))
    plain.load_state_dict(net.state_dict())
    cache = net.new_cache(partial(WindowCache, 4, 1))
    found = sample(net, PROMPTS, steps=12, top_k=1, cache=cache)
    assert found == [greedy(plain, prompt, 12) for prompt in PROMPTS]
    assert cache.layers[0].columns(0) <= 5


def test_small_temperatures_and_half_types() -> None:
    z = torch.tensor([1e4, 1e4 - 1, -1e4])
    assert distribution(z, 1e-30).tolist() == [1, 0, 0]
    p = distribution(z.bfloat16())
    assert p.dtype is torch.float32 and bool(p.isfinite().all())


def test_nothing_asked_nothing_drawn() -> None:
    assert sample(model(), [], steps=3) == []
    assert sample(model(), PROMPTS, steps=0) == [[], [], []]


def test_prompt_and_steps_may_fill_the_table_of_positions() -> None:
    assert len(sample(model(positions=6), [[4, 5, 6]], steps=4)[0]) == 4


def sampled(prompts: Any, steps: Any = 1, **options: Any) -> list[list[int]]:
    return sample(model(positions=6), prompts, steps=steps, **options)


def sampled_twice() -> None:
    net = model()
    used = net.new_cache()
    for _ in range(2):
        sample(net, [[4]], steps=2, cache=used)


test_errors = raises(
    [
        (
            lambda: sampled([[4], []]),
            ArgumentError,
            "prompts[1]: expected at least one token id; got",
        ),
        (lambda: sampled([5]), KindError, "prompts[0]: expected a list of token ids; got 5."),
        (
            lambda: sampled([[4, 5, 6]], 5),
            ArgumentError,
            "steps: expected prompt and steps within 6 positions",
        ),
        (lambda: sampled([[4]], stop="a"), KindError, "stop: expected an int ≥ 0; got 'a'."),
        (
            lambda: sampled([[4]], generator=3),
            KindError,
            "generator: expected a torch.Generator; got int.",
        ),
        (sampled_twice, ArgumentError, "cache: expected an empty one; got one of 2 steps."),
        (lambda: sampled([[4, 99]]), ArgumentError, "ids: expected ids from 0 to 12; got 4 to 99"),
        *(
            (lambda name=name, x=x: sampled([[4]], **{name: x}), ArgumentError, text)
            for name, x, text in (
                ("temperature", -1.0, "temperature: expected a finite number ≥ 0; got -1.0."),
                (
                    "temperature",
                    float("inf"),
                    "temperature: expected a finite number ≥ 0; got inf.",
                ),
                ("top_k", 0, "top_k: expected an int ≥ 1; got 0."),
                ("top_p", 0.0, "top_p: expected a mass in (0, 1]; got 0.0."),
                ("top_p", 1.5, "top_p: expected a mass in (0, 1]; got 1.5."),
                ("top_p", float("nan"), "top_p: expected a mass in (0, 1]; got nan."),
                ("steps", -1, "steps: expected an int ≥ 0; got -1."),
            )
        ),
        *(
            (lambda name=name, x=x: distribution(torch.zeros(3), **{name: x}), KindError, text)
            for name, x, text in (
                ("temperature", "hot", "temperature: expected a number; got 'hot'."),
                ("top_p", True, "top_p: expected a number; got True."),
                ("top_k", 2.5, "top_k: expected an int ≥ 1; got 2.5."),
            )
        ),
        *(
            (lambda x=x: distribution(x), kind, text)
            for x, kind, text in (
                (
                    torch.tensor([[0.0, 1.0], [1.0, torch.nan]]),
                    ArgumentError,
                    "logits: expected finite numbers, −inf for tokens that may not "
                    "follow; got NaN or +inf, or −inf for every token of a row.",
                ),
                (
                    torch.tensor([[0.0, 1.0], [torch.inf, 1.0]]),
                    ArgumentError,
                    "logits: expected finite numbers, −inf for tokens that may not "
                    "follow; got NaN or +inf, or −inf for every token of a row.",
                ),
                (
                    torch.tensor([[0.0, 1.0], [-torch.inf, -torch.inf]]),
                    ArgumentError,
                    "logits: expected finite numbers, −inf for tokens that may not "
                    "follow; got NaN or +inf, or −inf for every token of a row.",
                ),
                ([1.0, 2.0], KindError, "logits: expected a tensor of numbers (…, V); got list."),
                (
                    torch.ones(2) > 0,
                    KindError,
                    "logits: expected a tensor of numbers (…, V); got dtype torch.bool.",
                ),
                (
                    torch.zeros(2, 0),
                    ArgumentError,
                    "logits: expected shape (…, V), a number for each token of a "
                    "vocabulary; got shape (2, 0).",
                ),
                (
                    torch.tensor(1.0),
                    ArgumentError,
                    "logits: expected shape (…, V), a number for each token of a "
                    "vocabulary; got shape ().",
                ),
            )
        ),
    ]
)
