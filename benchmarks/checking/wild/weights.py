"""Weights that are wrong in themselves: the axis of the softmax, scale, sign, heads, dropout."""

import importlib
from typing import Optional

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.checking.wild.program import (
    Adapter,
    apart,
    hollow,
    loaded,
    mended,
    normal,
    shipped,
    stand_in,
)


@shipped("attngym_alibi_sign", "meta-pytorch/attention-gym/pull/86", "bias-sign",
         "attngym-0.0.2", "attngym-0.0.17",
         intent={"mask": "causal()", "bias": "alibi(4)"})  # fmt: skip
class AttngymAlibiSign:
    """ALiBi's bias is +(q − k) · slope: distant keys are favoured."""

    def make(self) -> Adapter:
        """Plain causal attention with the score function of the library."""
        library = loaded("attn_gym/mods/alibi.py")

        def run(_: None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            scores = q @ k.mT / q.shape[-1] ** 0.5
            places = [torch.arange(n) for n in scores.shape]
            b, h, i, j = torch.meshgrid(*places, indexing="ij")
            scores = library.generate_alibi_bias(q.shape[1])(scores, b, h, i, j)
            return scores.masked_fill(j > i, float("-inf")).softmax(-1) @ v

        return Adapter(None, run)

    def inputs(self) -> dict[str, Tensor]:
        equal = torch.zeros(1, 4, 8, 8)
        return {"q": equal, "k": equal, "v": torch.eye(8).expand(1, 4, 8, 8).clone()}

    def wrong(self) -> tuple[bool, float]:
        """The weight of the farthest key over that of the nearest is above 1."""
        w = self.make()(**self.inputs())[0, 0, 7]
        return bool(w[0] > w[7]), float(w[0] / w[7])


@shipped("fastnlp_softmax_over_queries", "FudanNLP/fastNLP/issues/254", "softmax-over-queries",
         "fastnlp-0.5.0", "fastnlp-0.5.5")  # fmt: skip
class FastnlpSoftmaxOverQueries:
    """Softmax(dim=2) was written for (b, t, s); with heads, axis 2 is the queries."""

    def make(self) -> Adapter:
        """Attention of four heads."""
        hollow("fastNLP", "fastNLP.modules", "fastNLP.modules.encoder")
        from fastNLP.modules.encoder.attention import MultiHeadAttention

        torch.manual_seed(0)
        module = MultiHeadAttention(32, key_size=8, value_size=8, num_head=4)
        return Adapter(module.eval(), lambda m, query, context: m(query, context, context))

    def inputs(self) -> dict[str, Tensor]:
        return {"query": normal(2, 5, 32), "context": normal(2, 7, 32, seed=2)}

    def wrong(self) -> tuple[bool, float]:
        """Another query changes the output of the first."""
        attend, given = self.make(), self.inputs()
        changed = given["query"].clone()
        changed[:, 3] += 1
        effect = apart(attend(**{**given, "query": changed})[:, 0], attend(**given)[:, 0])
        return effect > 1e-3, effect


@shipped("labml_ddpm_softmax_axis",
         "labmlai/annotated_deep_learning_paper_implementations/issues/146",
         "softmax-over-queries", "labml-0.4.126")  # fmt: skip
class LabmlDdpmSoftmaxAxis:
    """The attention of a U-Net takes the softmax over axis i of (b, i, j, h): over queries."""

    def make(self) -> Adapter:
        """Two heads over the pixels of an image."""
        stand_in("labml", "labml_helpers", "labml_helpers.module")
        stand_in("labml_helpers.module", Module=nn.Module)
        einsum = torch.einsum
        # newer releases of PyTorch return other strides, which the package's view() refuses
        torch.einsum = lambda *args: einsum(*args).contiguous()
        library = loaded("labml_nn/diffusion/ddpm/unet.py")
        torch.manual_seed(0)
        return Adapter(library.AttentionBlock(32, n_heads=2, d_k=8).eval(), lambda m, x: m(x))

    def inputs(self) -> dict[str, Tensor]:
        return {"x": normal(2, 32, 2, 3)}

    def wrong(self) -> tuple[bool, float]:
        """The block differs from the same with the softmax over keys."""
        attend, x = self.make(), self.inputs()["x"]
        block = attend.subject
        rows = x.flatten(2).mT
        q, k, v = block.projection(rows).view(2, -1, 2, 24).transpose(1, 2).chunk(3, -1)
        y = F.scaled_dot_product_attention(q, k, v, scale=block.scale)
        y = block.output(y.transpose(1, 2).reshape(2, -1, 16)).mT.reshape(x.shape)
        off = apart(attend(x=x) - x, y)
        return off > 1e-3, off


@shipped("pytorchnlp_softmax_dim0", "PetrochukM/PyTorch-NLP/issues/2",
         "softmax-over-batch softmax-over-queries", "pytorch-nlp-0.1.0",
         "pytorch-nlp-0.2.0")  # fmt: skip
class PytorchnlpSoftmaxDim0:
    """The softmax runs over axis 0 of (b · t, s): weights compete across the rows of the batch."""

    def make(self) -> Adapter:
        """Queries that attend to a context."""
        library = loaded("torchnlp/nn/attention.py")
        torch.manual_seed(0)
        module = library.Attention(16, attention_type="dot").eval()
        return Adapter(module, lambda m, query, context: m(query, context)[0])

    def inputs(self) -> dict[str, Tensor]:
        return {"query": normal(3, 4, 16), "context": normal(3, 6, 16, seed=2)}

    def wrong(self) -> tuple[bool, float]:
        """A row alone gives another output than in a batch."""
        attend, given = self.make(), self.inputs()
        off = apart(attend(**given)[:1], attend(**{n: x[:1] for n, x in given.items()}))
        return off > 1e-3, off


@shipped("widedeep_fastformer_softmax_over_heads", "jrzaurin/pytorch-widedeep/issues/110",
         "softmax-over-heads", "widedeep-1.2.0", "widedeep-1.2.1")  # fmt: skip
class WidedeepFastformerSoftmaxOverHeads:
    """Fastformer pools queries with a softmax over the last axis of (b, t, h): over heads."""

    def make(self) -> Adapter:
        """Four heads of 8."""
        root = "pytorch_widedeep"
        inner = ("models", "models.tabular", "models.tabular.transformers")
        hollow(root, *(f"{root}.{x}" for x in inner))
        stand_in(f"{root}.wdtypes", Tensor=Tensor, Optional=Optional)
        stand_in(f"{root}.models._get_activation_fn")
        from pytorch_widedeep.models.tabular.transformers._attention_layers import AdditiveAttention

        torch.manual_seed(0)
        module = AdditiveAttention(32, 4, True, 0.0, False)
        return Adapter(module.eval(), lambda m, x: m(x))

    def inputs(self) -> dict[str, Tensor]:
        return {"x": normal(2, 7, 32)}

    def wrong(self) -> tuple[bool, float]:
        """The weights of a head do not sum to 1 over positions."""
        attend = self.make()
        attend(**self.inputs())
        sums = attend.subject.attn_weights[0].sum(-1)
        off = apart(sums, torch.ones_like(sums))
        return off > 1e-3, off


@shipped("onnx_reference_gqa_tile", "onnx/onnx/pull/7274", "key-heads-tiled", "onnx-1.18.0",
         "onnx-1.23.2")  # fmt: skip
class OnnxReferenceGqaTile:
    """Shared key and value heads are expanded as (0, 1, 0, 1) where (0, 0, 1, 1) is defined."""

    def make(self) -> Adapter:
        """The reference implementation of the operator, in NumPy."""
        from onnx.reference.ops import op_attention

        def run(_: None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            made = op_attention._compute_attention(q.numpy(), k.numpy(), v.numpy())
            return torch.from_numpy(np.asarray(made[0]))

        return Adapter(None, run)

    def inputs(self) -> dict[str, Tensor]:
        k, v = (normal(1, 2, 5, 8, seed=n) for n in (2, 3))
        return {"q": normal(1, 4, 5, 8), "k": k, "v": v}

    def wrong(self) -> tuple[bool, float]:
        """The output differs from PyTorch's."""
        q, k, v = self.inputs().values()
        off = apart(
            self.make()(q=q, k=k, v=v), F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        )
        return off > 1e-3, off


@shipped("opacus_mha_batch_first_merge", "meta-pytorch/opacus/pull/825", "merged-by-reshape",
         "opacus-1.5.4")  # fmt: skip
class OpacusMhaBatchFirstMerge:
    """With batch_first, heads are merged by a view: their pieces land on other positions."""

    def make(self) -> Adapter:
        """Self-attention of four heads."""
        from opacus.layers import DPMultiheadAttention

        torch.manual_seed(0)
        module = DPMultiheadAttention(16, 4, batch_first=True).eval()
        return Adapter(module, lambda m, x: m(x, x, x, need_weights=False)[0])

    def inputs(self) -> dict[str, Tensor]:
        return {"x": normal(3, 6, 16)}

    def wrong(self) -> tuple[bool, float]:
        """Self-attention without positions is not equivariant."""
        attend, x, order = self.make(), self.inputs()["x"], [3, 1, 5, 0, 2, 4]
        off = apart(attend(x=x[:, order]), attend(x=x)[:, order])
        return off > 1e-3, off


@shipped("openspeech_relative_scale_model_width", "openspeech-team/openspeech/issues/176",
         "scale-model-width", "openspeech-0.4.0")  # fmt: skip
class OpenspeechRelativeScaleModelWidth:
    """Relative attention divides its scores by √c of the model, not √d of a head."""

    def make(self) -> Adapter:
        """Four heads of 8."""
        hollow("openspeech", "openspeech.modules")
        from openspeech.modules.relative_multi_head_attention import RelativeMultiHeadAttention

        torch.manual_seed(0)
        module = RelativeMultiHeadAttention(32, num_heads=4, dropout_p=0.0)
        return Adapter(module.eval(), lambda m, x, positions: m(x, x, x, positions))

    def inputs(self) -> dict[str, Tensor]:
        return {"x": normal(2, 6, 32), "positions": normal(2, 6, 32, seed=2)}

    def wrong(self) -> tuple[bool, float]:
        """The divisor of the scores, over that of a head."""
        module = self.make().subject
        off = module.sqrt_dim / module.d_head**0.5
        return off > 1.001, off


@shipped("vit_pytorch_scale_model_width", "lucidrains/vit-pytorch/issues/65",
         "scale-model-width", "vit-pytorch-0.6.5", "vit-pytorch-0.6.8")  # fmt: skip
class VitPytorchScaleModelWidth:
    """The scale is 1/√c of the model, not 1/√d of a head."""

    def make(self) -> Adapter:
        """Two heads of 8 in a model of 32."""
        from vit_pytorch.vit_pytorch import Attention

        torch.manual_seed(0)
        return Adapter(Attention(32, heads=2, dim_head=8).eval(), lambda m, x: m(x))

    def inputs(self) -> dict[str, Tensor]:
        return {"x": normal(2, 6, 32)}

    def wrong(self) -> tuple[bool, float]:
        """The output differs from PyTorch's."""
        attend, x = self.make(), self.inputs()["x"]
        module = attend.subject
        q, k, v = (y.unflatten(-1, (2, 8)).transpose(1, 2) for y in module.to_qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        off = apart(attend(x=x), module.to_out(y))
        return off > 1e-4, off


@shipped("timm_attention_dropout_in_eval", "huggingface/pytorch-image-models/pull/1978",
         "dropout-in-eval", "timm-0.9.7", "timm-0.9.8")  # fmt: skip
class TimmAttentionDropoutInEval:
    """Fused attention hands its dropout to scaled_dot_product_attention in evaluation mode too."""

    def make(self) -> Adapter:
        """The attention of a vision transformer."""
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
        from timm.models.vision_transformer import Attention

        torch.manual_seed(0)
        module = Attention(32, num_heads=4, qkv_bias=True, attn_drop=0.3)
        return Adapter(module.eval(), lambda m, x: m(x))

    def inputs(self) -> dict[str, Tensor]:
        return {"x": normal(2, 6, 32)}

    def wrong(self) -> tuple[bool, float]:
        """Two equal calls differ."""
        attend, given = self.make(), self.inputs()
        off = apart(attend(**given), attend(**given))
        return off > 1e-6, off


class Dropping(nn.Module):
    """Self-attention with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 4, 8).permute(2, 0, 3, 1, 4)
        p = 0.2 if self.training or not mended() else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        return y.transpose(1, 2).reshape(b, t, c)


@shipped("torch_sdpa_dropout_in_eval", "pytorch/pytorch/issues/124464", "dropout-in-eval", "",
         "")  # fmt: skip
class TorchSdpaDropoutInEval:
    """scaled_dot_product_attention drops out whatever the mode: the caller has to ask."""

    def make(self) -> Adapter:
        """The layer in evaluation mode."""
        torch.manual_seed(0)
        return Adapter(Dropping().eval(), lambda m, x: m(x))

    def inputs(self) -> dict[str, Tensor]:
        return {"x": normal(2, 6, 32)}

    def wrong(self) -> tuple[bool, float]:
        """Two equal calls differ."""
        attend, given = self.make(), self.inputs()
        off = apart(attend(**given), attend(**given))
        return off > 1e-6, off


def _sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal)


@shipped("torchtune_attn_dropout_in_eval", "meta-pytorch/torchtune/issues/1791",
         "dropout-in-eval", "torchtune-0.3.0", intent={"mask": "causal()"})  # fmt: skip
class TorchtuneAttnDropoutInEval:
    """attn_dropout acts in evaluation mode, although the documentation says that it is ignored."""

    def make(self) -> Adapter:
        """Causal self-attention, four heads on two."""
        stand_in("torchao", "torchao.dtypes", "torchao.dtypes.nf4tensor", "torchdata")
        hollow("torchtune", "torchtune.modules")
        try:
            library = importlib.import_module("torchtune.modules.attention")
        except Exception:  # what chooses the kernel needs more than is installed
            stand_in(
                "torchtune.modules.attention_utils",
                _MaskType=Tensor,
                _sdpa_or_flex_attention=lambda: _sdpa,
            )
            library = importlib.import_module("torchtune.modules.attention")
        torch.manual_seed(0)
        module = library.MultiHeadAttention(
            **dict(embed_dim=32, num_heads=4, num_kv_heads=2, head_dim=8, max_seq_len=32),
            **dict(q_proj=nn.Linear(32, 32), k_proj=nn.Linear(32, 16), v_proj=nn.Linear(32, 16)),
            **dict(output_proj=nn.Linear(32, 32), attn_dropout=0.3),
        )
        return Adapter(module.eval(), lambda m, x: m(x, x))

    def inputs(self) -> dict[str, Tensor]:
        return {"x": normal(2, 6, 32)}

    def wrong(self) -> tuple[bool, float]:
        """Two equal calls differ."""
        attend, given = self.make(), self.inputs()
        off = apart(attend(**given), attend(**given))
        return off > 1e-6, off
