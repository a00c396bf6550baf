"""What both generators share: a case, sources that inspect can read, and the test that twins differ."""

from __future__ import annotations

import hashlib
import linecache
import random
import re
import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

HEAD = "import math\n\nimport torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n\n"


@dataclass
class Case:
    name: str
    kind: str
    expect: tuple[str, ...]
    asks: Callable[[], dict]
    wrong: Callable[[], Any]
    right: Callable[[], Any]
    source: Callable[[], tuple[str, str]]
    layout: str = ""  # of the inputs, in words
    drive: Callable[[Any, dict], Any] | None = None  # how the twins are compared (None: one call)
    sample: Callable[[], dict] | None = None  # inputs of the comparison, where asks() has none
    tags: dict = field(default_factory=dict)


def load(text: str) -> types.ModuleType:
    """The source as a module which inspect, traceback and pickle find; its name says nothing."""
    code = hashlib.sha256(text.encode()).hexdigest()[:10]
    name, path = f"program_{code}", f"<program_{code}>"
    if name in sys.modules:
        return sys.modules[name]
    module = types.ModuleType(name)
    module.__file__ = path
    linecache.cache[path] = (len(text), None, text.splitlines(True), path)
    sys.modules[name] = module
    try:
        exec(compile(text, path, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def maker(text: str, build: str, seed: int, spread: float = 0.0) -> Callable[[], Any]:
    """A function that builds the subject: eval mode, the same weights for both twins."""

    def make() -> Any:
        module = load(text)
        torch.manual_seed(seed)
        np.random.seed(seed)
        if "keras" in text:
            import keras

            keras.utils.set_random_seed(seed)
        subject = eval(build, module.__dict__)
        if isinstance(subject, torch.nn.Module) and "keras" not in text:
            subject.eval()
            if spread:  # scores of untrained layers are tiny: weights as after some training
                names = sorted(n for n, _ in subject.named_parameters())
                table = dict(subject.named_parameters())
                with torch.no_grad():
                    for n in names:
                        if table[n].dim() >= 2 and "norm" not in n:
                            g = torch.Generator().manual_seed(
                                seed + int(hashlib.sha256(n.encode()).hexdigest(), 16) % 99991
                            )
                            table[n].copy_(
                                torch.randn(table[n].shape, generator=g)
                                * spread
                                / table[n][0].numel() ** 0.5
                            )
        return subject

    return make


def flat(x: Any) -> list[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        return [x.detach().double()]
    if isinstance(x, np.ndarray):
        return [torch.from_numpy(np.ascontiguousarray(x)).double()]
    if isinstance(x, dict):
        return [t for n in sorted(x) for t in flat(x[n])]
    if isinstance(x, (list, tuple)):
        return [t for y in x for t in flat(y)]
    if hasattr(x, "__array__"):
        return [torch.from_numpy(np.asarray(x).copy()).double()]
    return []


def copied(inputs: dict) -> dict:
    def one(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return x.detach().clone()
        if isinstance(x, np.ndarray):
            return x.copy()
        if isinstance(x, dict):
            return {n: one(y) for n, y in x.items()}
        if isinstance(x, tuple):
            return tuple(one(y) for y in x)
        return x

    return {n: one(x) for n, x in inputs.items()}


def call(subject: Any, inputs: dict) -> Any:
    torch.manual_seed(5)
    x = copied(inputs)
    many = x.pop("*", ())
    return subject(*many, **x)


def outcome(make: Callable[[], Any], inputs: dict, drive: Callable | None) -> list[torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return flat((drive or call)(make(), inputs))


def apart(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    """The largest difference, as a part of the right one's spread; infinite if shapes or NaN differ."""
    if len(a) != len(b):
        return float("inf")
    most = 0.0
    for x, y in zip(a, b):
        if x.shape != y.shape:
            return float("inf")
        nx, ny = ~torch.isfinite(x), ~torch.isfinite(y)
        if bool((nx != ny).any()):
            return float("inf")
        if x.numel() == 0 or bool(nx.all()):
            continue
        y_, x_ = y[~ny], x[~nx]
        spread = float(y_.abs().mean()) + 1e-12
        most = max(most, float((x_ - y_).abs().max()) / spread)
    return most


def verify(case: Case, least: float = 5e-3) -> str:
    """Empty if the twins are good, else what is amiss."""
    asks = case.asks()
    inputs = asks.get("inputs")
    if inputs is None:
        inputs = case.sample()
    elif isinstance(inputs, (tuple, list)):
        inputs = {"*": tuple(inputs)}
    try:
        right = outcome(case.right, inputs, case.drive)
        again = outcome(case.right, inputs, case.drive)
    except Exception as error:
        return f"the right twin raises: {type(error).__name__}: {error}"
    if not right or any(x.numel() == 0 for x in right):
        return "no output"
    if not case.tags.get("nan ok") and any(not bool(torch.isfinite(x).all()) for x in right):
        return "the right twin is not finite"
    if apart(right, again) > 1e-6:
        return "the right twin is not repeatable"
    try:
        wrong = outcome(case.wrong, inputs, case.drive)
    except Exception as error:
        if case.kind == "view-raises":
            return ""
        return f"the wrong twin raises: {type(error).__name__}: {error}"
    if case.kind == "view-raises":
        return "does not raise"
    far = apart(wrong, right)
    case.tags["apart"] = far
    return "" if far > case.tags.get("least", least) else f"no visible difference: {far:.2g}"


def renamed(text: str, names: dict[str, str]) -> str:
    return re.sub(r"\b(" + "|".join(names) + r")\b", lambda m: names[m.group(1)], text)


def drawn(draw: Callable[[random.Random, str], Case | None], kinds: list[str], seed: int, n: int,
          stats: dict | None = None) -> list[Case]:
    """n verified cases, kinds in turn and shuffled, so that n of at least len(kinds) has each."""
    rng = random.Random(seed)
    order: list[str] = []
    found: list[Case] = []
    tries = 0
    while len(found) < n:
        if not order:
            order = list(kinds)
            rng.shuffle(order)
        kind = order.pop()
        for _ in range(12):
            tries += 1
            case = draw(random.Random(rng.getrandbits(48)), kind)
            if case is None:
                continue
            amiss = verify(case)
            if not amiss:
                case.name = f"{case.name}-{seed}-{len(found)}"
                found.append(case)
                break
            if stats is not None:
                stats.setdefault(kind, []).append(amiss)
        if tries > 40 * n + 500:
            raise RuntimeError("too many draws fail")
    return found
