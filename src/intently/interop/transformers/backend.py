"""`register`: our attention as an attention implementation of transformers, its masks as ours.

transformers describes a mask by functions of indices, combined by closures, and asks a backend for
the mask of a whole model before its layers run. `make_mask` reads its own functions as masks,
without t × s entries, and passes them on as a `RuleTensor`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from inspect import getclosurevars, signature
from operator import and_, or_
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from intently.core.attention import attend
from intently.core.masks import Geometry, Mask, allowed, causal, segments, window
from intently.errors import ArgumentError, KernelError, build, shape_of


def register(name: str = "intently") -> None:
    """Make ``model.set_attn_implementation(name)`` and ``attn_implementation=name`` work.

    Serves every transformers model that uses the attention interface: padding, causal and sliding
    windows, packed sequences and chunks as masks that are never materialised; softcap, sinks,
    shared key/value heads, position biases, caches, ``generate`` and gradients. It registers both
    the attention function and its mask function; without a mask function, transformers passes no
    mask, not even padding. Repeated calls are harmless.

    Differences from "eager": a query that may attend to nothing (padding on the left) gives exactly
    zero, whereas "eager" gives the mean of all values; ``output_attentions=True`` gives the weights
    without dropout. Where texts are padded on the left, ``labels=`` lets the loss read the last
    padded query, which predicts the first token, so loss and gradients differ from "eager": set
    the label of the first token to −100 too. Under ``torch.compile`` masks are
    dense.

    Raises `KernelError` for a release of transformers that is too old to report the positions of a
    mask's queries.

    >>> register()
    """
    import transformers
    from transformers import AttentionInterface, AttentionMaskInterface, masking_utils

    if "q_offset" not in signature(masking_utils.sdpa_mask).parameters:
        expected = "a release that tells mask functions the q_offset"
        got, fix = f"transformers {transformers.__version__}", "pip install --upgrade transformers"
        raise build(KernelError, "transformers", expected, got, fix=fix)
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, make_mask)


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return y (b, t, h, e) of query (b, h, t, d), key (b, g, s, d), value (b, g, s, e).

    Also return the weights (b, h, t, s) if ``output_attentions`` is set, else None. The mask is
    a `RuleTensor`, a boolean tensor (True means attend) or one to be added. Without a mask queries
    see the keys before them where the module is causal and t > 1, counted from the first key, as in
    transformers. Raises `KernelError` for a paged cache and `ArgumentError` for a mask of a
    different shape.
    """
    if others.get("cache") is not None:
        expected, got = "keys and values that lie in one piece", "a paged cache"
        cause = "continuous batching keeps them in pages"
        fix = 'run it with attn_implementation="sdpa", or generate without continuous batching'
        raise build(KernelError, "cache", expected, got, cause, fix)
    t, s = query.shape[-2], key.shape[-2]
    rule, bias = _read(attention_mask, query, s)
    if attention_mask is None and t > 1:
        plain = getattr(module, "is_causal", True) if is_causal is None else is_causal
        rule = causal(None if t == s else 0) if plain else None
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    options: Any = {"scale": scaling, "softcap": softcap, "sinks": s_aux, "dropout": dropout}
    matrix = attend(query, key, mask=rule, bias=bias, **options)
    y = matrix.matmul(value).transpose(1, 2).contiguous()
    return y, matrix.dense() if _wanted(others) else None


def _read(mask: Tensor | None, query: Tensor, s: int) -> tuple[Mask | None, Tensor | None]:
    """Convert a transformers mask, boolean or additive, to a mask and a bias."""
    if mask is None:
        return None, None
    if isinstance(mask, RuleTensor):
        return mask.rule, None
    if mask.ndim != 4:
        expected = f"shape (b, 1 or h, t={query.shape[-2]}, s={s})"
        cause = "this model passes its attention a mask that the mask function did not make"
        raise build(ArgumentError, "attention_mask", expected, shape_of(mask), cause)
    if mask.dtype is torch.bool:
        return allowed(mask), None
    if not mask.is_floating_point():
        return allowed(mask != 0), None
    seen = mask > torch.finfo(mask.dtype).min / 2
    bias = mask.masked_fill(~seen, 0)
    plain = not mask.requires_grad and not bool(bias.any())
    return allowed(seen), None if plain else bias


def _wanted(others: dict[str, Any]) -> bool:
    """Whether the caller asked for weights; some models drop the argument before this call."""
    if others.get("output_attentions"):
        return True
    from transformers.utils import output_capturing

    collected = output_capturing._active_collector.get()
    return collected is not None and any("attentions" in name for name in collected)


class RuleTensor(Tensor):
    """A boolean tensor (b, 1, t, s), True means attend, whose entries are computed on demand.

    transformers passes masks between functions as tensors. Our attention reads ``rule``; any other
    operation sees the dense entries. Changing it in place raises `ArgumentError`.

    >>> mask = RuleTensor(causal(), 1, 3, 3, torch.device("cpu"))
    >>> mask.shape, mask.rule
    (torch.Size([1, 1, 3, 3]), causal())
    >>> mask.sum(-1)
    tensor([[[1, 2, 3]]])
    """

    rule: Mask | None

    @staticmethod
    def __new__(cls, rule: Mask | None, b: int, t: int, s: int, device: torch.device) -> RuleTensor:
        make: Any = Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
        mask = make(cls, (b, 1, t, s), dtype=torch.bool, device=device)
        mask.rule = rule
        return mask

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func._schema.is_mutable:
            raise _unwritten(str(func))
        args, kwargs = tree_map_only(RuleTensor, RuleTensor.dense, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise _unwritten("an assignment")

    def dense(self) -> Tensor:
        """Return the dense entries (b, 1, t, s)."""
        b, _, t, s = self.shape
        if self.rule is None:
            return torch.ones(b, 1, t, s, dtype=torch.bool, device=self.device)
        return self.rule.dense(Geometry((b, 1), t, s, self.device)).expand(b, 1, t, s).clone()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"RuleTensor({self.rule!r}, {tuple(self.shape)})"


def _unwritten(got: str) -> ArgumentError:
    expected, cause = "operations that make a new tensor", "its entries are not written out"
    return build(ArgumentError, "mask", expected, got, cause, "change mask.clone() instead")


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    *,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **others: Any,
) -> Tensor:
    """Return the mask (b, 1, t, s) of a transformers mask function, True means attend.

    ``attention_mask`` (b, s) is the padding. The functions of transformers itself become a
    `RuleTensor`; foreign ones, and everything under ``torch.compile``, become dense. It always
    returns a mask, as None would be read as causal. `register` registers it.
    """
    from transformers import masking_utils

    theirs: Any = masking_utils
    function = theirs.causal_mask_function if mask_function is None else mask_function
    device = torch.device(device)
    padding = theirs.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    rule = None
    if not (use_vmap or torch.compiler.is_compiling()):
        offset: int | Tensor = q_offset - kv_offset
        if isinstance(offset, Tensor):
            offset = int(offset) if offset.device.type == "cpu" else offset.clone()
        rule = MaskReader(q_length, kv_length, offset, q_offset, kv_offset).read(function)
    if rule is None:
        return theirs.sdpa_mask(
            batch_size,
            q_length,
            kv_length,
            q_offset,
            kv_offset,
            function,
            attention_mask,
            allow_is_causal_skip=False,
            use_vmap=use_vmap,
            device=device,
        )
    if padding is not None and not bool(padding.all()):
        seen = padding[:, kv_offset : kv_offset + kv_length].bool().to(device)
        rule = rule & allowed(seen[:, None, None, :])
    everything = rule.allows_all(Geometry((batch_size, 1), q_length, kv_length, device))
    return RuleTensor(None if everything else rule, batch_size, q_length, kv_length, device)


class MaskReader:
    """Reads the functions of a mask: t queries from ``q_offset`` on, s keys from ``kv_offset``."""

    def __init__(
        self, t: int, s: int, offset: int | Tensor, q_offset: int | Tensor, kv_offset: int
    ) -> None:
        self.t, self.s = t, s
        self.offset = None if isinstance(offset, int) and offset == s - t else offset
        self.starts = q_offset, kv_offset

    def read(self, function: Callable[..., Any]) -> Mask | None:
        """Return the mask of a function; None for functions of other modules."""
        if function.__module__ != "transformers.masking_utils":
            return None
        name = function.__qualname__.split(".")[0]
        reader = getattr(self, f"_{name}", None)
        return None if reader is None else reader(**getclosurevars(function).nonlocals)

    def _causal_mask_function(self) -> Mask:
        return causal(self.offset)

    def _bidirectional_mask_function(self) -> Mask:
        return window(self.t + self.s, self.t + self.s, offset=0)

    def _sliding_window_overlay(self, sliding_window: int) -> Mask:
        return window(sliding_window - 1, self.s, self.offset)

    def _sliding_window_bidirectional_overlay(self, sliding_window: int) -> Mask:
        return window(sliding_window, sliding_window, self.offset)

    def _chunked_overlay(self, chunk_size: int, left_padding: Tensor) -> Mask:
        queries, keys = self._positions(left_padding.device)
        left = left_padding[:, None]
        return segments((queries - left) // chunk_size, (keys - left) // chunk_size)

    def _blockwise_overlay(self, block_sequence_ids: Tensor) -> Mask:
        queries, keys = self._positions(block_sequence_ids.device)
        q, k = block_sequence_ids[:, queries], block_sequence_ids[:, keys]
        return segments(q, k) & allowed((k >= 0)[:, None, None, :])

    def _packed_sequence_mask_function(self, packed_sequence_mask: Tensor) -> Mask:
        return segments(packed_sequence_mask)

    def _remap_positions_for_packed_sequence(
        self, mask_function: Callable[..., Any], position_ids: Tensor
    ) -> Mask | None:
        """Within a packed sequence, positions rise by one, so distances are unchanged."""
        return self.read(mask_function)

    def _and_masks(self, mask_functions: tuple[Callable[..., Any], ...]) -> Mask | None:
        return self._joined(mask_functions, and_)

    def _or_masks(self, mask_functions: tuple[Callable[..., Any], ...]) -> Mask | None:
        return self._joined(mask_functions, or_)

    def _joined(self, functions: tuple[Callable[..., Any], ...], join: Any) -> Mask | None:
        rules = [self.read(function) for function in functions]
        known = bool(rules) and all(rule is not None for rule in rules)
        return reduce(join, rules) if known else None

    def _positions(self, device: torch.device) -> tuple[Tensor, Tensor]:
        q_offset, kv_offset = self.starts
        queries = torch.arange(self.t, device=device) + q_offset
        return queries, torch.arange(self.s, device=device) + kv_offset
