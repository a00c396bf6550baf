"""The command line as a newcomer uses it, and gets it wrong."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import intently as it
from intently.cli.app import COMMANDS
from intently.nn.models.transformer import Transformer, TransformerOptions
from intently.tasks.corpora import sample
from intently.tasks.text import Tokenizer
from intently.tasks.translation.translator import Translator

from ..command_line import Command, refused
from .conftest import save_recurrent

TINY = [
    *("--width", "16", "--heads", "2", "--inner", "16", "--encoder-layers", "1"),
    *("--decoder-layers", "1", "--steps", "4", "--warmup", "2", "--batch-tokens", "300"),
    *("--threads", "1", "--source-tokenizer", "word", "--target-tokenizer", "word"),
]


# --- translate ------------------------------------------------------------------------------------


def test_a_text_is_translated(intently: Command) -> None:
    outcome = intently("translate", "The road was too wide.")
    assert outcome == (0, "La route était trop large.\n", "")


def test_standard_input_and_files(intently: Command, tmp_path: Path) -> None:
    lines = b"\xef\xbb\xbfI drink milk.\r\n\r\n  \nThe road was too wide."
    expected = "Je bois du lait.\n\n\nLa route était trop large.\n"
    Path("lines.txt").write_bytes(lines)
    Path("lines.gz").write_bytes(gzip.compress(lines))
    assert intently("translate", "-", stdin=lines) == (0, expected, "")
    assert intently("translate", "lines.txt") == (0, expected, "")
    assert intently("translate", tmp_path / "lines.gz") == (0, expected, "")
    assert intently("translate", "-") == (0, "", "")
    assert intently("translate", "") == (0, "\n", "")
    assert intently("translate", "I drink milk. " * 30).status == 0  # no name of a file
    folder = Translator.load().save(tmp_path / "run" / "model").parent
    assert intently("translate", folder, stdin=b"I drink milk.\n").out == "Je bois du lait.\n"
    assert intently("translate", folder, "I drink milk.").out == "Je bois du lait.\n"


def test_nothing_reaches_a_terminal_raw(intently: Command) -> None:
    line = "I drink \x1b[31m\x07\x00\u202e milk.".encode()
    outcome = intently("translate", "--show", "--n-best", "2", "-", stdin=line)
    assert outcome.status == 0
    assert all(c.isprintable() or c in "\n\t" for c in outcome.out + outcome.err)
    assert "not in the model's vocabulary: ⟨U+001B⟩" in outcome.err


def test_n_best(intently: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = intently("translate", "--n-best", "3", "I drink milk.")
    rows = [line.split("\t") for line in outcome.out.splitlines()]
    assert [row[0] for row in rows] == ["1"] * 3
    assert float(rows[0][1]) > float(rows[1][1]) and rows[0][2] == "Je bois du lait."
    assert len(intently("translate", "--n-best", "6", "I drink milk.").out.splitlines()) == 6
    outcome = intently("translate", "--n-best", "3", "--beam", "2", "I drink milk.")
    assert "n_best: expected at most beam=2; got 3." in refused(outcome)
    outcome = intently("translate", "I.", "--beam", "0")
    assert outcome.status == 2 and "Traceback" not in outcome.err
    stream = Translator.stream

    def sure(*given: Any, **options: Any) -> Iterator[Any]:
        return (replace(made, score=-1e-9) for made in stream(*given, **options))

    monkeypatch.setattr(Translator, "stream", sure)
    outcome = intently("translate", "--n-best", "2", "I drink milk.")
    assert outcome.out.startswith("1\t0.0000\tJe bois du lait.\n")  # a score without a sign


def test_a_translation_is_one_line(intently: Command, tmp_path: Path) -> None:
    """A subword model may say a line break."""
    tokenizer = Tokenizer.train(["a b"], "subword", 300)
    model = Transformer(TransformerOptions(tokenizer.size, tokenizer.size, width=16, heads=2))
    (newline,) = (i for i in range(4, 260) if tokenizer.tokens([i]) == ["<0x0A>"])
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "decoder" in name or "norm" in name:
                p.zero_()
            if name.endswith("norm.bias") or name.endswith("norm_bias"):
                p.fill_(1.0)
        model.target_embedding.weight.zero_()
        model.target_embedding.weight[newline] = 5.0
    Translator(model, tokenizer, tokenizer).save(tmp_path / "model")
    (made,) = Translator.load(tmp_path).translate(["a"])
    outcome = intently("translate", tmp_path / "model", "-", stdin=b"a\na\n")
    assert outcome.out.count("\n") == 2
    assert made.text and made.text.isspace()  # no word whose alignment could be drawn
    drawn = ("--show", "--pictures", "drawn")
    outcome = intently("translate", tmp_path / "model", *drawn, "-", stdin=b"a\na\n")
    assert (outcome.status, outcome.out.count("\n")) == (0, 2)
    assert not os.listdir("drawn")


def test_alignments_are_shown_and_drawn(intently: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    outcome = intently("translate", "--show", "I drink milk.")
    assert "██" in outcome.out and "bois" in outcome.out and "\x1b" not in outcome.out
    outcome = intently("translate", "--pictures", "new/folder", "-", stdin=b"\nI drink milk.")
    assert outcome.status == 0
    assert os.listdir("new/folder") == ["alignment-0002.png"]


def test_cut_lines_are_named(intently: Command) -> None:
    lines = ["I drink milk."] * 262
    lines[260] = "I drink milk. " * 20
    outcome = intently("translate", "--beam", "1", "-", stdin="\n".join(lines).encode())
    assert outcome.err == "intently: line 261: 80 tokens, cut after 48\n"
    assert outcome.out.count("\n") == 262


def test_a_model_without_attention_draws_nothing(intently: Command) -> None:
    save_recurrent("fixed", "none")
    assert intently("translate", "fixed", "a").status == 0
    for flags in (["--show"], ["--pictures", "drawn"]):
        outcome = intently("translate", "fixed", "a", *flags)
        assert "--show, --pictures: expected a model with attention; got" in refused(outcome)
        assert outcome.out == ""
    assert not Path("drawn").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.txt"], "missing.txt: expected a text, a file of sentences, or -; got no such"),
        (["no/model", "I."], "no/model: expected a folder with translator.json, or a run"),
        (["empty", "I."], "got an empty folder"),
        (["foreign"], "It seems to hold a model of another library."),
        (["a.zip", "I."], "got a file."),
        (["model", "foreign"], "foreign: expected a text, a file of sentences, or -; got a folder"),
        (["bad.txt"], "bad.txt:2: expected UTF-8; got byte 0xff at byte 3"),
        (["-"], "standard input:1: expected UTF-8"),
        (["cut.gz"], "cut.gz: expected lines of text; got gzip data that is cut or damaged"),
        (["The", "road", "was"], "TEXT: expected one text in quotes; got 3 arguments"),
        (["I \udcff"], "lone surrogate U+DCFF"),
        (["I.", "--pictures", "a.zip"], "a.zip: File exists"),
    ],
    ids=lambda value: (
        " ".join(value).encode("ascii", "replace").decode() if isinstance(value, list) else ""
    ),
)
def test_wrong_arguments(
    intently: Command, tmp_path: Path, arguments: list[str], said: str
) -> None:
    for name in ("empty", "foreign"):
        (tmp_path / name).mkdir()
    (tmp_path / "foreign" / "config.json").write_text("{}")
    (tmp_path / "a.zip").write_bytes(b"PK\x03\x04")
    (tmp_path / "bad.txt").write_bytes(b"I drink milk.\nI \xff\n")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(os.urandom(10_000).hex().encode())[:-5])
    Translator.load().save(tmp_path / "model")
    assert said in refused(intently("translate", *arguments, stdin=b"\xff"))


def test_a_closed_pipe_is_silent() -> None:
    command = [sys.executable, "-m", "intently", "translate", "I drink milk."]
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, b"")


def test_closed_streams(intently: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed is lost, and told where that can be; a closed input holds no lines."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        outcome = intently("translate", "I drink milk.")
    said = "intently: standard output is closed: what was printed is lost\n"
    assert outcome == (1, "", said)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        patch.setattr(sys, "stderr", None)
        assert intently("translate", "I drink milk.") == (1, "", "")
        assert intently("translate", "missing.txt") == (2, "", "")
        assert intently("translate", "-") == (0, "", "")
    outcome = intently("translate", "-", stdin=None)
    assert "standard input: expected lines of text; got a closed stream." in refused(outcome)


@pytest.mark.skipif(os.name != "posix", reason="the shell closes them")
def test_streams_that_a_shell_closes() -> None:
    """A file that is opened then does not become the standard output of what is loaded later."""
    command = f"{sys.executable} -m intently translate - <&- >&- 2>&-"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, b"", b"")


# --- train and evaluate ---------------------------------------------------------------------------


def test_train_translate_evaluate_resume(intently: Command, files: tuple[str, str]) -> None:
    again = ("train", *files, "--out", "run", *TINY, "--max-length", "7")
    outcome = intently(*again)
    assert outcome.status == 0
    assert "60 sentence pairs from s.txt and t.txt" in outcome.out
    assert "no --dev: held out the last 3 pairs" in outcome.out
    assert "the translator is in run/model" in outcome.out
    assert Path("run/training.png").stat().st_size > 10_000
    assert "of 57 pairs have more than 7 tokens on a side and are skipped" in outcome.err
    assert intently("translate", "run", "I drink milk.").status == 0
    outcome = intently("evaluate", "run", *files, "--beam", "1")
    assert "exact match 0.0% [0.0%, 6.0%]\nlower-cased BLEU 0." in outcome.out
    assert "|version:" in outcome.out
    assert "Resume it (--resume" in refused(intently(*again))
    assert intently(*again, "--resume").status == 0
    assert "width: expected 16, with which the run began; got 32" in (
        intently(*again, "--resume", "--width", "32").err
    )


def test_train_on_a_packed_table_with_a_config(intently: Command) -> None:
    table = "".join(f"{p.source}\t{p.target}\n" for p in sample("train", 30)).encode()
    Path("pairs.tsv.gz").write_bytes(gzip.compress(table))
    Path("c.toml").write_text("[model]\nwidth = 64\n[schedule]\nsteps = 3\n[run]\nseed = 7\n")
    outcome = intently(
        "train", "pairs.tsv.gz", "--out", "run[red]", *TINY[2:], "--config", "c.toml"
    )
    assert outcome.status == 0, outcome.err
    assert "the translator is in run[red]/model" in outcome.out
    model = Translator.load("run[red]").model
    assert model.options.width == 64  # the file's, where no flag is given
    assert '"steps": 4' in Path("run[red]/options.json").read_text()  # the flag's
    assert '"seed": 7' in Path("run[red]/options.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["s.txt", "short.txt"], "s.txt has 60 lines, short.txt has 57"),
        (["s.txt", "empty.txt"], "empty.txt:8: no text in the line"),
        (["s.txt", "latin.txt"], "latin.txt:2: byte 7 of the line is not UTF-8"),
        (["no.tsv"], "no.tsv:2: no tab in the line"),
        (["s.txt", "."], ".: a folder, not a file"),
        (["one.tsv"], "expected a pair to hold out, beside one to learn; got 1. Give --dev"),
        (["s.txt", "t.txt", "--config", "wrong.toml"], "Did you mean width?"),
        (["s.txt", "t.txt", "--config", "no.toml"], "no.toml: expected a TOML file of options"),
        (["s.txt", "t.txt", "--norm", "foo"], "norm: expected one of 'pre', 'post'; got 'foo'"),
        (["s.txt", "t.txt", "--dev", "s.txt", "short.txt"], "s.txt has 60 lines, short.txt has 57"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.usefixtures("files")
def test_bad_data_and_options_are_refused(
    intently: Command, arguments: list[str], said: str
) -> None:
    lines = Path("t.txt").read_text().splitlines(keepends=True)
    Path("short.txt").write_text("".join(lines[:-3]))
    Path("empty.txt").write_text("".join([*lines[:7], " \n", *lines[8:]]))
    Path("latin.txt").write_bytes("".join(lines).encode("latin-1", "replace"))
    Path("no.tsv").write_text("a\tb\nc\n")
    Path("one.tsv").write_text("a\tb\n")
    Path("wrong.toml").write_text("[model]\nwidht = 64\n")
    outcome = intently("train", *arguments, "--out", "run", *TINY)
    assert outcome.status == 2 and outcome.err.startswith("intently: ")
    assert said in outcome.err and "Traceback" not in outcome.err
    assert not Path("run").exists()


def test_a_full_disk_is_one_line(
    intently: Command, files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    outcome = intently("train", *files, "--out", "run", *TINY)
    assert "No space left on device" in refused(outcome)
    assert "out: expected a folder, new or of a run; got the file s.txt" in refused(
        intently("train", *files, "--out", "s.txt", *TINY)
    )
    assert intently("train", *files, *TINY).status == 2
    assert not Path("run").exists()


@pytest.mark.parametrize("arguments", [["--help"], [], ["tranlsate", "a"]])
def test_help_needs_no_pytorch(arguments: list[str]) -> None:
    code = (
        f"import sys; sys.argv = ['intently', *{arguments}]\n"
        "import intently_command, atexit\n"
        "atexit.register(lambda: print(sorted({'torch', 'numpy', 'rich'} & {*sys.modules})))\n"
        "intently_command.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Usage: intently" in done.stdout + done.stderr
    assert done.stdout.endswith("[]\n"), done.stdout


def test_every_command_explains_itself(intently: Command) -> None:
    listed = intently("--help").out
    assert intently("--version") == (0, f"intently {it.__version__}\n", "")
    assert "--version" in listed
    for name, (_, summary) in COMMANDS.items():
        assert f"  {name} " in listed and summary in listed
        outcome = intently(name, "--help")
        assert outcome.status == 0 and f" {name} [OPTIONS]" in outcome.out
        assert summary in outcome.out
    assert "--label-smoothing" in intently("train", "--help-all").out
    assert "expected one of them; got both" in intently("demo", "--quick", "--thorough").err


def test_a_text_without_line_ends_is_one_message(intently: Command, tmp_path: Path) -> None:
    path = tmp_path / "endless.txt.gz"
    path.write_bytes(gzip.compress(b"a" * (2**24 + 1), 1))
    said = refused(intently("translate", str(path)))
    assert "endless.txt.gz:1: expected a line of text; got a line of more than 16 MiB" in said
    assert "a line of more than 16 MiB" in refused(
        intently("train-lm", str(path), "--out", str(tmp_path / "lm")), silent=False
    )


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"),
        torch.OutOfMemoryError("Tried to allocate 20.00 GiB"),
    ],
    ids=str,
)
def test_without_memory_no_traceback(
    intently: Command, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Translator, "load", fail)
    said = refused(intently("translate", "The road was wide."))
    assert said == "intently: not enough memory; choose smaller sizes, or shorter texts\n"


def test_a_mistyped_command_is_told_the_nearest(intently: Any) -> None:
    outcome = intently("trian", "text.txt")
    assert outcome.status == 2 and 'got "trian". Did you mean train?' in outcome.err
    assert "No such command" in intently("zzzz").err
