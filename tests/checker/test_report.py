"""What a report says: printed, as JSON, as JUnit XML."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from intently.checker import Finding, Report
from intently.checker.properties.every import Property
from intently.checker.report.finding import Example

SHOWN = Example(((1.0, 0.0),), ((0.75, 0.25),), (3,), (0, 4), (3, 4))
SCALE = Finding("no-scale", "the scale is 1", where="block.0", cell=(0, 1, 3, 4), example=SHOWN)
NAN = Finding("nan-without-keys", "a row without keys gives NaN", "hazard")
LEAK = Finding("leak-later", "output 0 changes with input 1")
SINK = Finding("sink", "a sink takes part", "convention")


def report(*findings: Finding, computes: tuple[str, ...] = ("block.0: 4 heads of 8",)) -> Report:
    properties = (
        Property("batch", True),
        Property("padding", None, "no padding mask"),
        Property("causal", LEAK not in findings, "", tuple(f for f in findings if f == LEAK)),
        Property("empty rows", NAN not in findings, "NaN", tuple(f for f in findings if f == NAN)),
    )
    return Report("takes x (2, 6, 32)", computes, findings, properties, "Mine")


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
    assert made.ok == ("mistake:" not in str(made))


def test_nothing_that_attends_is_said() -> None:
    assert report(computes=()).verdict.endswith("no attention was seen inside")


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


def test_what_is_said_of_many_layers_is_said_once() -> None:
    layers = tuple(Finding("no-scale", "the scale is 1", where=f"h.{n}") for n in range(12))
    said = str(report(*layers))
    assert "mistake: h.0, h.1, h.2 and 9 more: the scale is 1 [no-scale]" in said
    assert said.count("[no-scale]") == 1 and said.endswith("12 mistakes: no-scale")
