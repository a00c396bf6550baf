"""The Transformer's variants as options of a run: they reach the model, or are refused by text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from intently.cli.app import app
from intently.errors import ArgumentError
from intently.models import Transformer, TransformerOptions
from intently.training import TrainingOptions
from intently.training.optimiser import Optimiser
from intently.translation.translator import Translator

VARIANT: dict[str, Any] = {
    "positions": "rotary",
    "kv_heads": 2,
    "feed_forward": "gated",
    "norm": "post",
}


def test_they_reach_the_model(tmp_path: Path) -> None:
    options = TrainingOptions().with_flags(**VARIANT)
    assert options.shape(9, 8) == TransformerOptions(9, 8, **VARIANT)
    path = tmp_path / "run.toml"
    path.write_text('[transformer]\npositions = "learned"\nlearned_steps = 299\nkv_heads = 1\n')
    expected = TransformerOptions(9, 8, positions="learned", learned_steps=299, kv_heads=1)
    assert TrainingOptions.from_toml(path).shape(9, 8) == expected


def test_options_stored_before_there_were_variants_mean_the_same() -> None:
    stored = TrainingOptions().to_dict()
    for name in ("positions", "kv_heads", "feed_forward", "learned_steps"):
        del stored["transformer"][name]
    assert TrainingOptions.from_dict(stored) == TrainingOptions()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"kv_heads": 3}, "kv_heads: expected a divisor of heads=4; got 3."),
        ({"kv_heads": 0}, "kv_heads: expected an integer from 1 to 2**31 - 1; got 0."),
        (
            {"positions": "learned", "learned_steps": 99},
            "learned_steps: expected at least 2·max_length + 10 = 266; got 99. The table of "
            "positions ends there, and a search may write as much.",
        ),
        (
            {"positions": "rotory"},
            "positions: expected one of 'sinusoidal', 'learned', 'rotary'; got 'rotory'.",
        ),
        (
            {"feed_forward": "swiglu"},
            "feed_forward: expected one of 'relu', 'gated'; got 'swiglu'.",
        ),
        (
            {"positions": "rotary", "width": 20},
            'positions: expected "sinusoidal" or "learned" for heads of an odd width; got "rotary" '
            "where width/heads=5. Rotary positions turn pairs of numbers. Choose other heads or "
            "another width.",
        ),
        (
            {"model": "recurrent", "kv_heads": 2},
            "kv_heads: expected the default None, or model='transformer'; got 2. A model of the "
            "kind 'recurrent' has no option kv_heads.",
        ),
        (
            {"model": "recurrent", "positions": "rotary"},
            "positions: expected the default 'sinusoidal', or model='transformer'; got 'rotary'. "
            "A model of the kind 'recurrent' has no option positions.",
        ),
    ],
)
def test_what_does_not_fit_is_refused(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        TrainingOptions().with_flags(**flags)
    assert str(caught.value) == words


def test_learned_positions_are_no_matrices_to_the_optimiser() -> None:
    """They are looked up as embeddings are: no weight decay, and none of Muon's steps."""
    model = Transformer(TransformerOptions(9, 9, width=8, heads=2, inner=8, positions="learned"))
    groups = Optimiser(model, TrainingOptions().optimiser).groups
    assert {"source_positions.weight", "target_positions.weight"} <= set(groups["others"])


def test_the_command_line_trains_them(tmp_path: Path) -> None:
    for name, lines in (("s.txt", ["I drink milk.", "We eat."]), ("t.txt", ["Je bois.", "Oui."])):
        (tmp_path / name).write_text("\n".join(lines * 8), encoding="utf-8")
    given = [str(tmp_path / "s.txt"), str(tmp_path / "t.txt"), "--out", str(tmp_path / "run")]
    given += ["--steps", "2", "--width", "16", "--inner", "8", "--evaluate-every", "9"]
    given += ["--positions", "rotary", "--kv-heads", "2", "--feed-forward", "gated"]
    made = CliRunner().invoke(app, ["train", *given], catch_exceptions=False)
    assert made.exit_code == 0, made.output
    found = Translator.load(tmp_path / "run").model.options
    assert isinstance(found, TransformerOptions)
    assert (found.positions, found.kv_heads, found.feed_forward) == ("rotary", 2, "gated")
