"""Options that choose the model: they reach it, and are refused where it has none such."""

from __future__ import annotations

import pytest

from intently.errors import ArgumentError, KindError
from intently.models import RecurrentOptions, TransformerOptions
from intently.training import TrainingOptions


def test_they_describe_the_model() -> None:
    assert TrainingOptions().shape(9, 8) == TransformerOptions(9, 8)
    given = {"cell": "lstm", "attention": "dot", "bidirectional": False, "input_feeding": False}
    options = TrainingOptions().with_flags(model="recurrent", width=64, **given)
    expected = RecurrentOptions(9, 8, width=64, encoder_layers=2, decoder_layers=2, **given)  # pyright: ignore[reportArgumentType]
    assert options.shape(9, 8) == expected
    assert TrainingOptions.from_dict(options.to_dict()) == options


def test_a_toml_file_has_a_section_for_them(tmp_path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[architecture]\nmodel = "recurrent"\nbidirectional = false\n')
    options = TrainingOptions.from_toml(path).shape(9, 8)
    assert isinstance(options, RecurrentOptions) and not options.bidirectional
    path.write_text('[architecture]\ncell = "lstm"\n')
    with pytest.raises(ArgumentError, match=r"run\.toml: cell: expected the default 'gru', or mod"):
        TrainingOptions.from_toml(path)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            {"attention": "dot"},
            "attention: expected the default 'additive', or model='recurrent'; got 'dot'. A model "
            "of the kind 'transformer' has no option attention.",
        ),
        (
            {"model": "recurrent", "norm": "post"},
            "norm: expected the default 'pre', or model='transformer'; got 'post'. A model of the "
            "kind 'recurrent' has no option norm.",
        ),
        ({"model": "cnn"}, "model: expected one of 'transformer', 'recurrent'; got 'cnn'."),
        ({"cell": "qrnn"}, "cell: expected one of 'rnn', 'lstm', 'gru'; got 'qrnn'."),
    ],
)
def test_what_a_model_has_not_is_refused(flags: dict[str, str], words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        TrainingOptions().with_flags(**flags)
    assert str(caught.value) == words


def test_a_switch_is_true_or_false() -> None:
    with pytest.raises(KindError, match=r"^bidirectional: expected true or false; got 1 \(int\)\."):
        TrainingOptions().with_flags(model="recurrent", bidirectional=1)
