"""Untrusted JSON: parsed within bounds, checked against a shape, sealed with a checksum."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

DEPTH = 100
"""Deepest nesting of lists and objects."""

SEAL = "sha256"
"""The key under which a JSON object holds the checksum of its other entries."""


class UnfitError(Exception):
    """The content of a file does not fit; the message says why."""


def plain(value: Any) -> bytes:
    """Return canonical JSON, the same for equal values; refuse NaN and infinities."""
    return json.dumps(value, indent=1, allow_nan=False, sort_keys=True).encode()


def digest(content: bytes | memoryview) -> str:
    """Return the SHA-256 of some bytes, as 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def sealed(value: Mapping[str, Any]) -> bytes:
    """Return JSON that ends with a checksum of itself, for `File.sealed`.

    The checksum is the last line, so a file without it is not valid JSON.

    >>> list(parsed(sealed({"steps": 3})))
    ['steps', 'sha256']
    """
    told = plain(value)
    comma = "," if value else ""
    return told[:-1].rstrip() + f'{comma}\n "{SEAL}": "{digest(told)}"\n}}'.encode()


def parsed(content: bytes) -> Any:
    """Return the value of JSON; raise UnfitError with the reason if it is not valid.

    It also refuses repeated keys in an object, numbers that are not finite, integers beyond 64 bits
    and nesting deeper than `DEPTH`.

    >>> parsed(b'{"heads": 4, "heads": 1}')
    Traceback (most recent call last):
    ...
    intently.foundation.files.plain_data.UnfitError: JSON with the key 'heads' twice
    """
    try:
        found = json.loads(
            content.decode(),
            parse_int=_whole,
            parse_float=_finite,
            parse_constant=_finite,
            object_pairs_hook=_once,
        )
    except UnicodeDecodeError as error:
        raise UnfitError(f"no UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        told = f"no JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        raise UnfitError(told if content else "an empty file") from None
    except RecursionError:
        raise UnfitError(f"JSON nested more than {DEPTH} deep") from None
    level = [found]
    for _ in range(DEPTH + 1):
        held = [x.values() if isinstance(x, dict) else x for x in level if type(x) in (dict, list)]
        if not held:
            return found
        level = list(chain.from_iterable(held))
    raise UnfitError(f"JSON nested more than {DEPTH} deep")


def _whole(text: str) -> int:
    if len(text) > 20 or abs(int(text)) >= 2**64:
        raise UnfitError(f"JSON with a whole number of {len(text)} digits")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise UnfitError(f"JSON with the number {text[:20]}")
    return number


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise UnfitError(f"JSON with the key {twice[:40]!r} twice")
    return found


def fault(x: Any, shape: Any, at: str = "") -> str | None:
    """Describe where plain data differ from a shape; None if they fit.

    A shape is ``str``, ``bool``, ``int``, ``float`` (whole numbers, too), ``None``, ``object``
    (anything), a range of whole numbers, a pattern or a set of texts, ``[a]`` (a list of any
    length), ``[a, b]`` (a list of two), ``{str: a}`` (an object with any names),
    ``{"name": a, "other?": b}`` (an object with these names, the second optional), or a tuple of
    alternative shapes.

    >>> fault({"step": 3, "best": 7}, {"step": range(9), "best?": (str, None)})
    'best: 7 where text or null belongs'
    """
    if isinstance(shape, tuple) and any(fault(x, one, at) is None for one in shape):
        return None
    inside: Iterable[tuple[Any, Any, str]] = ()
    within = f"{at}." if at else ""
    if isinstance(shape, dict) and isinstance(x, dict):
        anything = shape.get(str)
        known = {name.removesuffix("?"): one for name, one in shape.items() if name is not str}
        for name in x:
            if name not in known and anything is None:
                return f"an unknown {within}{name[:40]}"
        for name in known:
            if name not in x and name in shape:
                return f"no {within}{name}"
        inside = ((x[name], known.get(name, anything), f"{within}{name[:40]}") for name in x)
    elif isinstance(shape, list) and isinstance(x, list) and len(shape) in (1, len(x)):
        shapes = shape * len(x) if len(shape) == 1 else shape
        inside = ((one, own, f"{at}[{n}]") for n, (one, own) in enumerate(zip(x, shapes)))
    elif not _is(x, shape):
        got = _words(type(x)) if isinstance(x, dict | list) else json.dumps(x)
        return f"{at or 'JSON'}: {got[:40]} where {_words(shape)} belongs"
    return next((why for one in inside if (why := fault(*one)) is not None), None)


def _is(x: Any, shape: Any) -> bool:
    match shape:
        case range():
            return type(x) is int and x in shape
        case re.Pattern():
            return isinstance(x, str) and shape.fullmatch(x) is not None
        case set() | frozenset():
            return isinstance(x, str) and x in shape
        case type():
            return shape is object or type(x) is shape or (shape is float and type(x) is int)
    return shape is None and x is None


def _words(shape: Any) -> str:
    """Describe a shape in words."""
    match shape:
        case range():
            return f"a whole number from {shape.start} to {shape.stop - 1}"
        case re.Pattern():
            return f"text like {shape.pattern}"
        case set() | frozenset():
            return "one of " + ", ".join(sorted(shape))
        case tuple():
            return " or ".join(map(_words, shape))
        case [_, _, *_]:
            return f"a list of {len(shape)}"
        case dict() | list():
            return _words(type(shape))
    names = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
    return names.get(shape, {dict: "an object", list: "a list"}.get(shape, "null"))
