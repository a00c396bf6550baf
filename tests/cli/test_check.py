"""`intently check`: what is named is examined; status 0 right, 1 wrong, 2 not examined."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import intently as it
from intently.cli.expressions import bias_of, keywords, mask_of
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

class Broken:
    def __call__(self, x):
        raise RuntimeError("never mind")

made = Mine(32)
class Space:
    inner = made.eval()
"""


@pytest.fixture
def check(intently: Command, tmp_path: Path) -> Iterator[Command]:
    (tmp_path / "mine_here.py").write_text(CODE, encoding="utf-8")
    before = list(sys.path)
    yield partial(intently, "check")
    sys.path[:] = before
    sys.modules.pop("mine_here", None)


def test_what_is_right_ends_with_0(check: Command) -> None:
    outcome = check("mine_here.py:Mine", "--with", "dim=32", "--causal")
    assert outcome.status == 0 and not outcome.err, outcome
    assert outcome.out.startswith("takes x (b, t, c) = (2, 6, 32)\n")
    assert outcome.out.endswith("no mistake found\n")


def test_what_is_wrong_ends_with_1_and_says_why(check: Command) -> None:
    outcome = check("mine_here.py:Mine", "--with", "dim=32, ahead=1", "--causal")
    assert outcome.status == 1
    assert "query 0 attends key 1 and should not" in outcome.out
    assert outcome.out.endswith("1 mistake: causal-off-by-one\n")


@pytest.mark.parametrize("subject", ["mine_here:function", "mine_here:Space.inner"])
def test_functions_and_objects_of_modules_are_taken_as_they_are(
    check: Command, subject: str
) -> None:
    outcome = check(subject)
    assert outcome.status == 0, outcome


def test_a_mask_is_an_expression(check: Command) -> None:
    assert check("mine_here:function", "--mask", "~causal() | causal()").status == 0
    assert check("mine_here:function", "--window", "3").status == 1
    wrong = check("mine_here.py:Space.inner", "--mask", "causal() & window(2, 0)")
    assert wrong.status == 1 and "window-missing" in wrong.out


def test_another_is_what_it_should_be_like(check: Command) -> None:
    same = check("mine_here.py:Mine", "--with", "dim=32", "--like", "mine_here.py:made")
    assert same.status == 0, same
    parted = check("mine_here.py:Mine", "--with", "dim=32, ahead=1", "--like", "mine_here.py:made")
    assert parted.status == 1 and "causal-off-by-one" in parted.out, parted


def test_inputs_are_given_by_shape(check: Command) -> None:
    outcome = check("mine_here.py:made", "--input", "x=3,5,32")
    assert outcome.out.startswith("takes x (b, t, c) = (3, 5, 32)\n")


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
    outcome = check("mine_here.py:function", "--json", "-")
    assert json.loads(outcome.out)["ok"] is True


def test_a_folder_of_transformers_is_examined(check: Command, tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 16, "vocab_size": 50}
    GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(tmp_path / "gpt2")
    outcome = check("gpt2")
    assert outcome.status == 0, outcome
    assert "input_ids (b, t) = (2, 6)" in outcome.out and "causal" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing",), "SUBJECT: expected my_module.py:MyAttention"),
        (("gone.py:Mine",), "no file gone.py"),
        (("mine_here.py:Yours",), "no Yours there, but Mine, function"),
        (("mine_here.py:Mine",), 'It needs dim. Add --with "dim=…".'),
        (("mine_here.py:Mine", "--with", "dim='x'"), "what Mine can be made of; got TypeError"),
        (("mine_here.py:Mine", "--with", "dim=open('x')"), "plain values"),
        (("mine_here.py:function", "--with", "dim=3"), "a class that is made"),
        (("mine_here.py:made", "--mask", "__import__('os')"), "--mask: expected causal, window"),
        (("mine_here.py:made", "--mask", "causal(1, 2, 3, 4)"), "--mask: expected"),
        (("mine_here.py:made", "--mask", "causal("), "--mask: expected"),
        (("mine_here.py:made", "--input", "x=2,many"), "--input: expected a name and sizes"),
        (("mine_here.py:made", "--argument", "x"), "--argument: expected a name and a value"),
        (("mine_here.py:made", "--argument", "x=yes"), "expected one of attend, ignore"),
        (("mine_here.py:made", "--page", "a.pdf"), "a.pdf"),
        (("absent_here:Mine",), "ModuleNotFoundError"),
    ],
)
def test_what_cannot_be_examined_is_refused(
    check: Command, arguments: tuple[str, ...], said: str
) -> None:
    assert said in refused(check(*arguments))


def test_code_that_fails_ends_with_2(check: Command) -> None:
    outcome = check("mine_here.py:Broken")
    assert outcome.status == 2 and "never mind" in outcome.err


def test_help_fits_a_screen(check: Command) -> None:
    assert check("--help").out.count("\n") <= 34


def test_expressions_are_values_of_attend() -> None:
    assert repr(mask_of("causal() & window(3, 0)")) == repr(it.causal() & it.window(3, 0))
    assert repr(mask_of("~it.padding([6, 4])")) == repr(~it.padding([6, 4]))
    assert repr(bias_of("alibi(4)")) == repr(it.alibi(4))
    assert keywords("") == {} and keywords("a=-1, b=[2, None]") == {"a": -1, "b": [2, None]}


@pytest.mark.parametrize(
    "text", ["causal", "1", "causal() + causal()", "().__class__", "os.causal()", "f()", ""]
)
def test_nothing_else_is_an_expression(text: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape("--mask: expected")):
        mask_of(text)
