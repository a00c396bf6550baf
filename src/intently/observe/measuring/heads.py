"""`heads`: what every head of a model does, measured on texts of random tokens, beside chance.

Each kind of head has a null of its own: chance, or the same places of the same texts without what
the kind looks for. Effects are means over texts, with simultaneous intervals from resampled texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from intently.errors import ArgumentError, IntentlyError, KindError, build
from intently.foundation.checks import check_kind, whole_number
from intently.foundation.process import late_bar
from intently.observe.recording.recording import Recording, numbered
from intently.observe.recording.summary import Row, Table
from intently.observe.watching.watch import watch

KINDS = {
    "previous": "looks at the token before",
    "self": "looks at its own position",
    "next": "looks at the token after",
    "first": "looks at the first key",
    "position": "looks at one position, the same in all texts",
    "sink": "looks at one key of each text, whatever the query",
    "separator": "looks at separators",
    "duplicate": "looks at an earlier copy of its token",
    "same word": "looks at the other copy of its token",
    "induction": "looks at what followed the other copy of its token",
    "uniform": "spreads its weight evenly",
    "alignment": "moves along the other sequence",
}
"""Every kind, and what such a head does."""

LEAST = {"uniform": 0.9, "alignment": 0.5}
"""The smallest effect that is named: correlation of an alignment, overlap with even weights."""
WEIGHT = 0.1
"""The smallest effect of the other kinds: weight beyond the null."""
RESTS = {"first": 0.5, "position": 0.5, "sink": 0.45, "uniform": 0.4}
"""Where heads rest while they wait for what they look for: these names count for less."""
QUERIES, TEXTS = 20, 8
"""Queries and texts at least that a name is based on."""
SKIPPED = 4
"""Rows at the beginning of a text that see too few keys to tell anything."""
DRAWS = 1000
"""Resamples of the texts."""
COLUMNS = ("layer", "head", "kind", "effect", "low", "high", "weight", "null", "n")


class Heads(Table):
    """A tidy table: one row for each head, with the kind of head that it is, or "–".

    ``effect`` is the mean ``weight`` on what the kind looks for, less its ``null``; ``low`` and
    ``high`` are the ends of its interval, 95 % for all heads and kinds together; ``n`` counts
    queries. ``every`` is the table of all kinds of all heads, named or not, with a column
    ``named``.
    """

    def __init__(
        self, rows: Any, columns: Any = COLUMNS, left_out: Any = None, every: Table | None = None
    ) -> None:
        super().__init__(rows, columns, left_out)
        self.every = every or Table((), (*COLUMNS, "named"))

    def named(self, kind: str) -> list[tuple[str, int]]:
        """Return the heads (layer, head) of a kind, the strongest first.

        A head may be of several kinds: its row shows the strongest. Raises `ArgumentError` for a
        kind that is none of `KINDS`.
        """
        if kind not in KINDS:
            raise build(ArgumentError, "kind", f"one of {', '.join(KINDS)}", repr(kind))
        rows = self.every.filter(kind=kind, named=True).sort("effect", reverse=True)
        return [(row["layer"], row["head"]) for row in rows]

    @property
    def names(self) -> dict[tuple[str, int], str]:
        """The kind of each head that has one."""
        return {(x["layer"], x["head"]): x["kind"] for x in self if x["kind"] != "–"}

    def _of(self, rows: Any) -> Heads:
        return Heads(rows, self.columns, self.left_out, self.every)


def heads(
    model: nn.Module,
    tokenizer: Any = None,
    *,
    texts: int = 16,
    length: int = 24,
    run: Callable[[Tensor], Any] | None = None,
    layers: str | Sequence[str] | None = None,
    seed: int = 0,
) -> Heads:
    """Return what every head of a model does, from ``texts`` random texts of two times ``length``.

    The texts are drawn from the vocabulary of ``tokenizer``: one of transformers or of Intently, or
    its size as a number. They begin and end with the special tokens that the tokenizer adds. A head
    is named by the kind of `KINDS` whose effect is largest, where the interval excludes 0, the
    effect is at least 0.1 (0.5 of an alignment, 0.9 of even weights), and at least 20 queries of 8
    texts count; else it is not named.

    ``run`` takes ids (b, t) and runs the model on them; left out, ``model(input_ids=ids)`` does,
    or ``model(ids)``. Encoder-decoders read the same text on both sides. The model is not changed.

    Kinds and nulls, for query i and key j: ``previous``, ``self``, ``next`` (Clark et al. 2019,
    section 3.1), ``first`` (Xiao et al. 2024, section 3.1), ``position`` and ``sink`` (chosen on
    other texts or other queries than those that count): one over the keys that are seen.
    ``separator`` (Clark et al. 2019, section 3.2): the same places, holding random tokens.
    ``duplicate`` (Wang et al. 2023, section 3), ``same word``, ``induction`` (Olsson et al. 2022):
    the same places, where the second half does not repeat the first. ``uniform``: 0, for one less
    the total variation distance to even weights. ``alignment``: 0, for the correlation of queries
    with the mean position of their keys.

    Raises `ArgumentError` for too few texts or tokens, for a model that cannot read them, or if
    nothing attends.

    >>> import torch, intently as it
    >>> from intently.nn.models import LanguageModel, LanguageOptions
    >>> _ = torch.manual_seed(0)
    >>> model = LanguageModel(LanguageOptions(vocabulary=200, dropout=0.0)).eval()
    >>> it.heads(model, 200).named("induction")
    []
    """
    check_kind(model, nn.Module, "model", "an nn.Module")
    whole_number(texts, "texts", TEXTS)
    whole_number(length, "length", SKIPPED + 4)
    made = _samples(tokenizer, texts, length, seed)
    found: dict[tuple[str, int], dict[str, Measured]] = {}
    left_out: dict[str, str] = {}
    with torch.no_grad(), late_bar() as tell:
        seen: list[Recording] = []
        for n, ids in enumerate((made.plain, made.again, made.marked)):
            tell("reading texts", n, 3)
            try:
                with watch(model, layers=layers) as one:
                    _run(model, ids, run)
            except IntentlyError:
                raise
            except Exception as error:  # whatever a model does with ids
                got, fix = f"one that raises {error}", "pass a smaller length=, or run="
                expected = f"a model that reads {ids.shape[1]} tokens"
                raise build(ArgumentError, "model", expected, got, fix=fix) from error
            seen.append(one)
        names = numbered(seen[0].calls)
        for n, name in enumerate(names):
            tell("measuring layers", n, len(names))
            entries = [x.calls[n] for x in seen if len(x.calls) == len(names)]
            wrong = [x.why for x in entries if x.verified is False]
            if len(entries) < 3 or wrong:
                left_out[name] = f"UNVERIFIED: {wrong[0]}" if wrong else "it attends to some texts"
                continue
            try:
                weights = [x.attention().dense().float() for x in entries]
            except IntentlyError as error:
                left_out[name] = str(error)
                continue
            across = bool(entries[0].across)
            for kind, one in _of_layer(weights, made, across):
                for head in range(one.value.shape[1]):
                    at = found.setdefault((name, head), {})
                    at[kind] = Measured(one.value[:, head], one.null[:, head], one.n)
    if not found:
        cause = "; ".join(left_out.values()) or "no module of it attended"
        raise build(ArgumentError, "model", "attention to be seen", "none", cause)
    return _table(found, left_out, seed)


# --- the texts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Samples:
    """Texts (b, t): random, with a second half that repeats the first, and with separators."""

    plain: Tensor
    again: Tensor
    marked: Tensor
    separators: Tensor
    """(b, t): where the separators stand."""
    first: int
    """Special tokens before the text."""
    half: int

    @property
    def end(self) -> int:
        """Where the text ends, before the special tokens that follow."""
        return self.first + 2 * self.half


def _samples(tokenizer: Any, texts: int, length: int, seed: int) -> Samples:
    """The texts, of tokens that no text holds twice where the vocabulary has enough."""
    known, before, after, marks = _vocabulary(tokenizer)
    if len(known) < 2 * length:
        expected = f"at least {2 * length} tokens that are no special ones"
        raise build(ArgumentError, "tokenizer", expected, len(known))
    draw = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(len(known), generator=draw) for _ in range(texts)])
    body = torch.tensor(known)[order[:, : 2 * length]]
    again = torch.cat([body[:, :length], body[:, :length]], 1)
    places = torch.zeros_like(body, dtype=torch.bool)
    for row in places:
        row[SKIPPED + int(torch.randint(4, (), generator=draw)) :: 7] = True
    marked = torch.where(places, torch.tensor(marks)[order[:, : 2 * length] % len(marks)], body)
    outer = [torch.tensor(x, dtype=torch.long).expand(texts, -1) for x in (before, after)]
    plain, again, marked = (torch.cat([outer[0], x, outer[1]], 1) for x in (body, again, marked))
    sides = [torch.zeros(x.shape, dtype=torch.bool) for x in outer]
    separators = torch.cat([sides[0], places, sides[1]], 1)
    return Samples(plain, again, marked, separators, len(before), length)


def _vocabulary(tokenizer: Any) -> tuple[list[int], list[int], list[int], list[int]]:
    """Ids to draw from, those before and after a text, and separators."""
    if type(tokenizer) is int:
        ids = list(range(tokenizer))
        return ids[:-1], [], [], ids[-1:]
    if hasattr(tokenizer, "get_vocab") and hasattr(tokenizer, "all_special_ids"):
        special, known = set(tokenizer.all_special_ids), tokenizer.get_vocab()
        bare = tokenizer("a", add_special_tokens=False)["input_ids"]
        whole = list(tokenizer("a")["input_ids"])
        first = next((n for n in range(len(whole)) if whole[n : n + len(bare)] == bare), 0)
        before, after = whole[:first], whole[first + len(bare) :]
        if not before and tokenizer.bos_token_id is not None:
            before = [tokenizer.bos_token_id]
        read = lambda x: tokenizer(x, add_special_tokens=False)["input_ids"]  # noqa: E731
        marks = [x[-1] for c in (".", ",") if (x := read(f"a{c}")) and x != bare]
    elif hasattr(tokenizer, "size") and hasattr(tokenizer, "encode"):
        special, known = set(range(4)), {n: n for n in range(tokenizer.size)}
        before, after, marks = [], [], list(tokenizer.encode("."))
    else:
        expected = "a tokenizer of transformers or Intently, or the size of a vocabulary"
        raise build(KindError, "tokenizer", expected, type(tokenizer).__name__)
    ids = sorted(n for n in known.values() if n not in special and n not in marks)
    return ids, before, after, marks or ids[-1:]


def _run(model: nn.Module, ids: Tensor, run: Callable[[Tensor], Any] | None) -> None:
    device = next((p.device for p in model.parameters()), ids.device)
    ids = ids.to(device)
    config: Any = getattr(model, "config", None)
    if run is not None:
        run(ids)
    elif config is None:
        model(*[ids] * (2 if hasattr(model, "decode") else 1))
    else:
        both = {"decoder_input_ids": ids} if getattr(config, "is_encoder_decoder", False) else {}
        model(input_ids=ids, attention_mask=torch.ones_like(ids), **both)


# --- the kinds ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """The weight on what a kind looks for, and its null, of each text; queries of all texts."""

    value: Tensor
    null: Tensor
    n: int


def _of_layer(
    weights: Sequence[Tensor], made: Samples, across: bool
) -> Iterator[tuple[str, Measured]]:
    """Every kind of one layer, (b, h), from its weights (b, h, t, s) on the three texts."""
    plain, again, marked = weights
    b, _, t, s = plain.shape
    rows = torch.arange(made.first + SKIPPED, made.end)
    if t < made.end or s < made.end:
        return
    if across:
        yield "alignment", _alignment(plain, rows)
        return
    seen = (plain > 0).flatten(0, 1).any(0)
    chance = 1 / seen.sum(-1).clamp(min=1)
    both_ways = bool(seen.triu(1).any())

    def at(w: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        return w[:, :, queries, keys].mean(-1)

    def by_chance(queries: Tensor, keys: Tensor) -> Measured:
        value = at(plain, queries, keys)
        return Measured(value, chance[queries].mean().expand_as(value), b * len(queries))

    yield "previous", by_chance(rows, rows - 1)
    yield "self", by_chance(rows, rows)
    if both_ways:
        yield "next", by_chance(rows[:-1], rows[:-1] + 1)
    yield "first", by_chance(rows, torch.zeros_like(rows))
    yield "position", _position(plain, rows, chance)
    yield "sink", _sink(plain, rows, chance)
    mark = made.separators & (torch.arange(t) >= made.first)
    before = mark[:, None, None, :] & (torch.arange(s) < rows[:, None] - 1)
    some = (before.any(-1)[:, 0] & ~mark[:, rows]).float()[:, None]  # no copies of themselves
    value, null = (
        ((w[:, :, rows] * before).sum(-1) * some).sum(-1) / some.sum(-1) for w in (marked, plain)
    )
    yield "separator", Measured(value, null, int(some.sum()))
    later = torch.arange(made.first + made.half + 1, made.end - 1)
    for kind, back in (("same word" if both_ways else "duplicate", 0), ("induction", 1)):
        keys = later - made.half + back
        value, null = at(again, later, keys), at(plain, later, keys)
        yield kind, Measured(value, null, b * len(later))
    even = seen[rows] * chance[rows][:, None]
    value = 1 - 0.5 * (plain[:, :, rows] - even).abs().sum(-1).mean(-1)
    yield "uniform", Measured(value, torch.zeros_like(value), b * len(rows))


def _later(rows: Tensor, s: int) -> Tensor:
    """The keys (n, s) well before each row: neither the first, nor itself, nor the one before."""
    keys = torch.arange(s)
    return (keys > 0) & (keys < rows[:, None] - 1)


def _shares(w: Tensor, rows: Tensor) -> Tensor:
    """The mean weight (…, s) that keys get from the rows after them; −1 where these are few."""
    after = _later(rows, w.shape[-1])
    count = after.sum(0)
    mean = (w[..., rows, :] * after).sum(-2) / count.clamp(min=1)
    return mean.masked_fill(count < QUERIES // 4, -1.0)


def _on(w: Tensor, rows: Tensor, chance: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """The mean weight on keys (b, h), and by chance, of the rows after them."""
    after = _later(rows, w.shape[-1])[:, key].float()  # (n, b, h)
    count = after.sum(0).clamp(min=1)
    index = key[..., None, None].expand(*key.shape, len(rows), 1)
    got = w[:, :, rows].gather(-1, index)[..., 0].movedim(-1, 0)
    return (got * after).sum(0) / count, (chance[rows][:, None, None] * after).sum(0) / count


def _position(w: Tensor, rows: Tensor, chance: Tensor) -> Measured:
    """The weight on one position, chosen on the other half of the texts."""
    shares, half = _shares(w, rows), len(w) // 2
    best = [x.mean(0).argmax(-1) for x in (shares[half:], shares[:half])]
    key = torch.stack([*[best[0]] * half, *[best[1]] * (len(w) - half)])
    return Measured(*_on(w, rows, chance, key), len(w) * len(rows))


def _sink(w: Tensor, rows: Tensor, chance: Tensor) -> Measured:
    """The weight on one key of each text, chosen by every other query."""
    key = _shares(w, rows[::2]).argmax(-1)
    return Measured(*_on(w, rows[1::2], chance, key), len(w) * (len(rows) // 2))


def _alignment(w: Tensor, rows: Tensor) -> Measured:
    """The correlation of queries with the mean position of their keys."""
    mean = (w[:, :, rows] * torch.arange(w.shape[-1])).sum(-1)
    x, y = rows - rows.float().mean(), mean - mean.mean(-1, keepdim=True)
    value = (x * y).sum(-1) / (x.norm() * y.norm(dim=-1)).clamp(min=1e-6)
    return Measured(value, torch.zeros_like(value), w.shape[0] * len(rows))


# --- the table ------------------------------------------------------------------------------------


def _table(
    found: dict[tuple[str, int], dict[str, Measured]], left_out: dict[str, str], seed: int
) -> Heads:
    """The names, with intervals that hold for all heads and kinds together."""
    places = [(*at, kind) for at, kinds in found.items() for kind in kinds]
    every = [found[layer, head][kind] for layer, head, kind in places]
    effects = torch.stack([x.value - x.null for x in every], -1).double()  # (b, all)
    n, mean = len(effects), effects.mean(0)
    error = (effects.std(0) / n**0.5).clamp(min=1e-4)
    draw = torch.randint(n, (DRAWS, n), generator=torch.Generator().manual_seed(seed))
    drawn = torch.zeros(DRAWS, n).scatter_add_(1, draw, torch.ones(DRAWS, n)).double() / n
    widest = ((drawn @ effects - mean).abs() / error).amax(-1).quantile(0.95)
    reach = widest * error * (n / (n - 1)) ** 0.5
    of_heads: dict[tuple[str, int], list[Row]] = {at: [] for at in found}
    for (layer, head, kind), x, effect, half in zip(places, every, mean.tolist(), reach.tolist()):
        weight, null = float(x.value.mean()), float(x.null.mean())
        numbers = (effect, effect - half, effect + half, weight, null, x.n)
        enough = effect >= LEAST.get(kind, WEIGHT) and effect > half and x.n >= QUERIES
        values = layer, head, kind, *numbers, enough
        of_heads[layer, head].append(dict(zip((*COLUMNS, "named"), values)))
    strongest: list[Row] = []
    for (layer, head), mine in of_heads.items():
        named = sorted((x for x in mine if x["named"]), key=_rank, reverse=True)
        blank = dict(zip(COLUMNS, (layer, head, "–", *[float("nan")] * 5, mine[0]["n"])))
        strongest.append({name: (named or [blank])[0][name] for name in COLUMNS})
    rows = chain.from_iterable(of_heads.values())
    return Heads(strongest, COLUMNS, left_out, Table(rows, (*COLUMNS, "named"), left_out))


def _rank(row: Row) -> float:
    """How well a kind says what a head does: on the rest it may only wait for its turn."""
    return row["effect"] * RESTS.get(row["kind"], 1.0)
