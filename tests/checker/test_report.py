"""What a report says: its three verdicts, printed, as JSON, as JUnit XML."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from intently.checker import Finding, Report
from intently.checker.properties.every import Property
from intently.checker.report.finding import Example
from intently.checker.report.page import parts

SHOWN = Example(((1.0, 0.0),), ((0.75, 0.25),), (3,), (0, 4), (3, 4))
SCALE = Finding("no-scale", "the scale is 1", where="block.0", cell=(0, 1, 3, 4), example=SHOWN)
NAN = Finding("nan-without-keys", "a row without keys gives NaN", "hazard")
LEAK = Finding("leak-later", "output 0 changes with input 1")
WHY = ("cross: its scores are no product", "pool: its weights meet no values")
SINK = Finding("sink", "a sink takes part", "convention")


def report(
    *findings: Finding,
    computes: tuple[str, ...] = ("block.0: 4 heads of 8",),
    unmeasured: tuple[str, ...] = (),
) -> Report:
    properties = (
        Property("batch", True),
        Property("padding", None, "no padding mask"),
        Property("causal", LEAK not in findings, "", tuple(f for f in findings if f == LEAK)),
        Property("empty rows", NAN not in findings, "NaN", tuple(f for f in findings if f == NAN)),
    )
    return Report("takes x (2, 6, 32)", computes, findings, properties, "Mine", unmeasured)


@pytest.mark.parametrize(
    ("findings", "verdict"),
    [
        ((), "no mistake found"),
        ((SINK,), "no mistake found"),
        ((NAN,), "no mistake found; 1 hazard"),
        ((SCALE, NAN), "1 mistake, 1 hazard: no-scale"),
        ((SCALE, LEAK), "2 mistakes: no-scale, leak-later"),
    ],
)
def test_the_verdict_is_the_last_line(findings: tuple[Finding, ...], verdict: str) -> None:
    made = report(*findings)
    assert made.verdict == verdict and str(made).split("\n")[-1] == verdict
    assert made.ok is ("mistake:" not in str(made))


@pytest.mark.parametrize(
    ("made", "verdict"),
    [
        (report(computes=()), "not measured: no attention was seen inside"),
        (report(computes=(), unmeasured=WHY[:1]), f"not measured: {WHY[0]}"),
        (report(NAN, SINK, unmeasured=WHY), f"not measured: {WHY[0]} (and 1 more)"),
    ],
)
def test_what_was_not_measured_is_neither_right_nor_wrong(made: Report, verdict: str) -> None:
    assert made.ok is None and made.verdict == verdict
    said = str(made).split("\n")
    assert said[-1] == verdict and said.count("not measured") == 1
    assert any(x.startswith("  what to do: pass inputs=") for x in said)
    told = json.loads(made.json())
    assert told["ok"] is None and told["unmeasured"] == list(made.unmeasured)


def test_a_mistake_is_one_whatever_else_was_not_measured() -> None:
    made = report(SCALE, unmeasured=WHY)
    assert made.ok is False and made.verdict == "1 mistake: no-scale"
    assert f"\nnot measured\n  – {WHY[0]}\n  – {WHY[1]}\n" in str(made)
    assert report(SCALE, computes=()).ok is False


def test_the_line_of_the_product_is_told() -> None:
    lined = replace(SCALE, line="attention.py:31")
    made = report(lined, replace(lined, where="block.1", line="other.py:7"))
    assert "the scale is 1 [no-scale] at attention.py:31\n" in str(made)
    assert "mistake: block.1: the scale is 1 [no-scale] at other.py:7\n" in str(made)
    assert json.loads(made.json())["findings"][0]["line"] == "attention.py:31"
    assert (
        'message="mistake: block.0: the scale is 1 [no-scale] at attention.py:31"' in made.junit()
    )
    page = "".join(parts(made))
    assert "<b>mistake</b> · block.0 · at attention.py:31 · <code>no-scale</code>" in page


def test_the_page_lists_what_was_not_measured_and_what_to_do() -> None:
    page = "".join(parts(report(unmeasured=WHY)))
    assert '<p class="verdict unmeasured">Not measured: cross: ' in page
    assert all(f"<li><i>–</i><span>{x}</span></li>" in page for x in WHY)
    assert "<b>What to do</b>Pass inputs=" in page
    assert "What was not measured" not in "".join(parts(report()))
    wrong = "".join(parts(report(SCALE, unmeasured=WHY)))
    assert '<p class="verdict wrong">1 mistake' in wrong and WHY[1] in wrong


def test_a_finding_is_printed_with_its_example_and_its_cure() -> None:
    said = str(report(SCALE, SINK))
    assert "mistake: block.0: the scale is 1 [no-scale]\n" in said
    assert "  example: query 3 gives key 4 the weight 0.25; expected 0\n" in said
    assert "  cure: Multiply scores by 1/√d" in said
    assert said.count("cure:") == 1  # a convention needs none
    assert max(map(len, said.split("\n"))) <= 100


def test_properties_that_do_not_apply_say_why() -> None:
    assert "– padding (no padding mask)" in str(report())


def test_json_holds_everything() -> None:
    told = json.loads(report(SCALE, NAN).json())
    assert told["ok"] is False and told["name"] == "Mine"
    first = told["findings"][0]
    assert first["title"] == "Scores are not scaled" and first["example"]["cell"] == [3, 4]
    assert [p["holds"] for p in told["properties"]] == [True, None, True, False]


def test_junit_counts_what_failed() -> None:
    suite = ElementTree.fromstring(report(SCALE, NAN, LEAK).junit())
    failed = {case.get("name") for case in suite if case.find("failure") is not None}
    assert failed == {"no-scale", "causal"}  # a hazard passes, and says what it is
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "2", "1")
    right = ElementTree.fromstring(report().junit())
    assert right.get("failures") == "0" and right[-1].get("name") == "what it computes"


def test_junit_fails_where_something_was_not_measured_unless_that_is_allowed() -> None:
    made = report(computes=(), unmeasured=WHY)
    suite = ElementTree.fromstring(made.junit())
    assert [x.get("name") for x in suite][-3:] == ["not measured 1", "not measured 2", "measured"]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("7", "1", "3")
    skipped = suite[-2].find("skipped")
    assert skipped is not None and skipped.get("message") == WHY[1]
    failure = suite[-1].find("failure")
    assert failure is not None and "what to do: pass inputs=" in str(failure.text)
    assert failure.get("message") == f"not measured: {WHY[0]} (and 1 more)"
    allowed = ElementTree.fromstring(made.junit(allow_unmeasured=True))
    assert (allowed.get("tests"), allowed.get("failures")) == ("6", "0")
    assert ElementTree.fromstring(report(SCALE, unmeasured=WHY).junit()).get("failures") == "1"


def test_what_is_said_of_many_layers_is_said_once() -> None:
    layers = tuple(Finding("no-scale", "the scale is 1", where=f"h.{n}") for n in range(12))
    said = str(report(*layers))
    assert "mistake: h.0, h.1, h.2 and 9 more: the scale is 1 [no-scale]" in said
    assert said.count("[no-scale]") == 1 and said.endswith("12 mistakes: no-scale")
