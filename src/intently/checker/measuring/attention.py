"""Each attention of a run, measured: weights, scores, scale, what was added, and where rows go."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as tree

from intently.checker.calling.subject import held_by
from intently.checker.measuring.after import Outcome, Rows, divides, outcome
from intently.checker.measuring.flow import Operand, inputs_of, operand, whole
from intently.checker.measuring.run import Run, Seen, memory, named, plainly
from intently.checker.measuring.running import by_running_sums, sums_values
from intently.checker.measuring.scores import Walked, gradient, is_product, scale_of, walked
from intently.checker.precision import EXACT, Precision
from intently.observe.trace.blocks import in_place, of_sources
from intently.observe.trace.calls import scores as operands
from intently.observe.trace.normaliser import Normal
from intently.observe.trace.sites import Site, together
from intently.observe.trace.sums import running_sums

FADED = 1e-30
"""The weight up to which a key counts as hidden: some code hides by −100."""
CLOSE = 1e-6
SLACK = 0.02
"""By how much an epsilon may change the sums of weights that a division makes a whole."""

AXES: dict[str, tuple[int, ...]] = {
    "keys": (-1,),
    "queries": (-2,),
    "heads": (-3,),
    "batch": (-4,),
    "queries and keys": (-2, -1),
    "heads and keys": (-3, -1),
    "heads, queries and keys": (-3, -2, -1),
    "batch and queries": (-4, -2),
    "batch and heads": (-4, -3),
}
"""The axes along which a softmax may run."""


@dataclass
class Attention:
    """One attention of a run: weights (b, h, t, s), values and output, and what they are made of.

    ``kind`` says what the scores are: "dot", "products" for a sum of several, "features",
    "network" for those that a layer makes, "" if they could not be followed.
    """

    where: str
    line: str
    weights: Tensor
    output: Tensor
    v: Operand
    site: Site | None
    module: str = ""
    axis: str = "keys"
    kind: str = ""
    scores: Tensor | None = None
    q: Operand | None = None
    k: Operand | None = None
    product: Tensor | None = None
    slope: Tensor | None = None
    """(h,): what a step of the product does to the scores."""
    softcap: float | None = None
    added: Tensor | None = None
    """(b, h, t, s): the scores without the product; NaN where hidden."""
    sink: Tensor | None = None
    """(h,): the logarithm of what each head adds to its sums."""
    soft: Tensor | None = None
    """The weights as the softmax made them, where something changed them since."""
    learned: tuple[str, ...] = ()
    after: Outcome | None = None
    inputs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The names of the inputs that q, k, v and the weights are made of."""
    masks: frozenset[str] = frozenset()
    """The names of the inputs that enter its scores beside q·k."""
    why: str = ""
    filled: tuple[Tensor, float] | None = None
    """Keys (b, h, t, s) whose scores are a number, whatever they hold, and that number."""
    placed: Tensor | None = None
    """(b, h, t, s) over the whole text, of weights that lie in blocks."""
    divided: bool = False
    """Whether its output is divided later, by what need not be the sum of its weights."""
    cosine: bool = False
    """Whether queries and keys are all of one length."""
    uneven: bool = False
    """Whether the scale differs from score to score, by no softcap and no length of a row."""
    other_query: tuple[int, int] | None = None
    """A query whose scores are made of the row of another one, and that one."""
    lost: bool = False
    """Whether nothing that comes out is made of its output."""
    places: Tensor | None = None
    """(b, h, t, e): where the entries of its output lie in memory."""
    blank: Tensor | None = None
    """(b, h, t): the queries whose scores are all one number."""
    dropped: int = 0
    """How many times dropout changes the weights."""
    dropped_before: bool = False
    """Whether dropout changes the scores."""
    rotation: str = ""
    """How queries and keys are rotated, in words."""
    precision: Precision = EXACT
    rows: Rows | None = None
    """How the output of the call lies, where that is known."""

    @property
    def normal(self) -> Normal | None:
        """What made its weights a whole."""
        return None if self.site is None else self.site.normal

    @property
    def signature(self) -> tuple[str, ...]:
        """What tells its calls from those of others: its place, and its parameters."""
        names = [x.name for x in (self.q, self.k, self.v) if x is not None]
        return (self.where, *(names if any(names) else [self.line]))

    @property
    def shown(self) -> Tensor:
        """Which keys have weight, and scores of their own."""
        seen = self.seen if self.filled is None else self.seen & ~self.filled[0]
        return seen if self.blank is None else seen & ~self.blank[..., None]

    @property
    def compared(self) -> Tensor:
        """The keys of which it is known what was added to their scores."""
        return self.seen if self.added is None else self.seen & self.added.isfinite()

    @property
    def fused(self) -> str:
        """How one projection of queries, keys and values is cut, if it is one."""
        q, k, v = self.q, self.k, self.v
        if q is None or k is None or not (q.reads and k.reads and v.reads) or q.inputs_apart:
            return ""
        if len({x.node for o in (q, k, v) for x in o.sources}) > 1:
            return ""
        first = [int(o.reads[0].nonzero()[0, 0]) for o in (q, k, v)]
        if len(q.reads) > 1 and q.reads[0].nonzero().numel():
            second = int(q.reads[1].nonzero()[0, 0])
            return "(h, 3, d)" if first[0] < first[1] < second else "(3, h, d)"
        return ""

    @property
    def learned_scale(self) -> bool:
        """Whether parameters stand between the product and the scores, or in the queries."""
        both = [o for o in (self.q, self.k) if o is not None]
        held = [x for o in both for x in o.sources if x.is_input and not x.node.data]
        return bool(self.learned or held or any(o.learned for o in both))

    @property
    def seen(self) -> Tensor:
        """Which keys have weight."""
        sums = self.weights.sum(-1)
        whole_again = bool(((sums - 1).abs() < CLOSE)[sums != 0].all()) and bool((sums != 0).any())
        made = self.weights if self.soft is None or whole_again else self.soft
        bad = ~made.isfinite()
        if bool(bad.any()) and self.scores is not None and self.scores.shape == made.shape:
            z = self.scores
            top = z.masked_fill(~z.isfinite(), -torch.inf).amax(-1, keepdim=True)
            return torch.where(bad, z.isfinite() & (z > top - 700), made.abs() > FADED)
        made = made.nan_to_num(0.0)
        return made.abs() > FADED * made.abs().amax().clamp(min=1e-300)

    @property
    def width(self) -> int:
        """The width of a head."""
        return (self.v if self.q is None else self.q).value.shape[-1]

    @property
    def scale(self) -> Tensor | None:
        """(h,): what scores are in terms of the rows that queries and keys are made of."""
        if self.slope is None or self.q is None or self.k is None:
            return None
        if self.q.factor is None or self.k.factor is None:
            return None
        return self.slope * self.q.factor * self.k.factor


@torch.enable_grad()
def followed(subject: Any) -> tuple[Run, Tensor]:
    """A run of a subject, and what came out."""
    given = subject.inputs
    owner = subject.owner
    weights = subject.weights(given)
    known = {memory(x): n for n, x in held_by(owner)} | {memory(x): n for n, x in weights.items()}
    leaves: dict[str, Any] = {}
    for n, x in given.items():
        leaves[n] = tree.tree_map_only(Tensor, _leaf, x) if n not in weights else x
    names = {m: n for n, m in owner.named_modules()} if isinstance(owner, nn.Module) else {}
    data = [x for n, x in leaves.items() if n not in weights for x in _tensors(x)]
    run = Run(data, known, names)
    run.input_names = {memory(x): n for n, y in leaves.items() for x in _tensors(y)}
    frozen = [
        x for _, x in held_by(owner) if not x.requires_grad and x.is_floating_point() and x.is_leaf
    ]
    for x in frozen:
        x.requires_grad_(True)
    try:
        with subject.running(), plainly(), named(run), run:
            made = returned = subject.called(leaves)
            if subject.returns != "output":
                made = _with_values(run, subject.result(made), subject.returns)
    finally:
        for x in frozen:
            x.requires_grad_(False)
    run.finish()
    run.unread = run.passed_by(_tensors(returned))
    run.returned = _tensors(returned) if subject.returns == "output" else [made]
    return run, made if subject.returns != "output" else subject.result(made)


def _with_values(run: Run, made: Tensor, returns: str) -> Tensor:
    """The weights or scores that came out, beside values that they meet."""
    w = made.softmax(-1) if returns == "scores" else made.exp() if "log" in returns else made
    w = w[:, None] if w.ndim == 2 else w
    draw = torch.Generator().manual_seed(11)
    shape = (*w.shape[:-2], w.shape[-1], 8)
    v = torch.randn(shape, generator=draw, dtype=w.dtype).requires_grad_() * 1
    run.input_names[run.given(v)] = "values"
    return w @ v


def _leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_() * 1 if x.is_floating_point() else x.clone()


def _tensors(x: Any) -> list[Tensor]:
    leaves = tree.tree_leaves(dict(x) if isinstance(x, Mapping) else x)
    return [y for y in leaves if isinstance(y, Tensor)]


@torch.enable_grad()
def attentions(run: Run, made: Tensor, batch: int) -> list[Attention]:
    """Every attention that a run met, in order."""
    past = frozenset(x.node for x in run.seen)
    out: list[Attention] = []
    groups: dict[Any, list[tuple[Seen, Site]]] = {}
    for seen in run.seen:
        site = seen.make()
        if site is not None:
            whole_of = seen.node if seen.turned or site.normal is None else site.normal.node
            groups.setdefault(whole_of, []).append((seen, site))
    for sites in groups.values():
        if len(sites) > 1:
            sites = [(sites[0][0], site) for site in together([site for _, site in sites])]
        for seen, site in sites:
            out.append(_measured(run, seen, site, past, made, batch))
    for node in [x for x in run.loose if running_sums(x)]:
        site = by_running_sums(run, node)
        if not sums_values(node):  # it counts positions in a mask, say
            del run.loose[node]
        elif site is not None:
            module, line = run.places[node]
            seen = Seen(node, lambda: None, module, line, frozenset())
            out.append(_measured(run, seen, site, past, made, batch))
            del run.loose[node]
    used = {x.signature for x in out if not x.lost}  # the last of several steps may be in vain
    for x in out:
        x.lost &= x.signature not in used
    return out


def _four(x: Tensor, site: Site, batch: int) -> Tensor:
    """(*b, h, …) as (b, h, …)."""
    lead = x.shape[:-2]
    if len(lead) == 0:
        return x[None, None]
    if len(lead) == 1:
        return x[:, None] if lead[0] == batch and batch > 1 else x[None]
    if len(lead) > 2 and lead[-1] == 1 and lead[0] == batch:
        return x.flatten(1, len(lead) - 1)
    return x.flatten(0, len(lead) - 2) if len(lead) > 2 else x


def _by_batch(v: Operand) -> Tensor | None:
    """The order (b, h) of what stands in one axis for both; None if it does not."""
    b, h = whole(v.value).shape[:2]
    if b > 1 or h < 2 or v.at is None or v.rows != "own" or len(v.reads) < h:
        return None
    rows = v.at[0, :, -1].tolist()
    reads = [tuple(x.nonzero()[:, 0].tolist()) for x in v.reads]
    batch, heads = sorted(set(rows)), list(dict.fromkeys(reads))
    if len(batch) < 2 or -1 in batch or len(batch) * len(heads) != h:
        return None
    if reads[0] != min(reads):
        heads.sort()
    place = {(batch.index(r), heads.index(x)): i for i, (r, x) in enumerate(zip(rows, reads))}
    if len(place) < h:
        return None
    return torch.tensor([[place[i, j] for j in range(len(heads))] for i in range(len(batch))])


def _rows_differ(at: Tensor) -> bool:
    """Whether heads that were looked at read other rows than the first."""
    return bool(((at != at[:, :1]) & (at >= 0)).any())


def _of_one_row(v: Operand, batch: int) -> bool:
    """Whether what stands in the axis of the batch reads the same rows: it is one of heads.

    Where it is as long as the batch, what all of it reads may be common to the batch.
    """
    if len(whole(v.value)) == 1 or v.rows != "own" or v.at is None:
        return False
    looked = v.at[(v.at >= 0).flatten(1).any(1)].flatten(1)
    some = len(looked.unique(dim=0))
    return some == 1 < len(looked) if len(whole(v.value)) != batch else 1 < some < len(looked)


def _heads_only(x: Tensor, fit: Callable[[Tensor], Tensor]) -> Tensor:
    return fit(x).flatten(0, 1)[None]


def _ordered(x: Tensor, fit: Callable[[Tensor], Tensor], order: Tensor) -> Tensor:
    return fit(x)[0][order]


@torch.no_grad()
def _placed(site: Site) -> Tensor | None:
    """Weights in blocks as one matrix over the text, for each row and head; None for others."""
    given = operands(site)
    made = in_place(site, *((given.asked, given.groups) if given else (None, ())))
    w = None if made is None else made.weights.dense()
    return w if w is not None and w.ndim == 4 else None


def _measured(
    run: Run, seen: Seen, site: Site, past: frozenset[Any], made: Tensor, batch: int
) -> Attention:
    side = site.side
    if site.contraction.rows is not None:  # edges, by the rows that their values come from
        site = of_sources(site)
    view = site.contraction.views[1 - side]
    fit: Callable[[Tensor], Tensor] = partial(_four, site=site, batch=batch)
    values = operand(run, fit(site.values), view, past)
    if len(site.weights.shape) == 5 and len(site.weights) == batch > 1:
        flat: Callable[[Tensor], Tensor] = partial(torch.flatten, start_dim=1, end_dim=2)
        grouped = operand(run, flat(site.values), view, past)
        if grouped.rows == "own" and grouped.at is not None and not _rows_differ(grouped.at):
            fit, values = flat, grouped
    joined = values.rows == "mixed" and len(site.weights.shape) == 3  # of rows and heads, perhaps
    if joined or _of_one_row(values, batch):
        heads = partial(_heads_only, fit=fit)
        found = operand(run, heads(site.values), view, past)
        if not joined or _by_batch(found) is not None:
            fit, values = heads, found
    order = _by_batch(values)
    if order is not None:
        fit = partial(_ordered, fit=fit, order=order)
        values = operand(run, fit(site.values), view, past)
    weights = fit(site.weights).detach()
    edges = site.contraction.rows is not None
    axis = _axis(weights)
    if not axis.startswith("heads") and not (seen.turned or edges or site.normal is None):
        axis = "keys"
    found = Attention(
        seen.module, seen.line, weights, fit(site.output), values, site, seen.module, axis
    )
    if len(weights) not in (1, batch):
        with suppress(Exception):  # what cannot be placed
            found.placed = _placed(site)
    path = walked(run, site) if not site.parts else walked(run, site.parts[0])
    normal = site.normal
    if site.mixing == "fixed" or edges:
        found.kind = "edges" if edges else "fixed"
    elif running_sums(site.node) or (
        normal is not None and not normal.sure and is_product(view.settled().node)
    ):
        found.kind = "features"  # keys met values first
        sums = weights.sum(-1)
        found.axis = "keys" if bool(((sums - 1).abs() < SLACK).all()) else found.axis
    elif path.scores is not None:
        _of_scores(found, path, run, fit, past)
    if found.axis == "none":
        found.divided = divides(run, site.node)
    found.dropped = path.dropped
    found.dropped_before = path.dropped_before
    found.lost = bool(run.returned) and site.node not in run.reached
    found.places = fit(site.places())
    found.after = outcome(run, site.node, found.output, found.places, made)
    found.masks = frozenset(run.input_names.get(memory(run.results[x]), "") for x in path.given)
    name = lambda views: frozenset(  # noqa: E731
        n for node in inputs_of(run, views) if (n := run.input_names.get(memory(run.results[node])))
    )
    found.inputs = {"v": name([view]), "weights": name([site.contraction.views[side]])}
    for what, x in (("q", found.q), ("k", found.k)):
        if x is not None:
            found.inputs[what] = name([s.node.view for s in x.sources])
    mixed = found.after is not None and found.after.mixed  # read by other queries
    if found.axis == "queries" and found.inputs.get("q") == frozenset() and mixed:
        found.kind, found.soft = "features", None
    names = [x.name for x in (found.q, found.k, found.v) if x is not None]
    found.where = seen.module or _common(", ".join(names).split(", "))
    return found


def _common(names: list[str]) -> str:
    known = list(dict.fromkeys(n for n in names if n))
    parts = [n.split(".")[: -1 if len(known) > 1 else -2] for n in known]
    if not parts:
        return ""
    out = []
    for some in zip(*parts):
        if len(set(some)) > 1:
            break
        out.append(some[0])
    return ".".join(out)


def _axis(w: Tensor) -> str:
    """The axis along which weights sum to 1, or "none"."""
    for name, axis in AXES.items():
        if any(w.shape[i] == 1 for i in axis):
            continue
        sums = w.sum(axis)
        some = (
            (w != 0).any(axis).expand_as(sums) if len(axis) == 1 else torch.ones_like(sums).bool()
        )
        if bool(some.any()) and bool(((sums - 1).abs()[some] < 1e-4).all()):
            return name
    return "none"


def _of_scores(found: Attention, path: Walked, run: Run, fit: Any, past: frozenset[Any]) -> None:
    assert path.scores is not None
    z = fit(path.scores)
    found.scores, found.learned = z.detach(), path.learned
    if path.soft is not None:
        soft = fit(path.soft).detach()
        if soft.shape == found.weights.shape and not torch.equal(soft, found.weights):
            found.soft = soft
    products = path.products or []
    if not products and path.more:
        found.kind = "products"
        return
    if not products:
        found.kind = "network" if path.network else "learned" if path.learned else ""
        return
    main = products[0]
    rows = [whole(x).norm(dim=-1) for x in (main.q.detach(), main.k.detach())]
    even = all(float((x - x.mean()).abs().max()) <= 1e-6 * float(x.mean()) for x in rows)
    found.cosine = even and min(x.numel() for x in rows) > 2
    found.kind = "dot" if len(products) == 1 and not path.more else "products"
    found.q = operand(run, fit(main.q), main.views[0], past)
    found.k = operand(run, fit(main.k), main.views[1], past)
    seen = found.seen
    if z.shape != seen.shape:  # those of one block of keys
        slopes = scale_of(run, path.scores, main)
        if slopes is not None:
            known = fit(slopes).detach().transpose(0, 1).flatten(1)
            known = known.masked_fill(known == 0, torch.nan)
            mean = known.nanmean(1)
            if float((known - mean[:, None]).abs().nan_to_num(0.0).max()) <= CLOSE * float(
                mean.abs().max()
            ):
                found.slope = mean
        found.scores = None
        return
    if found.kind == "products" or path.network or path.learned:
        found.other_query = _other_query(z, found.q, found.k, seen)
    found.product = fit(main.scores).detach()
    slopes = scale_of(run, path.scores, main)
    if slopes is None:
        return
    slopes = fit(slopes).detach().expand(seen.shape)
    _sloped(found, z.detach(), fit(main.scores).detach().expand(seen.shape), slopes, seen)


def _other_query(z: Tensor, q: Operand, k: Operand, seen: Tensor) -> tuple[int, int] | None:
    """A query whose scores are made of the row of another one, and that one."""
    if q.at is None or q.rows != "own" or not q.reads:
        return None
    if k.reads and k.sources[0].node is q.sources[0].node and bool((k.reads[0] & q.reads[0]).any()):
        return None
    value = q.sources[0].value
    rest = [n for n in range(value.ndim) if n not in q.row_axes]
    draw = torch.Generator().manual_seed(9)
    for i in (0, seen.shape[2] // 2):
        way = torch.zeros_like(z)
        way[0, 0, i] = seen[0, 0, i] * torch.randn(seen.shape[-1], generator=draw)
        g = gradient(z, q.sources[0].held, way)
        if g is None:
            return None
        rows = g.permute(*q.row_axes, *rest).flatten(0, len(q.row_axes) - 1).flatten(1)
        flow = rows[:, q.reads[0]].abs().amax(-1)
        others = (flow > 1e-9 * flow.max()).nonzero()[:, 0]
        known = [j for j, at in enumerate(q.at[0, 0].tolist()) if j != i and at in others.tolist()]
        if known:
            return i, known[0]
    return None


def _sloped(found: Attention, z: Tensor, p: Tensor, slopes: Tensor, seen: Tensor) -> None:
    """Scale, softcap and what was added, from scores, products and derivatives."""
    seen = seen & slopes.isfinite() & z.isfinite()
    if not bool(seen.any()):
        return
    still = seen & (slopes.abs() <= 1e-12 * slopes[seen].abs().max())
    low = torch.where(seen, z, 0.0)
    still = still | (seen & (z == low.amin(-1, keepdim=True)) & (z < -1e4))  # no product is left
    blank = still.any(-1) & ~(seen & ~still).any(-1)
    if bool(blank.any()) and not bool(blank.all()):  # rows in which nothing but a number is seen
        found.blank, seen = blank, seen & ~blank[..., None]
        still = still & ~blank[..., None]
    if bool(still.any()) and bool((seen & ~still).any()):
        numbers = z[still]
        if float((numbers - numbers.mean()).abs().max()) <= 1e-9 * max(
            1.0, float(numbers[0].abs())
        ):
            found.filled = still, float(numbers.mean())
            seen = seen & ~still
    known = slopes.masked_fill(~seen, torch.nan)
    mean = known.transpose(0, 1).flatten(1).nanmean(1)
    off = (known - mean[None, :, None, None]).abs().nan_to_num(0.0)
    size = float(mean.abs().nan_to_num(0.0).max())
    if float(off.max()) <= CLOSE * max(size, 1e-30):
        found.slope = mean.nan_to_num(float(mean.nanmean()))
        found.added = (z - found.slope[:, None, None] * p).masked_fill(~seen, torch.nan)
        return
    cells = seen & (slopes > 0)
    if not bool(cells.any()):
        return
    assert found.q is not None and found.k is not None
    x, y = (whole(o.value.detach()).norm(dim=-1) for o in (found.q, found.k))
    by_length = (slopes * x[..., :, None] * y[..., None, :])[cells]
    found.cosine = bool((by_length - by_length.mean()).abs().max() <= CLOSE * by_length.mean())
    found.uneven = found.kind == "dot" and not found.cosine
    x, y = p[cells], slopes[cells] ** -0.5  # of cap · tanh(σ p / cap): cosh(σ p / cap) / √σ
    low, high = math.log(1e-4), math.log(1e2)
    for _ in range(80):  # golden section
        a, b = low + 0.382 * (high - low), low + 0.618 * (high - low)
        low, high = (low, b) if _off(x, y, a) < _off(x, y, b) else (a, high)
    rate = math.exp((low + high) / 2)
    if _off(x, y, (low + high) / 2) > 1e-4:
        return
    scale = 1 / float((y / torch.cosh(rate * x)).mean()) ** 2
    cap, found.uneven = scale / rate, False
    found.softcap = float(f"{cap:.4g}")
    found.slope = torch.full((z.shape[1],), scale, dtype=z.dtype)
    found.added = (z - cap * torch.tanh(scale * p / cap)).masked_fill(~seen, torch.nan)


def _off(x: Tensor, y: Tensor, log: float) -> float:
    """How far y is from a multiple of cosh(exp(log) x), relative."""
    made = torch.cosh((math.exp(log) * x).clamp(-300, 300))
    ratio = y / made
    return float(ratio.std(correction=0) / ratio.mean().abs().clamp(min=1e-300))
