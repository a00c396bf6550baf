"""Attention that sees what it should not: masks dropped, too wide, or on another axis."""

import numpy as np
import torch
from torch import Tensor

from benchmarks.checking.wild.program import (
    Adapter,
    apart,
    flipped,
    hollow,
    leak,
    mended,
    normal,
    old_transformers,
    randomised,
    shipped,
    stand_in,
    tokens,
)


@shipped("local_attention_exact_window_not_causal", "lucidrains/local-attention/issues/5",
         "mask-missing", "local-attention-1.2.1", "local-attention-1.2.2",
         intent={"mask": "causal() & window(4, 0)"})  # fmt: skip
class LocalAttentionExactWindowNotCausal:
    """The mask of exact windows is joined to the causal one by "and": neither hides anything."""

    def make(self) -> Adapter:
        """Blocks of four keys that see the block before."""
        from local_attention import LocalAttention

        module = LocalAttention(window_size=4, causal=True, look_backward=1, exact_windowsize=True)
        return Adapter(module.eval(), lambda m, q, k, v: m(q, k, v))

    def inputs(self) -> dict[str, Tensor]:
        q, k, v = (normal(2, 2, 12, 8, seed=n) for n in (1, 2, 3))
        return {"q": q, "k": k, "v": v}

    def wrong(self) -> tuple[bool, float]:
        """A later value has an effect."""
        attend, given = self.make(), self.inputs()
        changed = given["v"].clone()
        changed[:, :, 3] += 1
        effect = apart(attend(**{**given, "v": changed})[:, :, :3], attend(**given)[:, :, :3])
        return effect > 1e-3, effect


@shipped("performer_causal_normaliser_not_inverted", "lucidrains/performer-pytorch/issues/40",
         "not-normalised", "performer-0.11.1", "performer-0.11.2",
         intent={"mask": "causal()"})  # fmt: skip
class PerformerCausalNormaliserNotInverted:
    """Causal linear attention multiplies by the normaliser in place of dividing by it."""

    def make(self) -> Adapter:
        """The function for machines without CUDA; queries and keys are features already."""
        stand_in("local_attention", "axial_positional_embedding", "fast_transformers")
        stand_in("fast_transformers.causal_product")
        from performer_pytorch.performer_pytorch import causal_linear_attention_noncuda

        return Adapter(None, lambda _, q, k, v: causal_linear_attention_noncuda(q, k, v))

    def inputs(self) -> dict[str, Tensor]:
        q, k, v = (normal(1, 2, 6, 8, seed=n) for n in (1, 2, 3))
        return {"q": q.abs() + 0.1, "k": k.abs() + 0.1, "v": v}

    def wrong(self) -> tuple[bool, float]:
        """Values of 1 do not stay 1."""
        given = self.inputs()
        off = float((self.make()(**{**given, "v": torch.ones_like(given["v"])}) - 1).abs().max())
        return off > 1e-3, off


@shipped("transformers_doge_sdpa_not_causal", "huggingface/transformers/issues/48748",
         "mask-missing", "tf-5.17.0 httpx", "", intent={"mask": "causal()"})  # fmt: skip
class TransformersDogeSdpaNotCausal:
    """Without padding, sdpa is left to make the causal mask, and gets a dynamic one."""

    def make(self) -> Adapter:
        """A tiny Doge of one layer."""
        from transformers import DogeConfig, DogeForCausalLM

        torch.manual_seed(0)
        config = DogeConfig(
            **dict(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4),
            **dict(num_key_value_heads=2, intermediate_size=32, attn_implementation="sdpa"),
        )
        model = randomised(DogeForCausalLM(config))
        return Adapter(model, lambda m, input_ids: m(input_ids, use_cache=False).logits)

    def inputs(self) -> dict[str, Tensor]:
        return {"input_ids": tokens(2, 8)}

    def wrong(self) -> tuple[bool, float]:
        """Outputs change with a later token."""
        effect = leak(self.make(), self.inputs()["input_ids"])
        return effect > 1e-3, effect


@shipped("transformers_gemma2_window_not_causal", "huggingface/transformers/issues/31673",
         "mask-missing", "tf-4.42.1", "tf-4.42.2", intent={"mask": "causal()"})  # fmt: skip
class TransformersGemma2WindowNotCausal:
    """Layers with a window multiply the additive mask by that of far keys: nothing is hidden."""

    def make(self) -> Adapter:
        """A tiny Gemma 2: a layer with all keys, and one with a window."""
        old_transformers()
        from transformers.models.gemma2.configuration_gemma2 import Gemma2Config
        from transformers.models.gemma2.modeling_gemma2 import Gemma2ForCausalLM

        torch.manual_seed(0)
        config = Gemma2Config(
            **dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
            **dict(num_key_value_heads=2, head_dim=8, intermediate_size=32, sliding_window=16),
            **dict(query_pre_attn_scalar=8, attn_implementation="eager", use_cache=False),
        )
        return Adapter(
            randomised(Gemma2ForCausalLM(config)), lambda m, input_ids: m(input_ids).logits
        )

    def inputs(self) -> dict[str, Tensor]:
        return {"input_ids": tokens(2, 8)}

    def wrong(self) -> tuple[bool, float]:
        """Outputs change with a later token."""
        effect = leak(self.make(), self.inputs()["input_ids"])
        return effect > 1e-3, effect


@shipped("transformers_llama_sdpa_output_attentions_leak", "huggingface/transformers/pull/30652",
         "mask-missing", "tf-4.40.2", "tf-4.41.2", intent={"mask": "causal()"})  # fmt: skip
class TransformersLlamaSdpaOutputAttentionsLeak:
    """Asked for its weights, Llama falls back to another path without a mask: nothing is causal."""

    def make(self) -> Adapter:
        """A tiny Llama that is asked for its weights."""
        old_transformers()
        import transformers

        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            **dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
            **dict(intermediate_size=32, max_position_embeddings=64, attn_implementation="sdpa"),
        )
        return Adapter(
            randomised(transformers.LlamaForCausalLM(config)),
            lambda m, input_ids: (
                m(input_ids=input_ids, output_attentions=True, use_cache=False).logits
            ),
        )

    def inputs(self) -> dict[str, Tensor]:
        return {"input_ids": tokens(2, 8)}

    def wrong(self) -> tuple[bool, float]:
        """Outputs change with a later token."""
        effect = leak(self.make(), self.inputs()["input_ids"])
        return effect > 1e-3, effect


@shipped("transformers_rembert_no_causal", "huggingface/transformers/issues/48745",
         "mask-missing", "tf-5.17.0 httpx", "", intent={"mask": "causal()"})  # fmt: skip
class TransformersRembertNoCausal:
    """RemBertForCausalLM's mask is for both directions: positions attend to later ones."""

    def make(self) -> Adapter:
        """A tiny language model."""
        import transformers

        torch.manual_seed(0)
        config = transformers.RemBertConfig(
            **dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
            **dict(intermediate_size=32, max_position_embeddings=64, is_decoder=True),
            **dict(input_embedding_size=32, output_embedding_size=32),
        )
        model = randomised(transformers.RemBertForCausalLM(config))
        return Adapter(model, lambda m, input_ids: m(input_ids=input_ids).logits)

    def inputs(self) -> dict[str, Tensor]:
        return {"input_ids": tokens(2, 8)}

    def wrong(self) -> tuple[bool, float]:
        """Outputs change with a later token."""
        effect = leak(self.make(), self.inputs()["input_ids"])
        return effect > 1e-3, effect


@shipped("transformers_roformer_no_causal", "huggingface/transformers/issues/48745",
         "mask-missing", "tf-5.17.0 httpx", "", intent={"mask": "causal()"})  # fmt: skip
class TransformersRoformerNoCausal:
    """RoFormerForCausalLM's mask is for both directions: positions attend to later ones."""

    def make(self) -> Adapter:
        """A tiny language model."""
        import transformers

        torch.manual_seed(0)
        config = transformers.RoFormerConfig(
            **dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
            **dict(intermediate_size=32, max_position_embeddings=64, is_decoder=True),
            **dict(embedding_size=32),
        )
        model = randomised(transformers.RoFormerForCausalLM(config))
        return Adapter(model, lambda m, input_ids: m(input_ids=input_ids).logits)

    def inputs(self) -> dict[str, Tensor]:
        return {"input_ids": tokens(2, 8)}

    def wrong(self) -> tuple[bool, float]:
        """Outputs change with a later token."""
        effect = leak(self.make(), self.inputs()["input_ids"])
        return effect > 1e-3, effect


@shipped("transformers_mllama_cross_attention_causal", "huggingface/transformers/issues/48172",
         "cross-causal", "", intent={"arguments": {"states": "context"}})  # fmt: skip
class TransformersMllamaCrossAttentionCausal:
    """Cross-attention does not say that it is not causal, and sdpa takes it for a decoder's."""

    def make(self) -> Adapter:
        """Four heads, text that attends to an image."""
        from transformers.models.mllama.configuration_mllama import MllamaTextConfig
        from transformers.models.mllama.modeling_mllama import MllamaTextCrossAttention

        torch.manual_seed(0)
        config = MllamaTextConfig(
            **dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, dropout=0.0),
            **dict(pad_token_id=0, attn_implementation="sdpa"),
        )
        module = MllamaTextCrossAttention(config, layer_idx=0).eval()
        return Adapter(module, lambda m, x, states: m(x, cross_attention_states=states)[0])

    def inputs(self) -> dict[str, Tensor]:
        return {"x": normal(2, 5, 32), "states": normal(2, 9, 32, seed=2)}

    def wrong(self) -> tuple[bool, float]:
        """The last patch has no effect on the first token."""
        attend, given = self.make(), self.inputs()
        changed = given["states"].clone()
        changed[:, 8] += 1
        effect = apart(attend(**{**given, "states": changed})[:, 0], attend(**given)[:, 0])
        return effect < 1e-6, effect


@shipped("equinox_mask_over_queries", "patrick-kidger/equinox/pull/190", "mask-of-other-rows",
         "equinox-0.7.0", "equinox-0.7.1", intent={"mask": "causal()"})  # fmt: skip
class EquinoxMaskOverQueries:
    """vmap over heads takes axis 1 of a mask (h, t, s): each head is masked by a row of queries."""

    def make(self) -> Adapter:
        """Four heads over four positions, with a causal mask for each head."""
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

    def inputs(self) -> dict[str, Tensor]:
        return {"x": normal(2, 4, 32)}

    def wrong(self) -> tuple[bool, float]:
        """Outputs change with a later position."""
        attend, x = self.make(), self.inputs()["x"]
        changed = x.clone()
        changed[:, 3] += 1
        effect = apart(attend(x=changed)[:, :3], attend(x=x)[:, :3])
        return effect > 1e-3, effect


@shipped("transformers_mistral_window_off_by_one", "huggingface/transformers/pull/26792",
         "window-off-by-one", "tf-4.34.1", "",
         intent={"mask": "causal() & window(3, 0)"})  # fmt: skip
class TransformersMistralWindowOffByOne:
    """A sliding window of four attends to five keys."""

    def make(self) -> Adapter:
        """One layer with a window of four; in current releases on the plain path."""
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

    def inputs(self) -> dict[str, Tensor]:
        return {"input_ids": tokens(2, 12)}

    def wrong(self) -> tuple[bool, float]:
        """Token 2 reaches further than output 5."""
        model, ids = self.make(), self.inputs()["input_ids"]
        a, b = model(input_ids=ids), model(input_ids=flipped(ids, 2))
        last = max(i for i in range(12) if apart(b[:, i], a[:, i]) > 1e-4)
        return last != 5, float(last - 2 + 1)
