"""Models of text, speech, tables, graphs and molecules in other packages, see `packages`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from benchmarks.breadth import styles
from benchmarks.breadth.functions import scores
from benchmarks.breadth.packages import DEEP, IDS, IMAGE, MAP, PLAIN, Case, X, floats, found, whole

MASK = torch.arange(16).expand(2, 16) < torch.tensor([[16], [11]])
PLACES, NEAR = floats(2, 16, 3), torch.eye(16).roll(1, 0).bool().expand(2, 16, 16)
EDGES = torch.stack([torch.arange(48) % 16, torch.arange(48) * 7 % 16])
TEXT: dict[str, Any] = {**DEEP, "num_tokens": 20}
LONG: dict[str, Any] = {**TEXT, "max_seq_len": 16}
SORTED: dict[str, Any] = {**LONG, "dim_head": None}
VARIATES = {**DEEP, "num_variates": 5, "lookback_len": 24, "pred_length": (4,)}

SPEECH: dict[str, Any] = {"num_layers": 1, "d_model": 32, "nhead": 4, "kernel_size": 3}
GPT = {"vocab_size": 20, "context_length": 16, "emb_dim": 32, "n_heads": 4, "n_layers": 2,
       "drop_rate": 0.1, "qkv_bias": False}  # fmt: skip
LLAMA = {**GPT, "hidden_dim": 48, "n_kv_groups": 2, "head_dim": 8, "dtype": torch.float32,
         "rope_base": 10000.0, "rope_freq": None, "qk_norm": True, "num_experts": 0}  # fmt: skip
OWN: dict[str, Any] = {"d_in": 32, "d_out": 32, "context_length": 16, "dropout": 0.1}
SECOND = {name: X.transpose(0, 1) for name in ("query", "key", "value")}


def on_edges(m: Any, x: Tensor, edges: Tensor) -> Tensor:
    """The weights (h, t, s) of a layer on a graph."""
    _, (edges, weights) = m.forward(x, edges, return_attention_weights=True)
    dense = x.new_zeros(weights.shape[1], len(x), len(x))
    for h in range(len(dense)):
        dense[h].index_put_((edges[1], edges[0]), weights[:, h], accumulate=True)
    return dense


def declared(kind: Any, **options: Any) -> nn.Module:
    """A layer on a graph that tells its weights to `truth`."""
    layer = kind(**options)
    layer.declared_weights = partial(on_edges, layer)
    return layer


def graph(**more: Any) -> Callable[[Any], nn.Module]:
    """What builds a layer on a graph, with a normalised product beside it in the network."""
    return lambda kind: declared(kind, in_channels=32, out_channels=8, heads=4, **more)


def mixed(name: str) -> Callable[[Any], nn.Module]:
    """What builds a GPS layer around a layer on a graph."""
    path, more = f"torch_geometric.nn.{name}", {"in_channels": 32, "out_channels": 32}
    return lambda kind: kind(32, declared(found(path), **more), heads=4)


def anew(kind: Any, **options: Any) -> nn.Module:
    """A module that forgets the call before."""
    model = kind(**options)
    model.register_forward_pre_hook(lambda module, _: module.reset())
    return model


class Sparse(styles.Attends):
    """Weights that another function than a softmax makes, told to `truth`."""

    def __init__(self, normalise: Any) -> None:
        super().__init__(lambda q, k, v: normalise(scores(q, k), -1) @ v)
        self.normalise = normalise

    def declared_weights(self, x: Tensor) -> Tensor:
        """The weights (b, h, t, s)."""
        q, k, _ = rearrange(self.qkv(x), "b t (n h d) -> n b h t d", n=3, h=4)
        return self.normalise(scores(q, k), -1)


def whisper(kind: Any, fused: bool) -> nn.Module:
    """Whisper, with PyTorch's function or its own formula."""
    module = sys.modules[kind.__module__]
    module.MultiHeadAttention.use_sdpa = fused
    return kind(module.ModelDimensions(8, 16, 32, 4, 2, 20, 16, 32, 4, 2))


def chronos(path: str, **more: int) -> Any:
    """The options of a Chronos model."""
    config = found(path)(
        d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, vocab_size=20,
        decoder_start_token_id=0,
    )  # fmt: skip
    config.chronos_config = {
        "context_length": 32, "input_patch_size": 4, "input_patch_stride": 4,
        "quantiles": [0.1, 0.5, 0.9], "use_reg_token": True, **more,
    }  # fmt: skip
    return config


def lora() -> Any:
    """A GPT-2 with adapters of low rank."""
    from transformers import GPT2Config, GPT2LMHeadModel

    net = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=32, n_layer=2, n_head=4, n_positions=16))
    options = found("peft.LoraConfig")(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
    return found("peft.get_peft_model")(net, options)


TEXTS: dict[str, Case] = {
    "perceiver_pytorch.Perceiver": (
        {"num_freq_bands": 2, "max_freq": 5.0, "depth": 2, "num_latents": 6, "latent_dim": 32,
         "cross_heads": 1, "latent_heads": 4, "cross_dim_head": 8, "latent_dim_head": 8,
         "num_classes": 5}, floats(2, 6, 6, 3)),
    "perceiver_pytorch.PerceiverIO": (
        {"depth": 1, "dim": 32, "queries_dim": 32, "num_latents": 6, "latent_dim": 32,
         "latent_heads": 4, "cross_dim_head": 8, "latent_dim_head": 8},
        {"data": X, "mask": MASK, "queries": floats(5, 32)}),
    "linformer.Linformer": ({**DEEP, "seq_len": 16, "k": 6}, X),
    "performer_pytorch.PerformerLM": (LONG, IDS),
    "performer_pytorch.PerformerLM, local": (
        {**LONG, "local_attn_heads": 2, "local_window_size": 8}, IDS),
    "reformer_pytorch.ReformerLM": ({**LONG, "bucket_size": 4, "n_hashes": 2}, IDS),
    "reformer_pytorch.ReformerLM, causal": (
        {**LONG, "bucket_size": 4, "n_hashes": 1, "causal": True}, IDS),
    "reformer_pytorch.LSHSelfAttention, full": ({**PLAIN, "use_full_attn": True}, X),
    "routing_transformer.RoutingTransformerLM": (
        {**LONG, "window_size": 4, "causal": True}, IDS),
    "routing_transformer.RoutingTransformerLM, local": (
        {**LONG, "window_size": 4, "n_local_attn_heads": 2, "local_attn_window_size": 4}, IDS),
    "sinkhorn_transformer.SinkhornTransformerLM": ({**SORTED, "bucket_size": 4}, IDS),
    "sinkhorn_transformer.SinkhornTransformerLM, causal": (
        {**SORTED, "bucket_size": 4, "causal": True}, IDS),
    "local_attention.LocalTransformer": ({**LONG, "local_attn_window_size": 4}, IDS),
    "local_attention.LocalMHA": ({**PLAIN, "window_size": 4, "causal": False}, (X, MASK)),
    "axial_attention.AxialAttention": ({"dim": 32, "heads": 4, "dim_index": 1}, MAP),
    "axial_attention.AxialImageTransformer": ({"dim": 32, "heads": 4, "depth": 1}, MAP),
    "linear_attention_transformer.LinearAttentionTransformerLM": (LONG, IDS),
    "linear_attention_transformer.LinearAttentionTransformerLM, causal": (
        {**LONG, "causal": True, "n_local_attn_heads": 2, "local_attn_window_size": 8}, IDS),
    "titans_pytorch.MemoryAsContextTransformer": (
        {**TEXT, "segment_len": 4, "num_persist_mem_tokens": 2, "num_longterm_mem_tokens": 2}, IDS),
    "MEGABYTE_pytorch.MEGABYTE": (
        {**TEXT, "depth": (1, 1), "max_seq_len": (4, 4)}, IDS),
    "MEGABYTE_pytorch.MEGABYTE, flash": (
        {**TEXT, "depth": (1, 1), "max_seq_len": (4, 4), "flash_attn": True}, IDS),
    "iTransformer.iTransformer": (VARIATES, floats(2, 24, 5)),
    "iTransformer.iTransformer2D": ({**VARIATES, "num_time_tokens": 4}, floats(2, 24, 5)),
    "flamingo_pytorch.PerceiverResampler": ({**DEEP, "num_latents": 3}, floats(2, 1, 7, 32)),
    "flamingo_pytorch.GatedCrossAttentionBlock": (PLAIN, (X, floats(2, 1, 7, 32))),
    "coca_pytorch.CoCa": (
        {**PLAIN, "num_tokens": 20, "unimodal_depth": 1, "multimodal_depth": 1,
         "num_img_queries": 4, "image_dim": 32},
        {"text": IDS, "image_tokens": floats(2, 7, 32)}),
    "x_clip.CLIP": (
        {"dim_text": 32, "dim_image": 32, "dim_latent": 32, "num_text_tokens": 20,
         "text_enc_depth": 1, "text_seq_len": 16, "text_heads": 4, "text_dim_head": 8,
         "visual_enc_depth": 1, "visual_image_size": 32, "visual_patch_size": 8,
         "visual_heads": 4, "visual_dim_head": 8}, (IDS, IMAGE)),
    "nystrom_attention.NystromAttention": (
        {**PLAIN, "num_landmarks": 4, "pinv_iterations": 3, "residual_conv_kernel": 3}, X),
    "nystrom_attention.NystromAttention, mask": (
        {**PLAIN, "num_landmarks": 4, "pinv_iterations": 3}, {"x": X, "mask": MASK}),
    "isab_pytorch.ISAB": ({"dim": 32, "heads": 4, "num_latents": 5}, X),
    "h_transformer_1d.HTransformer1D": ({**LONG, "block_size": 4}, IDS),
    "h_transformer_1d.HTransformer1D, causal": ({**LONG, "block_size": 4, "causal": True}, IDS),
    "colt5_attention.ConditionalRoutedAttention": (
        {"dim": 32, "num_heavy_tokens_q": 6, "num_heavy_tokens_kv": 6, "light_dim_head": 8,
         "light_heads": 2, "light_window_size": 4, "heavy_dim_head": 8, "heavy_heads": 2}, X),
    "memory_efficient_attention_pytorch.Attention": (
        {**PLAIN, "memory_efficient": True, "q_bucket_size": 4, "k_bucket_size": 8}, X),
    "memory_efficient_attention_pytorch.Attention, causal": ({**PLAIN, "causal": True}, X),
    "memory_efficient_attention_pytorch.FlashAttention": (
        {**PLAIN, "q_bucket_size": 8, "k_bucket_size": 8}, X),
    "tab_transformer_pytorch.TabTransformer": (
        {**DEEP, "categories": (5, 6), "num_continuous": 3, "mlp_act": nn.ReLU()},
        (whole(2, 2, most=4), floats(2, 3))),
    "tab_transformer_pytorch.FTTransformer": (
        {**DEEP, "categories": (5, 6), "num_continuous": 3},
        (whole(2, 2, most=4), floats(2, 3))),
    "palm_pytorch.palm_pytorch.PaLM": (TEXT, IDS),
    "block_recurrent_transformer_pytorch.BlockRecurrentTransformer": (
        {**LONG, "block_width": 8, "num_state_vectors": 4}, IDS),
    "recurrent_memory_transformer_pytorch.RecurrentMemoryTransformer": (
        {**TEXT, "num_memory_tokens": 2, "seq_len": 16}, IDS),
    "infini_transformer_pytorch.InfiniTransformer": (TEXT, IDS),
    "agent_attention_pytorch.AgentSelfAttention": ({**PLAIN, "num_agent_tokens": 4}, (X, MASK)),
    "simple_hierarchical_transformer.HierarchicalTransformer": (
        {**TEXT, "seq_len": 16, "hierarchies": (1, 2), "window_sizes": (8, None)}, IDS),
    "taylor_series_linear_attention.TaylorSeriesLinearAttn": (PLAIN, X),
    "product_key_memory.PKM": ({"dim": 32, "heads": 2, "num_keys": 8, "topk": 4, "dim_head": 8}, X),
    "soft_moe_pytorch.SoftMoE": ({"dim": 32, "seq_len": 16, "num_experts": 4}, X),
    "slot_attention.SlotAttention": ({"num_slots": 3, "dim": 32, "hidden_dim": 32}, X),
    "slot_attention.MultiHeadSlotAttention": ({**PLAIN, "num_slots": 3, "hidden_dim": 32}, X),
    "esm.ESM2": ({"num_layers": 2, "embed_dim": 32, "attention_heads": 4}, whole(2, 16) + 3),
    "esm.ESM2, weights": (
        {"num_layers": 2, "embed_dim": 32, "attention_heads": 4},
        {"tokens": whole(2, 16) + 3, "need_head_weights": True}),
    "bert_pytorch.BERT": (
        {"vocab_size": 20, "hidden": 32, "n_layers": 2, "attn_heads": 4}, (IDS, IDS % 3)),
    "momentfm.MOMENT": (
        lambda kind: kind({
            "task_name": "reconstruction", "transformer_type": "encoder_only", "d_model": 32,
            "patch_len": 8, "patch_stride_len": 8, "seq_len": 64, "randomly_initialize_backbone":
            True, "transformer_backbone": "google/flan-t5-small", "t5_config": {
                "d_model": 32, "d_ff": 48, "d_kv": 8, "num_heads": 4, "num_layers": 2,
                "vocab_size": 20, "feed_forward_proj": "gated-gelu"}}, model_kwargs={}),
        {"x_enc": floats(2, 3, 64)}),
    "curated_transformers.models.BERTEncoder": (
        lambda kind: kind(found("curated_transformers.models.bert.config.BERTConfig")(
            embedding_width=32, hidden_width=32, intermediate_width=48, n_attention_heads=4,
            n_hidden_layers=2, n_pieces=20)),
        lambda: (IDS, found("curated_transformers.layers.attention.AttentionMask")(MASK))),
    "curated_transformers.models.GPTNeoXCausalLM": (
        lambda kind: kind(found("curated_transformers.models.gpt_neox.config.GPTNeoXConfig")(
            hidden_width=32, intermediate_width=48, n_attention_heads=4, n_hidden_layers=2,
            n_pieces=20)),
        lambda: (IDS, found("curated_transformers.layers.attention.AttentionMask")(MASK))),
    "rtdl.FTTransformer": (
        lambda kind: kind.make_default(
            n_num_features=3, cat_cardinalities=[5, 6], n_blocks=2, last_layer_query_idx=[-1],
            d_out=2), (floats(2, 3), whole(2, 2, most=4))),
    "rtdl_revisiting_models.FTTransformer": (
        lambda kind: kind(
            n_cont_features=3, cat_cardinalities=[5, 6], d_out=2, n_blocks=2, d_block=32,
            attention_n_heads=4, attention_dropout=0.1, ffn_d_hidden=48,
            ffn_d_hidden_multiplier=None, ffn_dropout=0.1, residual_dropout=0.0),
        (floats(2, 3), whole(2, 2, most=4))),
}  # fmt: skip

SCIENCE: dict[str, Case] = {
    "egnn_pytorch.EGNN_Network": (
        {"num_tokens": 20, "dim": 32, "depth": 1, "global_linear_attn_every": 1,
         "global_linear_attn_heads": 4, "global_linear_attn_dim_head": 8}, (IDS, PLACES)),
    "equiformer_pytorch.Equiformer": (
        {"num_tokens": 20, "dim": (8, 8), "dim_head": (4, 4), "heads": (2, 2), "depth": 1,
         "num_degrees": 2, "num_neighbors": 6}, (IDS, PLACES, MASK | True)),
    "equiformer_pytorch.Equiformer, distance": (
        {"num_tokens": 20, "dim": (8, 8), "dim_head": (4, 4), "heads": (2, 2), "depth": 1,
         "num_degrees": 2, "num_neighbors": 6, "l2_dist_attention": True},
        (IDS, PLACES, MASK | True)),
    "invariant_point_attention.InvariantPointAttention": (
        {"dim": 32, "heads": 4, "scalar_key_dim": 8, "scalar_value_dim": 8},
        {"single_repr": X, "pairwise_repr": floats(2, 16, 16, 32), "mask": MASK,
         "rotations": torch.eye(3).expand(2, 16, 3, 3), "translations": PLACES}),
    "point_transformer_pytorch.PointTransformerLayer": (
        {"dim": 32, "pos_mlp_hidden_dim": 16, "attn_mlp_hidden_mult": 2}, (X, PLACES)),
    "point_transformer_pytorch.MultiheadPointTransformerLayer": (
        {**PLAIN, "pos_mlp_hidden_dim": 16, "attn_mlp_hidden_mult": 2, "num_neighbors": 4},
        (X, PLACES)),
    "se3_transformer_pytorch.SE3Transformer": (
        {"num_tokens": 20, "dim": 8, "heads": 2, "dim_head": 4, "depth": 1, "num_degrees": 2,
         "num_neighbors": 6}, (IDS, PLACES, MASK | True)),
    "en_transformer.EnTransformer": (
        {**DEEP, "depth": 1, "dim_head": 32, "num_tokens": 20, "neighbors": 4}, (IDS, PLACES)),
    "esm.MSATransformer": (
        lambda kind: kind(
            SimpleNamespace(
                layers=1, embed_dim=32, ffn_embed_dim=48, attention_heads=4, dropout=0.1,
                attention_dropout=0.1, activation_dropout=0.1, max_tokens=64,
                max_tokens_per_msa=64, max_positions=64, embed_positions_msa=True),
            found("esm.Alphabet").from_architecture("MSA Transformer")),
        whole(2, 3, 8) + 3),
    "labml_nn.graphs.gat.GraphAttentionLayer": (
        {"in_features": 32, "out_features": 32, "n_heads": 4},
        (X[0], NEAR[0, :, :, None] | torch.eye(16).bool()[..., None])),
    "labml_nn.graphs.gatv2.GraphAttentionV2Layer": (
        {"in_features": 32, "out_features": 32, "n_heads": 4},
        (X[0], NEAR[0, :, :, None] | torch.eye(16).bool()[..., None])),
    **{
        f"torch_geometric.nn.{name}": (graph(**more), (X[0], EDGES))
        for name, more in {"GATConv": {}, "GATv2Conv": {}, "TransformerConv": {},
                           "TransformerConv, gate": {"beta": True}}.items()
    },
    **{
        f"torch_geometric.nn.GPSConv, {name}": (mixed(name), (X[0], EDGES))
        for name in ("GATConv", "GATv2Conv", "TransformerConv")
    },
    "torch_geometric.nn.aggr.SetTransformerAggregation": (
        {"channels": 32, "num_seed_points": 2, "heads": 4},
        (floats(16, 32), torch.arange(16) // 8)),
    "entmax.sparsemax": (Sparse, X),
    "entmax.entmax15": (Sparse, X),
    "pytorch_tabnet.tab_network.TabNet": (
        {"input_dim": 8, "output_dim": 3, "n_steps": 2, "group_attention_matrix": torch.eye(8)},
        floats(2, 8)),
}  # fmt: skip

SPEECHES: dict[str, Case] = {
    **{
        f"whisper.model.Whisper{name}": (
            lambda kind, fused=fused: whisper(kind, fused), (floats(2, 8, 32), IDS))
        for name, fused in (("", True), (", by hand", False))
    },
    "conformer.Conformer": ({**DEEP, "conv_kernel_size": 3}, X),
    "chronos.chronos_bolt.ChronosBoltModelForForecasting": (
        lambda kind: kind(chronos("transformers.T5Config", prediction_length=4)), floats(2, 32)),
    "chronos.chronos2.model.Chronos2Model": (
        lambda kind: kind(chronos(
            "chronos.chronos2.config.Chronos2CoreConfig", output_patch_size=4)), floats(2, 32)),
    **{
        f"speechbrain.lobes.models.transformer.{name}": case
        for name, case in {
            "Conformer.ConformerEncoder": (
                {**SPEECH, "d_ffn": 48}, {"src": X, "pos_embs": floats(1, 31, 32)}),
            "Conformer.ConformerEncoder, RoPE": (
                {**SPEECH, "d_ffn": 48, "attention_type": "RoPEMHA"}, X),
            "Branchformer.BranchformerEncoder": (
                {**SPEECH, "csgu_linear_units": 48}, {"src": X, "pos_embs": floats(1, 31, 32)}),
            "Transformer.TransformerEncoder": (
                {"num_layers": 1, "d_model": 32, "nhead": 4, "d_ffn": 48}, X),
            "Transformer.TransformerDecoder": (
                {"num_layers": 1, "d_model": 32, "nhead": 4, "d_ffn": 48}, (X, floats(2, 7, 32))),
        }.items()
    },
    **{
        f"speechbrain.nnet.attention.{name}": (
            partial(anew, enc_dim=32, dec_dim=32, attn_dim=16, output_dim=32, **more),
            (X, torch.tensor([1.0, 0.7]) * 16, floats(2, 32)))
        for name, more in {
            "ContentBasedAttention": {}, "KeyValueAttention": {},
            "LocationAwareAttention": {"conv_channels": 4, "kernel_size": 3}}.items()
    },
    **{
        f"llms_from_scratch.ch03.{name}": case
        for name, case in {
            "SelfAttention_v2": ({"d_in": 32, "d_out": 32}, X[0]),
            "CausalAttention": (OWN, X),
            "MultiHeadAttentionWrapper": ({**OWN, "d_out": 8, "num_heads": 4}, X),
            "MultiHeadAttention": ({**OWN, "num_heads": 4}, X),
            "PyTorchMultiHeadAttention": ({"d_in": 32, "d_out": 32, "num_heads": 4}, X),
        }.items()
    },
    "llms_from_scratch.ch04.GPTModel": ({"cfg": GPT}, IDS),
    "llms_from_scratch.ch04.GPTModelFast": ({"cfg": GPT}, IDS),
    "llms_from_scratch.llama3.Llama3Model": ({"cfg": LLAMA}, IDS),
    "llms_from_scratch.llama3.Llama3ModelFast": ({"cfg": LLAMA}, IDS),
    "llms_from_scratch.qwen3.Qwen3Model": ({"cfg": LLAMA}, IDS),
    "labml_nn.transformers.mha.MultiHeadAttention": ({"heads": 4, "d_model": 32}, SECOND),
    "labml_nn.transformers.xl.relative_mha.RelativeMultiHeadAttention": (
        {"heads": 4, "d_model": 32}, SECOND),
    "labml_nn.transformers.rope.RotaryPEMultiHeadAttention": (
        {"heads": 4, "d_model": 32}, SECOND),
    "labml_nn.transformers.alibi.AlibiMultiHeadAttention": (
        {"heads": 4, "d_model": 32},
        {**SECOND, "mask": torch.ones(16, 16).tril().bool()[..., None]}),
    "labml_nn.transformers.aft.AFTLocal": (
        {"d_model": 32, "seq_len": 16, "local_window_size": 8},
        {**SECOND, "mask": torch.ones(16, 16).tril().bool()[..., None]}),
    "peft.LoraModel": (lambda kind: lora(), {"input_ids": IDS}),
    "peft.LoraModel, merged": (lambda kind: lora().merge_and_unload(), {"input_ids": IDS}),
}  # fmt: skip

CASES: dict[str, Case] = {**TEXTS, **SCIENCE, **SPEECHES}
