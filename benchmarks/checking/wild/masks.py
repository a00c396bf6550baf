"""Masks that are inverted, added as numbers, too weak, after the softmax, missing, or too wide."""

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from einops import rearrange
from numpy import s_
from torch import Tensor, nn

from benchmarks.checking.wild.program import (
    LEAKS,
    Adapter,
    Shown,
    above,
    apart,
    changed,
    hollow,
    mended,
    misses,
    normal,
    old_timm,
    old_transformers,
    qkv,
    randomised,
    reaches,
    shipped,
    stand_in,
    tokens,
)


@shipped(
    "lucidrains/halonet-pytorch/issues/4", "mask-inverted", "halonet-0.0.4", "halonet-0.0.5",
    inputs={"x": normal(1, 16, 4, 4)}, shows=misses("x", s_[:, :, 0, 1], s_[:, :, 0, 0]),
)  # fmt: skip
def halonet_mask_inverted() -> Adapter:
    """masked_fill gets the mask of real positions: border blocks attend to their padding."""
    from halonet_pytorch import HaloAttention

    torch.manual_seed(0)
    module = HaloAttention(dim=16, block_size=2, halo_size=1, dim_head=8, heads=2)
    return Adapter(module.eval(), lambda m, x: m(x))


@shipped(
    "InseeFrLab/torchTextClassifiers/pull/92", "mask-inverted", "ttc-1.0.4",
    inputs={"x": normal(2, 7, 16), "mask": (torch.arange(7) < 4).long().repeat(2, 1)},
    shows=reaches("x", s_[:, 5], s_[:]), intent={"arguments": {"mask": "attend"}},
)  # fmt: skip
def torchtextclassifiers_label_attention_inverted() -> Adapter:
    """scaled_dot_product_attention gets a mask where True is padding: only that is attended."""
    root = "torchTextClassifiers"
    hollow(root, f"{root}.model", f"{root}.model.components")
    library = importlib.import_module(f"{root}.model.components.text_embedder")
    names = (n for n in dir(library) if n.startswith("LabelAttention") and "Config" not in n)
    labels = SimpleNamespace(num_classes=3, n_head=2)
    torch.manual_seed(0)
    config = SimpleNamespace(embedding_dim=16, label_attention_config=labels)
    module = getattr(library, next(names))(config).eval()
    return Adapter(module, lambda m, x, mask: m(x, mask)["sentence_embedding"])


@shipped(
    "huggingface/transformers/pull/37329", "mask-inverted", "tf-4.51.0", "tf-4.51.3",
    inputs={"input_ids": tokens(1, 8), "attention_mask": torch.ones(1, 8, dtype=torch.bool)},
    shows=reaches("input_ids", s_[:, 6], s_[:, :4]),
    intent={"mask": "causal() & segments([[0, 0, 0, 0, 1, 1, 1, 1]])"},
)  # fmt: skip
def transformers_llama4_chunk_mask_inverted() -> Adapter:
    """With eager attention, masked_fill hides the keys of the own chunk and leaves all others."""
    old_transformers()
    from transformers.models.llama4.configuration_llama4 import Llama4TextConfig
    from transformers.models.llama4.modeling_llama4 import Llama4ForCausalLM

    torch.manual_seed(0)
    config = Llama4TextConfig(
        **dict(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4),
        **dict(num_key_value_heads=2, head_dim=8, intermediate_size=32, intermediate_size_mlp=32),
        **dict(attention_chunk_size=4, no_rope_layers=[1], moe_layers=[], use_cache=False),
        **dict(use_qk_norm=False, pad_token_id=0, attn_implementation="eager"),
    )
    model = randomised(Llama4ForCausalLM(config))

    def run(model: torch.nn.Module, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return model(input_ids, attention_mask=attention_mask, use_cache=False).logits

    return Adapter(model, run)


@shipped(
    "lucidrains/video-diffusion-pytorch/issues/6", "mask-inverted",
    "video-diffusion-pytorch-0.3.12 rotary-embedding-torch-0.2.6",
    "video-diffusion-pytorch-0.3.19 rotary-embedding-torch-0.2.6",
    inputs={"x": normal(2, 5, 16), "focus": torch.tensor([True, False])},
    shows=reaches("x", s_[0, 3], s_[0, 0]),
    intent={"mask": "segments([[0, 1, 2, 3, 4], [0, 0, 0, 0, 0]])"},
)  # fmt: skip
def video_diffusion_focus_inverted() -> Adapter:
    """masked_fill gets what may be attended: frames that focus on the present see all others."""
    stand_in("torchvision", "PIL")
    stand_in("torchvision", transforms=SimpleNamespace(ToTensor=lambda: None), utils=None)
    stand_in("einops_exts", check_shape=None)
    stand_in("einops_exts", rearrange_many=lambda xs, *a, **k: [rearrange(x, *a, **k) for x in xs])
    from video_diffusion_pytorch.video_diffusion_pytorch import Attention

    torch.manual_seed(0)
    module = Attention(16, heads=2, dim_head=8)
    return Adapter(module.eval(), lambda m, x, focus: m(x[:, None], focus_present_mask=focus)[:, 0])


@shipped(
    "lucidrains/x-transformers/issues/160", "mask-inverted", "xt-1.14.0", "",
    inputs={"input_ids": tokens(2, 8), "mask": (torch.arange(8) < 5).repeat(2, 1)},
    shows=reaches("input_ids", s_[:, 6], s_[:, :5]), intent={"arguments": {"mask": "attend"}},
)  # fmt: skip
def xtransformers_flash_bool_mask_inverted() -> Adapter:
    """attn_flash hands over a mask in which True is hidden, where True is read as attend."""
    from x_transformers import Encoder, TransformerWrapper

    torch.manual_seed(0)
    layers = Encoder(dim=32, depth=1, heads=4, attn_dim_head=8, attn_flash=True)
    model = TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=layers).eval()
    return Adapter(model, lambda m, input_ids, mask: m(input_ids, mask=mask))


FABRIC = ("utilities", "utilities.types", "utilities.load", "loggers", "strategies")


@shipped(
    "Lightning-AI/litgpt/issues/1672", "mask-boolean-added", "litgpt-0.4.7",
    inputs={"input_ids": tokens(2, 8)}, shows=LEAKS,
    intent={"mask": "causal()", "same": [{"cached": False}]},
)  # fmt: skip
def litgpt_softcap_bool_mask_added() -> Adapter:
    """With softcapping, a boolean mask is added to scores in the cached path: nothing is hidden."""
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


@shipped(
    "huggingface/pytorch-image-models/pull/2236", "mask-after-softmax", "timm-1.0.7", "timm-1.0.8",
    inputs={"x": normal(2, 6, 32), "mask": torch.tensor([[True] * 6, [True] * 4 + [False] * 2])},
    shows=lambda f, g: above(float((~f(**g)[1].isfinite()).sum())),
    intent={"arguments": {"mask": "attend"}},
)  # fmt: skip
def timm_eva_mask_after_softmax() -> Adapter:
    """Without the fused kernel, hidden keys become −∞ after the softmax: all outputs are NaN."""
    old_timm()
    from timm.models.eva import EvaAttention

    torch.manual_seed(0)
    module = EvaAttention(32, num_heads=4)
    module.fused_attn = False
    return Adapter(module.eval(), lambda m, x, mask: m(x, attn_mask=mask))


@shipped(
    "huggingface/transformers/pull/17306", "mask-too-weak", "tf-4.19.4", "tf-4.24.0",
    inputs={"input_ids": tokens(4, 8)}, shows=LEAKS, hazard=True, intent={"mask": "causal()"},
)  # fmt: skip
def transformers_gpt2_masked_bias_1e4() -> Adapter:
    """Masked scores are −10,000; real scores can undercut that, and later keys win."""
    old_transformers()
    from transformers.models.gpt2.configuration_gpt2 import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Model

    torch.manual_seed(0)
    model = randomised(
        GPT2Model(GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=4, n_positions=64))
    )
    with torch.no_grad():
        model.h[0].attn.c_attn.weight[:, :64] *= 150.0
    return Adapter(
        model, lambda m, input_ids: m(input_ids=input_ids, use_cache=False).last_hidden_state
    )


def _one_path_is_nan(attend: Adapter, given: dict[str, Any]) -> Shown:
    fused = attend(**given).isnan()
    with torch.enable_grad():
        plain = attend(**given).isnan()
    return above(float(fused.sum() + plain.sum()))


@shipped(
    "pytorch/pytorch/issues/24816", "nan-without-keys", "",
    inputs={"x": normal(2, 6, 16), "mask": torch.tensor([[False] * 6, [True] * 6])},
    shows=_one_path_is_nan, hazard=True, intent={"arguments": {"mask": "ignore"}},
)  # fmt: skip
def torch_encoder_fastpath_fully_padded_row() -> Adapter:
    """A row that is all padding is NaN on one path, and finite on the other."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    return Adapter(layer, lambda m, x, mask: m(x, src_key_padding_mask=mask))


# --- masks that are missing, too wide, or on another axis -----------------------------------------


@shipped(
    "lucidrains/local-attention/issues/5", "mask-missing", "local-attention-1.2.1",
    "local-attention-1.2.2", inputs=qkv(2, 2, 12, 8), shows=reaches("v", s_[:, :, 3], s_[:, :, :3]),
    intent={"mask": "causal() & window(4, 0)"},
)  # fmt: skip
def local_attention_exact_window_not_causal() -> Adapter:
    """The mask of exact windows is joined to the causal one by "and": neither hides anything."""
    from local_attention import LocalAttention

    module = LocalAttention(window_size=4, causal=True, look_backward=1, exact_windowsize=True)
    return Adapter(module.eval(), lambda m, q, k, v: m(q, k, v))


@shipped(
    "lucidrains/performer-pytorch/issues/40", "not-normalised", "performer-0.11.1",
    "performer-0.11.2", inputs=qkv(1, 2, 6, 8, positive=True),
    shows=lambda f, g: above(float((f(**{**g, "v": torch.ones_like(g["v"])}) - 1).abs().max())),
    intent={"mask": "causal()"},
)  # fmt: skip
def performer_causal_normaliser_not_inverted() -> Adapter:
    """Causal linear attention multiplies by the normaliser in place of dividing by it."""
    stand_in("local_attention", "axial_positional_embedding", "fast_transformers")
    stand_in("fast_transformers.causal_product")
    from performer_pytorch.performer_pytorch import causal_linear_attention_noncuda

    return Adapter(None, lambda _, q, k, v: causal_linear_attention_noncuda(q, k, v))


@shipped(
    "huggingface/transformers/issues/48748", "mask-missing", "tf-5.17.0 httpx", "",
    inputs={"input_ids": tokens(2, 8)}, shows=LEAKS, intent={"mask": "causal()"},
)  # fmt: skip
def transformers_doge_sdpa_not_causal() -> Adapter:
    """Without padding, sdpa is left to make the causal mask, and gets a dynamic one."""
    from transformers import DogeConfig, DogeForCausalLM

    torch.manual_seed(0)
    config = DogeConfig(
        **dict(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4),
        **dict(num_key_value_heads=2, intermediate_size=32, attn_implementation="sdpa"),
    )
    model = randomised(DogeForCausalLM(config))
    return Adapter(model, lambda m, input_ids: m(input_ids, use_cache=False).logits)


@shipped(
    "huggingface/transformers/issues/31673", "mask-missing", "tf-4.42.1", "tf-4.42.2",
    inputs={"input_ids": tokens(2, 8)}, shows=LEAKS, intent={"mask": "causal()"},
)  # fmt: skip
def transformers_gemma2_window_not_causal() -> Adapter:
    """Layers with a window multiply the additive mask by that of far keys: nothing is hidden."""
    old_transformers()
    from transformers.models.gemma2.configuration_gemma2 import Gemma2Config
    from transformers.models.gemma2.modeling_gemma2 import Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(
        **dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
        **dict(num_key_value_heads=2, head_dim=8, intermediate_size=32, sliding_window=16),
        **dict(query_pre_attn_scalar=8, attn_implementation="eager", use_cache=False),
    )
    return Adapter(randomised(Gemma2ForCausalLM(config)), lambda m, input_ids: m(input_ids).logits)


@shipped(
    "huggingface/transformers/pull/30652", "mask-missing", "tf-4.40.2", "tf-4.41.2",
    inputs={"input_ids": tokens(2, 8)}, shows=LEAKS, intent={"mask": "causal()"},
)  # fmt: skip
def transformers_llama_sdpa_output_attentions_leak() -> Adapter:
    """Asked for its weights, Llama falls back to another path without a mask: nothing is causal."""
    old_transformers()
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
        **dict(intermediate_size=32, max_position_embeddings=64, attn_implementation="sdpa"),
    )
    return Adapter(
        randomised(transformers.LlamaForCausalLM(config)),
        lambda m, input_ids: m(input_ids=input_ids, output_attentions=True, use_cache=False).logits,
    )


@shipped(
    "huggingface/transformers/issues/48745", "mask-missing", "tf-5.17.0 httpx", "",
    inputs={"input_ids": tokens(2, 8)}, shows=LEAKS, intent={"mask": "causal()"},
)  # fmt: skip
def transformers_rembert_no_causal() -> Adapter:
    """RemBertForCausalLM's mask is for both directions: positions attend to later ones."""
    import transformers

    torch.manual_seed(0)
    config = transformers.RemBertConfig(
        **dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
        **dict(intermediate_size=32, max_position_embeddings=64, is_decoder=True),
        **dict(input_embedding_size=32, output_embedding_size=32),
    )
    model = randomised(transformers.RemBertForCausalLM(config))
    return Adapter(model, lambda m, input_ids: m(input_ids=input_ids).logits)


@shipped(
    "huggingface/transformers/issues/48745", "mask-missing", "tf-5.17.0 httpx", "",
    inputs={"input_ids": tokens(2, 8)}, shows=LEAKS, intent={"mask": "causal()"},
)  # fmt: skip
def transformers_roformer_no_causal() -> Adapter:
    """RoFormerForCausalLM's mask is for both directions: positions attend to later ones."""
    import transformers

    torch.manual_seed(0)
    config = transformers.RoFormerConfig(
        **dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
        **dict(intermediate_size=32, max_position_embeddings=64, is_decoder=True),
        **dict(embedding_size=32),
    )
    model = randomised(transformers.RoFormerForCausalLM(config))
    return Adapter(model, lambda m, input_ids: m(input_ids=input_ids).logits)


@shipped(
    "huggingface/transformers/issues/48172", "cross-causal", "",
    inputs={"x": normal(2, 5, 32), "states": normal(2, 9, 32, seed=2)},
    shows=misses("states", s_[:, 8], s_[:, 0]), intent={"arguments": {"states": "context"}},
)  # fmt: skip
def transformers_mllama_cross_attention_causal() -> Adapter:
    """Cross-attention does not say that it is not causal, and sdpa takes it for a decoder's."""
    from transformers.models.mllama.configuration_mllama import MllamaTextConfig
    from transformers.models.mllama.modeling_mllama import MllamaTextCrossAttention

    torch.manual_seed(0)
    config = MllamaTextConfig(
        **dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, dropout=0.0),
        **dict(pad_token_id=0, attn_implementation="sdpa"),
    )
    module = MllamaTextCrossAttention(config, layer_idx=0).eval()
    return Adapter(module, lambda m, x, states: m(x, cross_attention_states=states)[0])


@shipped(
    "patrick-kidger/equinox/pull/190", "mask-of-other-rows", "equinox-0.7.0", "equinox-0.7.1",
    inputs={"x": normal(2, 4, 32)}, shows=reaches("x", s_[:, 3], s_[:, :3]),
    intent={"mask": "causal()"},
)  # fmt: skip
def equinox_mask_over_queries() -> Adapter:
    """Vmap over heads takes axis 1 of a mask (h, t, s): each head is masked by a row of queries."""
    import jax
    import jax.numpy as jnp

    hollow("equinox", "equinox.nn")
    stand_in("jax.experimental.host_callback")
    from equinox.nn.attention import MultiheadAttention

    jax.config.update("jax_enable_x64", True)
    module = MultiheadAttention(num_heads=4, query_size=32, key=jax.random.PRNGKey(0))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((4, 4), bool)), (4, 4, 4))

    def run(_: object, x: Tensor) -> Tensor:
        out = [module(y, y, y, mask) for y in map(jnp.asarray, x.detach().numpy())]
        return torch.from_numpy(np.stack(out))

    return Adapter(None, run)


def _reaches_further(model: Adapter, given: dict[str, Any]) -> Shown:
    """Token 2 reaches further than output 5."""
    ids = given["input_ids"]
    a, b = model(input_ids=ids), model(input_ids=changed(ids, s_[:, 2]))
    last = max(i for i in range(12) if apart(b[:, i], a[:, i]) > 1e-4)
    return last != 5, float(last - 2 + 1)


@shipped(
    "huggingface/transformers/pull/26792", "window-off-by-one", "tf-4.34.1", "",
    inputs={"input_ids": tokens(2, 12)}, shows=_reaches_further,
    intent={"mask": "causal() & window(3, 0)"},
)  # fmt: skip
def transformers_mistral_window_off_by_one() -> Adapter:
    """A sliding window of four attends to five keys."""
    old_transformers()
    from transformers.models.mistral.configuration_mistral import MistralConfig
    from transformers.models.mistral.modeling_mistral import MistralModel

    torch.manual_seed(0)
    config = MistralConfig(
        **dict(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4),
        **dict(num_key_value_heads=2, intermediate_size=32, max_position_embeddings=64),
        **dict(sliding_window=4, **({"attn_implementation": "eager"} if mended() else {})),
    )

    def run(m: MistralModel, input_ids: Tensor) -> Tensor:
        mask = torch.ones_like(input_ids)
        return m(input_ids=input_ids, attention_mask=mask, use_cache=False).last_hidden_state

    return Adapter(randomised(MistralModel(config)), run)
