"""How a subject is called is found out, and said; what is right is not called wrong."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import intently as it
from intently.checker import check
from intently.checker.calling.modes import exactly
from intently.checker.calling.understanding import understood
from intently.errors import ArgumentError

from .reports import names

X, Y = torch.randn(2, 6, 32), torch.randn(2, 9, 32)
PADDED = torch.arange(9).expand(2, 9) >= torch.tensor([[9], [6]])


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def test_casts_to_shorter_floats_are_left_out() -> None:
    x, short = torch.randn(3, 4, dtype=torch.double), nn.Linear(4, 4)
    with exactly() as mode:
        assert (x.float() - x).abs().max() == 0
        assert short(x).dtype == torch.double
        assert F.softmax(x, -1, dtype=torch.float32).dtype == torch.double
    assert mode.used and torch.get_default_dtype() == torch.float32


def test_a_norm_in_float32_blurs_nothing() -> None:
    report = check(lambda q, k, v: plain(q.float(), k.float(), v.float()).to(q.dtype))
    assert report.ok and "float64" in report.understood


def test_a_module_in_a_closure_is_examined() -> None:
    layer = nn.MultiheadAttention(32, 4, batch_first=True)
    report = check(lambda x: layer(x, x, x)[0])
    assert report.ok and "4 heads of 8" in report.computes[0]
    assert layer.in_proj_weight.dtype == torch.float32


def test_a_function_outside_pytorch_is_examined() -> None:
    """What cannot be followed is read from what comes out of values that are 0 and 1."""

    def mine(q: Tensor, k: Tensor, v: Tensor, scale: float = 8**-0.5) -> Tensor:
        a, b, c = (x.detach().numpy() for x in (q, k, v))
        z = a @ np.swapaxes(b, -1, -2) * scale
        e = np.exp(z - z.max(-1, keepdims=True))
        return torch.from_numpy(e / e.sum(-1, keepdims=True) @ c)

    assert check(mine).ok
    assert names(check(functools.partial(mine, scale=1.0))) == ["no-scale", "gradient-cut"]
    outside = check(lambda q, k, v: torch.from_numpy(np.tanh(mine(q, k, v).numpy())))
    assert outside.ok is None and outside.verdict.startswith("not measured"), str(outside)


@pytest.mark.parametrize("named", [{}, {"is_causal": True}])
def test_the_signature_of_a_built_in_function_is_read(named: dict[str, Any]) -> None:
    report = check(functools.partial(F.scaled_dot_product_attention, **named))
    assert report.ok and ("causal" in report.computes[0]) == bool(named)


def test_the_sequence_first_is_understood() -> None:
    layer = nn.MultiheadAttention(32, 4)
    given = {"query": X.transpose(0, 1), "key": Y.transpose(0, 1), "value": Y.transpose(0, 1)}
    report = check(layer, inputs=given)
    assert report.ok and "query (t, b, c) = (6, 2, 32)" in report.understood


@pytest.mark.parametrize("attends", [True, False])
def test_the_meaning_of_a_mask_is_found_by_trial(attends: bool) -> None:
    def mine(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        hidden = (~m if attends else m)[:, None]
        return (q @ k.mT / 32**0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v

    m = ~PADDED if attends else PADDED
    report = check(mine, inputs={"q": X, "k": Y, "v": Y + 1, "m": m})
    assert report.ok
    assert f"`m`: True means {'attend' if attends else 'ignore'}" in report.understood


def test_a_mask_whose_meaning_is_documented_is_held_to_it() -> None:
    layer = nn.MultiheadAttention(32, 4, batch_first=True)
    given = {"query": X, "key": Y, "value": Y, "key_padding_mask": PADDED}
    report = check(layer, inputs=given)
    assert report.ok and "True means ignore; the meaning of" in report.understood

    inverted = check(layer, inputs=given, arguments={"key_padding_mask": "attend"})
    assert "mask-inverted" in [f.name for f in inverted.mistakes]


def test_a_mask_belongs_to_the_attention_that_it_is_about() -> None:
    layer = nn.TransformerDecoderLayer(32, 4, 48, batch_first=True)
    later = torch.ones(6, 6).triu(1).bool()
    given = {"tgt": X, "memory": Y, "tgt_mask": later, "memory_key_padding_mask": PADDED}
    report = check(layer, inputs=given, mask=it.causal())
    assert report.ok and "memory_key_padding_mask" in report.computes[1]


def test_a_gate_after_the_values_is_no_mistake() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.gate, self.out = nn.Linear(32, 96), nn.Linear(32, 4), nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
            y = plain(q, k, v).transpose(1, 2)
            return self.out((y * self.gate(x)[..., None].sigmoid()).flatten(2))

    report = check(Gated())
    assert report.ok and not report.findings, str(report)


class Raising:
    """An object that raises for attributes that it lacks."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return plain(q, k, v)

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class Stopping(BaseException):
    """What no `except Exception` expects."""


def test_what_cannot_be_examined_is_refused_in_words() -> None:
    def stops(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        raise Stopping("never mind")

    odd = Raising()
    for subject, said in (
        (odd, "got one that raises KeyError: 'schema'. Pass an adapter"),
        (lambda q, k, v: plain(q, k, v).to_sparse(), "a dense tensor; got one of layout torch.sp"),
        (stops, "the code raised Stopping: never mind"),
    ):
        with pytest.raises(ArgumentError, match=said):
            check(subject)
    assert check(lambda q, k, v: odd(q, k, v)).ok  # the adapter that is advised


def test_what_cannot_be_called_is_refused_with_the_reason() -> None:
    def mine(left: str, right: str) -> Tensor:
        return torch.tensor(int(left + right))

    with pytest.raises(ArgumentError, match=r"It raised .*Pass inputs="):
        understood(mine)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "BartModel", "ViTModel"])
def test_models_are_called_by_what_their_configuration_says(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "LlamaForCausalLM": {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 64,
                             "num_hidden_layers": 1, "num_attention_heads": 4},
        "BartModel": {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 64,
                      "encoder_attention_heads": 4, "decoder_attention_heads": 4,
                      "encoder_ffn_dim": 48, "decoder_ffn_dim": 48},
        "ViTModel": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
                     "intermediate_size": 48, "image_size": 16, "patch_size": 8},
    }  # fmt: skip
    kind = getattr(transformers, name)
    report = check(kind(kind.config_class(**sizes[name])))
    assert report.ok and all("4 heads of 8" in x for x in report.computes)


def test_a_scale_that_a_library_documents_is_by_design() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=48, num_heads=4, num_layers=1, vocab_size=64
    )
    report = check(transformers.T5EncoderModel(config))
    assert report.ok and [f.kind for f in report.findings] == ["by design"]
