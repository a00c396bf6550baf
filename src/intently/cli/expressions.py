"""Values of `attend` and arguments as they are written on a command line; nothing is executed.

An expression is read as a tree: names of masks or biases, calls of them with plain values, and
``&``, ``|``, ``~``. Anything else is refused.
"""

from __future__ import annotations

import ast
from typing import Any

from intently.errors import ArgumentError, IntentlyError, build

MASKS = ("causal", "window", "padding", "prefix", "segments", "dilated", "grid", "allowed")
BIASES = ("alibi", "relative_buckets")


def mask_of(text: str) -> Any:
    """The mask that an expression names.

    >>> mask_of("causal() & window(3, 0)")
    causal() & window(3, 0)
    """
    return _value(text, "--mask", MASKS, "causal() & padding([6, 4])")


def bias_of(text: str) -> Any:
    """The bias that an expression names."""
    return _value(text, "--bias", BIASES, "alibi(8)")


def keywords(text: str) -> dict[str, Any]:
    """Arguments of a call by name.

    >>> keywords("dim=64, heads=8")
    {'dim': 64, 'heads': 8}
    """
    call = _parsed(f"f({text})", "--with", 'names with plain values, "dim=64, heads=8"')
    if not isinstance(call, ast.Call) or call.args or any(x.arg is None for x in call.keywords):
        raise build(ArgumentError, "--with", 'names with plain values, "dim=64, heads=8"', text)
    return {str(x.arg): _plain(x.value, "--with", text) for x in call.keywords}


def _value(text: str, option: str, names: tuple[str, ...], example: str) -> Any:
    return _made(_parsed(text, option, example), option, names, text, example)


def _made(node: ast.expr, option: str, names: tuple[str, ...], text: str, example: str) -> Any:
    import intently

    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
        left, right = (_made(x, option, names, text, example) for x in (node.left, node.right))
        return left & right if isinstance(node.op, ast.BitAnd) else left | right
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return ~_made(node.operand, option, names, text, example)
    if isinstance(node, ast.Call) and _name(node.func) in names:
        name = _name(node.func)
        given = [_plain(x, option, text) for x in node.args]
        named = {str(x.arg): _plain(x.value, option, text) for x in node.keywords}
        try:
            return getattr(intently, name)(*given, **named)
        except IntentlyError:
            raise
        except TypeError as error:
            raise build(ArgumentError, option, example, text, str(error)) from None
    expected = f"{', '.join(names)}, called with plain values, and joined by &, | and ~"
    raise build(ArgumentError, option, expected, text, fix=f'write "{example}", for example')


def _name(node: ast.expr) -> str:
    """The name that is called: ``causal``, ``it.causal`` or ``intently.causal``."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id in ("it", "intently") else ""
    return node.id if isinstance(node, ast.Name) else ""


def _plain(node: ast.expr, option: str, text: str) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        got = ast.unparse(node)
        raise build(ArgumentError, option, "plain values: 3, [6, 4], None", got) from None


def _parsed(text: str, option: str, example: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise build(ArgumentError, option, example, text) from None
