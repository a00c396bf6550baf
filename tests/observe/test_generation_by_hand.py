"""Models that write their attention out, and their generations, joined like those of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intently as it
from intently.observe.recording.recording import Recording

from .attending import Softmaxes, close, watched
from .decoders import MARIAN, T, drawn

FSMT: dict[str, Any] = MARIAN | {
    "langs": ["en", "de"],
    "src_vocab_size": 64,
    "tgt_vocab_size": 64,
    "forced_eos_token_id": None,
}
GPT_NEO: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "max_position_embeddings": 64,
    "window_size": 3,
    "attention_types": [[["global", "local"], 1]],
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
DEBERTA: dict[str, Any] = {
    "hidden_size": 16,
    "num_attention_heads": 4,
    "vocab_size": 50,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 8,
}
GPT: dict[str, Any] = {
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 50,
    "n_positions": 32,
    "rotary_dim": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NEW = 5
HOWS: dict[str, dict[str, Any]] = {
    "greedy": {"num_beams": 1},
    "beams": {"num_beams": 3},
    "static": {"num_beams": 1, "cache_implementation": "static", "disable_compile": True},
}


def spread(kind: Any, options: dict[str, Any], std: float = 0.3) -> Any:
    """The same model at each call, with uneven attention."""
    torch.manual_seed(0)
    model = kind(kind.config_class(**options)).eval()
    for p in model.parameters():
        nn.init.normal_(p, std=std)
    model.set_attn_implementation("eager")  # the only one of some; newer releases have others
    if model.can_generate():
        model.generation_config.eos_token_id = None
    return model


@torch.no_grad()
def generated(model: Any, ids: Tensor, **options: Any) -> tuple[Recording, Tensor]:
    """What was seen without ``deep``, and the sequences."""
    given = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": NEW}
    expected = model.generate(ids, **given, **options)
    with it.watch(model) as seen:
        found = model.generate(ids, **given, **options)
    assert torch.equal(found, expected)
    assert all(entry.verified for entry in seen.calls), str(seen.coverage())
    return seen, found


def beams_are_right(found: Tensor, expected: Tensor, beams: int) -> None:
    """One of the beams of each text has the weights of what was returned."""
    found = found.unflatten(0, (len(expected), beams))
    alike = (found - expected[:, None]).abs().amax((2, 3, 4)) <= 1e-4
    assert alike.any(1).all(), alike


class Floored(nn.Module):
    """Scores that cannot be followed leave their weights."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return ((q @ k.mT).floor() + mask).softmax(-1) @ v


@pytest.mark.parametrize("parents", [[0, 1, 2], [2, 0, 0]])
@pytest.mark.parametrize("store", ["copy", "reference", "disk"])
def test_weights_that_are_kept_are_joined(store: Any, parents: list[int], tmp_path: Path) -> None:
    q, k, v = 2 * torch.randn(3, 3, 4, 9, 8)
    mask, words = torch.full((9, 9), -torch.inf).triu(1), [f"word {n}" for n in range(10)]
    with it.watch(model := nn.Sequential(Floored()), store=store, tokens=words) as seen:
        for start, end in ((0, 4), *((n, n + 1) for n in range(4, 9))):
            if start in (5, 7):  # a search goes on from other rows
                q[:, :, :start], k[:, :, :start], v[:, :, :start] = (
                    x[parents, :, :start] for x in (q, k, v)
                )
            given = (x[:, :, a:end].clone() for x, a in ((q, start), (k, 0), (v, 0)))
            model[0](*given, mask[start:end, :end])
    expected = ((q @ k.mT).floor() + mask).softmax(-1)
    (entry,) = seen.calls
    assert entry.verified and entry.steps == 6 and "themselves" in str(seen.coverage())
    close(entry, expected)
    name, A = entry.name, entry.matrix()
    assert A.labels == (tuple(words[1:]), tuple(words[:-1]))
    table = seen.summary()
    assert [row["head"] for row in table.rows] == [0, 1, 2, 3] and not table.left_out
    seen.save(tmp_path / "run.safetensors")
    again = it.load_recording(tmp_path / "run.safetensors")
    assert torch.equal(again[name].dense(), A.dense()) and again[name].labels == A.labels
    seen.page(tmp_path / "page.html")


class Places(nn.Module):
    """A static cache without a mask: queries see places that are not written yet, as in LED."""

    def __init__(self, s: int) -> None:
        super().__init__()
        self.k = nn.Buffer(torch.zeros(2, 4, s, 8))
        self.written = 0

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        end = self.written + k.shape[-2]
        self.k[:, :, self.written : end] = k
        self.written = end
        weights = (q @ self.k.mT).softmax(-1)
        assert (weights @ self.k).shape == q.shape
        return weights


@pytest.mark.parametrize("store", ["copy", "disk"])
@pytest.mark.parametrize("prompt", [1, 3])
def test_places_of_a_static_cache_that_get_weight(prompt: int, store: Any, tmp_path: Path) -> None:
    q, k = torch.randn(2, 2, 4, 8, 8)
    with it.watch(model := Places(8), store=store) as seen:
        steps = ((0, prompt), *((n, n + 1) for n in range(prompt, 8)))  # the last one fills it
        weights = [model(q[:, :, a:b], k[:, :, a:b]) for a, b in steps]
    (entry,) = seen.calls
    assert entry.verified and entry.steps == 9 - prompt
    assert "places of a static cache get weight that hold no key yet" in str(seen.coverage())
    close(entry, torch.cat(weights, -2))
    seen.save(tmp_path / "run.safetensors")
    again = it.load_recording(tmp_path / "run.safetensors").calls[0].matrix()
    assert torch.equal(again.dense(), entry.matrix().dense())
    seen.page(tmp_path / "page.html")


@pytest.mark.parametrize("name", ["fsmt", "gpt neo"])
def test_static_caches_of_models_that_see_empty_places(name: str) -> None:
    """FSMT masks nothing there; GPT-Neo's padding sees them, where its window is out of place."""
    if name == "fsmt":
        model = spread(T.FSMTForConditionalGeneration, FSMT)
    else:
        model = spread(T.GPTNeoForCausalLM, GPT_NEO)
    ids = torch.randint(3, 50, (2, 6))
    real = torch.ones_like(ids)
    real[1, :2] = name == "fsmt"
    options = {"attention_mask": real, "max_new_tokens": NEW, "do_sample": False, **HOWS["static"]}
    with torch.no_grad():
        expected = model.generate(ids, **options)
        with Softmaxes() as ran:
            model.generate(ids, **options)
        with it.watch(model) as seen:
            found = model.generate(ids, **options)
    assert torch.equal(found, expected)
    assert len(seen.calls) == len(seen.layers) == (6 if name == "fsmt" else 2)
    for entry in seen.calls:
        assert entry.verified, entry.why
        rows = entry.matrix().dense().flatten(0, -2)
        everything = [x.reshape(-1, x.shape[-1]) for x in ran.found]
        wide = [nn.functional.pad(x, (0, rows.shape[-1] - x.shape[-1])) for x in everything]
        known = torch.cat([x for x in wide if x.shape[-1] == rows.shape[-1]])
        assert float(torch.cdist(rows, known, p=torch.inf).amin(-1).max()) < 1e-4, entry.name


EINSUMS: dict[str, Any] = {
    "heads first": ("bhtd,bhsd->bhts", "bhts,bhsd->bhtd", None),
    "steps before heads": ("bthd,bshd->bhts", "bhts,bshd->bthd", (0, 2, 1, 3)),
    "steps first": ("tbhd,sbhd->bhts", "bhts,sbhd->tbhd", (2, 0, 1, 3)),
}


class Einsum(nn.Module):
    def __init__(self, scores: str, mixed: str) -> None:
        super().__init__()
        self.scores, self.mixed = scores, mixed

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        weights = (torch.einsum(self.scores, q, k) + mask).softmax(-1)
        return torch.einsum(self.mixed, weights, v)


@pytest.mark.parametrize("b", [1, 2])
@pytest.mark.parametrize("prompt", [1, 3])
@pytest.mark.parametrize("name", EINSUMS)
def test_single_queries_of_an_einsum(name: str, prompt: int, b: int) -> None:
    """With an axis of size 1, `einsum` multiplies other shapes than else."""
    scores, mixed, order = EINSUMS[name]
    q, k, v = torch.randn(3, b, 4, 8, 8)
    mask = torch.full((8, 8), -torch.inf).triu(1)
    with it.watch(model := Einsum(scores, mixed)) as seen:
        for start, end in ((0, prompt), *((n, n + 1) for n in range(prompt, 8))):
            given = (x[:, :, a:end] for x, a in ((q, start), (k, 0), (v, 0)))
            turned = (x.permute(order) if order else x for x in given)
            model(*turned, mask[start:end, :end].expand(b, 1, end - start, end))
    (entry,) = seen.calls
    assert entry.verified and entry.steps == 9 - prompt
    close(entry, it.attend(q, k, scale=1, mask=it.causal()).dense())


@pytest.mark.parametrize("how", ["greedy", "beams"])
def test_heads_that_lie_in_the_batch_tell_beams_of_cross_attention(how: str) -> None:
    """FSMT multiplies (b · h, t, d) in its decoder and masks (b, h, t, s) in cross-attention."""
    model, ids = spread(T.FSMTForConditionalGeneration, FSMT), torch.randint(3, 64, (2, 6))
    seen, sequences = generated(model, ids, **HOWS[how])
    assert len(seen.calls) == len(seen.layers) == 6, str(seen.coverage())
    given = {"decoder_input_ids": sequences[:, :-1], "use_cache": False}
    with torch.no_grad():
        told = model(ids, **given, output_attentions=True)
    beams = HOWS[how]["num_beams"]
    for n in range(2):
        own = seen[f"model.decoder.layers.{n}.self_attn"].dense()
        cross = seen[f"model.decoder.layers.{n}.encoder_attn"].dense()
        beams_are_right(own, told.decoder_attentions[n], beams)
        beams_are_right(cross, told.cross_attentions[n], beams)


# --- one pass, and gradients ---------------------------------------------------------------------

MODELS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "bloom": (
        T.BloomModel,
        {"hidden_size": 16, "n_layer": 2, "n_head": 4, "vocab_size": 50},
        "h.{}.self_attention",
    ),
    "gpt-j": (T.GPTJModel, GPT, "h.{}.attn"),
    "deberta": (T.DebertaV2Model, DEBERTA, "encoder.layer.{}.attention.self"),
}


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_models_that_write_their_attention_out(name: str, rows: int) -> None:
    kind, options, layers = MODELS[name]
    model = spread(kind, options, 0.4)
    given = {
        "input_ids": torch.randint(3, 50, (rows, 7)),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 0, 0], [1] * 7])[:rows],
    }
    expected = model(**given, output_attentions=True).attentions
    for seen in (watched(model, **given), watched(model, deep=True, **given)):
        assert seen.layers == tuple(layers.format(n) for n in range(2))
        for entry, weights in zip(seen.calls, expected, strict=True):
            close(entry, weights, given["attention_mask"])


def test_gradients_of_a_llama_are_as_without() -> None:
    model, ids = drawn("llama"), torch.randint(3, 20, (2, 9))
    weights = list(model.parameters())
    expected = torch.autograd.grad(model(ids).logits.pow(2).sum(), weights)
    with it.watch(model, deep=True):
        found = torch.autograd.grad(model(ids).logits.pow(2).sum(), weights)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("std", [0.1, 0.4])
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", ["gpt-j", "codegen"])
def test_generation_with_a_cache(name: str, cache: str | None, std: float) -> None:
    """A static one has columns without keys yet, whose scores are hidden before they are scaled."""
    kind = {"gpt-j": T.GPTJForCausalLM, "codegen": T.CodeGenForCausalLM}[name]
    model = spread(kind, GPT | {"n_embd": 64}, std)
    ids = torch.randint(3, 50, (2, 5))
    options: dict[str, Any] = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    if cache is not None:
        options |= {"cache_implementation": cache, "disable_compile": True}
    with torch.no_grad():
        made = model.generate(ids, attention_mask=ids > 0, **options)
        with it.watch(model, deep=True) as seen:
            again = model.generate(ids, attention_mask=ids > 0, **options)
        expected = model(made[:, :-1], output_attentions=True).attentions
    assert torch.equal(made, again) and len(seen.calls) == 2, seen.coverage()
    for entry, weights in zip(seen.calls, expected):
        assert entry.verified, entry.why
        close(entry, weights, gap=1e-4)
