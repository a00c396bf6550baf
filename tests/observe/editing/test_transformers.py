"""Edits of models of transformers equal hooks on their plain formula, for every head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import intently as it
from intently import edits

from ...combinations import each
from ...observe.decoders import SIZES, WINDOW, drawn
from . import hooks

T: Any = transformers
STEPS, SOURCE = 7, 6
IDS = torch.randint(2, 64, (2, STEPS), generator=torch.Generator().manual_seed(3))
OTHERS = torch.randint(2, 64, (2, STEPS), generator=torch.Generator().manual_seed(4))
READ = torch.randint(2, 64, (2, SOURCE), generator=torch.Generator().manual_seed(5))
BERT: dict[str, Any] = {k: x for k, x in SIZES.items() if "key_value" not in k}
MORE: dict[str, Callable[[], Any]] = {
    "gpt-oss": lambda: T.GptOssForCausalLM(
        T.GptOssConfig(**SIZES, **WINDOW, head_dim=8, num_local_experts=2, num_experts_per_tok=1)
    ),
    "bert": lambda: T.BertForMaskedLM(T.BertConfig(**BERT)),
}


@dataclass(frozen=True)
class Case:
    """A model, how it is run on the first or the other text, and its modules that attend."""

    name: str
    modules: tuple[str, ...]
    implementations: tuple[str, ...] = ("sdpa", "eager")

    @cache  # noqa: B019 - cases are few
    def model(self, implementation: str) -> Any:
        torch.manual_seed(0)
        made = MORE[self.name]().eval() if self.name in MORE else drawn(self.name)
        for n, x in made.named_parameters():
            if "sinks" in n:
                torch.nn.init.normal_(x)
        made.set_attn_implementation(implementation)
        return made

    def run(self, model: Any, ids: Tensor = IDS) -> Tensor:
        if model.config.is_encoder_decoder:
            return model(READ, decoder_input_ids=ids).logits
        return model(ids).logits


CASES = [
    Case("gpt2", ("transformer.h.0.attn", "transformer.h.1.attn")),
    Case("llama", ("model.layers.0.self_attn", "model.layers.1.self_attn")),
    Case("gemma 2", ("model.layers.0.self_attn", "model.layers.1.self_attn"), ("eager",)),
    Case("gpt-oss", ("model.layers.0.self_attn", "model.layers.1.self_attn"), ("eager",)),
    Case("bert", ("bert.encoder.layer.0.attention.self", "bert.encoder.layer.1.attention.self")),
    Case(
        "t5",
        (
            "encoder.block.1.layer.0.SelfAttention",
            "decoder.block.0.layer.0.SelfAttention",
            "decoder.block.1.layer.1.EncDecAttention",
        ),
    ),
    Case(
        "marian",
        (
            "model.encoder.layers.0.self_attn",
            "model.decoder.layers.1.self_attn",
            "model.decoder.layers.0.encoder_attn",
        ),
    ),
]
DOORS = [
    pytest.param(case, kind, module, id=f"{case.name}-{kind}-{module}")
    for case in CASES
    for kind in case.implementations
    for module in case.modules
]
DECODED = [x for x in DOORS if "bert" in str(x.id) or "encoder." not in str(x.id)]
OWN = [x for x in DECODED if "ncoder_attn" not in str(x.id) and "EncDec" not in str(x.id)]
HEADS = 4
ROWS, KEYS = [3, 4, 6], [1, 3]


def same(found: Tensor, expected: Tensor, other: Tensor) -> None:
    """Equal to 1e-5 of the largest entry, and not the same as without the edit."""
    size = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * size)
    assert (found - other).abs().max() > 1e-4 * size


def lengths(module: str) -> tuple[int, int]:
    """How many queries and keys a module has."""
    if "encoder_attn" in module or "EncDec" in module:
        return STEPS, SOURCE
    return (SOURCE, SOURCE) if module.startswith(("encoder", "model.encoder")) else (STEPS, STEPS)


def chosen(heads: list[int], steps: Sequence[int], of: tuple[int, int]) -> Tensor:
    """Booleans of size ``of``, true for steps of heads."""
    made = torch.zeros(of, dtype=torch.bool)
    made[torch.tensor(heads)[:, None], [x for x in steps if x < of[1]]] = True
    return made


@torch.no_grad()
def compared(case: Case, kind: str, module: str, edit: Any, hooked: Callable[[Any], Any]) -> None:
    """An edit of one module gives what hooks on the plain formula give."""
    model, plain = case.model(kind), case.model("eager")
    before = case.run(model)
    with it.edit(model, {module: edit}):
        found = case.run(model)
    assert torch.equal(case.run(model), before)
    with hooked(plain):
        expected = case.run(plain)
    same(found, expected, before)


@pytest.mark.parametrize(("case", "kind", "module"), DOORS)
def test_heads_that_are_off(case: Case, kind: str, module: str) -> None:
    t, _ = lengths(module)
    for head in range(HEADS):
        over = chosen([head], range(t), (HEADS, t))
        hooked = partial(hooks.outputs, name=module, over=over, given=0.0)
        compared(case, kind, module, edits.off(heads=[head]), hooked)


@pytest.mark.parametrize(("case", "kind", "module"), DOORS)
def test_keys_that_are_forbidden(case: Case, kind: str, module: str) -> None:
    t, s = lengths(module)
    for head in range(HEADS):
        cells = chosen([head], ROWS, (HEADS, t))[..., None] & chosen([0], KEYS, (1, s))
        edit = edits.forbid(KEYS, rows=ROWS, heads=[head])
        compared(case, kind, module, edit, partial(hooks.hidden, name=module, cells=cells))


@cache
def other_run(case: Case, kind: str, module: str) -> tuple[it.Recording, hooks.Run]:
    """A run on another text, as `watch` and as hooks see it."""
    model, plain = case.model(kind), case.model("eager")
    with torch.no_grad(), it.watch(model, layers=module, gradients=True) as seen:
        case.run(model, OTHERS)
    return seen, hooks.captured(plain, module, lambda: case.run(plain, OTHERS))


@each({"case, kind, module": DECODED, "part": ["queries", "weights", "outputs"]}, times=2)
def test_rows_from_another_run(case: Case, kind: str, module: str, part: Any) -> None:
    (seen, other), (t, _) = other_run(case, kind, module), lengths(module)
    for head in range(HEADS):
        over = chosen([head], ROWS, (HEADS, t))
        hooked = {
            "outputs": partial(hooks.outputs, over=over, given=other.y),
            "weights": partial(hooks.weighed, over=over, given=other.weights),
            "queries": partial(hooks.operands, over=over, other=other, part=part),
        }[part]
        edit = edits.replace(seen, part, heads=[head], rows=ROWS)
        compared(case, kind, module, edit, partial(hooked, name=module))


@pytest.mark.parametrize(("case", "kind", "module"), OWN)
@pytest.mark.parametrize("part", ["keys", "values"])
def test_keys_from_another_run(case: Case, kind: str, module: str, part: Any) -> None:
    (seen, other), (_, s) = other_run(case, kind, module), lengths(module)
    g = other.k.shape[1]
    for group in range(g):
        over = chosen([group], ROWS, (g, s))
        hooked = partial(hooks.operands, name=module, over=over, other=other, part=part)
        heads = [*range(group * HEADS // g, (group + 1) * HEADS // g)]
        edit = edits.replace(seen, part, heads=heads, rows=ROWS)
        compared(case, kind, module, edit, hooked)
