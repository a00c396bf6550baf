"""Which rows and numbers queries, keys and values read, and where what comes out goes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from intently.checker.calling.naming import named_role
from intently.checker.calling.subject import Subject
from intently.checker.measuring.attention import Attention
from intently.checker.measuring.flow import Operand
from intently.checker.report.finding import Finding, Kind

NAMES = {"q": "queries", "k": "keys", "v": "values"}


def row_findings(subject: Subject, a: Attention) -> list[Finding]:
    """What is wrong with the rows and heads of an attention."""
    found = list(_split(a))
    found += _heads(a, subject.foreign)
    found += _pairs(a)
    found += _exchanged(subject, a)
    found += _one_projection(a)
    if a.lost:
        own = a.inputs["v"] <= (a.inputs.get("q") or a.inputs["weights"])
        said = "what it gives is thrown away: nothing that comes out is made of it"
        found.append(
            Finding("output-lost" if own else "cross-ignores-context", said, where=a.where)
        )
    if a.kind == "network" and a.inputs["v"] and not a.inputs["v"] & a.inputs["weights"]:
        said = "weights do not depend on what they weigh, only on where it stands"
        found.append(Finding("scores-other", said, "hazard", a.where))
    if a.other_query is not None:
        i, j = a.other_query
        said = f"some scores of query {i} are made of the row of query {j}"
        found.append(Finding("scores-of-other-queries", said, where=a.where))
    if not found or all(f.kind != "mistake" for f in found):
        found += _after(subject, a)
    else:
        found += [f for f in _after(subject, a) if f.name == "merged-by-reshape"]
    return found


def _operands(a: Attention) -> Iterator[tuple[str, Operand]]:
    for name in "qkv":
        x = getattr(a, name)
        if x is not None:
            yield name, x


def _split(a: Attention) -> Iterator[Finding]:
    if a.kind not in ("dot", "products", "network"):
        return
    wrong = [NAMES[n] for n, x in _operands(a) if x.rows == "split"]
    if wrong:
        said = f"heads of {' and '.join(wrong)} are split by a reshape: each reads numbers of"
        yield Finding("split-by-reshape", f"{said} several positions", where=a.where)


def _heads(a: Attention, foreign: bool) -> Iterator[Finding]:
    """Heads that lie interleaved in a projection, and shared key heads."""
    lies = {n: x.interleaved for n, x in _operands(a) if x.interleaved is not None}
    if a.after is not None and a.after.interleaved is not None and lies and not foreign:
        lies["output"] = a.after.interleaved
    if any(lies.values()):
        every = all(lies.values())
        said = "a head takes every h-th number of its projection, not d neighbours"
        kind: Kind = "convention" if every else "hazard"
        if not every:
            said += ", and not so in all of q, k, v and the output: weights of others do not fit"
        yield Finding("heads-interleaved", said, kind, a.where)
    tiled = {n: x.tiled for n, x in _operands(a) if n != "q" and x.tiled is not None}
    if len(set(tiled.values())) > 1:
        k, v = ("tiled" if tiled[n] else "repeated" for n in "kv")
        said = f"keys are {k} and values {v}: query heads read the values of other keys"
        yield Finding("key-heads-tiled", said, where=a.where)
    elif any(tiled.values()):
        apart = all(x.is_input for x in a.v.sources)
        said = "key heads are tiled (0, 1, 0, 1), not repeated (0, 0, 1, 1)"
        yield Finding("key-heads-tiled", said, "mistake" if apart else "hazard", a.where)


def _pairs(a: Attention) -> Iterator[Finding]:
    """Values that belong to other keys than those that were scored."""
    k, v = a.k, a.v
    if k is None or k.at is None or v.at is None or "own" not in (k.rows, v.rows):
        return
    if k.rows != "own" or v.rows != "own" or k.at.shape[-1] != v.at.shape[-1]:
        return
    if k.row_sizes != v.row_sizes or k.at.shape[-1] < 2:
        return
    one, two = k.at[0, 0], v.at[0, 0]
    both = (one >= 0) & (two >= 0)
    if bool((one != two)[both].any()):
        j = int(((one != two) & both).nonzero()[0])
        said = f"key {j} is row {int(one[j])} and its value row {int(two[j])}: values of other keys"
        yield Finding("values-of-other-keys", said, where=a.where)


def _exchanged(subject: Subject, a: Attention) -> Iterator[Finding]:
    """Queries from the context, or keys and values of different inputs."""
    if a.q is None or a.k is None:
        return
    q, k, v = (a.inputs.get(n, frozenset()) for n in "qkv")
    main, contexts = subject.main, set(subject.of("context"))
    named = {r: subject.of(r) for r in ("q", "k", "v")}
    if contexts and not named["q"] and q and q <= contexts and k == v == {main}:
        said = f"queries come from {', '.join(sorted(q))}, keys and values from {main}"
        yield Finding("cross-exchanged", said, where=a.where)
    told = all(named_role(n[0]) == r for r, n in named.items() if n) or not subject.holds_parameters
    if all(named.values()) and len(subject.inputs) >= 3 and told:
        own = {r: n[0] for r, n in named.items()}
        tensors = [subject.inputs[n] for n in own.values()]
        said = {r: x for r, x in zip("qkv", (q, k, v))}
        if said["k"] == said["v"] == {own["q"]} and not _alike(tensors[0], tensors[1]):
            text = f"keys and values are made of {own['q']}, not of {own['k']} and {own['v']}"
            yield Finding("cross-ignores-context", text, where=a.where)
            return
        if any(a is not b and _alike(a, b) for a in tensors for b in tensors):
            return
        if said["v"] == {own["k"]}:
            yield Finding("values-are-keys", "the weighted sum is of the keys", where=a.where)
        elif said["v"] == {own["q"]}:
            yield Finding("values-are-queries", "the weighted sum is of the queries", where=a.where)
        elif said["q"] == {own["k"]} and said["k"] == {own["q"]}:
            text = "queries are made of the keys, and keys of the queries"
            yield Finding("projections-exchanged", text, where=a.where)


def _one_projection(a: Attention) -> Iterator[Finding]:
    """Values made of projected keys; queries, keys and values of one projection."""
    some = [x for _, x in _operands(a)]
    weights, reads = {(y.name, y.part) for x in some for y in x.sources}, [x.reads for x in some]
    made = [x.node for x in some[1].sources] if len(some) == 3 else []
    wide = [
        x.entry is None or x.entry.shape[-1] == x.reads.size[-1] for x in a.v.sources if x.reads
    ]
    if made and made == [x.reads for x in a.v.sources] and all(wide):  # not of a part of keys
        said = "values are projected from the projected keys, not from what the keys are made of"
        yield Finding("values-are-keys", said, where=a.where)
    if len(some) < 3 or len(weights) > 1 or not a.v.name or a.kind != "dot" or not all(reads):
        return
    first = torch.stack(reads[0])
    if all(len(x) == len(first) and torch.equal(torch.stack(x), first) for x in reads):
        said = f"queries, keys and values are one projection, `{a.v.name}`"
        yield Finding("keys-are-queries", said, "hazard", a.where)


def _after(subject: Subject, a: Attention) -> Iterator[Finding]:
    """What becomes of the output of the product with values."""
    out = a.after
    several = a.q is not None and a.q.rows in ("several", "mixed")
    if out is None or several or a.v.rows == "channels" or a.v.value.shape[-1] == 1:
        return
    if out.merged:
        said = "heads are merged by a reshape: their parts land on other positions"
        yield Finding("merged-by-reshape", said, where=a.where)
        return
    function = not subject.holds_parameters and out.follows is None and subject.of("q")
    if out.mixed or out.batch:
        if function:
            said = "several rows of the product go into each row of the output"
            yield Finding("output-changed", said, where=a.where)
        return
    if function and _elsewhere(a):
        said = "heads are merged by a reshape: their parts land on other heads or rows"
        yield Finding("merged-by-reshape", said, where=a.where)
        return
    in_blocks = a.weights.shape[0] not in (1, subject.batch)
    if out.order and out.order != sorted(out.order) and not in_blocks:
        reverse = out.order == sorted(out.order, reverse=True)
        how = "in reverse order" if reverse else f"in another order, {out.order}"
        yield Finding("output-reordered", f"the rows come out {how}", where=a.where)
    elif function and not out.numbers:
        said = "the numbers of each row come out in another order"
        yield Finding("output-reordered", said, where=a.where)
    elif (
        function and out.plain is False and subject.sites == 1 and not bool(out.value.isnan().any())
    ):
        said = "what comes out is not the weights times the values: something is done to it after"
        yield Finding("output-changed", said, where=a.where)


def _elsewhere(a: Attention) -> bool:
    """Whether rows come out in another place than their query's, in the same layout."""
    q, out = a.q, a.after
    if q is None or out is None or not q.inputs_apart or q.index is None:
        return False
    if out.value.shape[:-1] != q.sources[0].value.shape[:-1]:
        return False
    for at, place in out.places.items():
        known = q.index[place[:3]].tolist() if min(place[:3]) >= 0 else []
        moved = [n for n, (i, j) in enumerate(zip(known[:-1], at)) if i not in (j, -1)]
        if any(n not in out.row_axes for n in moved):
            return True
    return False


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)
