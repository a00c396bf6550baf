"""`intently check`: what is named is examined; 0 right, 1 wrong, 2 not examined, 3 not measured."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import intently as it
from intently.checker import Report
from intently.cli import check as checking
from intently.cli.examining import answer_of, bias_of, keywords, mask_of
from intently.errors import ArgumentError

from ..command_line import Command, refused

CODE = """
import torch
from torch import nn

class Mine(nn.Module):
    def __init__(self, dim, heads=4, ahead=0, drop=0.1):
        super().__init__()
        self.heads, self.ahead = heads, ahead
        self.qkv, self.drop = nn.Linear(dim, 3 * dim), nn.Dropout(drop)

    def forward(self, x):
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = [y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in parts]
        z = q @ k.mT * q.shape[-1] ** -0.5
        seen = torch.ones(z.shape[-2:]).tril(self.ahead).bool()
        w = self.drop(z.masked_fill(~seen, -torch.inf).softmax(-1))
        return (w @ v).transpose(1, 2).flatten(2)

def function(q, k, v):
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v

def near(q, k, v):
    seen = torch.ones(q.shape[-2], k.shape[-2]).tril().triu(-2).bool()
    z = q @ k.mT * q.shape[-1] ** -0.5
    return z.masked_fill(~seen, -torch.inf).softmax(-1) @ v

def make(dim=32, ahead=0):
    return Mine(dim, ahead=ahead)

def build_wide(dim):
    return Mine(dim)

def nothing_needed():
    return function

def get_number():
    return torch.ones(3)

def get_weighted(q, k, v):
    return function(q, k, v)

def times_two(q, k, v):
    return (q @ k.mT * 2 * q.shape[-1] ** -0.5).softmax(-1) @ v

class Two(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.first, self.second = Mine(dim), Mine(dim)

    def forward(self, x):
        return self.second(x + self.first(x))

def is_no_attention(q, k, v):
    return v.flip(-2)

class Broken:
    def __call__(self, x):
        raise RuntimeError("never mind")

made = Mine(32)
class Space:
    inner = made.eval()
"""

HOSTILE = """
import os, signal, sys
import torch
import near
from intently.checker import Report
from torch.nn.functional import scaled_dot_product_attention as right

calls = 0

def ends(q, k, v): os._exit(0)
def is_killed(q, k, v): os.kill(os.getpid(), signal.SIGKILL)
def exits(q, k, v): sys.exit()
def raises(q, k, v): raise BaseException("never mind")
def interrupts(q, k, v): raise KeyboardInterrupt
def is_sparse(q, k, v): return right(q, k, v).to_sparse()
def eats(q, k, v): raise MemoryError

def patches(q, k, v):
    torch.softmax = torch.Tensor.softmax = torch.nn.functional.softmax = None
    return right(q, k, v)

def says(q, k, v):
    os.write(1, b'{"ok": false}')
    return right(q, k, v)

def runs_on(q, k, v):
    if not os.fork():
        while True: pass
    return right(q, k, v)

class Unsayable(Exception):
    def __str__(self): raise RuntimeError("no words")

def breaks_later(q, k, v):
    global calls
    calls += 1
    if calls > 30: raise Unsayable
    return right(q, k, v)

class Odd:
    def __call__(self, q, k, v): return right(q, k, v)
    def __getattr__(self, name): raise KeyError(name)
odd = Odd()

def is_not_measured(q, k, v):
    Report.ok = None
    return right(q, k, v)

def hangs(q, k, v):
    with open("told", "w") as file:
        file.write("\\n")
        file.flush()
        while True: pass
"""


@pytest.fixture
def check(intently: Command, tmp_path: Path) -> Command:
    (tmp_path / "mine_here.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "math.py").write_text(HOSTILE, encoding="utf-8")
    (tmp_path / "near.py").touch()
    return partial(intently, "check")


@pytest.fixture
def check_here(check: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """The command without a child, which takes seconds to start: what is asked is the same."""
    monkeypatch.setattr(
        checking, "answer_of_child", lambda options, forms, _: answer_of(options, forms)
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield check
    sys.modules.pop("mine_here", None)


def test_what_is_right_ends_with_0(check: Command) -> None:
    outcome = check("mine_here.py:Mine", "--with", "dim=32", "--causal")
    assert outcome.status == 0 and not outcome.err, outcome
    assert outcome.out.startswith("takes x (b, t, c) = (2, 6, 32)\n")
    assert outcome.out.endswith("no mistake found\n")


def test_what_is_wrong_ends_with_1_and_says_why(check: Command) -> None:
    outcome = check("mine_here.py:Mine", "--with", "dim=32, ahead=1", "--causal")
    assert outcome.status == 1
    assert "query 0 attends to key 1 but should not" in outcome.out
    assert outcome.out.endswith("1 mistake: causal-off-by-one\n")


@pytest.mark.parametrize("subject", ["mine_here:function", "mine_here:Space.inner"])
def test_functions_and_objects_of_modules_are_taken_as_they_are(
    check_here: Command, subject: str
) -> None:
    outcome = check_here(subject)
    assert outcome.status == 0, outcome


def test_a_mask_is_an_expression(check_here: Command) -> None:
    assert check_here("mine_here:function", "--mask", "~causal() | causal()").status == 0
    assert check_here("mine_here:function", "--window", "3").status == 1
    assert check_here("mine_here:near", "--window", "3").status == 0
    wrong = check_here("mine_here.py:Space.inner", "--mask", "causal() & window(2, 0)")
    assert wrong.status == 1 and "window-missing" in wrong.out


def test_a_mask_for_each_module(check_here: Command) -> None:
    each = "--mask", "first=causal", "--mask", "sec*=causal() & causal"
    assert check_here("mine_here.py:Two", *each).status == 0
    wrong = check_here("mine_here.py:Two", *each[:3], "second=~causal | causal")
    assert wrong.status == 1 and "mistake: second: " in wrong.out, wrong
    only = check_here("mine_here.py:Two", *each[:3], "second=~causal | causal", "--layers", "first")
    assert only.status == 0 and "second" not in only.out, only
    both = check_here("mine_here.py:Two", *each, "--causal")
    assert "one mask, or PATTERN=EXPR for each that is stated; got both" in refused(both)


@pytest.mark.parametrize("name", ["make", "nothing_needed", "build_wide", "get_weighted"])
def test_a_factory_makes_what_is_examined(check_here: Command, name: str) -> None:
    given = ("--with", "dim=32") if name == "build_wide" else ()
    outcome = check_here(f"mine_here.py:{name}", *given)
    assert outcome.status == 0 and outcome.out.endswith("no mistake found\n"), outcome
    if name == "make":
        wrong = check_here("mine_here.py:make", "--with", "ahead=1", "--causal")
        assert wrong.status == 1 and "causal-off-by-one" in wrong.out


def test_a_scale_that_is_stated_is_the_intent(check_here: Command) -> None:
    given = "--input", "q=2,4,6,16", "--input", "k=2,4,6,16", "--input", "v=2,4,6,16"
    assert check_here("mine_here.py:times_two", *given).status == 1
    assert check_here("mine_here.py:times_two", *given, "--scale", "0.5").status == 0
    assert check_here("mine_here.py:function", *given, "--scale", "0.5").status == 1


def test_what_is_stated_reaches_the_examination(
    check_here: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, object] = {}

    def known(subject: object, **stated: object) -> Report:
        told.update(stated)
        return Report("", ("4 heads",), (), ())

    monkeypatch.setattr("intently.checker.check", known)
    stated = "--layout", "tbc", "--returns", "weights", "--layers", "a.*", "--layers", "b"
    assert check_here("mine_here.py:function", *stated).status == 0
    assert (told["layout"], told["returns"], told["scale"]) == ("tbc", "weights", None)
    assert told["layers"] == ["a.*", "b"] and told["mask"] is None
    outcome = check_here("mine_here.py:function", "--returns", "values")
    assert outcome.status == 2 and "'values' is not one of 'scores', 'weights'" in outcome.err


def test_what_is_not_measured_ends_with_3(check_here: Command, tmp_path: Path) -> None:
    files = "--json", "a.json", "--junit", "a.xml", "--page", "a.html"
    outcome = check_here("mine_here.py:is_no_attention", *files)
    assert outcome.status == 3 and "\nnot measured: " in outcome.out, outcome
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["ok"] is None
    failed = "testcase[@name='measured']/failure"
    assert ElementTree.parse(tmp_path / "a.xml").getroot().find(failed) is not None
    assert "verdict unmeasured" in (tmp_path / "a.html").read_text(encoding="utf-8")
    assert check_here("mine_here.py:is_no_attention", "--allow-unmeasured", *files).status == 0
    assert ElementTree.parse(tmp_path / "a.xml").getroot().find(failed) is None
    assert check_here("mine_here.py:function", "--causal", "--allow-unmeasured").status == 1


def test_another_is_what_it_should_be_like(check_here: Command) -> None:
    like = ("--like", "mine_here.py:made", "--input", "x=3,5,32")
    same = check_here("mine_here.py:Mine", "--with", "dim=32", *like)
    assert same.status == 0 and same.out.startswith("takes x (b, t, c) = (3, 5, 32)\n"), same
    parted = check_here("mine_here.py:Mine", "--with", "dim=32, ahead=1", *like)
    assert parted.status == 1 and "causal-off-by-one" in parted.out, parted


def test_reports_are_written(check: Command, tmp_path: Path) -> None:
    files = "--json", "out/a.json", "--junit", "out/a.xml", "--page", "out/a.html"
    outcome = check("mine_here.py:Mine", "--with", "dim=32, ahead=1", "--causal", *files)
    assert outcome.status == 1
    told = json.loads((tmp_path / "out/a.json").read_text(encoding="utf-8"))
    assert told["ok"] is False and told["findings"][0]["name"] == "causal-off-by-one"
    suite = ElementTree.parse(tmp_path / "out/a.xml").getroot()
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert "causal-off-by-one" in failed and suite.get("failures") == str(len(failed))
    assert suite.get("tests") == str(len(suite))
    assert "The causal mask is off by one" in (tmp_path / "out/a.html").read_text(encoding="utf-8")


def test_json_goes_to_standard_output_alone(check: Command) -> None:
    assert check("--help").out.count("\n") <= 50
    outcome = check("mine_here.py:function", "--json", "-")
    assert json.loads(outcome.out)["ok"] is True


def test_a_folder_of_transformers_is_examined(check_here: Command, tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 16, "vocab_size": 50}
    GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(tmp_path / "gpt2")
    outcome = check_here("gpt2")
    assert outcome.status == 0, outcome
    assert "input_ids (b, t) = (2, 6)" in outcome.out and "causal" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing",), "SUBJECT: expected my_module.py:MyAttention"),
        (("gone.py:Mine",), "no file gone.py"),
        (("mine_here.py:Yours",), "no Yours there, but Mine, function, near"),
        (("mine_here.py:Mine",), 'It needs dim. Add --with "dim=…", or name a factory.'),
        (("mine_here.py:get_number",), "returns a module or a function; got Tensor"),
        (("mine_here.py:Mine", "--with", "dim='x'"), "what Mine can be made of; got TypeError"),
        (("mine_here.py:Mine", "--with", "dim=open('x')"), "plain values"),
        (("mine_here.py:function", "--with", "dim=3"), "a class or a factory"),
        (("mine_here.py:made", "--mask", "__import__('os')"), "--mask: expected causal, window"),
        (
            ("mine_here.py:made", "--mask", "causal(1, 2, 3, 4)"),
            "causal: expected at most 1 argument; got 4",
        ),
        (("mine_here.py:made", "--mask", "causal("), "--mask: expected"),
        (("mine_here.py:made", "--mask", "inner=open"), "--mask: expected causal, window"),
        (("mine_here.py:made", "--mask", "window"), "--mask: expected"),
        (("mine_here.py:made", "--mask", "=causal"), "--mask: expected a name and a value"),
        (("mine_here.py:made", "--input", "x=2,many"), "--input: expected a name and sizes"),
        (("mine_here.py:made", "--argument", "x"), "--argument: expected a name and a value"),
        (("mine_here.py:made", "--argument", "x=yes"), "expected one of attend, ignore"),
        (("mine_here.py:made", "--page", "a.pdf"), "a.pdf"),
        (("absent_here:Mine",), "ModuleNotFoundError"),
        (("mine_here.py:Broken",), "never mind"),
    ],
)
def test_what_cannot_be_examined_is_refused(
    check_here: Command, arguments: tuple[str, ...], said: str
) -> None:
    assert said in refused(check_here(*arguments))


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ("ends", "expected a report; got none: the code ended its process, with status 0"),
        ("is_killed", "expected a report; got none: the process was killed"),
        ("exits", "the code ends the process: exit(None)"),
        ("raises", "the code raised BaseException: never mind"),
        ("interrupts", "got KeyboardInterrupt. It was raised in interrupts, "),
        ("is_sparse", "a call that returns a dense tensor; got one of layout torch.sparse_coo"),
        ("eats", "MemoryError"),
        ("patches", "TypeError: 'NoneType' object is not callable"),
        ("breaks_later", "expected a subject that can be examined; got one that raises"),
        ("odd", "expected a subject that can be examined; got one that raises KeyError"),
    ],
)
def test_code_that_gives_no_report_never_passes(
    check: Command, tmp_path: Path, subject: str, said: str
) -> None:
    (tmp_path / "a.json").write_text("{}")
    assert said in refused(check(f"math.py:{subject}", "--json", "a.json", "--junit", "a.xml"))
    assert (tmp_path / "a.json").read_text() == "{}" and not (tmp_path / "a.xml").exists()


def test_code_that_hangs_has_a_time_limit(check: Command, tmp_path: Path) -> None:
    (tmp_path / "told").touch()
    outcome = check("math.py:hangs", "--timeout", "1", "--json", "a.json")
    assert "expected a report; got none within 1 s" in refused(outcome)
    assert not (tmp_path / "a.json").exists()


def test_what_the_code_prints_and_leaves_running_is_no_report(check: Command) -> None:
    outcome = check("math.py:says", "--json", "-")
    assert (outcome.status, json.loads(outcome.out)["ok"]) == (0, True)
    assert '{"ok": false}' in outcome.err
    assert check("math.py:runs_on").status == 0
    assert check("math.py:is_not_measured").status == 3


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize(
    ("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)]
)
def test_the_code_ends_with_the_command(
    check: Command, tmp_path: Path, sent: signal.Signals, status: int
) -> None:
    os.mkfifo(tmp_path / "told")
    (tmp_path / "made").mkdir()
    command = [sys.executable, "-P", "-m", "intently", "check", "math.py:hangs"]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "made")}
    hears = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=-1, stderr=-1, preexec_fn=hears
    ) as process:
        with (tmp_path / "told").open() as told:
            assert told.readline() == "\n"
            process.send_signal(sent)
            assert told.read() == ""  # the end comes when the code has ended
        out, error = process.communicate()
    assert (process.returncode, out) == (status, b"") and b"Traceback" not in error, error
    assert not list((tmp_path / "made").iterdir())


def test_expressions_are_values_of_attend() -> None:
    assert repr(mask_of("causal() & window(3, 0)")) == repr(it.causal() & it.window(3, 0))
    assert repr(mask_of("causal | it.window(3, after=0)")) == repr(it.causal() | it.window(3, 0))
    assert repr(mask_of("~it.padding([6, 4])")) == repr(~it.padding([6, 4]))
    assert repr(bias_of("alibi(4)")) == repr(it.alibi(4))
    assert keywords("") == {} and keywords("a=-1, b=[2, None]") == {"a": -1, "b": [2, None]}


@pytest.mark.parametrize(
    "text", ["causal.n", "1", "causal() + causal()", "().__class__", "os.causal()", "f()", ""]
)
def test_nothing_else_is_an_expression(text: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape("--mask: expected")):
        mask_of(text)
