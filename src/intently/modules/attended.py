"""The attention matrices of a model's blocks, from the very arguments of its forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from intently.attention_matrix import Attention


def attended(
    blocks: Iterable[tuple[str, nn.Module]], run: Callable[[], Any]
) -> dict[str, Attention]:
    """Return the lazy matrices of ``blocks`` by name, in the order in which ``run`` calls them.

    ``attend`` of each block returns the matrix that its ``forward`` of the same arguments
    multiplies, so masks, biases, positions and all other options are those of the forward pass. A
    block with several names appears under each in turn. All blocks are restored afterwards, even if
    ``run`` raises.

    >>> import torch
    >>> from intently.modules import MultiHeadAttention
    >>> block = MultiHeadAttention(8, 2)
    >>> attended([("only", block)], lambda: block(torch.zeros(1, 3, 8)))["only"].shape
    (1, 2, 3, 3)
    """
    names: dict[nn.Module, list[str]] = {}
    for name, block in blocks:
        names.setdefault(block, []).append(name)
    found: dict[str, Attention] = {}

    def ask(block: Any, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        found[names[block].pop(0)] = block.attend(*given, **options)

    handles = []
    try:
        for block in names:
            handles.append(block.register_forward_pre_hook(ask, with_kwargs=True))
        run()
    finally:
        for handle in handles:
            handle.remove()
    return found


def attention_blocks(**stacks: Any) -> list[tuple[str, nn.Module]]:
    """Return the attention of layers by module path: "decoder.0.self_attention", …

    Each keyword is the name of a stack, its value the layers.
    """
    return [
        (f"{stack}.{i}.{name}", block)
        for stack, layers in stacks.items()
        for i, layer in enumerate(layers)
        for name, block in layer.named_children()
        if name in ("self_attention", "cross_attention")
    ]
