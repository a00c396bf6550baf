"""Which entries of the tensors before it an operand reads, told by gradients.

An operand (*b, h, n, d) is made, entry by entry or row by row, of sources: what layers made, or
inputs. The gradient of one of its rows is zero but where the row comes from, so that layouts are
read and not guessed: which axis of a source its rows are, which numbers each head takes, and the
linear map between them, such as a rotation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import product
from math import prod

import torch
from torch import Tensor

from intently.checker.calling.modes import Straight
from intently.checker.measuring.run import Older, Run
from intently.checker.measuring.scores import gradient, is_product, value_of
from intently.observe.trace.graph import CONVOLUTIONS, MOVES, PRODUCTS, Node, View

LAYERS = frozenset((*PRODUCTS, *CONVOLUTIONS, "embedding", "native_layer_norm"))
NORMS = frozenset(
    ("native_layer_norm", "_fused_rms_norm", "native_group_norm", "native_batch_norm")
)
FAR = 300
MANY = 16
"""Rows and heads at most that are looked at one by one."""
NONE = 1e-12


@dataclass
class Source:
    """A tensor that an operand is made of, and the parameter of the layer that made it."""

    node: Node
    held: Tensor | Older
    name: str = ""
    entry: Tensor | None = None
    """What the layer read."""
    reads: Node | None = None
    """The layer that made what this one reads, as it is."""
    part: tuple[int, ...] = ()
    """Where in the parameter its weight lies, and how large it is."""

    @property
    def value(self) -> Tensor:
        """What the layer made."""
        return value_of(self.held)

    @property
    def mixes(self) -> bool:
        """Whether it is a product of data, such as what another attention gave."""
        return is_product(self.node)

    @property
    def is_input(self) -> bool:
        """Whether it is an input of the call."""
        return self.node.name == "given"


@dataclass
class Operand:
    """Queries, keys or values (*b, h, n, d), and how they come from their sources.

    ``rows`` says how: "own" if each row is made of one row of the source, the same for all heads;
    "channels" if it is one channel of all positions, "several" if the rows of all heads stand in
    one axis;
    "split" if which row it is depends on the head; "mixed" if several rows go into one; "same" if
    all are made of the same; "" if that could not be told. ``at`` (b, n) numbers the rows of the
    source that its rows come from. ``reads`` (h, …) are the numbers of a row that a head reads.
    """

    value: Tensor
    sources: list[Source]
    learned: tuple[str, ...] = ()
    rows: str = ""
    at: Tensor | None = None
    row_axes: tuple[int, ...] = ()
    reads: list[Tensor] = field(default_factory=list)
    factor: float | None = None
    """By what the operand is scaled, None if it is no scaled row of the source."""
    constant: bool = False
    """Whether the map is the same for all rows of the batch."""
    index: Tensor | None = None
    """(b, h, n, axes): where in its source a row lies along each axis; -1 for several places."""
    heads: list[int] = field(default_factory=list)
    """The heads of which ``reads`` is known."""
    maps: list[Tensor] = field(default_factory=list)
    """The same of the first and the last head, where it is constant: (n, d, m)."""
    places: list[int] = field(default_factory=list)
    """The rows of which the map is known."""
    filled: Tensor = field(default_factory=lambda: torch.zeros(0))
    """Which of its numbers are made of the source: others are zero, or of another one."""

    @property
    def row_sizes(self) -> tuple[int, ...]:
        """The sizes of the axes of the source that its rows lie along."""
        return tuple(self.sources[0].value.shape[i] for i in self.row_axes)

    @property
    def inputs_apart(self) -> bool:
        """Whether it is an input, as it was given."""
        return bool(self.sources) and all(x.is_input for x in self.sources)

    @property
    def groups(self) -> int:
        """How many heads read numbers of their own; 0 if that is not known."""
        if len(self.reads) < whole(self.value).shape[1]:
            return 0
        return len({tuple(x.nonzero()[:, 0].tolist()) for x in self.reads})

    @property
    def tiled(self) -> bool | None:
        """Whether shared heads take turns (0, 1, 0, 1); None if none are shared."""
        h, groups = len(self.reads), self.groups
        if groups in (0, 1, h) or self.at is None or bool((self.at != self.at[:, :1]).any()):
            return None
        first = [tuple(x.nonzero()[:, 0].tolist()) for x in self.reads]
        return first[0] != first[1]

    @property
    def interleaved(self) -> bool | None:
        """Whether a head takes every h-th number; None if that is not known."""
        if len(self.reads) < 2 or self.rows != "own" or self.inputs_apart:
            return None
        at = self.reads[0].nonzero()[:, 0]
        if len(at) < 2 or self.groups < 2 or len(at) > whole(self.value).shape[-1]:
            return None
        steps = at.diff()
        return bool((steps == steps[0]).all()) and int(steps[0]) > 1

    @property
    def name(self) -> str:
        """The parameters that made it."""
        return ", ".join(dict.fromkeys(x.name for x in self.sources if x.name))


def sources_of(run: Run, view: View, past: frozenset[Node]) -> tuple[list[Source], tuple[str, ...]]:
    """The sources of a tensor, and the parameters met on the way; attention in ``past`` is one."""
    left, seen, learns = [view], set[Node](), not view.node.data
    found: dict[Node, Source] = {}
    learned: dict[str, None] = {}
    while left and len(seen) < FAR:
        node = left.pop().settled().node
        if node in seen or not (node.data or learns):
            continue
        seen.add(node)
        if learns and node.name in PRODUCTS:  # a projection of learned queries
            found[node] = Source(node, run.value(node), run.name_of(node.view))
            continue
        if learns and len(node.size) < 2:
            continue  # what is added to each
        names = [n for _, x in node.views if not x.node.data and (n := run.name_of(x))]
        layer = node.name in LAYERS or node.name in NORMS
        if node.name == "given" or node in past or is_product(node) or (layer and names):
            found[node] = Source(
                node,
                run.value(node),
                names[0] if names else "",
                next((x for i, v in node.sources if (x := node.kept(i)) is not None), None),
                _before(run, node),
                next(((x.offset, *x.size) for _, x in node.views if not x.node.data), ()),
            )
            continue
        if not learns and node.name not in ("add", "sub"):
            learned |= dict.fromkeys(names)
        nexts = [x for _, x in (node.views if learns else node.sources)]
        if node.before is not None and node.before.data:
            nexts.append(node.before.view)
        left += nexts
    return list(found.values()), tuple(learned)


def _before(run: Run, node: Node) -> Node | None:
    """The product with parameters that another one reads, through nothing but moves."""
    read = [x for _, x in node.sources] if node.name in PRODUCTS else []
    for _ in range(6):
        before = read[0].settled().node if read else node
        if before is not node and before.name in PRODUCTS:
            named = any(run.name_of(x) for _, x in before.views if not x.node.data)
            return before if named else None
        if before.name not in MOVES:
            return None
        read = [x for _, x in before.sources]
    return None


def operand(run: Run, value: Tensor, view: View, past: frozenset[Node]) -> Operand:
    """An operand with its sources, and how it is made of them."""
    sources, learned = sources_of(run, view, past)
    made = Operand(value, sources, learned)
    if value.requires_grad and 0 < len(sources) < MANY:
        with Straight() if any("relu" in x.name for x in run.results) else nullcontext():
            if len(sources) == 1:
                _read(made, sources[0])
            else:
                _joined(run, made)
    return made


def _joined(run: Run, made: Operand) -> None:
    """By what rows are scaled, and their maps, that are put together of several sources.

    Each has some of the rows, or some of their numbers. What is made last comes first: what it is
    made of has a part in the rest alone.
    """
    order = {node: n for n, node in enumerate(run.results)}
    left, parts, rows = torch.arange(made.value.shape[-1]), list[Operand](), list[int]()
    for x in sorted(made.sources, key=lambda x: -order[x.node]):
        parts.append(part := Operand(made.value[..., left], [x]))
        if len(left):
            _read(part, x)
        if part.factor is None:
            return
        rows += part.places
        if len(part.places) == made.value.shape[-2]:
            left = left[~part.filled]
    factors = [x.factor for x in parts if x.factor is not None]
    if max(factors) - min(factors) > 1e-5 * max(factors):
        return
    n = made.value.shape[-2]
    if not len(left):
        made.factor = factors[0]
    elif any(x.inputs_apart and _plain(x) for x in parts):  # rotated before they were cached
        return
    elif sorted(rows) == some(n) and all(x.constant and bool(x.filled.all()) for x in parts):
        places = torch.tensor(rows).argsort()
        maps = [torch.cat([x.maps[i] for x in parts]) for i in (0, -1)]
        made.maps, made.places = [x[places] for x in maps], sorted(rows)
        made.factor, made.constant = factors[0], True


def _plain(x: Operand) -> bool:
    """Whether rows are those of the source, as they are."""
    m = x.maps[0]
    return m.shape[-1] == m.shape[-2] and bool(((m - torch.eye(m.shape[-1])).abs() < 1e-6).all())


def whole(x: Tensor) -> Tensor:
    """An operand with one batch axis and heads: (b, h, n, d)."""
    while x.ndim < 4:
        x = x[None]
    return x if x.ndim == 4 else x.flatten(0, x.ndim - 4)


def some(n: int, most: int = MANY) -> list[int]:
    """All of few numbers, or the first, the last and some between."""
    if n <= most:
        return list(range(n))
    return sorted({round(i * (n - 1) / (most - 1)) for i in range(most)})


def _read(made: Operand, origin: Source) -> None:
    held, x, source = origin.held, whole(made.value), origin.value
    b, h, n, d = x.shape
    places = [some(b, 3), some(h), some(n)]
    draw = torch.Generator().manual_seed(5)
    u = torch.randn(d, generator=draw, dtype=x.dtype)
    on = torch.zeros(*map(len, places), *source.shape, dtype=torch.bool)
    for i, j, m in product(*(enumerate(y) for y in places)):
        way = torch.zeros_like(x)
        way[i[1], j[1], m[1]] = u
        g = gradient(x, held, way)
        if g is None:
            return
        size = g.abs()
        on[i[0], j[0], m[0]] = size > max(NONE * float(size.max()), 1e-300)
    axes = range(source.ndim)
    known = on.flatten(3).any(-1) if source.ndim else on  # else a constant, such as a learned key
    if not bool(known.any()):
        return
    reads = [on.movedim(3 + i, 3).flatten(4).any(-1) for i in axes]
    rows, batch, heads = ([i for i in axes if _varies(reads[i], known, k)] for k in (2, 0, 1))
    counts = torch.stack([y.sum(-1) for y in reads], -1)
    first = torch.stack([y.int().argmax(-1) for y in reads], -1)
    grid = torch.meshgrid(*map(torch.tensor, places), indexing="ij")
    made.index = torch.full((b, h, n, source.ndim), -1)
    made.index[grid] = torch.where((counts == 1) & known[..., None], first, -1)
    made.row_axes = row_axes = tuple(sorted({*rows, *batch}))
    single = bool((counts[known][:, list(row_axes)] == 1).all())
    made.rows = "own"
    if int(known.flatten(0, 1).any(0).sum()) > 1 and not rows:
        made.rows = "same"
    elif not single:
        apart = int(on.flatten(0, 2).sum(0).max()) == 1
        made.rows = "split" if {*rows} & {*heads} and apart else "mixed"
    channel = _channel_axis(origin) if origin.name else None
    if channel is not None and rows == [channel] and bool((counts[known][:, channel] == 1).all()):
        made.rows = "channels"
        return
    flat = origin.node.name in ("mm", "addmm", *CONVOLUTIONS)
    if channel is not None and flat and _cut_across(on, counts, rows, channel, d):
        first, second = on[0, 0, :2].any(1 + channel).flatten(1)
        made.rows = "several" if first.sum() == 1 and (first != second).any() else "split"
        return
    if not single:
        return
    number = torch.zeros(known.shape, dtype=torch.long)
    for i in row_axes:
        number = number * source.shape[i] + first[..., i]
    number = torch.where(known, number, -1)
    made.at = torch.full((b, h, n), -1)
    made.at[grid] = number
    order = number.sort(-1).values
    if made.rows == "own" and bool(((order.diff(dim=-1) == 0) & (order[..., 1:] >= 0)).any()):
        made.rows = "split" if heads else "mixed"
        return
    rest = [i for i in axes if i not in row_axes]
    made.heads = places[1]
    for j in range(len(places[1])):
        if not bool(known[:, j].any()):
            return
        at = tuple(known[:, j].nonzero()[0].tolist())
        made.reads.append(_any_of(on[at[0], j, at[1]], rest))
    _mapped(made, x, held, rest)


def _channel_axis(origin: Source) -> int | None:
    """The axis of what a layer made that its channels lie along; None if that is not known."""
    node, n = origin.node, len(origin.node.size)
    if node.name in CONVOLUTIONS:
        return 1
    if node.name not in ("mm", "addmm", "bmm", "baddbmm"):
        return None
    data = dict(node.sources)  # none, where queries are learned
    return n - 1 if not data or PRODUCTS[node.name] in data else n - 2


def _cut_across(on: Tensor, counts: Tensor, rows: Sequence[int], channel: int, d: int) -> bool:
    """Whether rows are cut from what a layer made across its positions.

    Then each row is a part of the channels of one position after another, or has its numbers from
    several positions, and from each of them only a part of the channels.
    """
    if channel in rows and len(rows) > 1:
        return int(on[:, :1].flatten(0, 2).sum(0).max()) == 1
    full = on[:, :1].flatten(3).sum(-1) == d
    part = counts[:, :1, :, channel] < on.shape[3 + channel]
    others = [i for i in range(on.ndim - 3) if i != channel and i not in rows]
    return any(bool((full & part & (counts[:, :1, :, i] > 1)).all()) for i in others)


def _varies(reads: Tensor, known: Tensor, side: int) -> bool:
    """Whether what is read of an axis changes with a row of the batch, a head, or a row."""
    k = known[..., None]
    return bool(((reads & k).any(side) & ~(reads | ~k).all(side)).any())


def _any_of(on: Tensor, axes: Sequence[int]) -> Tensor:
    """Which of the numbers along some axes, as one, are read."""
    gone = [i for i in range(on.ndim) if i not in axes]
    return on.permute(*gone, *axes).reshape(-1, prod(on.shape[i] for i in axes)).any(0)


def _mapped(made: Operand, x: Tensor, held: Tensor | Older, rest: Sequence[int]) -> None:
    """The linear maps of the first and the last head, from all rows at once."""
    _, _, n, d = x.shape
    source = value_of(held)
    assert made.at is not None
    if d > 128 or made.rows != "own":
        return
    batch = some(len(x), 3)
    made.places = [i for i in some(n) if bool((made.at[batch, 0, i] >= 0).all())]
    gone = [i for i in range(source.ndim) if i not in rest]
    wide = prod(source.shape[i] for i in rest)
    known, factors = True, list[float]()
    for head, reads in dict(
        [(made.heads[0], made.reads[0]), (made.heads[-1], made.reads[-1])]
    ).items():
        cols = reads.nonzero()[:, 0]
        at = made.at[batch, head][:, made.places]
        at = at[:, (at >= 0).all(0)]
        if not at.numel() or not 0 < len(cols) <= d:
            return
        maps = []
        for f in range(d):
            way = torch.zeros_like(x)
            way[:, head, :, f] = 1.0
            g = gradient(x, held, way)
            if g is None:
                return
            flat = g.permute(*gone, *rest).reshape(-1, wide)
            maps.append(flat[at.flatten()][:, cols])
        found = torch.stack(maps, 1).unflatten(0, at.shape)  # (b, n, d, m)
        if not found.numel():
            return
        size = float(found.abs().max())
        known = known and float((found - found[:1]).abs().max()) <= 1e-6 * size
        norms = found.norm(dim=-1)
        made.filled = norms.flatten(0, 1).amax(0) > NONE * float(norms.max())
        norms = norms[..., made.filled]
        mean = float(norms.mean())
        factors += [mean] if float((norms - mean).abs().max()) <= 1e-5 * mean else [torch.nan]
        made.maps.append(found[0])
    made.constant = known
    if known and max(factors) - min(factors) <= 1e-5 * max(factors):
        made.factor = _by_length(made, x, source, gone, rest) or factors[0]


def _by_length(
    made: Operand, x: Tensor, source: Tensor, gone: Sequence[int], rest: Sequence[int]
) -> float | None:
    """How long rows are beside what they are made of, where that is the same for all.

    A gradient that was cut tells something else.
    """
    assert made.at is not None
    flat = source.detach().permute(*gone, *rest).reshape(-1, prod(source.shape[i] for i in rest))
    batch = some(len(x), 3)
    at = made.at[batch, made.heads[0]][:, made.places]
    own = flat[at][..., made.reads[0].nonzero()[:, 0]].norm(dim=-1)
    rows = x.detach()[batch, made.heads[0]][:, made.places][..., made.filled].norm(dim=-1)
    ratio = rows / own.clamp(min=1e-300)
    mean = float(ratio.mean())
    return mean if float((ratio - mean).abs().max()) <= 1e-5 * mean else None


def inputs_of(run: Run, views: Sequence[View]) -> Iterator[Node]:
    """The inputs that tensors are made of."""
    left, seen = list(views), set[Node]()
    while left:
        node = left.pop().settled().node
        if node in seen or not node.data:
            continue
        seen.add(node)
        if node.name == "given":
            yield node
        left += [x for _, x in node.sources]
        if node.before is not None:
            left.append(node.before.view)
