"""`Recording`: the attention of watched modules, by name, as lazy matrices."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from copy import copy
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from intently.core.matrix import LazyMatrix, rollout
from intently.core.matrix.labelling import (
    as_numbers,
    crosses,
    looks_back,
    numbered,
    reads_source,
    side,
)
from intently.errors import ArgumentError, IntentlyError, KindError, UnverifiedError, build
from intently.observe.generation.joining import Rows
from intently.observe.recording.coverage import Coverage
from intently.observe.recording.labels import (
    NONE,
    Labels,
    Text,
    Texts,
    Tokens,
    checked,
    is_pair,
    is_rows,
    labels,
    placed,
)
from intently.observe.recording.summary import Source, Summary
from intently.observe.storage.stores import Kept
from intently.observe.watching.call import Weights
from intently.observe.watching.modules import matches

if TYPE_CHECKING:
    from intently.observe.measuring.heads import Heads


class Entry:
    """One attention of a module: a call, or the calls of a generation joined.

    ``verified`` says whether its weights give the model's output, None if they could not be
    compared; ``why`` gives the reason, ``compared`` the number of rows. ``changed`` names the
    operations that changed the weights between the softmax and the values. ``across`` says whether
    its keys came from elsewhere than its queries, None if that was not seen. ``texts`` are those of
    its recording, ``steps`` the calls that were joined.
    """

    def __init__(self, name: str, index: int, source: str, rows: Rows) -> None:
        self.name, self.index, self.source, self.rows = name, index, source, rows
        self.verified: bool | None = None
        self.why: str | None = None
        self.changed: str | None = None
        self.compared, self.steps = 0, 1
        self.texts = Texts(names={name})
        self.across: bool | None = None
        self.values: Kept | None = None
        self.gradient: Kept | None = None
        self.ungraded: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """(b, h, t, s)."""
        return self.rows.shape

    @property
    def heads(self) -> int:
        """How many heads it has; 1 without an axis of them."""
        return self.shape[-3] if len(self.shape) > 2 else 1

    def matrix(self) -> LazyMatrix:
        """Return the weights (b, h, t, s), lazily, labelled if tokens are known.

        Raises `UnverifiedError` if they do not give the model's output, and `StaleError` if a
        reference has changed.
        """
        if self.verified is False:
            name, expected = f"seen[{self.name!r}, {self.index}]", "weights that give the output"
            fix = "the model may change q, k or the weights outside of its attention call"
            raise build(UnverifiedError, name, expected, "others", self.why, fix)
        matrix = self.attention()
        found = [(one.rows, one.columns) for one in self.labels(matrix)]
        return matrix.label(*found[0]) if len(found) == 1 else matrix.label_each(found)

    def labels(self, matrix: LazyMatrix) -> list[Labels]:
        """The tokens of the rows and columns of its ``matrix``, as far as they are certain.

        One for each row of the batch where these have texts of their own.
        """
        texts: Any = self.texts.tokens
        b = matrix.shape[0] if matrix.ndim > 3 else 1
        if not is_rows(texts):
            return [NONE if self.texts.several and b > 1 else self._labels(texts, matrix)]
        each = max(1, b // len(texts))  # rows of a text beside each other, as beams are
        if b != each * len(texts):
            return [NONE]
        rows = [matrix[n] if matrix.ndim > 3 else matrix for n in range(b)]
        seen = [(row._viewers().reshape(-1, row.shape[-1]).sum(0) > 0).tolist() for row in rows]
        return [self._labels(placed(texts[n // each], seen[n]), rows[n]) for n in range(b)]

    def _labels(self, text: Text | None, matrix: LazyMatrix) -> Labels:
        back, texts = partial(looks_back, matrix), self.texts
        return labels(text, self.name, matrix.shape, back, texts.sources, texts.names, self.across)

    def lost(self) -> str | None:
        """Why the weights cannot be computed any more, None while they can."""
        try:
            self.rows.check()
        except IntentlyError as error:
            return str(error)
        return None

    def attention(self) -> Weights:
        """Return the weights, verified or not."""
        return self.rows.how().attend(*self.rows.operands())

    def tensors(self) -> list[Tensor]:
        """All tensors that the weights are computed from."""
        return [*self.rows.operands(), *self.rows.how().tensors()]

    def v(self) -> Tensor:
        """The values (b, g, s, e), kept by a watch with ``gradients=True``."""
        if self.values is None:
            fix = "watch(model, gradients=True) keeps them"
            raise build(ArgumentError, "v", "a recording with values", "one without", fix=fix)
        return self.values.get()

    def grad(self) -> Tensor:
        """The gradient (b, h, t, e) of A @ v that a backward pass left."""
        if self.gradient is None:
            expected = "a backward pass through what was watched"
            fix = "watch(model, gradients=True), then call backward() on a loss"
            raise build(ArgumentError, "grad", expected, "none", self.ungraded, fix)
        return self.gradient.get()


class Recording:
    """What a watch kept: ``seen[name]`` is the lazy matrix of a module.

    A recording reads as a mapping of names: ``len(seen)`` counts them, iteration yields them.
    ``layers`` are the same names, ``calls`` all entries in the order in which they began.
    ``tokens`` label the matrices: the texts of one sequence, or a pair (source, target) of the
    texts that an encoder reads and those that a decoder reads and produces; or a list of these,
    one for each row of a batch, without padding. They may be set later, for example after a
    generation, and then label all entries; a matrix of other lengths gets no labels, nor does a
    batch of different texts from the tokens of one.
    """

    def __init__(self, tokens: Tokens | None = None) -> None:
        self.calls: list[Entry] = []
        self.covered, self.texts = Coverage(), Texts(checked(tokens))

    @property
    def tokens(self) -> Tokens | None:
        """The labels as given: of one sequence, of (source, target), of each row, or None.

        Raises `KindError` when set to anything but texts.
        """
        return self.texts.tokens

    @tokens.setter
    def tokens(self, tokens: Tokens | None) -> None:
        self.texts.tokens = checked(tokens)

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the modules that attended, in the order in which they began."""
        return tuple(dict.fromkeys(entry.name for entry in self.calls))

    def add(self, entry: Entry) -> None:
        """Append an entry."""
        entry.texts = self.texts
        self.texts.names.add(entry.name)
        if reads_source(entry.name, self.texts.names, entry.across):
            self.texts.sources.add(entry.shape[-1])
        self.calls.append(entry)

    def entries(self, name: str) -> list[Entry]:
        """All entries of a module; raises `ArgumentError` with the nearest names."""
        found = [entry for entry in self.calls if entry.name == name]
        if not found:
            near = difflib.get_close_matches(str(name), self.layers, 3, 0.3)
            fix = f"the nearest are {', '.join(map(repr, near))}" if near else None
            expected, why = "the name of a module that attended", self.covered.unseen.get(name)
            raise build(ArgumentError, "name", expected, repr(name), why, fix)
        return found

    def __getitem__(self, key: str | tuple[str, int]) -> LazyMatrix:
        """Return ``seen[name]``, the matrix of its one call, or ``seen[name, i]`` of call i.

        Raises `ArgumentError` for names that did not attend and for several calls without a
        number, and whatever `Entry.matrix` raises.
        """
        if isinstance(key, tuple) and len(key) != 2:
            raise build(KindError, "key", "seen[name] or seen[name, i]", f"{len(key)} items")
        name, index = key if isinstance(key, tuple) else (key, None)
        found = self.entries(name)
        n = len(found)
        if index is None and n > 1:
            expected = f"seen[{name!r}, i] with i from 0 to {n - 1}"
            raise build(ArgumentError, "name", expected, repr(name), f"it attended {n} times")
        index = index or 0
        if isinstance(index, bool) or not isinstance(index, int) or not -n <= index < n:
            expected, why = f"a number from 0 to {n - 1}", f"{name!r} attended {n} times"
            raise build(ArgumentError, "i", expected, repr(index), why)
        return found[index].matrix()

    def __iter__(self) -> Any:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def coverage(self) -> Coverage:
        """Return what was seen and verified, and what was not, with the reasons, to be printed.

        An entry is verified if A[rows] @ v gave the output of the product of its weights and
        values, in some rows (n,). Notes say why weights (b, h, t, s) were kept themselves, and
        which modules mix and do not attend.
        """
        return self.covered.of(self.calls)

    def summary(self, heads: Heads | None = None) -> Summary:
        """Return a table (layer, head, statistic) of everything that was seen.

        ``heads`` is the table of `intently.heads`, whose names it shows.

        A layer that attended several times appears as ``name[i]``. Where weights were changed
        before they met the values, a column ``changed`` names the operations. Entries that are
        unverified or cannot be read any more are named below the table, and in its ``left_out``.
        """
        left_out: dict[str, str] = {}
        changed: dict[str, str] = {}

        def sources() -> Iterator[Source]:
            for name, entry in zip(numbered(self.calls), self.calls):
                if entry.verified is False:
                    left_out[name] = f"UNVERIFIED: {entry.why}"
                    continue
                try:
                    matrix = entry.attention()
                except IntentlyError as error:
                    left_out[name] = str(error)
                    continue
                if entry.changed is not None:
                    changed[name] = entry.changed
                yield name, matrix, _numbers(entry.labels(matrix))

        kinds = _names(heads)
        return Summary.of(sources(), left_out=left_out, changed=changed, kinds=kinds)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a safetensors file that `load_recording` opens."""
        from intently.observe.saving.files import save

        save(self, path)

    def page(
        self,
        path: str | PathLike[str],
        precision: Literal["half", "full"] = "half",
        *,
        layers: str | Sequence[str] | None = None,
        heads: Heads | None = None,
        **about: Any,
    ) -> Path:
        """Write a page that opens offline in any browser: every head of every layer.

        The page holds queries and keys at ``precision``, and says how far its weights are from the
        model's. ``layers`` are names or patterns such as "decoder.*", as `watch` takes them; all
        unless given. ``heads`` is the table of `intently.heads`, which says what heads do; without
        one, the page does not say it. `intently.show.page.save_page` documents its other options
        (``title``, ``sides``, ``highlights``, ``start``) and errors. Entries that are unverified
        are left out, and named; axes before the heads are rows of the batch. Without ``start`` and
        ``highlights``, the page of a short text opens on its most telling head, and says why.
        """
        from intently.show.page import items_of, save_page
        from intently.show.page.opening import opened_on
        from intently.show.page.writing import destination

        destination(path)
        shown = self if layers is None else self._only(layers)
        if about.keys().isdisjoint({"start", "highlights"}):
            about["start"], about["highlights"] = opened_on(
                items_of(shown, sides=about.get("sides", ()))
            )
        return save_page(shown, path, precision, kinds=_names(heads), **about)

    def _only(self, layers: str | Sequence[str]) -> Recording:
        """The recording of some layers; raises `ArgumentError` for a pattern that has none."""
        patterns = [layers] if isinstance(layers, str) else list(layers)
        for pattern in patterns:
            if not any(matches(name, pattern) for name in self.layers):
                self.entries(pattern)  # which says what is near
        part = copy(self)
        part.calls = [e for e in self.calls if any(matches(e.name, p) for p in patterns)]
        return part

    def rollout(self, token: int | str, residual: float = 0.5) -> Tensor:
        """Return how much a token draws from each input position through all layers, (b, s).

        ``token`` is a position, or one of ``tokens``. The rollout follows the self-attention of all
        layers, from the first to the last; raises `ArgumentError` if they differ in shape, or
        belong to an encoder and a decoder.

        Source: Abnar & Zuidema 2020, section 3.
        """
        names, square = self.texts.names, [x for x in self.calls if x.shape[-2] == x.shape[-1]]
        squares = [x for x in square if not crosses(x.name, names, x.across)]
        twice = [entry.name for entry in squares if entry.index]
        if twice:
            expected, got = "one self-attention of each layer", f"several of {twice[0]!r}"
            why = "rollout follows one sequence through its layers"
            fix = "watch one call, or pass matrices to it.rollout([seen[name, i], …])"
            raise build(ArgumentError, "rollout", expected, got, why, fix)
        if {"encoder", "decoder"} <= {side(entry.name) for entry in squares}:
            got = "that of an encoder and that of a decoder"
            fix = 'watch one of them: watch(model, layers="encoder.*")'
            raise build(ArgumentError, "rollout", "self-attention of one sequence", got, fix=fix)
        matrices = [entry.matrix() for entry in squares]
        texts: Any = self.tokens
        if texts is None or is_pair(texts) or is_rows(texts):
            texts = matrices[0].labels[1] if matrices else None
        return rollout(matrices, residual, queries=_position(token, texts or ()))

    def _repr_html_(self) -> str:
        from intently.show.notebook import recording_html

        return recording_html(self)

    def __repr__(self) -> str:
        layers, calls = len(self.layers), len(self.calls)
        said = f"{layers} layer{'s' * (layers != 1)}, {calls} call{'s' * (calls != 1)}"
        return f"Recording({said})"


def _numbers(found: list[Labels]) -> list[int] | list[list[int]] | None:
    """The tokens of a self-attention as numbers, of each row of a batch; None if unknown."""
    for x in found:
        if not x.same or x.rows is None or x.columns is None or len(x.rows) != len(x.columns):
            return None
    rows = [as_numbers(one.columns or ()) for one in found]
    return rows[0] if len(rows) == 1 else rows


def _names(heads: Heads | None) -> dict[tuple[str, int], str] | None:
    """What heads are, by the table of `intently.heads`."""
    names = getattr(heads, "names", None)
    if heads is not None and not isinstance(names, dict):
        expected = "the table that it.heads(model, …) returns"
        raise build(KindError, "heads", expected, type(heads).__name__)
    return names


def _position(token: int | str, texts: Any) -> int:
    """The position of a token in a sequence."""
    if isinstance(token, int):
        return token
    places = [n for n, text in enumerate(texts) if text == token]
    if len(places) != 1:
        expected = "a position, or a token that occurs once"
        why = f"it occurs {len(places)} times in tokens={list(texts)}"
        raise build(ArgumentError, "token", expected, repr(token), why)
    return places[0]
