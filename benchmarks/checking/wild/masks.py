"""Masks that are inverted, added as numbers, too weak, after the softmax, missing, or too wide."""

import importlib
import sys
from types import SimpleNamespace

import numpy as np
import torch
from einops import rearrange
from numpy import s_
from torch import nn

from benchmarks.checking.wild import program as p


@p.shipped({"x": p.normal(1, 16, 4, 4)}, p.misses("x", s_[:, :, 0, 1], s_[:, :, 0, 0]))
def halonet_mask_inverted():
    """masked_fill gets the mask of real positions: border blocks attend to their padding."""
    module = p.take("halonet_pytorch", "HaloAttention")(
        dim=16, block_size=2, halo_size=1, dim_head=8, heads=2
    )
    return module, lambda m, x: m(x)


@p.shipped(
    {"x": p.normal(2, 7, 16), "mask": (torch.arange(7) < 4).long().repeat(2, 1)},
    p.reaches("x", s_[:, 5], s_[:]),
)
def torchtextclassifiers_label_attention_inverted():
    """scaled_dot_product_attention gets a mask where True is padding: only that is attended."""
    root = "torchTextClassifiers"
    p.hollow(root, f"{root}.model", f"{root}.model.components")
    library = importlib.import_module(f"{root}.model.components.text_embedder")
    names = (n for n in dir(library) if n.startswith("LabelAttention") and "Config" not in n)
    labels = SimpleNamespace(num_classes=3, n_head=2)
    config = SimpleNamespace(embedding_dim=16, label_attention_config=labels)
    module = getattr(library, next(names))(config)
    return module, lambda m, x, mask: m(x, mask)["sentence_embedding"]


@p.shipped(
    {"input_ids": p.tokens(1, 8), "attention_mask": torch.ones(1, 8, dtype=torch.bool)},
    p.reaches("input_ids", s_[:, 6], s_[:, :4]),
)
def transformers_llama4_chunk_mask_inverted():
    """With eager attention, masked_fill hides the keys of the own chunk and leaves all others."""
    return p.of_transformers(
        "Llama4", config="Llama4TextConfig", num_key_value_heads=2, head_dim=8, moe_layers=[],
        intermediate_size_mlp=32, attention_chunk_size=4, no_rope_layers=[1], use_cache=False,
        use_qk_norm=False, pad_token_id=0, attn_implementation="eager",
    ), p.logits  # fmt: skip


@p.shipped(
    {"x": p.normal(2, 5, 16), "focus": torch.tensor([True, False])},
    p.reaches("x", s_[0, 3], s_[0, 0]),
)
def video_diffusion_focus_inverted():
    """masked_fill gets what may be attended: frames that focus on the present see all others."""
    p.stand_in("torchvision", "PIL")
    p.stand_in("torchvision", transforms=SimpleNamespace(ToTensor=lambda: None), utils=None)
    p.stand_in("einops_exts", check_shape=None)
    p.stand_in(
        "einops_exts", rearrange_many=lambda xs, *a, **k: [rearrange(x, *a, **k) for x in xs]
    )
    kind = p.take("video_diffusion_pytorch.video_diffusion_pytorch", "Attention")
    module = kind(16, heads=2, dim_head=8)
    return module, lambda m, x, focus: m(x[:, None], focus_present_mask=focus)[:, 0]


@p.shipped(
    {"input_ids": p.tokens(2, 8), "mask": (torch.arange(8) < 5).repeat(2, 1)},
    p.reaches("input_ids", s_[:, 6], s_[:, :5]),
)
def xtransformers_flash_bool_mask_inverted():
    """attn_flash hands over a mask in which True is hidden, where True is read as attend."""
    layers = p.take("x_transformers", "Encoder")(
        dim=32, depth=1, heads=4, attn_dim_head=8, attn_flash=True
    )
    sizes = {"num_tokens": 50, "max_seq_len": 32}
    model = p.take("x_transformers", "TransformerWrapper")(**sizes, attn_layers=layers)
    return model, lambda m, input_ids, mask: m(input_ids, mask=mask)


FABRIC = ("utilities", "utilities.types", "utilities.load", "loggers", "strategies")


@p.leaks
def litgpt_softcap_bool_mask_added():
    """With softcapping, a boolean mask is added to scores in the cached path: nothing is hidden."""
    p.hollow("litgpt")
    p.stand_in(
        "lightning_utilities", *(f"lightning_utilities.{x}" for x in ("core", "core.imports"))
    )
    p.stand_in("lightning", "lightning.fabric", *(f"lightning.fabric.{x}" for x in FABRIC))
    p.stand_in("lightning.pytorch", "lightning.pytorch.loggers", "lightning.pytorch.cli")
    p.stand_in("litgpt.utils", "litgpt.scripts", "litgpt.scripts.convert_hf_checkpoint")
    classes = dict.fromkeys(("GemmaMLP", "LLaMAMLP", "GptNeoxMLP", "RMSNorm"), object)
    sys.modules.pop("litgpt.model", None)
    p.stand_in("litgpt.model", **classes)  # config asks for it before it can be imported
    library = sys.modules["litgpt"]
    library.model = sys.modules["litgpt.model"]  # type: ignore[attr-defined]
    from litgpt.config import Config

    del sys.modules["litgpt.model"]
    from litgpt.model import GPT

    library.model = sys.modules["litgpt.model"]  # type: ignore[attr-defined]
    config = Config(
        block_size=32, vocab_size=50, padded_vocab_size=50, n_layer=2, n_head=4, n_embd=32,
        n_query_groups=2, attention_logit_softcapping=50.0, rotary_percentage=1.0,
        parallel_residual=False, bias=False, norm_class_name="RMSNorm", mlp_class_name="GemmaMLP",
        intermediate_size=32,
    )  # fmt: skip

    def run(model, input_ids, cached=True):
        model.max_seq_length = 32
        if not cached:
            model.clear_kv_cache()
            return model(input_ids)
        model.set_kv_cache(batch_size=len(input_ids))
        return model(input_ids, torch.arange(input_ids.shape[1]))

    return p.randomised(GPT(config)), run


@p.shipped(
    {"x": p.normal(2, 6, 32), "mask": torch.tensor([[True] * 6, [True] * 4 + [False] * 2])},
    lambda f, g: p.above(float((~f(**g)[1].isfinite()).sum())),
)
def timm_eva_mask_after_softmax():
    """Without the fused kernel, hidden keys become −∞ after the softmax: all outputs are NaN."""
    p.old_timm()
    module = p.take("timm.models.eva", "EvaAttention")(32, num_heads=4)
    module.fused_attn = False
    return module, lambda m, x, mask: m(x, attn_mask=mask)


@p.leaks
def transformers_gpt2_masked_bias_1e4():
    """Masked scores are −10,000; real scores can undercut that, and later keys win."""
    model = p.of_transformers("GPT2", "Model")
    with torch.no_grad():
        model.h[0].attn.c_attn.weight[:, :64] *= 150.0
    return model, lambda m, input_ids: m(input_ids=input_ids, use_cache=False).last_hidden_state


def _one_path_is_nan(attend, given):
    fused = attend(**given).isnan()
    with torch.enable_grad():
        plain = attend(**given).isnan()
    return p.above(float(fused.sum() + plain.sum()))


@p.shipped(
    {"x": p.normal(2, 6, 16), "mask": torch.tensor([[False] * 6, [True] * 6])}, _one_path_is_nan
)
def torch_encoder_fastpath_fully_padded_row():
    """A row that is all padding is NaN on one path, and finite on the other."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return layer, lambda m, x, mask: m(x, src_key_padding_mask=mask)


@p.shipped(p.qkv(2, 2, 12, 8), p.reaches("v", s_[:, :, 3], s_[:, :, :3]))
def local_attention_exact_window_not_causal():
    """The mask of exact windows is joined to the causal one by "and": neither hides anything."""
    options = {"window_size": 4, "look_backward": 1, "exact_windowsize": True}
    return p.take("local_attention", "LocalAttention")(
        causal=True, **options
    ), lambda m, q, k, v: m(q, k, v)


@p.shipped(
    p.qkv(1, 2, 6, 8, positive=True),
    lambda f, g: p.above(float((f(**{**g, "v": torch.ones_like(g["v"])}) - 1).abs().max())),
)
def performer_causal_normaliser_not_inverted():
    """Causal linear attention multiplies by the normaliser in place of dividing by it."""
    p.stand_in("local_attention", "axial_positional_embedding", "fast_transformers")
    p.stand_in("fast_transformers.causal_product")
    name = "causal_linear_attention_noncuda"
    return None, lambda _, q, k, v: p.take("performer_pytorch.performer_pytorch", name)(q, k, v)


@p.shipped(
    {"x": p.normal(2, 5, 32), "states": p.normal(2, 9, 32, seed=2)},
    p.misses("states", s_[:, 8], s_[:, 0]),
)
def transformers_mllama_cross_attention_causal():
    """Cross-attention does not say that it is not causal, and sdpa takes it for a decoder's."""
    inner = "transformers.models.mllama"
    config = p.take(f"{inner}.configuration_mllama", "MllamaTextConfig")(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, dropout=0.0,
        pad_token_id=0, attn_implementation="sdpa",
    )  # fmt: skip
    module = p.take(f"{inner}.modeling_mllama", "MllamaTextCrossAttention")(config, layer_idx=0)
    return module, lambda m, x, states: m(x, cross_attention_states=states)[0]


@p.shipped({"x": p.normal(2, 4, 32)}, p.reaches("x", s_[:, 3], s_[:, :3]))
def equinox_mask_over_queries():
    """Vmap over heads takes axis 1 of a mask (h, t, s): each head is masked by a row of queries."""
    import jax
    import jax.numpy as jnp

    p.hollow("equinox", "equinox.nn")
    p.stand_in("jax.experimental.host_callback")
    from equinox.nn.attention import MultiheadAttention

    jax.config.update("jax_enable_x64", True)
    module = MultiheadAttention(num_heads=4, query_size=32, key=jax.random.PRNGKey(0))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((4, 4), bool)), (4, 4, 4))

    def run(_, x):
        out = [module(y, y, y, mask) for y in map(jnp.asarray, x.detach().numpy())]
        return torch.from_numpy(np.stack(out))

    return None, run


def _reaches_further(model, given):
    """Token 2 reaches further than output 5."""
    ids = given["input_ids"]
    a, b = model(input_ids=ids), model(input_ids=p.changed(ids, s_[:, 2]))
    last = max(i for i in range(12) if p.apart(b[:, i], a[:, i]) > 1e-4)
    return last != 5, float(last - 2 + 1)


@p.shipped({"input_ids": p.tokens(2, 12)}, _reaches_further)
def transformers_mistral_window_off_by_one():
    """A sliding window of four attends to five keys."""
    options = {"attn_implementation": "eager"} if p.mended() else {}
    model = p.of_transformers(
        "Mistral", "Model", num_key_value_heads=2, sliding_window=4, **options
    )

    def run(m, input_ids):
        mask = torch.ones_like(input_ids)
        return m(input_ids=input_ids, attention_mask=mask, use_cache=False).last_hidden_state

    return model, run
