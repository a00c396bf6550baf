"""What somebody, a disk or a slip may have made of a file: mutations, JSON and safetensors."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from intently.errors import IntentlyError

DEEP = 100_000
LONG = 3_000
"""Characters of a refusal that a person reads."""

TEXTS = [
    b"", b" ", b"\0", b"\0" * 4096, b"null", b"true", b"3", b"-1", b'"text"', b"[]", b"{}", b"[{}]",
    b"[[]]", b"{", b"[", b'"', b"}", b"{]", b'{"a"}', b'{"a": }', b"{'a': 1}", b'{"a": 1,}',
    b'{"a": 1} x', b'{"a": 1}{"a": 1}', b"// no\n{}", b"\xef\xbb\xbf{}", b"\xff\xfe{\0}\0",
    b"\xff\xff\xff", b'{"\xed\xa0\x80": 1}', b'{"\\ud800": 1}', b'{"a": NaN}', b'{"a": Infinity}',
    b'{"a": -Infinity}', b'{"a": 1e999}', b'{"a": 01}', b'{"a": 0x10}', b'{"a": 1, "a": 2}',
    b'{"a": {"b": 1, "b": 1}}', b"9" * 10_000, b'{"a": ' + b"9" * 10_000 + b"}",
    b"[" * DEEP, b'{"a":' * DEEP, b"[" * DEEP + b"]" * DEEP, b'[{"a":' * DEEP,
    b"[" * 101 + b"]" * 101, b'"' + b"a" * 2**20 + b'"', b"[" + b"[]," * 2**18 + b"[]]",
    b"[" + b"0," * 2**18 + b"0]", b'{"a": "\\u0000"}', b"{" + b'"":' * 3, b"PK\x03\x04",
    b"\x80\x04\x95pickle\x94.", b"\x1f\x8b\x08\0", b"<html></html>", b"kind: translator\n",
    b"[model]\nwidth = 8\n", b"step-000001", b"../../etc/passwd", b"\x1b[2J\x1b[H", b"\r\n" * 99,
]  # fmt: skip
"""Contents of a JSON file, none of which says anything that we write."""

VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 3, 2**31, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.5,
    -0.0, 1e308, 1e-320, "", "0", "a", "\0", "\x1b[2J", "\ud800", "../..", "/etc/passwd", "a" *
    10_000, [], [[]], [None], [1, 2], ["a", "b"], [1] * 1000, {}, {"a": 1}, {"": None}, {"tensor":
    "a"},
]  # fmt: skip
"""What may stand where something else belongs."""


def outcome(load: Callable[[], Any], path: Path, whole: Any = None) -> bool:
    """Whether a file is refused, as it should be; where it is not, it must give ``whole``.

    A refusal is one printable line that names the path.
    """
    try:
        found = load()
    except IntentlyError as error:
        told = str(error)
        assert str(path) in told, told
        assert told.isprintable(), told
        assert len(told) < LONG, told
        return True
    assert whole is None or found == whole, f"{path} was taken, and gives another result"
    return False


def mutants(content: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Yield the content ``count`` times, each time changed in one to three places."""
    chance = random.Random(seed)
    for _ in range(count):
        changed = bytearray(content)
        for _ in range(chance.choice((1, 1, 2, 3))):
            chance.choice(CHANGES)(changed, chance)
        yield bytes(changed)


def _at(x: bytearray, chance: random.Random) -> int:
    return chance.randrange(len(x)) if x else 0


def _run(x: bytearray, chance: random.Random) -> slice:
    start = _at(x, chance)
    return slice(start, start + chance.choice((1, 2, 8, 64, 512)))


def _flip(x: bytearray, chance: random.Random) -> None:
    if x:
        x[_at(x, chance)] ^= 1 << chance.randrange(8)


def _digit(x: bytearray, chance: random.Random) -> None:
    """Another digit or letter where there is one: what stays well-formed."""
    places = [n for n, byte in enumerate(x) if chr(byte).isalnum() and byte < 128]
    if places:
        n = chance.choice(places)
        kind = b"0123456789" if chr(x[n]).isdigit() else b"abcdefxyzABC"
        x[n] = chance.choice(kind)


def _delete(x: bytearray, chance: random.Random) -> None:
    del x[_run(x, chance)]


def _repeat(x: bytearray, chance: random.Random) -> None:
    run = _run(x, chance)
    x[run.start : run.start] = x[run]


def _insert(x: bytearray, chance: random.Random) -> None:
    n = _at(x, chance)
    x[n:n] = chance.choice((b"0", b" ", b"{", b"]", b"\0", b'"', b"\xff", chance.randbytes(9)))


def _blank(x: bytearray, chance: random.Random) -> None:
    """A block that never reached the disk."""
    run = _run(x, chance)
    x[run] = bytes(len(x[run]))


def _swap(x: bytearray, chance: random.Random) -> None:
    run, n = _run(x, chance), _at(x, chance)
    moved = x[run]
    del x[run]
    x[n:n] = moved


def _cut(x: bytearray, chance: random.Random) -> None:
    del x[_at(x, chance) :]


def _extend(x: bytearray, chance: random.Random) -> None:
    x += chance.choice((b"\0", b" ", b"}", x[: chance.randrange(64)], chance.randbytes(40)))


def _line(x: bytearray, chance: random.Random) -> None:
    lines = x.splitlines(keepends=True)
    if lines:
        del lines[chance.randrange(len(lines))]
    x[:] = b"".join(lines)


CHANGES = (
    *(_flip, _flip, _digit, _digit, _digit, _delete, _repeat, _insert, _blank, _swap, _cut),
    *(_extend, _line),
)


def forged(document: Any, count: int, seed: int = 0) -> Iterator[Any]:
    """Yield the document ``count`` times, with one entry removed, added or of a different kind."""
    chance = random.Random(seed)
    for number in range(count):
        changed = copy.deepcopy(document)
        places = list(_places(changed))
        within, key = places[number % len(places)] if places else (changed, "a")
        match chance.randrange(5):
            case 0:
                del within[key]
            case 1 if isinstance(within, dict):
                within[chance.choice(("a", "", "step", "\0"))] = chance.choice(VALUES)
            case _:
                within[key] = chance.choice(VALUES)
        yield changed


def _places(x: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in plain data with every key in it."""
    for key in list(x) if isinstance(x, dict) else range(len(x)):
        yield x, key
        if isinstance(x[key], (dict, list)):
            yield from _places(x[key])


# --- safetensors ----------------------------------------------------------------------------------


def parts(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file and what stands behind it."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def packed(header: Any, data: bytes) -> bytes:
    """A safetensors file of a header and what stands behind it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def archives(content: bytes) -> Iterator[bytes]:
    """Yield 60 safetensors files that nobody wrote, made of one that somebody did."""
    header, data = parts(content)
    name = next(name for name in header if name != "__metadata__")
    place = header[name]["data_offsets"]
    wrong: list[dict[str, Any]] = [
        *({"dtype": x} for x in ("F8", "U64", "C64", "", None, 3, "f32", "F64", "I8", "BOOL")),
        *({"shape": x} for x in (None, [], [-1], [2**62, 2**62], [2**64], [0], [0, 2**60], "a")),
        *({"shape": x} for x in ([1] * 1000, [2] * 62, [[1]], [1.5], [True], [2**31] * 9, {})),
        *({"data_offsets": x} for x in (None, [], [0], [0, 0], place[::-1], [-4, 0], [0, 2**63])),
        *(
            {"data_offsets": x}
            for x in ([place[0] + 4, place[1] + 4], [place[0], place[1] + 2**60])
        ),
    ]
    for change in wrong:
        yield packed({**header, name: {**header[name], **change}}, data)
    for each in (None, 3, [], {}, {"dtype": "F32"}, {**header[name], "more": 1}):
        yield packed({**header, name: each}, data)
    for length in (0, 1, 7, 2**31, 2**63, 2**64 - 1, len(content), 10**8 + 1):
        yield length.to_bytes(8, "little") + content[8:]
    yield from (b"", content[:7], content[:8], content[: len(content) // 2], content + b"\0")
    yield packed({k: x for k, x in header.items() if k != name}, data)
    yield packed({**header, "more": {**header[name], "data_offsets": place}}, data)
    yield packed({**header, "more": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}, data)
    yield packed({**header, "__metadata__": {"a": 1}}, data)
    yield packed({**header, "__metadata__": []}, data)
    yield packed(json.dumps(header)[:-1].encode() + b', "a": 1, "a": 2}', data)
    for text in (b"{}", b"[]", b"[" * DEEP, b'{"a":' * DEEP, b"\xff\xff", b'{"a": NaN}'):
        yield packed(text, data)
