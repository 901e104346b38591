"""The fit model against cases.json, which was computed independently."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from bucketq import Invalid, fit

ROOT = Path(__file__).parents[2]


TABLE: dict[str, Any] = json.loads((ROOT / "fit-calculator" / "cases.json").read_text())


def differences(want: Any, got: Any, path: str = "") -> list[str]:
    """Return the places where `got` is not `want`: numbers to nine digits, else exactly. None means infinity."""
    if isinstance(want, dict) and isinstance(got, dict):
        keys = sorted(want.keys() | got.keys())
        return [
            d for k in keys for d in differences(want.get(k, "absent"), got.get(k, "absent"), f"{path}.{k}")
        ]
    if isinstance(got, float) and got == math.inf:
        got = None
    numbers = [isinstance(x, (int, float)) and not isinstance(x, bool) for x in (want, got)]
    if all(numbers):
        return [] if abs(want - got) <= 1e-9 * max(abs(want), 1e-12) else [f"{path}: {got}, not {want}"]
    return [] if want == got and type(want) is type(got) else [f"{path}: {got}, not {want}"]


def test_there_are_sixty_cases_and_the_inputs_are_those_of_the_table() -> None:
    assert len(TABLE["cases"]) >= 60
    rules = {entry.name: entry.metadata["rule"] for entry in fields(fit.Inputs)}
    defaults = asdict(fit.Inputs())
    assert list(rules) == list(defaults) == [row["key"] for row in TABLE["inputs"]]
    for row in TABLE["inputs"]:
        rule = rules[row["key"]]
        assert defaults[row["key"]] == row["default"]
        assert (rule.least, rule.most) == (row["min"], row["max"])
        assert rule.what
        assert (rule.whole, rule.above) == (row.get("whole", False), row.get("above", False))


@pytest.mark.parametrize("case", TABLE["cases"], ids=lambda case: case["name"])
def test_the_model_says_what_was_worked_out(case: dict[str, Any]) -> None:
    got = asdict(fit.evaluate(**case["inputs"]))
    assert got["tenfold"].pop("tenfold") is None
    assert differences(case["expected"], got) == []


@pytest.mark.parametrize("case", TABLE["refused"], ids=lambda case: str(case["inputs"]))
def test_nonsense_is_refused_and_named(case: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as raised:
        fit.evaluate(**case["inputs"])
    assert raised.value.message == f"{case['field']}: {case['message']}"


def test_an_unknown_input_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown: arrivals"):
        fit.evaluate(arrivals=3)


def test_what_is_no_number_is_refused() -> None:
    for value in (math.nan, math.inf, "3", None):
        with pytest.raises(ValueError, match="arrival: give a number"):
            fit.evaluate(arrival=value)


def test_the_published_example_is_a_tradeoff_by_its_dispatch_budget_alone() -> None:
    plain = fit.evaluate().plain
    assert (plain.verdict, plain.decided_by) == ("tradeoff", "dispatch")
    assert plain.classes == {"load": 0, "overhead": 0, "dispatch": 1}
    figures = f"{plain.queue_ms:.0f} {plain.capacity:.1f} {100 * plain.overhead:.1f} {plain.load:.2f}"
    assert f"{figures} {plain.puts_per_job:.2f}" == "27 37.0 2.6 0.14 0.30"


def test_a_ninth_digit_is_noticed() -> None:
    assert not differences({"a": 1.0}, {"a": 1 + 5e-10})
    assert differences({"a": 1.0}, {"a": 1 + 2e-9})
    assert not differences({"a": None}, {"a": math.inf})
    assert differences({"a": 1}, {})
    assert differences({"a": False}, {"a": 0})
