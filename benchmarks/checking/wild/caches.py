"""Steps with a cache that see other keys or places than the whole pass."""

import importlib
import sys

import numpy as np
import torch
from numpy import s_
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.checking.wild.program import (
    Adapter,
    hollow,
    mended,
    misses,
    normal,
    old_transformers,
    qkv,
    randomised,
    reaches,
    shipped,
    stand_in,
    tokens,
    unlike,
)


@shipped(
    "keras-team/keras-hub/pull/2977", "bias-offset-lost", "kh-0.29.0", "kh-0.32.0",
    inputs={"x": normal(2, 6, 32)}, shows=unlike(cached=True),
    intent={"mask": "causal()", "same": [{"cached": True}]},
)  # fmt: skip
def kerashub_falcon_alibi_cache() -> Adapter:
    """Falcon's ALiBi is built over the queries: in a step of one token with a cache it vanishes."""
    import keras

    inner = ("models", "models.falcon", "layers", "layers.modeling", "utils")
    hollow("keras_hub", "keras_hub.src", *(f"keras_hub.src.{x}" for x in inner))
    stand_in("keras_hub.src.utils.keras_utils", clone_initializer=lambda x: x)
    stand_in("keras_hub.src.api_export", keras_hub_export=lambda *args, **kwargs: lambda c: c)
    library = importlib.import_module("keras_hub.src.models.falcon.falcon_transformer_decoder")
    keras.utils.set_random_seed(0)
    layer = library.FalconTransformerDecoder(
        num_attention_heads=4,
        intermediate_dim=32,
        attention_dropout_rate=0.0,
        feedforward_dropout_rate=0.0,
    )
    layer(torch.zeros(1, 6, 32))

    def run(layer: torch.nn.Module, x: Tensor, cached: bool = False) -> Tensor:
        if not cached:
            return layer(x, training=False)
        cache, out = torch.zeros(len(x), 2, x.shape[1], 4, 8), []
        for i in range(x.shape[1]):
            y, cache = layer(
                x[:, i : i + 1],
                attention_cache=cache,
                attention_cache_update_index=i,
                training=False,
            )
            out.append(y)
        return torch.cat(out, 1)

    return Adapter(layer, run)


@shipped(
    "onnx/onnx/pull/8068", "mask-top-left", "onnx-1.18.0", "onnx-1.23.2",
    inputs={**qkv(1, 2, 3, 8), "past_k": normal(1, 2, 4, 8, seed=4),
            "past_v": normal(1, 2, 4, 8, seed=5), "is_causal": 1},
    shows=misses("past_v", s_[:, :, 3], s_[:, :, 0]), intent={"mask": "causal()"},
)  # fmt: skip
def onnx_reference_causal_topleft_with_past() -> Adapter:
    """is_causal with a past builds a top-left triangle: new queries do not see their past."""
    from onnx.reference.ops import op_attention

    def run(
        _: None, q: Tensor, k: Tensor, v: Tensor, past_k: Tensor, past_v: Tensor, is_causal: int
    ) -> Tensor:
        past = {"past_key": past_k.numpy(), "past_value": past_v.numpy()}
        given = (x.numpy() for x in (q, k, v))
        made = op_attention._compute_attention(*given, is_causal=is_causal, **past)
        return torch.from_numpy(np.asarray(made[0]))

    return Adapter(None, run)


class Rotated(nn.Module):
    """Causal self-attention with the rotation of the library, whole or step by step."""

    def __init__(self) -> None:
        super().__init__()
        from rotary_embedding_torch import RotaryEmbedding

        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.rotary = RotaryEmbedding(dim=8)

    def heads(self, x: Tensor, offset: int) -> tuple[Tensor, ...]:
        q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        rotate = self.rotary.rotate_queries_or_keys
        return rotate(q, offset=offset), rotate(k, offset=offset), v

    def forward(self, x: Tensor, cached: bool = False) -> Tensor:
        if not cached:
            y = F.scaled_dot_product_attention(*self.heads(x, 0), is_causal=True)
            return self.out(y.transpose(1, 2).flatten(2))
        keys, values, out = [], [], []
        for i in range(x.shape[1]):
            q, k, v = self.heads(x[:, i : i + 1], i)
            keys.append(k)
            values.append(v)
            out.append(F.scaled_dot_product_attention(q, torch.cat(keys, 2), torch.cat(values, 2)))
        return self.out(torch.cat(out, 2).transpose(1, 2).flatten(2))


@shipped(
    "lucidrains/rotary-embedding-torch/issues/11", "rotation-offset-lost",
    "rotary-embedding-torch-0.2.6", "rotary-embedding-torch-0.2.7", inputs={"x": normal(2, 6, 32)},
    shows=unlike(cached=True), intent={"mask": "causal()", "same": [{"cached": True}]},
)  # fmt: skip
def rotary_embedding_offset_cached() -> Adapter:
    """Angles are remembered by length alone: every step of one token is rotated as position 0."""
    torch.manual_seed(0)
    return Adapter(Rotated().eval(), lambda m, x, cached=False: m(x, cached))


PARTS = ("embedding", "attention", "normalization", "activations", "containers", "linear", "CNN")


@shipped(
    "speechbrain/speechbrain/issues/1107", "padding-attended", "sb-0.5.10", "sb-0.5.13",
    inputs={"tgt": tokens(2, 5), "enc": normal(2, 9, 32), "enc_len": torch.tensor([9, 6])},
    shows=reaches("enc", s_[1, 7], s_[1]),
    intent={"mask": "causal()", "arguments": {"enc_len": "lengths"}},
)  # fmt: skip
def speechbrain_decode_pads_attended() -> Adapter:
    """decode() passes no mask of the memory: cross-attention attends to padded frames."""
    inner = ("nnet", "lobes", "lobes.models", "lobes.models.transformer", "dataio", "utils")
    hollow("speechbrain", *(f"speechbrain.{x}" for x in inner))
    stand_in("hyperpyyaml", "sentencepiece", "torchaudio")

    def length_to_mask(length: Tensor, max_len: int | None = None, **_: object) -> Tensor:
        steps = torch.arange(int(max_len or length.max()))
        return (steps < length[:, None]).to(length.dtype)

    stand_in("speechbrain.dataio.dataio", length_to_mask=length_to_mask)
    nnet = sys.modules["speechbrain.nnet"]
    sys.modules["speechbrain"].nnet = nnet  # type: ignore[attr-defined]
    for part in PARTS:
        setattr(nnet, part, importlib.import_module(f"speechbrain.nnet.{part}"))
    library = importlib.import_module("speechbrain.lobes.models.transformer.TransformerASR")
    torch.manual_seed(0)
    model = library.TransformerASR(
        **dict(tgt_vocab=50, input_size=16, d_model=32, nhead=4, num_encoder_layers=1),
        **dict(num_decoder_layers=1, d_ffn=32, dropout=0.0),
    )

    def run(model: nn.Module, tgt: Tensor, enc: Tensor, enc_len: Tensor) -> Tensor:
        return model.decode(tgt, enc, *([enc_len] if mended() else []))[0]

    return Adapter(model.eval(), run)


Past = tuple[Tensor, Tensor]


class Cached(nn.Module):
    """Causal self-attention with a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor, past: Past | None = None) -> tuple[Tensor, Past]:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 4, 8).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        if mended():
            from torch.nn.attention.bias import causal_lower_right

            mask = causal_lower_right(t, k.shape[2])
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c)), (k, v)


@shipped(
    "pytorch/pytorch/issues/144858", "mask-top-left", "", "", inputs={"x": normal(2, 6, 32)},
    shows=unlike(cached=False), intent={"mask": "causal()", "same": [{"cached": False}]},
)  # fmt: skip
def torch_sdpa_is_causal_with_cache() -> Adapter:
    """is_causal with a cache aligns the mask top-left: new queries see only the oldest keys."""

    def run(m: Cached, x: Tensor, cached: bool = True) -> Tensor:
        if not cached:
            return m(x)[0]
        first, past = m(x[:, :4])
        return torch.cat([first, m(x[:, 4:], past)[0]], 1)

    torch.manual_seed(0)
    return Adapter(Cached().eval(), run)


@shipped(
    "huggingface/transformers/pull/20203", "rotation-offset-lost bias-offset-lost", "tf-4.24.0",
    "tf-4.34.1", inputs={"input_ids": tokens(2, 8)}, shows=unlike(cached=True),
    intent={"mask": "causal()", "same": [{"cached": True}]},
)  # fmt: skip
def transformers_bert_relative_key_cache() -> Adapter:
    """Relative distances are counted from 0 in each cached step."""
    old_transformers()
    from transformers.models.bert.configuration_bert import BertConfig
    from transformers.models.bert.modeling_bert import BertLMHeadModel

    torch.manual_seed(0)
    config = BertConfig(
        **dict(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4),
        **dict(intermediate_size=32, max_position_embeddings=64, is_decoder=True),
        position_embedding_type="relative_key",
    )

    def run(m: nn.Module, input_ids: Tensor, cached: bool = False) -> Tensor:
        if not cached:
            return m(input_ids=input_ids, use_cache=False).logits
        past, out = None, []
        for i in range(input_ids.shape[1]):
            step = m(
                input_ids=input_ids[:, i : i + 1],
                use_cache=True,
                past_key_values=past,
                attention_mask=torch.ones(len(input_ids), i + 1),
            )
            past = step.past_key_values
            out.append(step.logits)
        return torch.cat(out, 1)

    return Adapter(randomised(BertLMHeadModel(config)), run)


@shipped(
    "lucidrains/x-transformers/issues/187", "mask-top-left", "xt-1.21.4", "xt-1.23.6",
    inputs={"x": normal(2, 6, 32)}, shows=unlike(cached=True),
    intent={"mask": "causal()", "same": [{"cached": True}]},
)  # fmt: skip
def xtransformers_flash_causal_with_cache() -> Adapter:
    """Flash attention asks for is_causal with a cache: a new query sees the oldest key alone."""
    from x_transformers import Decoder

    torch.manual_seed(0)
    layers = Decoder(dim=32, depth=1, heads=4, attn_dim_head=8, attn_flash=True)

    def run(m: torch.nn.Module, x: Tensor, cached: bool = False) -> Tensor:
        if not cached:
            return m(x)
        first, cache = m(x[:, :4], return_hiddens=True)
        five, cache = m(x[:, :5], cache=cache, return_hiddens=True)
        six, _ = m(x, cache=cache, return_hiddens=True)
        return torch.cat([first, five[:, -1:], six[:, -1:]], 1)

    return Adapter(layers.eval(), run)


HEADS, WIDTH, STEPS = 2, 16, 6


@shipped(
    "microsoft/onnxruntime/pull/25927", "window-off-by-one", "onnxruntime-1.22.1 onnx-1.18.0",
    "onnxruntime-1.24.1 onnx-1.18.0", inputs=qkv(2, HEADS, STEPS, WIDTH),
    shows=reaches("v", s_[:, :, 1], s_[:, :, 4]), intent={"mask": "causal() & window(2, 0)"},
)  # fmt: skip
def onnxruntime_window_excludes_own_key() -> Adapter:
    """A window of n keys does not count the query's own: each query sees one key too many."""
    import onnxruntime
    from onnx import TensorProto, helper

    names = ["q", "k", "v", "past_k", "past_v", "last", "total"]
    node = helper.make_node(
        "GroupQueryAttention",
        names,
        ["y", "present_k", "present_v"],
        domain="com.microsoft",
        num_heads=HEADS,
        kv_num_heads=HEADS,
        local_window_size=3,
    )
    kinds = [TensorProto.FLOAT] * 5 + [TensorProto.INT32] * 2
    given = [helper.make_tensor_value_info(n, t, None) for n, t in zip(names, kinds)]
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in node.output]
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(
        helper.make_graph([node], "g", given, made), opset_imports=domains, ir_version=8
    )
    run = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )

    def attend(_: object, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        flat = [x.detach().float().transpose(1, 2).flatten(2).numpy() for x in (q, k, v)]
        b, t = flat[0].shape[:2]
        past = np.zeros((b, HEADS, 0, WIDTH), np.float32)
        last = np.full((b,), t - 1, np.int32)
        values = [*flat, past, past, last, np.array(t, np.int32)]
        y = torch.from_numpy(run.run(["y"], dict(zip(names, values)))[0])
        return y.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2).to(q.dtype)

    return Adapter(None, attend)
