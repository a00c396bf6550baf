"""What the cases share: releases and stand-ins, an adapter, and small measures."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Made = Callable[[], tuple[Any, Callable[..., Tensor]]]
"""What makes a subject, and a function that calls it with keywords: see `Adapter`."""

Shown = tuple[bool, float]  # whether a mistake shows, and how much
Shows = Callable[["Adapter", dict[str, Any]], Shown]


CASES = tomllib.loads(Path(__file__).with_name("cases.toml").read_text("utf-8"))


class Program:
    """One mistake that shipped, by the function that makes it; `cases.toml` says more of it.

    ``make()`` gives the attention and how to call it, ``given`` is what to call it with, and
    ``shows`` says of both whether the mistake shows, and how much.
    """

    def __init__(self, make: Made, given: dict[str, Any], shows: Shows) -> None:
        self.make, self.given, self.shows = make, given, shows
        case = {**CASES[make.__name__]}
        self.needs = {n: case.pop(n).split() for n in ("affected", "mended") if n in case}
        self.kind = "hazard" if case.pop("hazard", False) else "mistake"
        self.names = case.pop("names").split()
        asked = ("mask", "bias", "arguments", "same")
        self.intent = {n: x for n, x in case.items() if n in asked}

    def build(self) -> Adapter:
        """The attention, ready to be called with `inputs`."""
        torch.manual_seed(0)
        return Adapter(*self.make()).eval()

    def inputs(self) -> dict[str, Any]:
        """What to call the attention with, copied."""
        return {n: x.clone() if isinstance(x, Tensor) else x for n, x in self.given.items()}


PROGRAMS: dict[str, Program] = {}


def shipped(inputs: dict[str, Any], shows: Shows) -> Callable[[Made], Made]:
    """Register a `Program`, which its function makes."""

    def register(make: Made) -> Made:
        PROGRAMS[make.__name__] = Program(make, inputs, shows)
        return make

    return register


class Adapter(nn.Module):
    """A subject that is called with keywords: ``fn(subject, **keywords)`` gives the tensor.

    ``m`` is the library's own module, None for functions.
    """

    def __init__(self, subject: Any, fn: Callable[..., Tensor]) -> None:
        super().__init__()
        self.m = self.subject = subject if isinstance(subject, nn.Module) else None
        self.fn = fn

    def forward(self, **given: Any) -> Tensor:
        return self.fn(self.subject, **given)


class SelfAttention(nn.Module):
    """Projections around self-attention, width 32, four heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def split(self, x: Tensor) -> list[Tensor]:
        """Queries, keys and values (b, h, t, d)."""
        return [y.unflatten(-1, (4, 8)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1)]

    def joined(self, y: Tensor) -> Tensor:
        """Heads joined, and the last projection."""
        return self.out(y.transpose(1, 2).flatten(2))


def mended() -> bool:
    """Whether a case that corrects itself should."""
    return os.environ.get("WILD_VARIANT") == "mended"


def release(inside: str) -> Path:
    """The folder on the path in which a file or a folder of a package stands."""
    return next(Path(p) for p in sys.path if (Path(p) / inside).exists())


def loaded(file: str) -> Any:
    """A module from its file alone, without the package around it."""
    module = sys.modules[Path(file).stem] = ModuleType(Path(file).stem)
    path = release(file) / file
    module.__file__ = str(path)
    exec(compile(path.read_text("utf-8"), path, "exec"), module.__dict__)
    return module


def take(module: str, name: str) -> Any:
    """A name of a module."""
    return getattr(importlib.import_module(module), name)


def hollow(*packages: str) -> None:
    """Packages whose modules can be imported, while their own ``__init__`` does not run."""
    root = release(packages[0])
    for name in packages:
        module = sys.modules[name] = ModuleType(name)
        module.__path__ = [str(root / name.replace(".", "/"))]


class _StandIn(ModuleType):
    """A module in which every name is a class that takes anything."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *args, **kwargs: None})


def stand_in(*names: str, **attributes: Any) -> None:
    """Stand-ins for modules that are not installed and do not matter here."""
    for name in names:
        module = sys.modules.get(name)
        if module is None:
            module = sys.modules[name] = _StandIn(name)
            module.__path__ = []
        for attribute, value in attributes.items():
            setattr(module, attribute, value)


def old_transformers() -> None:
    """Let old releases import beside newer ones of what they check the version of."""
    import torch.utils._pytree as pytree

    unchecked: Any = ModuleType("transformers.dependency_versions_check")
    unchecked.dep_version_check = lambda *args, **kwargs: None
    sys.modules[unchecked.__name__] = unchecked
    if not hasattr(pytree, "_register_pytree_node"):
        pytree._register_pytree_node = pytree.register_pytree_node  # type: ignore[attr-defined]
    for kind in (bool, int, float, object):
        if kind.__name__ not in np.__dict__:
            setattr(np, kind.__name__, kind)


def of_transformers(kind: str, part: str = "ForCausalLM", **options: Any) -> nn.Module:
    """A tiny model of a release; ``config`` names its configuration where it has another name."""
    old_transformers()
    inner = f"transformers.models.{kind.lower()}"
    config = importlib.import_module(f"{inner}.configuration_{kind.lower()}")
    model = importlib.import_module(f"{inner}.modeling_{kind.lower()}")
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 32, "max_position_embeddings": 64}
    named = options.pop("config", f"{kind}Config")
    return randomised(getattr(model, kind + part)(getattr(config, named)(**(sizes | options))))


def logits(model: Any, input_ids: Tensor, **given: Any) -> Tensor:
    """Call a language model without a cache."""
    return model(input_ids=input_ids, use_cache=False, **given).logits


def onnx_attention(*given: Any, **options: Any) -> Tensor:
    """ONNX's reference implementation."""
    made = take("onnx.reference.ops.op_attention", "_compute_attention")(*given, **options)
    return torch.from_numpy(np.asarray(made[0]))


def old_timm() -> None:
    """Let vision transformers of timm import without the rest of it, and without torchvision."""
    hollow("timm", "timm.models")
    stand_in("timm.data", "timm.data.constants", "torchvision", "torchvision.ops")
    stand_in("torchvision.ops.misc")
    stand_in(*(f"timm.models.{x}" for x in ("_builder", "_manipulate", "_registry", "_features")))
    same, nothing = lambda x: x, lambda *args, **kwargs: None
    registry = {"generate_default_cfgs": same, "register_model": same}
    stand_in("timm.models._registry", **registry, register_model_deprecations=nothing)


def normal(*shape: int, seed: int = 1) -> Tensor:
    """Normal random numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tokens(b: int, n: int) -> Tensor:
    """Random token ids (b, n)."""
    return torch.randint(3, 50, (b, n), generator=torch.Generator().manual_seed(1))


def qkv(*shape: int, positive: bool = False) -> dict[str, Tensor]:
    """Normal queries, keys and values; with ``positive`` the first two are features."""
    q, k, v = (normal(*shape, seed=n) for n in (1, 2, 3))
    q, k = (q.abs() + 0.1, k.abs() + 0.1) if positive else (q, k)
    return {"q": q, "k": k, "v": v}


def apart(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest entry."""
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).abs().max() / (b.abs().max() + 1e-12))


def randomised(module: nn.Module) -> nn.Module:
    """Matrices drawn anew, large enough to see a difference, and in evaluation mode."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in module.parameters():
            if p.ndim >= 2:
                p.copy_(torch.randn(p.shape, generator=draw) * 1.3 / p.shape[-1] ** 0.5)
    return module.eval()


def above(off: float, least: float = 1e-3) -> Shown:
    """It shows where a number is above what rounding does."""
    return off > least, off


def unlike(least: float = 1e-3, **options: Any) -> Shows:
    """A call with other options, or the same again, differs."""
    return lambda attend, given: above(apart(attend(**given, **options), attend(**given)), least)


def changed(x: Tensor, at: Any) -> Tensor:
    """A copy with other numbers, or other tokens, at a place."""
    out = x.clone()
    out[at] = out[at] + 1 if x.is_floating_point() else (out[at] + 7) % 50
    return out


def reaches(name: str, at: Any, of: Any) -> Shows:
    """What an input holds ``at`` a place changes the output ``of`` another, which it should not."""

    def shows(attend: Adapter, given: dict[str, Any]) -> Shown:
        other = {**given, name: changed(given[name], at)}
        return above(apart(attend(**other)[of], attend(**given)[of]))

    return shows


def misses(name: str, at: Any, of: Any) -> Shows:
    """It does not change that, which it should."""

    def shows(attend: Adapter, given: dict[str, Any]) -> Shown:
        _, effect = reaches(name, at, of)(attend, given)
        return effect < 1e-6, effect

    return shows


leaks = shipped({"input_ids": tokens(2, 8)}, reaches("input_ids", np.s_[:, 6], np.s_[:, :6]))
"""Registers a causal language model: outputs before a token change with it."""


def _language(model: str, options: dict[str, Any], called: dict[str, Any]) -> Made:
    return lambda: (of_transformers(model, **options), functools.partial(logits, **called))


for _name, _case in CASES.items():
    if "model" in _case:
        _made = _language(_case["model"], _case["options"], _case.get("called", {}))
        _made.__name__ = _name
        leaks(_made)


HOME = Path(os.environ.get("WILD_HOME", "~/.cache/intently-wild")).expanduser() / "pkgs"


def install(folders: Iterable[str]) -> None:
    """Install what is not there yet."""
    releases = tomllib.loads(Path(__file__).with_name("releases.toml").read_text("utf-8"))
    for folder in folders:
        if not (HOME / folder).is_dir():
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
            subprocess.run([*pip, str(HOME / folder), *releases[folder].split()], check=False)
