"""The formula of a page's description in NumPy: what its script computes, said once more."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from intently.show.page import items_of, packed
from intently.show.page.packing import DTYPES


class Page:
    """A description and the numbers of its blocks."""

    def __init__(self, meta: dict[str, Any], blocks: Mapping[int, bytes]) -> None:
        self.meta, self.blocks = meta, blocks

    @classmethod
    def of(cls, source: Any, precision: Any = "half", **options: Any) -> Page:
        """What would be written of a matrix, matrices or a recording."""
        made = packed(items_of(source, sides=options.pop("sides", ())), precision, **options)
        return cls(json.loads(json.dumps(made.meta)), dict(enumerate(made.blocks)))

    @classmethod
    def read(cls, path: Path) -> Page:
        """A page as a browser gets it."""
        html = path.read_text(encoding="utf-8")
        meta = re.search(r'<script type="application/json" id="intently-page">(.*?)</script>', html)
        assert meta is not None
        blocks = re.findall(r'<script type="text/plain" data-block="(\d+)">([^<]*)</script>', html)
        return cls(json.loads(meta[1]), {int(n): base64.b64decode(text) for n, text in blocks})

    def block(self, number: int) -> np.ndarray:
        kind = self.meta["blocks"][number]
        return unpacked(self.blocks[number], kind["dtype"], kind["shape"])

    def entry(self, name: str | int = 0, item: int = 0) -> dict[str, Any]:
        entries = self.meta["items"][item]["entries"]
        if isinstance(name, int):
            return entries[name]
        return next(entry for entry in entries if entry["name"] == name)

    def weights(self, name: str | int = 0, item: int = 0) -> np.ndarray:
        """All weights (h, t, s) of an entry, in float64."""
        entry = self.entry(name, item)
        return np.stack([self.head(entry, h) for h in range(entry["heads"])])

    def head(self, entry: dict[str, Any], h: int) -> np.ndarray:
        if entry["score"]["kind"] == "weights":
            return self.block(entry["score"]["blocks"][h]).astype(np.float64)
        q = self.block(entry["q"][h]).astype(np.float64)
        k = self.block(entry["k"][h // entry["group"]]).astype(np.float64)
        if entry["score"]["kind"] == "additive":
            energy = self.block(entry["score"]["energy"])[h].astype(np.float64)
            z = (energy * np.tanh(q[:, None] + k)).sum(-1)
        else:
            z = q @ k.T
        z = entry["scale"] * z
        if entry["softcap"] is not None:
            z = entry["softcap"] * np.tanh(z / entry["softcap"])
        z = z + self.bias(entry, h)
        if entry["mask"] is not None:
            mask = self.block(entry["mask"]["block"])
            z = np.where(mask[h] if entry["mask"]["heads"] > 1 else mask, z, -np.inf)
        lse = self.block(entry["lse"][h])[:, None]
        with np.errstate(invalid="ignore"):
            return np.where(np.isneginf(lse), 0.0, np.exp(z - lse))

    def bias(self, entry: dict[str, Any], h: int) -> np.ndarray | float:
        bias, t, s = entry["bias"], entry["t"], entry["s"]
        if bias is None:
            return 0.0
        values = self.block(bias["blocks"][h if len(bias["blocks"]) > 1 else 0]).astype(np.float64)
        if bias["kind"] == "distance":
            return values[np.arange(s) - np.arange(t)[:, None] + t - 1]
        return values


def unpacked(packed: bytes, dtype: str, shape: list[int]) -> np.ndarray:
    """Return the numbers of a block, bits as booleans."""
    raw = np.frombuffer(zlib.decompress(packed), np.uint8)
    if dtype == "bits":
        bits = np.unpackbits(raw.reshape(*shape[:-1], -1), axis=-1, bitorder="little")
        return bits[..., : shape[-1]].astype(bool)
    kind = np.dtype(DTYPES[dtype])
    return raw.reshape(kind.itemsize, -1).T.copy().view(kind).reshape(shape)
