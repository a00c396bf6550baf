"""A checkpoint that does not fit changes nothing of a block or a model, and is told why."""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from intently import nn as modules
from intently.errors import CheckpointError, KindError
from intently.interop.blocks import (
    Decoder,
    Embeddings,
    Encoder,
    EncoderDecoder,
    ResidualAttention,
    TextModel,
    TextToText,
)
from intently.interop.torch import KeyValueAttention
from intently.nn.models.language import LanguageModel, LanguageOptions
from intently.nn.models.transformer import Transformer, TransformerOptions
from intently.nn.models.vision import VisionOptions, VisionTransformer
from intently.nn.weights.copying import AllOrNothing

from ..tensors import drawn

C, H = 12, 3
SMALL: dict[str, Any] = {"width": C, "heads": H, "inner": 20}


def decoder(fused: bool = True) -> modules.DecoderLayer:
    heads = modules.MultiHeadAttention(
        C, H, kv_heads=1, projections=modules.Projections(fused=fused)
    )
    return modules.DecoderLayer(C, heads, modules.GatedFeedForward(C, 20), norms=nn.RMSNorm)


def transformer(share: Any = "all") -> Transformer:
    return Transformer(
        TransformerOptions(
            source_vocabulary=9,
            target_vocabulary=9,
            share=share,
            encoder_layers=1,
            decoder_layers=1,
            **SMALL,
        )
    )


def stack(cross: bool = False) -> Any:
    own = modules.MultiHeadAttention(C, H, kv_heads=1)
    if cross:
        return Decoder([modules.DecoderLayer(C, own, 20)], nn.LayerNorm(C))
    return Encoder([modules.EncoderLayer(C, own, 20)], nn.LayerNorm(C))


def text_model() -> TextModel:
    embed = Embeddings(9, C, places=16, types=2, norm=nn.LayerNorm(C))
    return TextModel(embed, stack(), nn.Linear(C, 9), nn.Linear(C, C))


MODELS: dict[str, Callable[[], Any]] = {
    "head": lambda: modules.AttentionHead(C, 4, bias=True),
    "heads": lambda: modules.MultiHeadAttention(C, H),
    "encoder layer": lambda: modules.EncoderLayer(C, H, 20),
    "decoder layer": decoder,
    "image": lambda: modules.ImageAttention(C, H, norm=nn.BatchNorm2d),
    "spatial": lambda: modules.SpatialTransformer(C, H, 4, depth=2, context_width=5),
    "around": lambda: ResidualAttention(modules.MultiHeadAttention(C, H), norm=nn.GroupNorm(2, C)),
    "feed-forward": lambda: modules.FeedForward(C, 20),
    "gated feed-forward": lambda: modules.GatedFeedForward(C, 20, bias=True),
    "convolution": lambda: modules.convolution_as_attention(nn.Conv2d(4, 6, 3, groups=2)),
    "additive": lambda: modules.AdditiveAttention(C, 5, 7),
    "luong": lambda: modules.LuongAttention(C, 5, "concat"),
    "additive score": lambda: modules.AdditiveScore(H, 4, 5),
    "key and value": lambda: KeyValueAttention(C, H, key_width=5, extra=("learned", "zero")),
    "stacks": lambda: EncoderDecoder(
        Encoder([modules.EncoderLayer(C, H, 20)], nn.LayerNorm(C)),
        Decoder([decoder()], nn.LayerNorm(C)),
    ),
    "text": text_model,
    "text to text": lambda: TextToText(
        Embeddings(9, C), Embeddings(7, C), stack(), stack(cross=True), nn.Linear(C, 7)
    ),
    "transformer": transformer,
    "language": lambda: LanguageModel(LanguageOptions(9, C, H, 2, positions=16)),
    "vision": lambda: VisionTransformer(VisionOptions((4, 4), 2, 3, width=C, heads=H, layers=1)),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return drawn(MODELS[request.param]())


def held(module: nn.Module) -> dict[str, tuple[int, int, Tensor]]:
    """Every parameter and buffer: which object it is, how often it was changed, its numbers."""
    tensors = dict(module.named_parameters(remove_duplicate=False))
    tensors |= dict(module.named_buffers(remove_duplicate=False))
    return {name: (id(x), x._version, x.detach().clone()) for name, x in tensors.items()}


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    before, training = held(module), module.training
    yield
    after = held(module)
    assert after.keys() == before.keys() and module.training == training
    for name, (same, version, x) in before.items():
        assert after[name][:2] == (same, version), name
        assert torch.equal(after[name][2], x), name


def refused(module: nn.Module, state: Any, *texts: str, **options: Any) -> None:
    kept = dict(state)
    with unchanged(module), pytest.raises(CheckpointError) as caught:
        module.load_state_dict(state, **options)
    assert state.keys() == kept.keys() and all(state[name] is x for name, x in kept.items())
    message = str(caught.value)
    assert message.startswith(f"{type(module).__name__}: expected its own tensors; got "), message
    assert message.endswith(". Nothing was loaded."), message
    for text in texts:
        assert text in message, message


def foreign(model: Any) -> dict[str, Tensor]:
    return drawn(copy.deepcopy(model)).state_dict()


def floating(state: dict[str, Tensor]) -> list[str]:
    return [name for name, x in state.items() if x.is_floating_point()]


def test_a_missing_tensor(model: Any) -> None:
    state = foreign(model)
    name = floating(state)[-1]
    del state[name]
    refused(model, state, f'Missing key(s) in state_dict: "{name}"')


def test_a_foreign_tensor(model: Any) -> None:
    state = foreign(model) | {"lora.weight": torch.ones(2), "zero": torch.ones(1)}
    refused(model, state, 'Unexpected key(s) in state_dict: "lora.weight", "zero"')


OPTIONS = [*itertools.product((0, -1), (False, True), (False, True))]


@pytest.mark.parametrize(
    ("name", "place", "assign", "strict"),
    [
        *(("decoder layer", *options) for options in OPTIONS),
        *((name, -1, False, False) for name in MODELS if name != "decoder layer"),
    ],
)
def test_a_tensor_of_another_shape(name: str, place: int, assign: bool, strict: bool) -> None:
    model = drawn(MODELS[name]())
    state = foreign(model)
    name = floating(state)[place]
    state[name] = torch.ones(2, 3, 5)
    refused(model, state, name, "2, 3, 5", strict=strict, assign=assign)


def test_all_that_is_wrong_is_named_at_once() -> None:
    layer = drawn(modules.EncoderLayer(C, H, 20))
    state = foreign(layer)
    del state["feed_norm.weight"]
    state |= {
        "lora": torch.ones(1),
        "self_attention.out_bias": torch.ones(3),
        "feed_forward.down.bias": torch.ones(4),
    }
    with unchanged(layer), pytest.raises(CheckpointError) as caught:
        layer.load_state_dict(state)
    assert str(caught.value) == (
        "EncoderLayer: expected its own tensors; got "
        'Missing key(s) in state_dict: "feed_norm.weight"; '
        'Unexpected key(s) in state_dict: "lora"; '
        "self_attention.out_bias: expected shape (12,); got shape (3,). The checkpoint is of a "
        "layer with other widths or heads; "
        "size mismatch for feed_forward.down.bias: copying a param with shape torch.Size([4]) from "
        "checkpoint, the shape in current model is torch.Size([12]). Nothing was loaded."
    )


ARRAYS = "Arrays go through torch.tensor."


def no_mapping(module: nn.Module, state: Any, got: str, **options: Any) -> None:
    """A state that is no mapping of names to tensors changes nothing."""
    with unchanged(module), pytest.raises(KindError) as caught:
        module.load_state_dict(state, **options)
    said = str(caught.value)
    assert said == f"state_dict: expected a mapping of names to tensors; got {got}", said


@pytest.mark.usefixtures("as_users_call")
def test_what_is_no_tensor(model: Any) -> None:
    state = foreign(model)
    name = list(state)[-1]
    no_mapping(model, {**state, name: [1.0, 2.0]}, f"list under {name!r}. {ARRAYS}")
    no_mapping(model, list(state.items()), "list.")
    no_mapping(model, {**state, 3: torch.ones(2)}, "the name 3.")


@pytest.mark.parametrize(
    ("wrong", "kind", "letter"),
    [
        ([1.0, 2.0], "weight", "q"),
        (None, "bias", "k"),
        (np.ones((C, C)), "weight", "v"),
        (np.ones(2), "bias", "v"),
    ],
    ids=str,
)
def test_what_is_no_tensor_under_a_name_of_the_other_storage(
    wrong: Any, kind: str, letter: str
) -> None:
    for fused in (True, False):
        layer, other = (drawn(decoder(f)) for f in (fused, not fused))
        state: dict[str, Any] = other.state_dict()
        name = f"self_attention.{letter if fused else 'qkv'}_{kind}"
        assert name in state
        state[name] = wrong
        for strict in (True, False):
            got = f"{type(wrong).__name__} under {name!r}. {ARRAYS}"
            no_mapping(layer, state, got, strict=strict)


def test_what_is_merely_left_over_may_be_anything() -> None:
    layer = drawn(decoder())
    state = foreign(layer)
    refused(
        layer, {**state, "epoch": 3, "notes": [1]}, 'Unexpected key(s) in state_dict: "epoch", '
    )
    found = layer.load_state_dict({**state, "epoch": 3}, strict=False)
    assert found.unexpected_keys == ["epoch"]
    assert torch.equal(layer.feed_norm.weight, state["feed_norm.weight"])


def test_what_fits_is_loaded(model: Any) -> None:
    state = foreign(model)
    found = model.load_state_dict(state)
    assert str(found) == "<All keys matched successfully>"
    for name, x in model.state_dict().items():
        assert torch.equal(x, state[name]) and not x.is_meta


def test_what_fits_may_become_the_parameters_themselves() -> None:
    layer = drawn(decoder())
    state = foreign(layer)
    layer.load_state_dict(state, assign=True)
    for name, x in layer.state_dict().items():
        assert x.data_ptr() == state[name].data_ptr()


def test_not_strict_loads_what_fits(model: Any) -> None:
    state = foreign(model)
    name = floating(state)[-1]
    own, x = model.state_dict()[name].clone(), state.pop(name)
    found = model.load_state_dict(state | {"more": x}, strict=False)
    assert (found.missing_keys, found.unexpected_keys) == ([name], ["more"])
    assert torch.equal(model.state_dict()[name], own)
    assert all(torch.equal(model.state_dict()[other], y) for other, y in state.items())


@pytest.mark.parametrize("fused", [True, False])
def test_the_other_storage_loads_or_is_refused_whole(fused: bool) -> None:
    layer, other = drawn(decoder(fused)), drawn(decoder(not fused))
    state = other.state_dict()
    x, states = torch.randn(2, 4, C).double(), torch.randn(2, 5, C).double()
    gone = "feed_norm.weight"
    refused(layer, {n: p for n, p in state.items() if n != gone}, f'"{gone}"')
    layer.load_state_dict(state)
    torch.testing.assert_close(layer(x, states), other(x, states))


def heads(fused: bool, width: int = C, **options: Any) -> modules.MultiHeadAttention:
    return drawn(
        modules.MultiHeadAttention(
            width, H, projections=modules.Projections(fused=fused), **options
        )
    )


OTHER_WIDTH = [
    "The checkpoint is of a layer with other widths or heads.",
    "out_weight: expected shape (12, 12); got shape (24, 24).",
]
UNFIT: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], list[str]]] = {
    "fused from fused": (
        lambda: heads(True),
        lambda: heads(True, 24),
        ["qkv_weight: expected shape (36, 12); got shape (72, 24)", *OTHER_WIDTH],
    ),
    "fused from separate": (
        lambda: heads(True),
        lambda: heads(False, 24),
        ["qkv_weight: expected shape (36, 12); got shape (", *OTHER_WIDTH],
    ),
    "separate from fused": (
        lambda: heads(False),
        lambda: heads(True, 24),
        ["q_weight: expected shape (12, 12); got shape (", *OTHER_WIDTH],
    ),
    "separate from separate": (
        lambda: heads(False),
        lambda: heads(False, 24),
        ["q_weight: expected shape (12, 12); got shape (24, 24)", *OTHER_WIDTH],
    ),
    "maps that cannot be joined": (
        lambda: heads(True),
        lambda: heads(False, context_width=7),
        ["qkv_weight: expected shape (36, 12); got shape (12, 7)."],
    ),
    "an encoder layer": (
        lambda: modules.EncoderLayer(C, H, 20),
        lambda: modules.EncoderLayer(24, H, 20),
        ["self_attention.qkv_weight: expected shape (36, 12); got shape (72, 24)"],
    ),
    "a decoder layer from an encoder layer": (
        lambda: modules.DecoderLayer(C, H, 20),
        lambda: modules.EncoderLayer(24, H, 20),
        ["self_attention.qkv_weight: expected shape (36, 12); got shape (72, 24)"],
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_attention_of_other_widths(case: str) -> None:
    make, other, texts = UNFIT[case]
    refused(make(), other().state_dict(), *texts)


def test_a_part_of_the_other_storage() -> None:
    state = heads(False).state_dict()
    del state["v_weight"]
    missing = 'Missing key(s) in state_dict: "qkv_weight"'
    refused(heads(True), state, missing, 'state_dict: "q_weight", "k_weight"')


def test_parameters_that_are_shared_stay_shared() -> None:
    model = drawn(transformer())
    assert model.source_embedding.weight is model.target_embedding.weight
    state = foreign(model)
    refused(model, state | {"more": torch.ones(1)}, '"more"')
    assert model.source_embedding.weight is model.target_embedding.weight
    model.load_state_dict(state)
    assert model.source_embedding.weight is model.target_embedding.weight
    refused(model, transformer("output").state_dict() | {"more": torch.ones(1)}, '"more"')


def test_versions_of_a_checkpoint_are_minded() -> None:
    """A batch norm's count is missing in checkpoints of old, and only there it may be."""
    block = drawn(MODELS["image"]())
    state: Any = block.state_dict()
    del state["norm.num_batches_tracked"]
    refused(block, state, 'Missing key(s) in state_dict: "norm.num_batches_tracked"')
    block.load_state_dict(OrderedDict(state))


def test_no_number_is_read_or_copied_to_find_out() -> None:
    model = MODELS["language"]()
    with torch.device("meta"):
        larger = LanguageModel(LanguageOptions(200_000, 8192, 64, 3))
    refused(model, larger.state_dict(), "embedding.weight", "[200000, 8192]", "decoder.2.")


def test_a_module_of_ones_own_with_the_same_base() -> None:
    class Pair(AllOrNothing):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), modules.EncoderLayer(C, H, 20)

    pair = drawn(Pair())
    state = foreign(pair)
    state["b.feed_norm.bias"] = torch.ones(1)
    refused(pair, state, "size mismatch for b.feed_norm.bias")


def test_a_state_of_ones_own_that_is_no_tensor() -> None:
    class Counting(AllOrNothing):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.steps = nn.Linear(2, 2), 0

        def get_extra_state(self) -> dict[str, int]:
            return {"steps": self.steps}

        def set_extra_state(self, state: dict[str, int]) -> None:
            self.steps = state["steps"]

    one, other = Counting(), Counting()
    other.steps = 7
    one.load_state_dict(other.state_dict())
    assert one.steps == 7 and torch.equal(one.a.weight, other.a.weight)


@pytest.mark.filterwarnings("error")
def test_nothing_is_said_of_the_rehearsal(model: Any) -> None:
    of_old = {n: p for n, p in foreign(model).items() if "num_batches_tracked" not in n}
    model.load_state_dict(of_old)
    refused(model, of_old | {"more": torch.ones(1)}, '"more"')
