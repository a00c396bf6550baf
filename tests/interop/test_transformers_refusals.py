"""What `load` refuses of transformers models, their folders and their calls."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from intently.errors import ArgumentError, CheckpointError, DataError, KindError
from intently.interop.transformers import load
from intently.tasks.runners import open_model, open_reader

from ..messages import refused
from ..show.refusals import refuses
from .tiny_models import (
    BERT,
    DECODERS,
    GPT2,
    MARIAN,
    ROPE,
    SHARED,
    T5,
    close,
    first,
    foreign,
    ids,
    text,
)


def test_left_over_parameters_are_named() -> None:
    crossed = foreign("GPT2LMHeadModel", {**GPT2, "add_cross_attention": True})
    adapted = foreign(*DECODERS["llama"])
    adapted.model.layers[1].mlp.adapter = torch.nn.Linear(2, 2)
    refuses(
        CheckpointError,
        {
            r"GPT2LMHeadModel: .*crossattention.* left over": lambda: load(crossed),
            r"model.layers.1.mlp.adapter.bias": lambda: load(adapted),
        },
    )


def saved(folder: Path, name: str, given: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Save a model into the folder, its config with these changes; return the config as it was."""
    foreign(name, given).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return config


def test_folders_with_other_tensors(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    foreign(*DECODERS["llama"]).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "lora": torch.ones(1)}, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"the tensors of LlamaForCausalLM; got 'lora' left"):
        load(tmp_path)
    tensors.pop("model.norm.weight")
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"got 'model.norm.weight' missing"):
        load(tmp_path)


LONG: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "factor": 4.0,
    "short_factor": [1.0] * 4,
    "long_factor": [1.0] * 4,
    "original_max_position_embeddings": 16,
}
YARN: dict[str, Any] = {
    **ROPE,
    "rope_type": "yarn",
    "original_max_position_embeddings": 16,
    "mscale": 2.0,
    "mscale_all_dim": 1.0,
}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("BertModel", {**BERT, "is_decoder": True}, "is_decoder: expected False; got True"),
    ("LlamaModel", {**SHARED, "is_causal": False}, "is_causal: expected True; got False"),
    ("BertModel", {**BERT, "hidden_act": "mish"}, "hidden_act: expected one of relu.*'mish'"),
    ("MarianModel", {**MARIAN, "encoder_layerdrop": 0.5}, "encoder_layerdrop: expected 0; got 0.5"),
    ("LlamaModel", {**SHARED, "rope_parameters": LONG}, ".*rope_type: expected one of default, li"),
    (
        "LlamaModel",
        {**SHARED, "rope_parameters": YARN},
        r".*not read: expected \[\]; got \['mscale",
    ),
]


@pytest.mark.parametrize(("name", "given", "told"), REFUSED)
def test_configurations_that_are_refused(name: str, given: dict[str, Any], told: str) -> None:
    with pytest.raises(ArgumentError, match=rf"config\.{told}"):
        load(foreign(name, given))


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    bart = foreign("BartModel", {**MARIAN, "eos_token_id": 2, "bos_token_id": 1})
    refuses(
        KindError,
        {
            "BartModel, of the family 'bart'": lambda: load(bart),
            r"source: expected one of GPT2Model.*got Linear": lambda: load(torch.nn.Linear(2, 2)),
        },
    )
    refuses(DataError, {r"source: expected a folder with config\.json": lambda: load(tmp_path)})
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    told = "expected a transformers model in safetensors; got one of class None"
    refuses(DataError, {told: lambda: load(tmp_path)})


PARTIAL = {"partial_rotary_factor": 0.5, "rope_theta": 500.0, "factor": 4.0}


SCALED: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "beta_fast": 7.0},
    "linear": {"rope_type": "linear"},
    "dynamic": {"rope_type": "dynamic"},
    "yarn": {"rope_type": "yarn", "original_max_position_embeddings": 16},
    "llama3": {
        "rope_type": "llama3",
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}


@pytest.mark.parametrize(
    ("family", "scaling"),
    [
        *(("Llama", scaling) for scaling in SCALED),
        *((family, "default") for family in ("Mistral", "Qwen2", "Qwen3")),
    ],
)
def test_a_head_turns_as_a_whole(family: str, scaling: str) -> None:
    """Without a scaling theirs pass over all options but the base; with one they cannot run."""
    given = {**SHARED, "head_dim": 12, "rope_parameters": {**PARTIAL, **SCALED[scaling]}}
    theirs = foreign(f"{family}Model", given)
    if scaling == "default":
        with torch.no_grad():
            close(load(theirs)(ids()), first(theirs(ids())))
        return
    with pytest.raises(RuntimeError):
        theirs(ids())
    refused(
        lambda: load(theirs),
        ArgumentError,
        f"config.partial_rotary_factor beside {scaling!r}: expected None or 1; got 0.5. Their "
        "own model cannot turn a part of each head.",
        whole=True,
    )


def test_bad_calls() -> None:
    (_, model), (_, llama) = text(*DECODERS["gpt2"]), text(*DECODERS["llama"])
    refuses(
        KindError,
        {r"ids: expected a tensor \(b, t\) of whole numbers": lambda: model(torch.zeros(1, 2))},
    )
    refuses(
        ArgumentError,
        {
            r"ids: expected shape \(b, t\); got shape \(3,\)": lambda: model(ids()[0, :3]),
            "ids: expected at most 64 steps, cached ones included": lambda: model(ids(t=65)),
            r"types: expected None; got shape \(2, 11\)": lambda: model(ids(), types=ids()),
            "positions: expected None": lambda: llama(ids(), positions=torch.arange(11)),
        },
    )


BROKEN: dict[str, Any] = {
    "config cut": lambda config: "{",
    "no heads": lambda config: {**config, "num_attention_heads": 0},
    "heads in words": lambda config: {**config, "num_attention_heads": "four"},
    "architectures no list": lambda config: {**config, "architectures": 5},
    "architectures no names": lambda config: {**config, "architectures": [True]},
    "an unknown class": lambda config: {**config, "architectures": ["Nothing"]},
    "a class that is no model": lambda config: {**config, "architectures": ["AutoConfig"]},
    "a type of model that does not exist": lambda config: {**config, "model_type": "nothing"},
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_folder_is_refused_in_our_words(tmp_path: Path, broken: str) -> None:
    content = BROKEN[broken](saved(tmp_path, *DECODERS["llama"]))
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(DataError) as error:
        load(tmp_path)
    told = str(error.value).replace(f"{tmp_path}", "folder")
    expected = r"folder: expected a transformers model in safetensors; got "
    assert re.match(rf"{expected}|folder/config\.json: expected the config of a transf", told)
    with pytest.raises(DataError):
        open_model(tmp_path)


def test_cut_weights_are_refused_in_our_words(tmp_path: Path) -> None:
    foreign(*DECODERS["llama"]).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError, match="expected a safetensors file"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "given", "option"),
    [
        (*DECODERS["llama"], "num_hidden_layers"),
        ("GPT2Model", GPT2, "n_layer"),
        ("MarianMTModel", MARIAN, "encoder_layers"),
        ("MarianMTModel", MARIAN, "decoder_layers"),
        ("T5Model", T5, "num_decoder_layers"),
    ],
)
def test_layers_without_weights_are_never_built(
    tmp_path: Path, name: str, given: dict[str, Any], option: str
) -> None:
    for many, nested in ((2**63 - 1, False), (10_000, True)):
        saved(
            tmp_path, name, given, **{"text_config": [{option: many}]} if nested else {option: many}
        )
        for read in (load, open_model, open_reader):
            with pytest.raises(DataError, match=rf"{option} up to .* got {many:,}"):
                read(tmp_path)


def test_a_config_that_names_other_files_is_refused(tmp_path: Path) -> None:
    """Their reader would take one of these instead, whose layers nobody counted."""
    config = saved(tmp_path, *DECODERS["llama"], configuration_files=["config.4.0.0.json"])
    (tmp_path / "config.4.0.0.json").write_text(json.dumps({**config, "num_hidden_layers": 99}))
    for read in (load, open_model):
        with pytest.raises(DataError, match="got one that names other files"):
            read(tmp_path)


def test_layers_that_a_config_leaves_out_are_told(tmp_path: Path) -> None:
    saved(tmp_path, "BertModel", BERT, num_hidden_layers=0)
    for read in (load, open_model):
        with pytest.raises(CheckpointError, match=r"the tensors of BertModel; got .* left over"):
            read(tmp_path)


def test_a_model_without_its_pooler_can_be_watched(tmp_path: Path) -> None:
    foreign("BertForMaskedLM", BERT).bert.save_pretrained(tmp_path)
    assert type(open_model(tmp_path)).__name__ == "BertModel"
    with pytest.raises(CheckpointError, match=r"pooler\.dense\.bias.* missing"):
        load(tmp_path)


def test_a_foreign_error_says_what_to_do(tmp_path: Path) -> None:
    saved(tmp_path, *DECODERS["llama"], num_attention_heads=0)
    with pytest.raises(DataError, match=r"Save it again with model\.save_pretrained\(folder\)"):
        load(tmp_path)
