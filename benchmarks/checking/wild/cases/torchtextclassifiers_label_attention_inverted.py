"""scaled_dot_product_attention gets a mask in which True is padding: only padding is attended."""

import importlib
from types import SimpleNamespace

import torch
from torch import Tensor

from wild.program import Adapter, apart, hollow, normal

meta = {
    "package": "torchtextclassifiers",
    "url": "https://github.com/InseeFrLab/torchTextClassifiers/pull/92",
    "kind": "mistake",
    "name": ("mask-inverted",),
    "intent": {"arguments": {"mask": "attend"}},
    "needs": {"affected": ("ttc-1.0.4",)},
}


def make() -> Adapter:
    """Three labels that attend to the words of a text."""
    root = "torchTextClassifiers"
    hollow(root, f"{root}.model", f"{root}.model.components")
    library = importlib.import_module(f"{root}.model.components.text_embedder")
    names = (n for n in dir(library) if n.startswith("LabelAttention") and "Config" not in n)
    labels = SimpleNamespace(num_classes=3, n_head=2)
    torch.manual_seed(0)
    config = SimpleNamespace(embedding_dim=16, label_attention_config=labels)
    module = getattr(library, next(names))(config).eval()
    return Adapter(module, lambda m, x, mask: m(x, mask)["sentence_embedding"])


def inputs() -> dict[str, Tensor]:
    """Four words, and three of padding."""
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[:, 4:] = 0
    return {"x": normal(2, 7, 16), "mask": mask}


def wrong() -> tuple[bool, float]:
    """Outputs change with padding."""
    attend, given = make(), inputs()
    changed = given["x"].clone()
    changed[:, 5] += 1
    effect = apart(attend(**{**given, "x": changed}), attend(**given))
    return effect > 1e-3, effect
