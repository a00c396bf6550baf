"""What a watched model reads: the texts of its rows, of the ids that it is called with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from intently.errors import KindError, build

if TYPE_CHECKING:
    from intently.observe.recording.recording import Recording

IDS, MASK = "input_ids", "attention_mask"


class Reads:
    """Tells a recording which texts a model reads, and whether the rows of a batch differ.

    A ``tokenizer`` of transformers has ``convert_ids_to_tokens``, ours ``tokens``. Steps of a
    generation, whose mask is longer than their ids, add nothing: beams may change places.
    """

    def __init__(self, recording: Recording, tokenizer: Any) -> None:
        self._recording = recording
        if tokenizer is None:
            self._tokens: Any = None
        else:
            ours = getattr(tokenizer, "tokens", None)
            self._tokens = getattr(tokenizer, "convert_ids_to_tokens", ours)
            if not callable(self._tokens):
                expected = "a tokenizer with convert_ids_to_tokens, or ours"
                raise build(KindError, "tokenizer", expected, type(tokenizer).__name__)
        self._pad = getattr(tokenizer, "pad_token_id", None)

    def called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Hear of the arguments of the outermost module."""
        ids: Any = kwargs.get(IDS, next(iter(args), None))
        if not _are_ids(ids):
            return
        mask = kwargs.get(MASK)
        if isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape[1] > ids.shape[1]:
            return
        rows: list[Any] = self._rows(ids, mask)
        written: Any = kwargs.get("decoder_" + IDS)
        if _are_ids(written) and len(written) == len(ids):
            targets = self._rows(written, kwargs.get("decoder_" + MASK))
            rows = list(zip(rows, targets))
        self._recording.read(rows, self._tokens is not None)

    def _rows(self, ids: Tensor, mask: Any) -> list[list[Any]]:
        """The tokens of each row, or its ids, without padding."""
        if isinstance(mask, Tensor) and mask.shape == ids.shape:
            seen = mask != 0
        else:
            seen = ids != (-1 if self._pad is None else self._pad)
        rows = [row[own].tolist() for row, own in zip(ids, seen)]
        return rows if self._tokens is None else [list(self._tokens(row)) for row in rows]


def _are_ids(x: Any) -> bool:
    return isinstance(x, Tensor) and x.ndim == 2 and not x.is_floating_point() and x.numel() > 0
