"""With softcapping, a boolean mask is added to the scores in the cached path: nothing is hidden."""

import sys

import torch
from torch import Tensor

from wild.program import Adapter, hollow, leak, randomised, stand_in, tokens

meta = {
    "package": "litgpt",
    "url": "https://github.com/Lightning-AI/litgpt/issues/1672",
    "kind": "mistake",
    "name": ("mask-boolean-added",),
    "intent": {"mask": "causal()", "same": [{"cached": False}]},
    "needs": {"affected": ("litgpt-0.4.7",)},
}
FABRIC = ("utilities", "utilities.types", "utilities.load", "loggers", "strategies")


def make() -> Adapter:
    """A tiny GPT with two layers, whose prompt goes through the cache."""
    hollow("litgpt")
    stand_in("lightning_utilities", "lightning_utilities.core", "lightning_utilities.core.imports")
    stand_in("lightning", "lightning.fabric", *(f"lightning.fabric.{x}" for x in FABRIC))
    stand_in("lightning.pytorch", "lightning.pytorch.loggers", "lightning.pytorch.cli")
    stand_in("litgpt.utils", "litgpt.scripts", "litgpt.scripts.convert_hf_checkpoint")
    classes = dict.fromkeys(("GemmaMLP", "LLaMAMLP", "GptNeoxMLP", "RMSNorm"), object)
    sys.modules.pop("litgpt.model", None)
    stand_in("litgpt.model", **classes)  # config asks for it before it can be imported
    library = sys.modules["litgpt"]
    library.model = sys.modules["litgpt.model"]  # type: ignore[attr-defined]
    from litgpt.config import Config

    del sys.modules["litgpt.model"]
    from litgpt.model import GPT

    library.model = sys.modules["litgpt.model"]  # type: ignore[attr-defined]
    torch.manual_seed(0)
    config = Config(
        **dict(block_size=32, vocab_size=50, padded_vocab_size=50, n_layer=2, n_head=4, n_embd=32),
        **dict(n_query_groups=2, attention_logit_softcapping=50.0, rotary_percentage=1.0),
        **dict(parallel_residual=False, bias=False, norm_class_name="RMSNorm"),
        **dict(mlp_class_name="GemmaMLP", intermediate_size=32),
    )

    def run(model: GPT, input_ids: Tensor, cached: bool = True) -> Tensor:
        model.max_seq_length = 32
        if not cached:
            model.clear_kv_cache()
            return model(input_ids)
        model.set_kv_cache(batch_size=len(input_ids))
        return model(input_ids, torch.arange(input_ids.shape[1]))

    return Adapter(randomised(GPT(config)), run)


def inputs() -> dict[str, Tensor]:
    """Two texts of eight tokens."""
    return {"input_ids": tokens(2, 8)}


def wrong() -> tuple[bool, float]:
    """Outputs change with a later token."""
    effect = leak(make(), inputs()["input_ids"])
    return effect > 1e-3, effect
