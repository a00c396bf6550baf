"""Steps with a cache that see other keys or places than the whole pass."""

import importlib
import sys

import numpy as np
import torch
from numpy import s_
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right

from benchmarks.checking.wild import program as p


@p.shipped({"x": p.normal(2, 6, 32)}, p.unlike(cached=True))
def kerashub_falcon_alibi_cache():
    """Falcon's ALiBi is built over the queries: in a step of one token with a cache it vanishes."""
    import keras

    inner = ("models", "models.falcon", "layers", "layers.modeling", "utils")
    p.hollow("keras_hub", "keras_hub.src", *(f"keras_hub.src.{x}" for x in inner))
    p.stand_in("keras_hub.src.utils.keras_utils", clone_initializer=lambda x: x)
    p.stand_in("keras_hub.src.api_export", keras_hub_export=lambda *args, **kwargs: lambda c: c)
    library = importlib.import_module("keras_hub.src.models.falcon.falcon_transformer_decoder")
    keras.utils.set_random_seed(0)
    rates = {"attention_dropout_rate": 0.0, "feedforward_dropout_rate": 0.0}
    layer = library.FalconTransformerDecoder(num_attention_heads=4, intermediate_dim=32, **rates)
    layer(torch.zeros(1, 6, 32))

    def run(layer, x, cached=False):
        if not cached:
            return layer(x, training=False)
        cache, out = torch.zeros(len(x), 2, x.shape[1], 4, 8), []
        for i in range(x.shape[1]):
            at = {"attention_cache": cache, "attention_cache_update_index": i}
            y, cache = layer(x[:, i : i + 1], **at, training=False)
            out.append(y)
        return torch.cat(out, 1)

    return layer, run


PAST = {f"past_{n}": p.normal(1, 2, 4, 8, seed=i) for n, i in (("k", 4), ("v", 5))}


@p.shipped(
    {**p.qkv(1, 2, 3, 8), **PAST, "is_causal": 1}, p.misses("past_v", s_[:, :, 3], s_[:, :, 0])
)
def onnx_reference_causal_topleft_with_past():
    """is_causal with a past builds a top-left triangle: new queries do not see their past."""

    def run(_, q, k, v, past_k, past_v, is_causal):
        past = {"past_key": past_k.numpy(), "past_value": past_v.numpy()}
        given = (x.numpy() for x in (q, k, v))
        return p.onnx_attention(*given, is_causal=is_causal, **past)

    return None, run


class Rotated(p.SelfAttention):
    """Causal self-attention with the rotation of the library, whole or step by step."""

    def __init__(self):
        super().__init__()
        self.rotary = p.take("rotary_embedding_torch", "RotaryEmbedding")(dim=8)

    def heads(self, x, offset):
        q, k, v = self.split(x)
        rotate = self.rotary.rotate_queries_or_keys
        return rotate(q, offset=offset), rotate(k, offset=offset), v

    def forward(self, x, cached=False):
        if not cached:
            q, k, v = self.heads(x, 0)
            return self.joined(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        keys, values, out = [], [], []
        for i in range(x.shape[1]):
            q, k, v = self.heads(x[:, i : i + 1], i)
            keys, values = [*keys, k], [*values, v]
            out.append(F.scaled_dot_product_attention(q, torch.cat(keys, 2), torch.cat(values, 2)))
        return self.joined(torch.cat(out, 2))


@p.shipped({"x": p.normal(2, 6, 32)}, p.unlike(cached=True))
def rotary_embedding_offset_cached():
    """Angles are remembered by length alone: every step of one token is rotated as position 0."""
    return Rotated(), lambda m, x, cached=False: m(x, cached)


PARTS = ("embedding", "attention", "normalization", "activations", "containers", "linear", "CNN")


@p.shipped(
    {"tgt": p.tokens(2, 5), "enc": p.normal(2, 9, 32), "enc_len": torch.tensor([9, 6])},
    p.reaches("enc", s_[1, 7], s_[1]),
)
def speechbrain_decode_pads_attended():
    """decode() passes no mask of the memory: cross-attention attends to padded frames."""
    inner = ("nnet", "lobes", "lobes.models", "lobes.models.transformer", "dataio", "utils")
    p.hollow("speechbrain", *(f"speechbrain.{x}" for x in inner))
    p.stand_in("hyperpyyaml", "sentencepiece", "torchaudio")

    def length_to_mask(length, max_len=None, **_):
        steps = torch.arange(int(max_len or length.max()))
        return (steps < length[:, None]).to(length.dtype)

    p.stand_in("speechbrain.dataio.dataio", length_to_mask=length_to_mask)
    nnet = sys.modules["speechbrain.nnet"]
    sys.modules["speechbrain"].nnet = nnet  # type: ignore[attr-defined]
    for part in PARTS:
        setattr(nnet, part, importlib.import_module(f"speechbrain.nnet.{part}"))
    library = importlib.import_module("speechbrain.lobes.models.transformer.TransformerASR")
    model = library.TransformerASR(
        **dict(tgt_vocab=50, input_size=16, d_model=32, nhead=4, num_encoder_layers=1),
        **dict(num_decoder_layers=1, d_ffn=32, dropout=0.0),
    )

    def run(model, tgt, enc, enc_len):
        return model.decode(tgt, enc, *([enc_len] if p.mended() else []))[0]

    return model, run


class Cached(p.SelfAttention):
    """Causal self-attention with a cache."""

    def forward(self, x, past=None):
        q, k, v = self.split(x)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        mask = {"is_causal": True}
        if p.mended():
            mask = {"attn_mask": causal_lower_right(x.shape[1], k.shape[2])}
        return self.joined(F.scaled_dot_product_attention(q, k, v, **mask)), (k, v)


@p.shipped({"x": p.normal(2, 6, 32)}, p.unlike(cached=False))
def torch_sdpa_is_causal_with_cache():
    """is_causal with a cache aligns the mask top-left: new queries see only the oldest keys."""

    def run(m, x, cached=True):
        if not cached:
            return m(x)[0]
        first, past = m(x[:, :4])
        return torch.cat([first, m(x[:, 4:], past)[0]], 1)

    return Cached(), run


@p.shipped({"input_ids": p.tokens(2, 8)}, p.unlike(cached=True))
def transformers_bert_relative_key_cache():
    """Relative distances are counted from 0 in each cached step."""
    options = {"is_decoder": True, "position_embedding_type": "relative_key"}

    def run(m, input_ids, cached=False):
        if not cached:
            return p.logits(m, input_ids)
        past, out = None, []
        for i in range(input_ids.shape[1]):
            given = {"past_key_values": past, "attention_mask": torch.ones(len(input_ids), i + 1)}
            step = m(input_ids=input_ids[:, i : i + 1], use_cache=True, **given)
            past = step.past_key_values
            out.append(step.logits)
        return torch.cat(out, 1)

    return p.of_transformers("Bert", "LMHeadModel", **options), run


@p.shipped({"x": p.normal(2, 6, 32)}, p.unlike(cached=True))
def xtransformers_flash_causal_with_cache():
    """Flash attention asks for is_causal with a cache: a new query sees the oldest key alone."""
    kind = p.take("x_transformers", "Decoder")
    layers = kind(dim=32, depth=1, heads=4, attn_dim_head=8, attn_flash=True)

    def run(m, x, cached=False):
        if not cached:
            return m(x)
        first, cache = m(x[:, :4], return_hiddens=True)
        five, cache = m(x[:, :5], cache=cache, return_hiddens=True)
        six, _ = m(x, cache=cache, return_hiddens=True)
        return torch.cat([first, five[:, -1:], six[:, -1:]], 1)

    return layers, run


HEADS, WIDTH, STEPS = 2, 16, 6


@p.shipped(p.qkv(2, HEADS, STEPS, WIDTH), p.reaches("v", s_[:, :, 1], s_[:, :, 4]))
def onnxruntime_window_excludes_own_key():
    """A window of n keys does not count the query's own: each query sees one key too many."""
    import onnxruntime
    from onnx import TensorProto, helper

    names = ["q", "k", "v", "past_k", "past_v", "last", "total"]
    options = {"num_heads": HEADS, "kv_num_heads": HEADS, "local_window_size": 3}
    outputs, domain = ["y", "present_k", "present_v"], "com.microsoft"
    node = helper.make_node("GroupQueryAttention", names, outputs, domain=domain, **options)
    kinds = [TensorProto.FLOAT] * 5 + [TensorProto.INT32] * 2
    given = [helper.make_tensor_value_info(n, t, None) for n, t in zip(names, kinds)]
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in node.output]
    domains = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    graph = helper.make_graph([node], "g", given, made)
    model = helper.make_model(graph, opset_imports=domains, ir_version=8).SerializeToString()
    run = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    def attend(_, q, k, v):
        flat = [x.detach().float().transpose(1, 2).flatten(2).numpy() for x in (q, k, v)]
        b, t = flat[0].shape[:2]
        past = np.zeros((b, HEADS, 0, WIDTH), np.float32)
        last = np.full((b,), t - 1, np.int32)
        values = [*flat, past, past, last, np.array(t, np.int32)]
        y = torch.from_numpy(run.run(["y"], dict(zip(names, values)))[0])
        return y.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2).to(q.dtype)

    return None, attend
