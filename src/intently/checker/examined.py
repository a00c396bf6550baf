"""The attentions inside a subject, each measured at its site and judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from torch import Tensor

from intently.checker.calling.naming import named_role
from intently.checker.calling.subject import Subject, raised
from intently.checker.judging.intent import Unfit
from intently.checker.judging.judged import Judged, judged
from intently.checker.judging.padding_again import on_queries, repadded
from intently.checker.judging.sides import Side, about, side_of
from intently.checker.judging.wholes import repeated
from intently.checker.measuring.after import Rows, reaches
from intently.checker.measuring.attention import Attention
from intently.checker.measuring.by_values import measured
from intently.checker.measuring.run import Run
from intently.checker.report.finding import Finding, told
from intently.core.biases import Bias
from intently.core.masks import Mask
from intently.core.masks.ragged import Padding
from intently.observe.trace.normaliser import whole


@dataclass(frozen=True)
class Intention:
    """What is stated: the mask, or one for each pattern of names, the bias, the scale, layers."""

    mask: Mask | Mapping[str, Mask] | None = None
    bias: Bias | Tensor | None = None
    scale: float | None = None
    layers: Sequence[str] | None = None

    def of(self, where: str, side: Side, sides: Sequence[Side]) -> Mask | None:
        """The mask of an attention: by its name, or for self-attention."""
        if isinstance(self.mask, Mapping):
            return next((m for n, m in self.mask.items() if fnmatchcase(where, n)), None)
        return self.mask if side == "self" or "self" not in sides else None

    def wants(self, where: str) -> bool:
        """Whether an attention is among the layers that are asked for."""
        return self.layers is None or any(
            fnmatchcase(where, n) or where.startswith(f"{n}.") for n in self.layers
        )


@dataclass(frozen=True)
class Examination:
    """A subject, its run, and what was measured and judged of each attention."""

    subject: Subject
    attentions: tuple[Judged, ...]
    unmeasured: tuple[str, ...] = ()
    run: Run | None = None
    made: Tensor | None = None
    rows: Rows | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found inside."""
        found = tuple(f for x in self.attentions for f in x.findings)
        if self.run is None or not self.run.unread:
            return found
        said = "nothing reads what the softmax gives: scores meet values as they are"
        return (*found, Finding("not-normalised", said, line=self.run.unread))

    @property
    def causal(self) -> bool:
        """Whether a causal mask is meant for the self-attention."""
        for x in self.attentions:
            if x.intent is None or x.side != "self":
                continue
            t, s = x.intent.sizes[2:]
            if min(t, s) > 1 and not bool(x.intent.by_position.triu(1 + s - t).any()):
                return True
        return False


def examined(subject: Subject, meant: Intention) -> Examination:
    """Each attention of a run of the subject."""
    try:
        run, made, found = measured(subject)
    except Unfit:
        raise
    except Exception as error:  # code that refuses to be followed
        why = f"it cannot be followed inside: {raised(error)}"
        return Examination(subject, (), (why,))
    if _attends_along_the_first(subject, found):
        note = "it attends along the first axis: taken as the sequence"
        given, notes = subject.turned(subject.inputs), (*subject.notes, note)
        subject = replace(subject, inputs=given, notes=notes, sequence_first=True, opening=None)
        return examined(subject, meant)
    subject = _with_reader(subject, found)
    if not found and subject.returns == "output" and made.ndim in (2, 3, 4):
        for returns, w in (("weights", made), ("log weights", made.exp())):
            if whole(w):
                return replace(examined(replace(subject, returns=returns), meant), rows=None)
    unmeasured = list(dict.fromkeys(run.loose.values()))
    found = [x for x in found if x.v.value.shape[-1] > 1 or not _of_no_content(subject, x)]
    every = [x for x in found if meant.wants(x.where)]
    known: dict[tuple[str, ...], int] = {}
    for x in every:
        n = known.setdefault(x.signature, len(known))
        x.where = x.where or f"attention {n}"
        x.precision = subject.precision
    subject.sites = len(every)
    sides: list[Side] = [side_of(subject, x) for x in every]
    masks = frozenset().union(*(x.masks for x in every)) & set(subject.of("mask"))
    out: list[Judged] = []
    unfit: Unfit | None = None
    for x, side in told("attention", list(zip(every, sides))):
        try:
            mask = meant.of(x.where, side, sides)
            one = judged(subject, x, side, mask, meant.bias, meant.scale, masks)
        except Unfit as error:
            unfit = error
            unmeasured.append(f"{x.where}: the stated mask is of other lengths")
            continue
        out.append(replace(one, findings=(*one.findings, *repeated(x, every))))
        if one.why:
            unmeasured.append(f"{x.where}: {one.why}")
    if any(subject.main in (x.inputs.get("q") or ()) for x in every):
        out = [x.without("cross-exchanged") for x in out]
    if unfit is not None and not out and not subject.given:
        raise unfit
    if not out and not unmeasured:
        unmeasured.append("no attention was seen inside: no weights met values")
    rows = None
    if subject.returns == "output" or subject.output().ndim > 2:
        with suppress(Exception):
            rows = rows_of(run, found, made) or _plainly_laid(subject, made)
    whole_ = Examination(subject, tuple(out), tuple(unmeasured), run, made, rows)
    return whole_ if subject.again else _padded_again(whole_, meant)


def _with_reader(subject: Subject, found: Sequence[Attention]) -> Subject:
    """The subject with what is attended to as its context: what the last queries do not come from.

    A decoder reads its own tokens, and an encoder's rows are attended to.
    """
    others = subject.of("context")  # of names that tell something
    if subject.of("q") or not found or any(map(named_role, others)):
        return subject
    for x in reversed(found):
        q, k = (x.inputs.get(n) or frozenset() for n in ("q", "k"))
        q, k = q & set(subject.contents), k & set(subject.contents)
        own = q - k
        if len(own) == 1 and k:
            roles = {n: "context" for n in subject.contents if n not in own}
            mine = {n: "x" for n in own if n in others}
            return replace(subject, roles={**subject.roles, **roles, **mine})
    return subject


def _of_no_content(subject: Subject, a: Attention) -> bool:
    """Whether what weights meet is one number for each key, made of no content, as a mask."""
    v = a.inputs["v"]
    made_of_ids = a.site is not None and a.site.output.requires_grad and not a.v.value.requires_grad
    return made_of_ids or (bool(v) and not v & set(subject.contents))


def _attends_along_the_first(subject: Subject, found: Sequence[Attention]) -> bool:
    """Whether queries lie along the first axis of an input (t, b, c) of which no axes are stated.

    It has to be the longer one: the other reading is a batch that is mixed.
    """
    x = subject.inputs[subject.main]
    if x.ndim != 3 or not x.is_floating_point() or subject.layout or subject.sequence_first:
        return False
    return any(subject.begins_with(a.weights.shape[2], a.weights.shape[0]) for a in found)


def _plainly_laid(subject: Subject, made: Tensor) -> Rows | None:
    """An output (b, t, c) of as many rows as the main input, although rows are mixed in it."""
    x = subject.inputs[subject.main]
    whole = made.ndim == 3 and x.ndim == 2 + x.is_floating_point() and not subject.layout
    b, t = made.shape[:2]
    return Rows(0, (1,), (b, t)) if whole and tuple(x.shape[:2]) == (b, t) and b != t else None


def _padded_again(found: Examination, meant: Intention) -> Examination:
    """What was found; where padding is attended, what other padding says of it."""

    def again(x: Judged) -> Judged:
        attended = [f for f in x.findings if f.name == "padding-attended"]
        if len(attended) != 1:
            return x
        better: Finding | None = None
        for name in (n for n in found.subject.meanings if x.side in about(found.subject, n)):
            with suppress(Exception):  # whatever the code does with another mask
                better = better or on_queries(found.subject, found.rows, name, x.where)
                other = None if better else repadded(found.subject, name)
                if other is not None:
                    stated = None if isinstance(meant.mask, Padding) else meant.mask
                    made = examined(replace(other, again=True), replace(meant, mask=stated))
                    better = next(
                        (f for f in made.findings if f.name == "mask-of-other-rows"), None
                    )
        return x if better is None else x.instead(attended[0], better)

    return replace(found, attentions=tuple(map(again, found.attentions)))


def rows_of(run: Run, found: Sequence[Attention], made: Tensor) -> Rows | None:
    """How the output lies, by the attention whose rows go into it last; None if unknown."""
    for a in reversed(found):
        if a.site is None or a.places is None:
            return a.rows
        known = reaches(run, a.site.node, a.output, a.places, made)
        if known is not None:
            batch, time, order = known
            b, _, t, _ = a.output.shape
            return Rows(batch, time, (b, t)) if order else None
    return None
