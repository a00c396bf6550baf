"""The planted benchmark: its bases are right, its mistakes are real, its set is reproducible.

`FORMULAS` says on `intently.reference` what a base must compute around its weights; the others
should be like another attention, which their user has at hand.
"""

import importlib
import inspect
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import intently as it
from intently import reference

ROOT = Path(__file__).parents[1]

EQUIVALENT = {
    "mask-after-softmax-renormalised"  # the same in other words
}
"""Single slips that change nothing, and why; where a mask is boolean, so does `mask-twice`."""


@pytest.fixture(autouse=True)
def importable(monkeypatch):
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
    if base.name in FORMULAS:
        return FORMULAS[base.name](draw, subject, inputs)
    like = base.ask(draw)["like"]
    like = like.double() if isinstance(like, nn.Module) else like
    return like(**{n: x for n, x in inputs.items() if n in ("q", "k", "v", "x")})


def attend(q, k, v, mask=None, **options):
    q, k, v = (x.detach().numpy() for x in (q, k, v))
    mask = mask.numpy() if isinstance(mask, Tensor) else mask
    return torch.from_numpy(reference.attention(q, k, v, mask=mask, **options))


def layer(x, context, maps, h, mask=None, **o):
    maps = [(m.weight, m.bias) if isinstance(m, nn.Linear) else m for m in maps]
    q, k, v = (F.linear(y, *m) for y, m in zip((x, context, context), maps))
    q, k, v = (torch.stack(y.chunk(h, -1), 1) for y in (q, k, v))
    return F.linear(torch.cat(list(attend(q, k, v, mask, **o).unbind(1)), -1), *maps[3])


def parts(of, n=3):
    biases = (None,) * n if of.bias is None else of.bias.chunk(n)
    return list(zip(of.weight.chunk(n), biases))


def _folded(draw, f, i):
    t, s = i["q"].shape[2], i["k"].shape[2]
    distance = torch.arange(s) - torch.arange(t)[:, None] + t - s
    near = distance.abs() <= draw.window
    return attend(i["q"], i["k"], i["v"], near & ~i["pad"][:, None, None] if "pad" in i else near)


def _relative(draw, m, i):
    x, t = i["x"], i["x"].shape[1]
    bias = torch.empty(draw.h, t, t, dtype=x.dtype)
    for row in range(t):
        for column in range(t):
            near = max(-m.reach, min(m.reach, column - row))
            bias[:, row, column] = m.table.weight[near + m.reach].detach()
    mask = i["attention_mask"][:, None, None] == 1 if "attention_mask" in i else None
    return layer(x, x, [m.query, m.key, m.value, m.dense], draw.h, mask, bias=bias.numpy())


def _rolling(draw, m, i):
    mask, bias = it.causal() & it.window(draw.window - 1, 0), it.alibi(slopes=m.slopes)
    return layer(i["x"], i["x"], [*parts(m.qkv), m.out], m.heads, mask, bias=bias)


def rotated(x):
    half = x.shape[-1] // 2
    rates = 1e4 ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * rates
    turn = torch.polar(torch.ones_like(angles), angles)
    turned = torch.complex(x[..., :half].contiguous(), x[..., half:].contiguous()) * turn
    return torch.cat([turned.real, turned.imag], -1)


def _gpt(draw, m, i):
    ids, keep = i["ids"], i.get("attention_mask", torch.ones_like(i["ids"]))
    mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
    mask = mask & (keep == 1)[:, None, None]
    x = m.wte(ids) + m.wpe((keep.cumsum(-1) - 1).clamp(min=0))
    for norm, f in zip(m.norms, m.blocks):
        maps = ((f.wq, draw.h), (f.wk, draw.g), (f.wv, draw.g))
        q, k, v = (torch.stack(g(norm(x)).chunk(n, -1), 1) for g, n in maps)
        y = attend(rotated(q), rotated(k), v, mask)
        x = x + f.wo(torch.cat(list(y.unbind(1)), -1))
    return m.head(x)


def _encoder_decoder(draw, m, i):
    real = it.padding(i["source_lengths"])
    encode, decode, cross = ([x.q, *parts(x.kv, 2), x.out] for x in (m.encode, m.decode, m.cross))
    source, x = (m.embed(i[n]) + m.places.weight[: i[n].shape[1]] for n in ("source", "target"))
    source, x = m.norms[0](source), m.norms[2](x)
    memory = m.norms[1](source + layer(source, source, encode, draw.h, real))
    past, t = F.pad(x, (0, 0, 2, 0)), x.shape[1]
    taps = (past[:, j : j + t] * m.mix.weight[:, 0, j] for j in range(3))
    x = x + sum(taps, m.mix.bias)
    x = x + layer(x, x, decode, draw.h, it.causal())
    return m.generator(x + layer(m.norms[3](x), memory, cross, draw.h, real))


FORMULAS = {
    "local function with padding": _folded,
    "module with padding and a relative bias": _relative,
    "ALiBi window module with a rolling cache": _rolling,
    "GPT with a cache": _gpt,
    "encoder and decoder": _encoder_decoder,
}


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
def test_a_slip_changes_what_is_observed(name):
    base, mutant = base_of(name), planted("generator")
    draw = planted("draw").Draw(5, name)
    same = set()
    for slip in base.slips:
        found = mutant.Mutant(slip.kind, base, draw, slip)
        if found.equivalent:
            same.add(slip.kind)
        else:
            assert found.difference > 1e-5, (slip.kind, found.difference)
    expected = EQUIVALENT & {slip.kind for slip in base.slips}
    assert same == expected


def test_names_are_unique_and_every_kind_is_there():
    found = planted("generator").mutants()
    assert len({x.name for x in found}) == len(found)
    assert {x.kind for x in found} == set(planted("kinds").KINDS)


def test_a_seed_draws_the_same_again_and_another_seed_something_else():
    mutants, observing = planted("generator").mutants, planted("observing")
    for one, same, other in list(zip(mutants(0), mutants(0), mutants(1)))[::10]:
        assert one.diff == same.diff
        case = one.of.cases(one.draw)[0]
        a, b = (observing.observed(x.correct, case) for x in (one, same))
        assert observing.difference(a, b) == 0
        assert str(case.inputs) != str(other.of.cases(other.draw)[0].inputs)


@pytest.mark.parametrize("name", BASES)
def test_what_a_user_tells_fits_the_subject(name):
    base, draw = base_of(name), planted("draw").Draw(6, name)
    given, subject = base.ask(draw), base.subject(draw)
    called = subject.forward if isinstance(subject, nn.Module) else subject
    takes = inspect.signature(called).parameters
    optional = {x.name for x in takes.values() if x.default is not x.empty}
    assert set(given) <= {"inputs", "arguments", "mask", "bias", "like", "same"}
    assert set(given.get("inputs", {})) <= set(takes)
    assert set(given.get("arguments", {})) <= set(takes)
    assert all(set(settings) <= set(takes) for settings in given.get("same", ()))
    if "inputs" in given:
        subject(**given["inputs"])
    for left_out in optional & set(given.get("arguments", {})) - {"past"}:
        subject(**{n: x for n, x in given["inputs"].items() if n != left_out})
    if "like" in given:
        y, expected = subject(**given["inputs"]), given["like"](**given["inputs"])
        y = y[0] if isinstance(y, tuple) else y
        torch.testing.assert_close(y, expected, rtol=1e-3, atol=1e-4)
