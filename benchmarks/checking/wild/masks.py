"""Masks that are applied wrongly: inverted, added as numbers, too weak, or after the softmax."""

import importlib
import sys
from types import SimpleNamespace

import torch
from einops import rearrange
from torch import Tensor, nn

from benchmarks.checking.wild.program import (
    Adapter,
    apart,
    flipped,
    hollow,
    leak,
    normal,
    old_transformers,
    randomised,
    shipped,
    stand_in,
    tokens,
)


@shipped("halonet_mask_inverted", "lucidrains/halonet-pytorch/issues/4", "mask-inverted",
         "halonet-0.0.4", "halonet-0.0.5")  # fmt: skip
class HalonetMaskInverted:
    """masked_fill gets the mask of real positions: border blocks attend to their padding."""

    def make(self) -> Adapter:
        """Blocks of 2 × 2 pixels that see one pixel around them."""
        from halonet_pytorch import HaloAttention

        torch.manual_seed(0)
        module = HaloAttention(dim=16, block_size=2, halo_size=1, dim_head=8, heads=2)
        return Adapter(module.eval(), lambda m, x: m(x))

    def inputs(self) -> dict[str, Tensor]:
        return {"x": normal(1, 16, 4, 4)}

    def wrong(self) -> tuple[bool, float]:
        """A neighbour in the same block has no effect."""
        attend, x = self.make(), self.inputs()["x"]
        changed = x.clone()
        changed[:, :, 0, 1] += 1.0
        effect = apart(attend(x=changed)[:, :, 0, 0], attend(x=x)[:, :, 0, 0])
        return effect < 1e-6, effect


@shipped("torchtextclassifiers_label_attention_inverted",
         "InseeFrLab/torchTextClassifiers/pull/92", "mask-inverted", "ttc-1.0.4",
         intent={"arguments": {"mask": "attend"}})  # fmt: skip
class TorchtextclassifiersLabelAttentionInverted:
    """scaled_dot_product_attention gets a mask where True is padding: only that is attended."""

    def make(self) -> Adapter:
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

    def inputs(self) -> dict[str, Tensor]:
        mask = torch.ones(2, 7, dtype=torch.long)
        mask[:, 4:] = 0
        return {"x": normal(2, 7, 16), "mask": mask}

    def wrong(self) -> tuple[bool, float]:
        """Outputs change with padding."""
        attend, given = self.make(), self.inputs()
        changed = given["x"].clone()
        changed[:, 5] += 1
        effect = apart(attend(**{**given, "x": changed}), attend(**given))
        return effect > 1e-3, effect


@shipped("transformers_llama4_chunk_mask_inverted", "huggingface/transformers/pull/37329",
         "mask-inverted", "tf-4.51.0", "tf-4.51.3",
         intent={"mask": "causal() & segments([[0, 0, 0, 0, 1, 1, 1, 1]])"})  # fmt: skip
class TransformersLlama4ChunkMaskInverted:
    """With eager attention, masked_fill hides the keys of the own chunk and leaves all others."""

    def make(self) -> Adapter:
        """A tiny Llama 4 with one layer of chunks of four."""
        old_transformers()
        from transformers.models.llama4.configuration_llama4 import Llama4TextConfig
        from transformers.models.llama4.modeling_llama4 import Llama4ForCausalLM

        torch.manual_seed(0)
        config = Llama4TextConfig(
            **dict(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4),
            **dict(
                num_key_value_heads=2, head_dim=8, intermediate_size=32, intermediate_size_mlp=32
            ),
            **dict(attention_chunk_size=4, no_rope_layers=[1], moe_layers=[], use_cache=False),
            **dict(use_qk_norm=False, pad_token_id=0, attn_implementation="eager"),
        )
        model = randomised(Llama4ForCausalLM(config))

        def run(model: torch.nn.Module, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return model(input_ids, attention_mask=attention_mask, use_cache=False).logits

        return Adapter(model, run)

    def inputs(self) -> dict[str, Tensor]:
        return {"input_ids": tokens(1, 8), "attention_mask": torch.ones(1, 8, dtype=torch.bool)}

    def wrong(self) -> tuple[bool, float]:
        """A token of another chunk has an effect."""
        model, given = self.make(), self.inputs()
        changed = given["input_ids"].clone()
        changed[:, 6] += 1
        effect = apart(model(**{**given, "input_ids": changed})[:, :4], model(**given)[:, :4])
        return effect > 1e-3, effect


@shipped("video_diffusion_focus_inverted", "lucidrains/video-diffusion-pytorch/issues/6",
         "mask-inverted", "video-diffusion-pytorch-0.3.12 rotary-embedding-torch-0.2.6",
         "video-diffusion-pytorch-0.3.19 rotary-embedding-torch-0.2.6",
         intent={"mask": "segments([[0, 1, 2, 3, 4], [0, 0, 0, 0, 0]])"})  # fmt: skip
class VideoDiffusionFocusInverted:
    """masked_fill gets what may be attended: frames that focus on the present see all others."""

    def make(self) -> Adapter:
        """Attention over the frames of a video: the first focuses on the present."""
        stand_in("torchvision", "PIL")
        stand_in("torchvision", transforms=SimpleNamespace(ToTensor=lambda: None), utils=None)
        stand_in("einops_exts", check_shape=None)
        stand_in(
            "einops_exts", rearrange_many=lambda xs, *a, **k: [rearrange(x, *a, **k) for x in xs]
        )
        from video_diffusion_pytorch.video_diffusion_pytorch import Attention

        torch.manual_seed(0)
        module = Attention(16, heads=2, dim_head=8)
        return Adapter(
            module.eval(), lambda m, x, focus: m(x[:, None], focus_present_mask=focus)[:, 0]
        )

    def inputs(self) -> dict[str, Tensor]:
        return {"x": normal(2, 5, 16), "focus": torch.tensor([True, False])}

    def wrong(self) -> tuple[bool, float]:
        """Another frame has an effect on one that focuses on the present."""
        attend, given = self.make(), self.inputs()
        changed = given["x"].clone()
        changed[0, 3] += 1
        effect = apart(attend(**{**given, "x": changed})[0, 0], attend(**given)[0, 0])
        return effect > 1e-3, effect


@shipped("xtransformers_flash_bool_mask_inverted", "lucidrains/x-transformers/issues/160",
         "mask-inverted", "xt-1.14.0", "", intent={"arguments": {"mask": "attend"}})  # fmt: skip
class XtransformersFlashBoolMaskInverted:
    """attn_flash hands over a mask in which True is hidden, where True is read as attend."""

    def make(self) -> Adapter:
        """An encoder of one layer on the fused path."""
        from x_transformers import Encoder, TransformerWrapper

        torch.manual_seed(0)
        layers = Encoder(dim=32, depth=1, heads=4, attn_dim_head=8, attn_flash=True)
        model = TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=layers).eval()
        return Adapter(model, lambda m, input_ids, mask: m(input_ids, mask=mask))

    def inputs(self) -> dict[str, Tensor]:
        mask = torch.ones(2, 8, dtype=torch.bool)
        mask[:, 5:] = False
        return {"input_ids": tokens(2, 8), "mask": mask}

    def wrong(self) -> tuple[bool, float]:
        """Outputs change with padding."""
        encode, given = self.make(), self.inputs()
        changed = {**given, "input_ids": flipped(given["input_ids"], 6)}
        effect = apart(encode(**changed)[:, :5], encode(**given)[:, :5])
        return effect > 1e-3, effect


FABRIC = ("utilities", "utilities.types", "utilities.load", "loggers", "strategies")


@shipped("litgpt_softcap_bool_mask_added", "Lightning-AI/litgpt/issues/1672",
         "mask-boolean-added", "litgpt-0.4.7",
         intent={"mask": "causal()", "same": [{"cached": False}]})  # fmt: skip
class LitgptSoftcapBoolMaskAdded:
    """With softcapping, a boolean mask is added to scores in the cached path: nothing is hidden."""

    def make(self) -> Adapter:
        """A tiny GPT with two layers, whose prompt goes through the cache."""
        hollow("litgpt")
        stand_in(
            "lightning_utilities", "lightning_utilities.core", "lightning_utilities.core.imports"
        )
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
            **dict(
                block_size=32, vocab_size=50, padded_vocab_size=50, n_layer=2, n_head=4, n_embd=32
            ),
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

    def inputs(self) -> dict[str, Tensor]:
        return {"input_ids": tokens(2, 8)}

    def wrong(self) -> tuple[bool, float]:
        """Outputs change with a later token."""
        effect = leak(self.make(), self.inputs()["input_ids"])
        return effect > 1e-3, effect


@shipped("timm_eva_mask_after_softmax", "huggingface/pytorch-image-models/pull/2236",
         "mask-after-softmax", "timm-1.0.7", "timm-1.0.8",
         intent={"arguments": {"mask": "attend"}})  # fmt: skip
class TimmEvaMaskAfterSoftmax:
    """Without the fused kernel, hidden keys become −∞ after the softmax: all outputs are NaN."""

    def make(self) -> Adapter:
        """The attention of EVA, with its plain formula."""
        hollow("timm", "timm.models")
        stand_in("timm.data", "timm.data.constants", "torchvision", "torchvision.ops")
        stand_in("torchvision.ops.misc")
        stand_in(
            *(f"timm.models.{x}" for x in ("_builder", "_manipulate", "_registry", "_features"))
        )
        stand_in(
            "timm.models._registry",
            generate_default_cfgs=lambda cfgs: cfgs,
            register_model=lambda f: f,
            register_model_deprecations=lambda *args, **kwargs: None,
        )
        from timm.models.eva import EvaAttention

        torch.manual_seed(0)
        module = EvaAttention(32, num_heads=4)
        module.fused_attn = False
        return Adapter(module.eval(), lambda m, x, mask: m(x, attn_mask=mask))

    def inputs(self) -> dict[str, Tensor]:
        mask = torch.ones(2, 6, dtype=torch.bool)
        mask[1, 4:] = False
        return {"x": normal(2, 6, 32), "mask": mask}

    def wrong(self) -> tuple[bool, float]:
        """The row with padding is not finite."""
        bad = ~self.make()(**self.inputs())[1].isfinite()
        return bool(bad.any()), float(bad.sum())


@shipped("transformers_gpt2_masked_bias_1e4", "huggingface/transformers/pull/17306",
         "mask-too-weak", "tf-4.19.4", "tf-4.24.0", hazard=True,
         intent={"mask": "causal()"})  # fmt: skip
class TransformersGpt2MaskedBias1e4:
    """Masked scores are −10,000; real scores can undercut that, and later keys win."""

    def make(self) -> Adapter:
        """A GPT-2 whose queries and keys are large, as after divergence or in deep models."""
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

    def inputs(self) -> dict[str, Tensor]:
        return {"input_ids": tokens(4, 8)}

    def wrong(self) -> tuple[bool, float]:
        """Outputs change with a later token."""
        effect = leak(self.make(), self.inputs()["input_ids"])
        return effect > 1e-3, effect


@shipped("torch_encoder_fastpath_fully_padded_row", "pytorch/pytorch/issues/24816",
         "nan-without-keys", "", hazard=True,
         intent={"arguments": {"mask": "ignore"}})  # fmt: skip
class TorchEncoderFastpathFullyPaddedRow:
    """A row that is all padding is NaN on one path, and finite on the other."""

    def make(self) -> Adapter:
        """A layer whose fused path runs without gradients."""
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
        return Adapter(layer, lambda m, x, mask: m(x, src_key_padding_mask=mask))

    def inputs(self) -> dict[str, Tensor]:
        mask = torch.zeros(2, 6, dtype=torch.bool)
        mask[1] = True
        return {"x": normal(2, 6, 16), "mask": mask}

    def wrong(self) -> tuple[bool, float]:
        """One of the paths gives NaN."""
        attend, given = self.make(), self.inputs()
        fused = attend(**given).isnan()
        with torch.enable_grad():
            plain = attend(**given).isnan()
        return bool(fused.any() | plain.any()), float(fused.sum() + plain.sum())
