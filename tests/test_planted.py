"""The planted benchmark: its bases are right, its mistakes are real, its set is reproducible."""

import importlib
import inspect
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[1]
SEEDS = (0, 1)

EQUIVALENT = {
    "mask-after-softmax-renormalised",  # the same in other words
    "gradient-cut.of the maximum",  # a softmax does not change with what is taken from all scores
    "bias-missing.keys",  # a key's bias adds the same to all scores of a query
    "alibi-offset-lost",  # so does a shift of ALiBi
    "rotation-off-by-one.both",  # rotations depend on distances only
}
"""Single slips that change nothing, and why; where a mask is boolean, so does `mask-twice`."""


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    pytest.importorskip("diffusers")
    monkeypatch.syspath_prepend(str(ROOT))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def planted(name):
    return importlib.import_module(f"benchmarks.checking.planted.{name}")


def doubled(inputs):
    return {
        name: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for name, x in inputs.items()
    }


def base_names():
    sys.path.insert(0, str(ROOT))
    try:
        return [base.name for base in planted("generator").BASES]
    finally:
        sys.path.remove(str(ROOT))


BASES = base_names()


def base_of(name):
    return next(x for x in planted("generator").BASES if x.name == name)


def correct(base, draw):
    found = base.subject(draw)
    return found.double() if isinstance(found, nn.Module) else found


def formula(base, draw, subject, inputs):
    """The plain formula, or what its user has at hand."""
    if base.name in planted("formulas").FORMULAS:
        return planted("formulas").FORMULAS[base.name](draw, subject, inputs)
    like = base.ask(draw)["like"]
    like = like.double() if isinstance(like, nn.Module) else like
    return like(**{n: x for n, x in inputs.items() if n in ("q", "k", "v", "x")})


@pytest.mark.parametrize("name", BASES)
@torch.no_grad()
def test_a_base_is_the_plain_formula(name):
    base = base_of(name)
    draw = planted("draw").Draw(0, name)
    for case in base.cases(draw):
        if case.train or case.steps:
            continue
        subject, inputs = correct(base, draw), doubled(case.inputs)
        y = subject(**inputs)
        y = y[0] if isinstance(y, tuple) else y
        expected = formula(base, draw, subject, inputs)
        torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-6, msg=case.name)


@pytest.mark.parametrize("name", BASES)
@torch.no_grad()
def test_steps_continue_the_whole(name):
    base, observing = base_of(name), planted("observing")
    draw = planted("draw").Draw(3, name)
    for case in (x for x in base.cases(draw) if x.steps):
        subject, inputs = correct(base, draw), doubled(case.inputs)
        stepped = observing.called(subject, inputs, case)
        torch.testing.assert_close(stepped, subject(**inputs)[0], msg=case.name)


@pytest.mark.parametrize("name", BASES)
def test_spelling_changes_nothing(name):
    base, draw, build = base_of(name), planted("draw").Draw(4, name), planted("base")
    observing = planted("observing")

    def unspelled():
        names = build.compiled(base.source(), base.constants(draw))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(draw.number("build"))
            return base.build(names, draw)

    for case in base.cases(draw):
        ours = observing.observed(lambda: base.subject(draw), case)
        assert observing.difference(ours, observing.observed(unspelled, case)) < 1e-12, case.name


@pytest.mark.parametrize("name", BASES)
def test_a_slip_changes_what_is_observed(name):
    base, mutant = base_of(name), planted("generator")
    draw = planted("draw").Draw(5, name)
    same = set()
    for slip in base.slips:
        found = mutant.Mutant(slip.name, name, (slip.kind,), draw, (slip,), base)
        if found.equivalent:
            same.add(slip.name)
        else:
            assert found.difference > 1e-5, (slip.name, found.differences)
    expected = EQUIVALENT & {slip.name for slip in base.slips}
    assert same - {"mask-twice"} == expected


def test_the_set_is_large_enough_with_what_is_equivalent_taken_out():
    found = [x for x in planted("generator").sealed() if not x.equivalent]
    sizes = Counter(len(x.slips) for x in found)
    both = [x for x in found if len(x.slips) == 2 and not x.unseen]
    assert len(found) >= 160 and sizes[1] >= 110 and len(both) >= 50


@pytest.mark.parametrize("seed", SEEDS)
def test_names_are_unique_and_every_kind_is_there_alone(seed):
    found, kinds = planted("generator").mutants(seed), planted("kinds").KINDS
    assert len({x.name for x in found}) == len(found) >= 160
    assert {x.kinds[0] for x in found if len(x.kinds) == 1} == set(kinds)
    assert all(a != b for a, b in (x.kinds for x in found if len(x.kinds) == 2))


def test_a_seed_draws_the_same_again_and_another_seed_something_else():
    mutants, observing = planted("generator").mutants, planted("observing")
    once, again, other = mutants(0), mutants(0), mutants(1)
    assert [x.name for x in once] == [x.name for x in again]
    assert [x.diff for x in once] == [x.diff for x in again]
    assert {x.name for x in once} != {x.name for x in other}
    for one, same in list(zip(once, again))[::20]:
        case = one.of.cases(one.draw)[0]
        a, b = (observing.observed(x.correct, case) for x in (one, same))
        assert observing.difference(a, b) == 0


def test_every_kind_is_told_in_a_sentence_and_planted_somewhere():
    kinds, bases = planted("kinds"), planted("generator").BASES
    slips = [slip for base in bases for slip in base.slips]
    assert {slip.kind for slip in slips} == set(kinds.KINDS)
    assert all(text[0].isupper() and text.endswith(".") for text in kinds.KINDS.values())
    assert all(group <= set(kinds.KINDS) for group in kinds.ALIKE)


def test_the_seed_is_the_one_committed_to(tmp_path, monkeypatch):
    generator = planted("generator")
    assert generator.sealed()
    forged = tmp_path / "seal.json"
    forged.write_text(generator.SEAL.read_text().replace('"seed": ', '"seed": 1'))
    monkeypatch.setattr(generator, "SEAL", forged)
    with pytest.raises(ValueError, match="committed"):
        generator.sealed()


@pytest.mark.parametrize("name", BASES)
def test_what_a_user_tells_fits_the_subject(name):
    base, draw = base_of(name), planted("draw").Draw(6, name)
    given, subject = base.ask(draw), base.subject(draw)
    called = subject.forward if isinstance(subject, nn.Module) else subject
    takes = inspect.signature(called).parameters
    optional = {x.name for x in takes.values() if x.default is not x.empty}
    assert set(given) <= {"inputs", "arguments", "mask", "like", "same"}
    assert set(given.get("inputs", {})) <= set(takes)
    assert set(given.get("arguments", {})) <= set(takes)
    assert all(set(settings) <= set(takes) for settings in given.get("same", ()))
    if "inputs" in given:
        subject(**given["inputs"])
    for left_out in optional & set(given.get("arguments", {})) - {"past"}:
        subject(**{n: x for n, x in given["inputs"].items() if n != left_out})
    if "like" in given:
        y = given["like"](**given["inputs"])
        torch.testing.assert_close(y, subject(**given["inputs"]), rtol=1e-3, atol=1e-4)
