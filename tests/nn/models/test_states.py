"""The states that a model hands back are those of its forward pass, which stays as it was."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from intently.nn.models import (
    LanguageModel,
    LanguageOptions,
    RecurrentOptions,
    RecurrentSeq2Seq,
    Transformer,
    TransformerOptions,
    VisionOptions,
    VisionTransformer,
)

SOURCE = torch.tensor([[5, 6, 7, 5, 2], [9, 5, 2, 0, 0]])
TARGET = torch.tensor([[1, 7, 8, 7], [1, 9, 4, 3]])
LENGTHS = torch.tensor([5, 3])
IMAGES = torch.linspace(-1, 1, 2 * 3 * 8 * 12).view(2, 3, 8, 12).sin()

transformer = partial(TransformerOptions, 20, 30, width=16, heads=2, inner=24)
TRANSLATORS: dict[str, TransformerOptions | RecurrentOptions] = {
    "pre": transformer(),
    "post": transformer(norm="post", encoder_layers=3),
    "rotary": transformer(positions="rotary"),
    "learned": transformer(positions="learned"),
    "no layers": transformer(encoder_layers=0, decoder_layers=0),
    "additive": RecurrentOptions(20, 30, width=16),
    "deep": RecurrentOptions(20, 30, width=16, cell="lstm", attention="dot", encoder_layers=2),
    "fixed vector": RecurrentOptions(20, 30, width=16, attention="none"),
}


def translator(name: str) -> Any:
    torch.manual_seed(2)
    options = TRANSLATORS[name]
    made = Transformer if isinstance(options, TransformerOptions) else RecurrentSeq2Seq
    return made(options).eval()  # pyright: ignore[reportArgumentType]


def hooked(model: nn.Module, *given: Tensor) -> dict[str, Tensor]:
    """What the layers "encoder.0", … return, by PyTorch's hooks."""
    found: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        stack, _, number = name.partition(".")
        if stack in ("encoder", "decoder") and number.isdecimal():
            module.register_forward_hook(
                lambda _, __, made, name=name: found.__setitem__(name, made)
            )
    model(*given)
    return found


def layers(stack: str, count: int) -> list[str]:
    return [f"{stack}.{part}" for part in ("embedding", "input", *range(count), "output")]


@pytest.mark.parametrize("name", TRANSLATORS)
def test_states_are_those_of_forward(name: str) -> None:
    model, o = translator(name), TRANSLATORS[name]
    plain = model(SOURCE, TARGET, LENGTHS)
    states = model.states(SOURCE, TARGET, LENGTHS)
    seen = hooked(model, SOURCE, TARGET, LENGTHS)
    assert all(torch.equal(states[layer], made) for layer, made in seen.items())
    assert torch.equal(states["decoder.output"] @ model.output_weight.mT, plain)
    assert torch.equal(model(SOURCE, TARGET, LENGTHS), plain)
    deep = isinstance(o, TransformerOptions)
    assert list(states) == [
        *layers("encoder", o.encoder_layers if deep else 0),
        *layers("decoder", o.decoder_layers if deep else 0),
    ]
    assert len(seen) == (o.encoder_layers + o.decoder_layers if deep else 0)
    attentions = model.attentions(SOURCE, TARGET, LENGTHS)
    assert not deep or {layer.rpartition(".")[0] for layer in attentions} <= {*states}


@pytest.mark.parametrize("name", TRANSLATORS)
def test_an_embedding_knows_no_position_and_an_output_does(name: str) -> None:
    model = translator(name)
    states = model.states(SOURCE[:1])
    word, read, last = (states[f"encoder.{part}"][0] for part in ("embedding", "input", "output"))
    assert torch.equal(word[0], word[3])
    assert torch.equal(word[0], model.source_embedding.weight[5] * 4)  # √c
    placed = name not in ("rotary", "additive", "deep", "fixed vector")
    assert torch.equal(read[0], read[3]) != placed
    assert name == "rotary" or not torch.equal(last[0], last[3])


@pytest.mark.parametrize("name", TRANSLATORS)
def test_padding_changes_no_state_of_a_word(name: str) -> None:
    model = translator(name)
    padded, alone = model.states(SOURCE, lengths=LENGTHS), model.states(SOURCE[1:, :3])
    assert list(padded) == list(alone)
    for layer, x in alone.items():
        torch.testing.assert_close(padded[layer][1:, :3], x)


@pytest.mark.parametrize("name", ["pre", "post", "rotary", "additive"])
def test_steps_with_a_cache_keep_the_states_of_the_whole(name: str) -> None:
    model = translator(name)
    whole = model.states(SOURCE, TARGET)
    memory, cache = model.encode(SOURCE), model.new_cache()
    steps: list[dict[str, Tensor]] = [{} for _ in range(TARGET.shape[1])]
    for i, keep in enumerate(steps):
        model.hidden(TARGET[:, i : i + 1], memory, cache, keep=keep)
    for layer in steps[0]:
        torch.testing.assert_close(torch.cat([keep[layer] for keep in steps], 1), whole[layer])


def test_states_of_a_training_model_carry_its_dropout_and_gradients() -> None:
    model = translator("pre").train()
    torch.manual_seed(0)
    logits = model(SOURCE, TARGET)
    torch.manual_seed(0)
    states = model.states(SOURCE, TARGET)
    assert torch.equal(states["decoder.output"] @ model.output_weight.mT, logits)
    (found,) = torch.autograd.grad(states["decoder.output"].sum(), [states["encoder.0"]])
    assert found.abs().sum() > 0


@pytest.mark.parametrize("positions", [None, 16])
def test_a_language_model_hands_back_its_states(positions: int | None) -> None:
    torch.manual_seed(2)
    o = LanguageOptions(20, width=16, heads=2, layers=3, positions=positions)
    model = LanguageModel(o).eval()
    states, seen = model.states(TARGET), hooked(model, TARGET)
    assert list(states) == layers("decoder", 3)
    assert len(seen) == 3
    assert all(torch.equal(states[layer], made) for layer, made in seen.items())
    assert torch.equal(states["decoder.output"] @ model.output_weight.mT, model(TARGET))
    same = torch.equal(states["decoder.embedding"], states["decoder.input"])
    assert same == (positions is None)
    cache, first, last = model.new_cache(), {}, {}
    model.hidden(TARGET[:, :2], cache, first)
    model.hidden(TARGET[:, 2:], cache, last)
    for layer, x in states.items():
        torch.testing.assert_close(torch.cat([first[layer], last[layer]], 1), x)


def test_a_vision_model_hands_back_its_states() -> None:
    o = VisionOptions(image=(8, 12), patch=4, classes=5, width=16, heads=2, layers=2)
    model = VisionTransformer(o).eval()
    states, seen = model.states(IMAGES), hooked(model, IMAGES)
    assert list(states) == layers("encoder", 2)
    assert len(seen) == 2
    assert all(torch.equal(states[layer], made) for layer, made in seen.items())
    assert torch.equal(states["encoder.output"], model.hidden(IMAGES))
    assert torch.equal(states["encoder.embedding"] + model.positions, states["encoder.input"])
    assert {x.shape for x in states.values()} == {(2, 7, 16)}
