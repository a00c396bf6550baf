"""What the cases share: releases and stand-ins, an adapter, and small measures."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

Shown = tuple[bool, float]
"""Whether a mistake shows, and how much."""


class Program(NamedTuple):
    """One mistake that shipped; its function is registered by `shipped`.

    ``make()`` builds the attention, ``given`` is what to call it with, and ``shows`` says of both
    whether the mistake shows, and how much.
    """

    make: Callable[[], Adapter]
    given: dict[str, Any]
    shows: Callable[[Adapter, dict[str, Any]], Shown]
    names: list[str]
    intent: dict[str, Any]
    needs: dict[str, list[str]]
    kind: str

    def inputs(self) -> dict[str, Any]:
        """What to call the attention with, copied."""
        return {n: x.clone() if isinstance(x, Tensor) else x for n, x in self.given.items()}


PROGRAMS: dict[str, Program] = {}


def shipped(
    url: str,
    names: str,
    affected: str,
    mended: str | None = None,
    *,
    inputs: dict[str, Any],
    shows: Callable[[Adapter, dict[str, Any]], Shown],
    hazard: bool = False,
    intent: dict[str, Any] | None = None,
) -> Callable[[Callable[[], Adapter]], Callable[[], Adapter]]:
    """Register a `Program`: where it was reported on GitHub, and the catalogue's names for it.

    ``affected`` and ``mended`` are the releases to install; without any the case corrects itself,
    and ``mended`` is None where no mended release runs. A hazard is right in itself, and wrong in a
    likely use. ``intent`` is what a user would state: arguments of `check`, whose masks and biases
    are expressions of `attend`'s values.
    """

    def register(make: Callable[[], Adapter]) -> Callable[[], Adapter]:
        needs = {"affected": affected.split()}
        needs |= {} if mended is None else {"mended": mended.split()}
        kind = "hazard" if hazard else "mistake"
        PROGRAMS[make.__name__] = Program(
            make, inputs, shows, names.split(), intent or {}, needs, kind
        )
        return make

    return register


class Adapter(nn.Module):
    """A subject that is called with keywords: ``fn(subject, **keywords)`` gives the tensor.

    ``m`` is the library's own module, None for functions.
    """

    def __init__(self, subject: Any, fn: Callable[..., Tensor]) -> None:
        super().__init__()
        self.m = subject if isinstance(subject, nn.Module) else None
        self._held = (subject,)
        self.fn = fn

    @property
    def subject(self) -> Any:
        """What ``fn`` is called with."""
        return self._held[0]

    def forward(self, **given: Any) -> Tensor:
        return self.fn(self.subject, **given)


def mended() -> bool:
    """Whether a case that corrects itself should."""
    return os.environ.get("WILD_VARIANT") == "mended"


# --- imports ------------------------------------------------------------------------------------


def release(inside: str) -> Path:
    """The folder on the path in which a file or a folder of a package stands."""
    return next(Path(p) for p in sys.path if (Path(p) / inside).exists())


def loaded(file: str) -> Any:
    """A module from its file alone, without the package around it."""
    name = "wild_" + Path(file).stem
    spec = importlib.util.spec_from_file_location(name, release(file) / file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def old_timm() -> None:
    """Let vision transformers of timm import without the rest of it, and without torchvision."""
    hollow("timm", "timm.models")
    stand_in("timm.data", "timm.data.constants", "torchvision", "torchvision.ops")
    stand_in("torchvision.ops.misc")
    stand_in(*(f"timm.models.{x}" for x in ("_builder", "_manipulate", "_registry", "_features")))
    stand_in(
        "timm.models._registry",
        generate_default_cfgs=lambda cfgs: cfgs,
        register_model=lambda f: f,
        register_model_deprecations=lambda *args, **kwargs: None,
    )


# --- tensors ------------------------------------------------------------------------------------


def normal(*shape: int, seed: int = 1) -> Tensor:
    """Normal random numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tokens(b: int, n: int, vocabulary: int = 50) -> Tensor:
    """Random token ids (b, n)."""
    draw = torch.Generator().manual_seed(1)
    return torch.randint(3, vocabulary, (b, n), generator=draw)


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


# --- what shows a mistake -------------------------------------------------------------------------


def above(off: float, least: float = 1e-3) -> Shown:
    """It shows where a number is above what rounding does."""
    return off > least, off


def unlike(least: float = 1e-3, **options: Any) -> Callable[[Adapter, dict[str, Any]], Shown]:
    """A call with other options, or the same again, differs."""
    return lambda attend, given: above(apart(attend(**given, **options), attend(**given)), least)


def changed(x: Tensor, at: Any) -> Tensor:
    """A copy with other numbers, or other tokens, at a place."""
    out = x.clone()
    out[at] = out[at] + 1 if x.is_floating_point() else (out[at] + 7) % 50
    return out


def reaches(name: str, at: Any, of: Any) -> Callable[[Adapter, dict[str, Any]], Shown]:
    """What an input holds ``at`` a place changes the output ``of`` another, which it should not."""

    def shows(attend: Adapter, given: dict[str, Any]) -> Shown:
        other = {**given, name: changed(given[name], at)}
        return above(apart(attend(**other)[of], attend(**given)[of]))

    return shows


def misses(name: str, at: Any, of: Any) -> Callable[[Adapter, dict[str, Any]], Shown]:
    """It does not change that, which it should."""

    def shows(attend: Adapter, given: dict[str, Any]) -> Shown:
        _, effect = reaches(name, at, of)(attend, given)
        return effect < 1e-6, effect

    return shows


LEAKS = reaches("input_ids", np.s_[:, 6], np.s_[:, :6])
"""Outputs before a token change with it."""


# --- releases: each in a folder of its own, without dependencies ---------------------------------

HOME = Path(os.environ.get("WILD_HOME", "~/.cache/intently-wild")).expanduser() / "pkgs"

_ONNX = "ml-dtypes==0.6.0", "protobuf==7.36.2"
_HUB_5 = (
    *("anyio==4.16.0", "certifi==2026.10.18", "h11==0.16.0", "hf-xet==1.8.0", "httpcore==1.0.9"),
    *("httpx==0.28.1", "huggingface-hub==1.33.0", "idna==3.20", "shellingham==1.5.4"),
    "sniffio==1.3.1",
)

RELEASES: dict[str, tuple[str, ...]] = {
    "attngym-0.0.17": ("attn-gym==0.0.17",),
    "attngym-0.0.2": ("attn-gym==0.0.2",),
    "equinox-0.7.0": ("equinox==0.7.0",),
    "equinox-0.7.1": ("equinox==0.7.1",),
    "fastnlp-0.5.0": ("fastNLP==0.5.0",),
    "fastnlp-0.5.5": ("fastNLP==0.5.5",),
    "halonet-0.0.4": ("halonet-pytorch==0.0.4",),
    "halonet-0.0.5": ("halonet-pytorch==0.0.5",),
    "httpx": _HUB_5,
    "kh-0.29.0": ("keras-hub==0.29.0",),
    "kh-0.32.0": ("keras-hub==0.32.0",),
    "labml-0.4.126": ("labml-nn==0.4.126",),
    "litgpt-0.4.7": ("litgpt==0.4.7",),
    "local-attention-1.2.1": ("local-attention==1.2.1",),
    "local-attention-1.2.2": ("local-attention==1.2.2",),
    "onnx-1.18.0": ("onnx==1.18.0", *_ONNX),
    "onnx-1.23.2": ("onnx==1.23.2", *_ONNX),
    "onnxruntime-1.22.1": ("onnxruntime==1.22.1", "flatbuffers==25.2.10"),
    "onnxruntime-1.24.1": ("onnxruntime==1.24.1", "flatbuffers==25.2.10"),
    "opacus-1.5.4": ("opacus==1.5.4",),
    "openspeech-0.4.0": ("openspeech-core==0.4.0",),
    "performer-0.11.1": ("performer-pytorch==0.11.1",),
    "performer-0.11.2": ("performer-pytorch==0.11.2",),
    "pytorch-nlp-0.1.0": ("pytorch-nlp==0.1.0",),
    "pytorch-nlp-0.2.0": ("pytorch-nlp==0.2.0",),
    "rotary-embedding-torch-0.2.6": ("rotary-embedding-torch==0.2.6",),
    "rotary-embedding-torch-0.2.7": ("rotary-embedding-torch==0.2.7",),
    "sb-0.5.10": ("speechbrain==0.5.10",),
    "sb-0.5.13": ("speechbrain==0.5.13",),
    "tf-4.19.4": ("transformers==4.19.4", "huggingface-hub==0.10.1"),
    "tf-4.24.0": ("transformers==4.24.0", "huggingface-hub==0.10.1"),
    "tf-4.34.1": ("transformers==4.34.1", "huggingface-hub==0.17.3", "tokenizers==0.14.1"),
    "tf-4.40.2": ("transformers==4.40.2", "huggingface-hub==0.23.5", "tokenizers==0.19.1"),
    "tf-4.41.2": ("transformers==4.41.2", "huggingface-hub==0.23.5", "tokenizers==0.19.1"),
    "tf-4.42.1": ("transformers==4.42.1", "huggingface-hub==0.23.5", "tokenizers==0.19.1"),
    "tf-4.42.2": ("transformers==4.42.2", "huggingface-hub==0.23.5", "tokenizers==0.19.1"),
    "tf-4.51.0": ("transformers==4.51.0", "huggingface-hub==0.33.0", "tokenizers==0.21.2"),
    "tf-4.51.3": ("transformers==4.51.3", "huggingface-hub==0.33.0", "tokenizers==0.21.2"),
    "tf-5.17.0": ("transformers==5.17.0",),
    "timm-0.9.7": ("timm==0.9.7", "huggingface-hub==0.23.5"),
    "timm-0.9.8": ("timm==0.9.8", "huggingface-hub==0.23.5"),
    "timm-1.0.7": ("timm==1.0.7",),
    "timm-1.0.8": ("timm==1.0.8",),
    "torchtune-0.3.0": ("torchtune==0.3.0",),
    "ttc-1.0.4": ("torchtextclassifiers==1.0.4",),
    "video-diffusion-pytorch-0.3.12": ("video-diffusion-pytorch==0.3.12",),
    "video-diffusion-pytorch-0.3.19": ("video-diffusion-pytorch==0.3.19",),
    "vit-pytorch-0.6.5": ("vit-pytorch==0.6.5",),
    "vit-pytorch-0.6.8": ("vit-pytorch==0.6.8",),
    "widedeep-1.2.0": ("pytorch-widedeep==1.2.0",),
    "widedeep-1.2.1": ("pytorch-widedeep==1.2.1",),
    "xt-1.14.0": ("x-transformers==1.14.0",),
    "xt-1.21.4": ("x-transformers==1.21.4",),
    "xt-1.23.6": ("x-transformers==1.23.6",),
}


def install(folders: Iterable[str]) -> None:
    """Install what is not there yet."""
    for folder in folders:
        if not (HOME / folder).is_dir():
            install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
            subprocess.run([*install, str(HOME / folder), *RELEASES[folder]], check=False)
