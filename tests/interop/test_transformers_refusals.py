"""What `load` refuses of transformers models, their folders and their calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from intently.errors import ArgumentError, CheckpointError, DataError, KindError
from intently.interop.transformers import load

from ..show.refusals import refuses
from .tiny_models import (
    BERT,
    DECODERS,
    GPT2,
    MARIAN,
    ROPE,
    SHARED,
    close,
    first,
    foreign,
    ids,
    text,
)


def test_left_over_parameters_are_named(tmp_path: Path) -> None:
    theirs = foreign("GPT2LMHeadModel", {**GPT2, "add_cross_attention": True})
    with pytest.raises(CheckpointError, match=r"GPT2LMHeadModel: .*crossattention.* left over"):
        load(theirs)
    theirs = foreign(*DECODERS["llama"])
    theirs.model.layers[1].mlp.adapter = torch.nn.Linear(2, 2)
    with pytest.raises(CheckpointError, match=r"model.layers.1.mlp.adapter.bias"):
        load(theirs)


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


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    refuses(
        KindError,
        {
            "BartModel, of the family 'bart'": lambda: load(
                foreign("BartModel", {**MARIAN, "eos_token_id": 2, "bos_token_id": 1})
            ),
            r"source: expected one of GPT2Model.*got Linear": lambda: load(torch.nn.Linear(2, 2)),
        },
    )
    refuses(DataError, {r"source: expected a folder with config\.json": lambda: load(tmp_path)})
    refuses(
        ArgumentError,
        {
            r"config.is_decoder: expected False; got True": lambda: load(
                foreign("BertModel", {**BERT, "is_decoder": True})
            ),
            r"config.is_causal: expected True; got False": lambda: load(
                foreign("LlamaModel", {**SHARED, "is_causal": False})
            ),
            r"config.hidden_act: expected one of relu.*'mish'": lambda: load(
                foreign("BertModel", {**BERT, "hidden_act": "mish"})
            ),
            r"config.encoder_layerdrop: expected 0; got 0.5": lambda: load(
                foreign("MarianModel", {**MARIAN, "encoder_layerdrop": 0.5})
            ),
        },
    )
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "factor": 4.0,
        "short_factor": [1.0] * 4,
        "long_factor": [1.0] * 4,
        "original_max_position_embeddings": 16,
    }
    with pytest.raises(ArgumentError, match=r"config\.rope_parameters: expected default, linear"):
        load(foreign("LlamaModel", {**SHARED, "rope_parameters": rope}))
    rope = {
        **ROPE,
        "rope_type": "yarn",
        "original_max_position_embeddings": 16,
        "mscale": 2.0,
        "mscale_all_dim": 1.0,
    }
    with pytest.raises(ArgumentError, match=r"options of 'yarn' that are known; got \['mscale"):
        load(foreign("LlamaModel", {**SHARED, "rope_parameters": rope}))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(DataError, match="the name of a class in architectures; got None"):
        load(tmp_path)


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


@pytest.mark.parametrize("scaling", SCALED)
@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
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
    with pytest.raises(ArgumentError) as caught:
        load(theirs)
    assert str(caught.value) == (
        f"config.partial_rotary_factor: expected 1 beside the scaling {scaling!r}; got 0.5. Their "
        "own model cannot turn a part of each head."
    )


def test_bad_calls() -> None:
    _, model = text(*DECODERS["gpt2"])
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
        },
    )
    _, model = text(*DECODERS["llama"])
    with pytest.raises(ArgumentError, match="positions: expected None"):
        model(ids(), positions=torch.arange(11))
