"""What masks know without being asked entry by entry: blocks, seen keys, parts, single entries."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import intently as it
from intently.core.masks import EMPTY, FULL, PARTIAL, Geometry, indexed
from intently.core.masks.block_states import MOST
from intently.core.masks.mask import Mask, seen_exactly
from intently.foundation.values import freeze, thaw

from ..combinations import each
from .formula import families, knows_its_entries

CPU = torch.device("cpu")
SIZES = [(2, 2, 5, 7), (2, 2, 7, 5), (2, 3, 6, 6), (2, 1, 1, 6), (2, 2, 1, 1), (2, 2, 8, 8)]
BLOCKS = [(1, 1), (2, 3), (3, 2), (4, 4), (16, 16)]


def counted(dense: Tensor, rows: int, cols: int) -> Tensor:
    """States of the blocks of a written-out mask (…, t, s), by looking at every entry."""
    t, s = dense.shape[-2:]
    found = torch.full((math.ceil(t / rows), math.ceil(s / cols)), PARTIAL, dtype=torch.int8)
    for n in range(found.shape[0]):
        for m in range(found.shape[1]):
            block = dense[..., n * rows : n * rows + rows, m * cols : m * cols + cols]
            found[n, m] = EMPTY if not block.any() else FULL if block.all() else PARTIAL
    return found


def certain(mask: Mask, g: Geometry, rows: int, cols: int, exact: bool = False) -> None:
    """Compare what the mask says about its blocks with what they hold."""
    found = mask.blocks(g, rows, cols)
    true = counted(mask.dense(g).expand(g.shape), rows, cols)
    assert found.dtype is torch.int8
    assert found.shape == true.shape
    wrong = (found != true) & (exact | (found != PARTIAL))
    assert not wrong.any(), f"{mask} in blocks of {rows} × {cols}:\n{found}\nbut\n{true}"


def of_size(size: tuple[int, int, int, int], family: str) -> tuple[Mask, Geometry]:
    b, h, t, s = size
    mask = families(b, h, t, s).get(family, (None,))[0]
    if mask is None:
        pytest.skip("no mask of this size")
    return mask, Geometry((b, h), t, s, CPU)


FAMILIES = list(families(2, 2, 6, 6))
every_family = pytest.mark.parametrize("family", FAMILIES)
every_family_and_size = each({"family": FAMILIES, "size": SIZES}, times=2)


@every_family_and_size
def test_every_familys_blocks(family: str, size: tuple[int, int, int, int]) -> None:
    mask, g = of_size(size, family)
    for rows, cols in BLOCKS:
        certain(mask, g, rows, cols)
        slow = Mask.blocks(mask, g, rows, cols)
        assert torch.equal(slow, counted(mask.dense(g).expand(g.shape), rows, cols)), "the default"
    certain(mask.part((1, 0), g), g._replace(lead=()), 1, 1, exact=True)


shapes = st.tuples(*[st.integers(1, 12)] * 2)
sides = st.tuples(*[st.integers(1, 6)] * 2)
shifts = st.one_of(
    st.none(), st.integers(-14, 14), st.lists(st.integers(-14, 14), min_size=2, max_size=2)
)


def tensor_if_list(x: int | list[int] | None) -> int | Tensor | None:
    return torch.tensor(x) if isinstance(x, list) else x


@st.composite
def rules(draw: st.DrawFn, t: int, s: int, exact: bool = False) -> Mask:
    """Draw a mask for a matrix (2, 2, t, s); ``exact`` those that find exactly their blocks."""
    kinds = ["causal", "window", "padding", "prefix", "sorted segments"]
    kind = draw(st.sampled_from(kinds if exact else [*kinds, "segments", "dilated", "allowed"]))
    seed = np.random.default_rng(draw(st.integers(0, 9999)))
    if kind == "causal":
        return it.causal(tensor_if_list(draw(shifts)))
    if kind == "window":
        before, after = draw(sides)
        return it.window(before - 1, after - 1, tensor_if_list(draw(shifts)))
    if kind == "dilated":
        return it.dilated(draw(st.integers(1, 20)), tensor_if_list(draw(shifts)))
    if kind == "padding":
        return it.padding(torch.tensor(draw(st.tuples(*[st.integers(0, s)] * 2))))
    if kind == "prefix":
        n = draw(
            st.one_of(st.integers(0, s + 1), st.lists(st.integers(0, s), min_size=2, max_size=2))
        )
        return it.prefix(torch.tensor(n) if isinstance(n, list) else n)
    if kind == "allowed":
        lead = draw(st.sampled_from([(), (2,), (2, 1), (1, 2), (2, 2)]))
        last = draw(st.sampled_from([(t, s), (1, s), (t, 1)]))
        return it.allowed(torch.tensor(seed.random((*lead, *last)) < draw(st.floats(0, 1))))
    lead = draw(st.sampled_from([(), (2,), (2, 2), (1,)]))
    q, k = (torch.tensor(seed.integers(0, 6, (*lead, n))) for n in (t, s))
    if kind == "sorted segments":
        q, k = q.sort(-1).values, k.sort(-1).values
    return it.segments(q) if t == s and draw(st.booleans()) else it.segments(q, k)


@settings(max_examples=300)
@given(data=st.data(), shape=shapes, block=sides)
def test_closed_forms_find_exactly_the_blocks(
    data: st.DataObject, shape: tuple[int, int], block: tuple[int, int]
) -> None:
    mask = data.draw(rules(*shape, exact=True))
    certain(mask, Geometry((2, 2), *shape, CPU), *block, exact=True)


@settings(max_examples=300)
@given(data=st.data(), shape=shapes, block=sides)
def test_joined_rules(data: st.DataObject, shape: tuple[int, int], block: tuple[int, int]) -> None:
    """Blocks are certain; seen, the single entries and the parts are exact."""
    mask = data.draw(rules(*shape))
    for _ in range(data.draw(st.integers(0, 3))):
        other = data.draw(rules(*shape))
        mask = data.draw(st.sampled_from([mask & other, mask | other, ~mask & other]))
    g = Geometry((2, 2), *shape, CPU)
    certain(mask, g, *block)
    dense = mask.dense(g).expand(g.shape)
    knows_its_entries(mask, g, dense)
    for cut in ((slice(1, 2), slice(None)), (slice(None), slice(0, 1)), (1, slice(0, 2)), (-1, 0)):
        lead = tuple(dense[cut].shape[:-2])
        part, h = mask.part(cut, g), g._replace(lead=lead)
        part.check(h)
        assert torch.equal(part.dense(h).expand(h.shape), dense[cut]), cut
        certain(part, h, *block)
        certain(part, h, 1, 1, exact=not lead)


@every_family_and_size
def test_parts(family: str, size: tuple[int, int, int, int]) -> None:
    mask, g = of_size(size, family)
    dense = mask.dense(g).expand(g.shape)
    index = torch.tensor([1, 0, 1])
    for cut in (
        (slice(1, 2), slice(None)),
        (slice(None, None, 2), slice(0, 1)),
        (0,),
        (-1, 0),
        (slice(2, 2),),
        (index,),
        (slice(None), index % g.lead[1]),
        (index, index % g.lead[1]),
        (torch.tensor([True, False]),),
        (torch.tensor([[1], [0]]),),
        (index, 0),
    ):
        part = indexed(mask, g, cut)
        h = g._replace(lead=tuple(dense[cut].shape[:-2]))
        part.check(h)
        assert torch.equal(part.dense(h).expand(h.shape), dense[cut]), cut
        if 0 in h.lead or not h.lead:
            continue
        certain(part, h, 2, 3)
        knows_its_entries(part, h, dense[cut])
        again = indexed(part, h, (0,))
        h0 = h._replace(lead=h.lead[1:])
        assert torch.equal(again.dense(h0).expand(h0.shape), dense[cut][0]), "a part of a part"


@every_family
def test_it_is_made_again_from_its_parts(family: str) -> None:
    mask, g = of_size((2, 2, 6, 6), family)
    index = torch.tensor([1, 1, 0])
    for rule in (mask, indexed(mask, g, (index,))):
        h = g if rule is mask else g._replace(lead=(3, 2))
        (again,) = thaw(*freeze(rule))
        assert isinstance(again, Mask)
        assert repr(again) == repr(rule)
        assert torch.equal(again.dense(h), rule.dense(h))
        copy = rule.replaced(lambda x: x.clone())
        assert all(x is not y for x, y in zip(copy.tensors(), rule.tensors()))
        assert torch.equal(copy.dense(h), rule.dense(h))


@pytest.mark.parametrize(("t", "s"), [(0, 4), (4, 0), (0, 0)])
@pytest.mark.parametrize("family", ["causal", "padding", "window", "prefix", "causal & padding"])
def test_empty_matrices(family: str, t: int, s: int) -> None:
    mask, _ = families(2, 2, 4, 4)[family]
    assert mask is not None
    g = Geometry((2, 2), t, s, CPU)
    assert mask.blocks(g, 2, 2).shape == ((t + 1) // 2, (s + 1) // 2)
    seen = mask.seen(g)
    assert (seen is None and (s == 0 or t > 0)) or (seen is not None and not seen.any())


def test_empty_tensors() -> None:
    ids = torch.zeros(2, 0, dtype=torch.long)
    g = Geometry((2, 2), 0, 3, CPU)
    mask = it.segments(ids, torch.zeros(2, 3, dtype=torch.long))
    assert mask.blocks(g, 2, 2).shape == (0, 2)
    assert not mask.seen(g).any()  # type: ignore[union-attr]
    none = torch.zeros(0, dtype=torch.long)
    h = Geometry((0, 2), 3, 3, CPU)
    for rule in (it.causal(none), it.padding(none), it.prefix(none), it.window(1, 0, none)):
        rule.check(h)
        assert rule.blocks(h, 2, 2).shape == (2, 2)
        assert rule.dense(h).expand(h.shape).shape == h.shape
        rule.seen(h)


class Nearer(Mask):
    """A rule of one's own: keys nearer to the query than a distance of each batch row."""

    def __init__(self, distance: Tensor) -> None:
        super().__init__(distance)
        self.distance = distance

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return (cols - rows[:, None]).abs() < g.align(self.distance, "distance")


def test_a_rule_of_ones_own_needs_only_allow() -> None:
    mask, g = Nearer(torch.tensor([1, 2])), Geometry((2, 3), 6, 6, CPU)
    dense = mask.dense(g).expand(g.shape)
    for rows, cols in BLOCKS:
        assert torch.equal(mask.blocks(g, rows, cols), counted(dense, rows, cols))
        certain(~mask | it.causal(), g, rows, cols)
    assert mask.seen(g) is None
    assert not (mask & it.prefix(4)).seen(g)[..., 4:].any()  # type: ignore[index]
    part = (mask & it.causal()).part((1, slice(0, 2)), g)
    expected = (mask & it.causal()).dense(g).expand(g.shape)[1, :2]
    assert torch.equal(part.dense(g._replace(lead=(2,))).expand(2, 6, 6), expected)
    assert "<svg" in (mask & it.causal())._repr_html_()
    with pytest.raises(NotImplementedError):
        mask.at(g, (torch.tensor(0), torch.tensor(0)), torch.tensor(0), torch.tensor(0))


class TestLong:
    """At t = s = 131,072, where t·s entries would be 16 GiB."""

    n = 131_072
    ids = torch.arange(131_072) // 512
    lengths = torch.tensor([131_072, 100_000])

    @pytest.mark.parametrize(
        "mask",
        [
            it.causal(),
            it.causal(torch.tensor([3, -5])),
            it.window(256, 0),
            it.dilated(4),
            it.window(9, 9, torch.tensor([0, 50_000])),
            it.prefix(1000),
            it.padding(lengths),
            it.segments(ids),
            it.segments(ids, ids + 0),
            it.causal() & it.padding(lengths),
            it.causal() & it.segments(ids),
            it.causal() & ~it.window(100, 0),
            (it.causal() | it.prefix(9)) & it.segments(ids) & it.padding(lengths),
            it.window(1000, 0) & it.dilated(4),
            it.grid(256, 512, 3),
        ],
        ids=lambda mask: repr(mask)[:40],
    )
    def test_blocks_and_seen_hold_no_matrix(self, mask: it.Mask) -> None:
        g = Geometry((2, 4), self.n, self.n, CPU)
        mask.check(g)
        mask.seen(g)
        assert mask.blocks(g, 512, 1024).shape == (256, 128)

    def test_packed_documents_leave_their_blocks_on_the_diagonal(self) -> None:
        g = Geometry((), self.n, self.n, CPU)
        found = it.segments(self.ids).blocks(g, 512, 512)
        assert torch.equal(found, FULL * torch.eye(256, dtype=torch.int8))


def test_documents_with_gaps_in_their_numbers() -> None:
    """Ids 1 and 3 in a block of queries do not meet the id 2 between them."""
    mask = it.segments(torch.tensor([1, 3]), torch.tensor([1, 1, 2, 2, 3, 3]))
    found = mask.blocks(Geometry((), 2, 6, CPU), 2, 2)
    assert found.tolist() == [[PARTIAL, EMPTY, PARTIAL]]


def test_reaches_beyond_every_key() -> None:
    far = it.window(2**62, 2**62, offset=-5)
    g = Geometry((), 3, 4, CPU)
    assert bool(far.dense(g).all())
    assert far.blocks(g, 3, 4).item() == FULL
    assert far.seen(g) is None
    assert repr(far) == f"window({2**62}, {2**62}, offset=-5)"


def test_seen_of_more_rows_of_queries_than_are_followed() -> None:
    mask = it.causal()
    for n in range(2 * MOST):
        mask = mask & ~it.window(0, 0, offset=-n)
    g = Geometry((), 6, 6, CPU)
    expected = mask.dense(g).any(-2)
    assert torch.equal(mask.seen(g), expected)  # type: ignore[arg-type]
    assert mask.queries(g) is None


def test_seen_asks_a_large_tensor_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intently.core.masks.mask.step_within", lambda size, memory: 2)
    mask, g = it.allowed(torch.rand(2, 1, 7, 5) > 0.8), Geometry((2, 3), 7, 5, CPU)
    expected = mask.dense(g).any(-2)
    assert torch.equal(seen_exactly(mask, g), expected)  # type: ignore[arg-type]
    whole = counted(mask.dense(g), 2, 2)
    assert torch.equal(Mask.blocks(mask, g, 2, 2), whole)
