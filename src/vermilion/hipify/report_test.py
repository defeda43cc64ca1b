"""JSON and SARIF hold what was found."""

from __future__ import annotations

import json
from pathlib import Path

from vermilion.hipify.hipify import Options, hipify
from vermilion.hipify.report import as_json, as_sarif

SOURCE = "unsigned m = __ballot(p);\n__nanosleep(1);\nx = __expf(y);\n"


def test_sarif_has_each_open_finding_with_its_rule_and_place(tmp_path: Path) -> None:
    path = tmp_path / "a.cu"
    path.write_text(SOURCE, "utf-8")
    sarif = json.loads(json.dumps(as_sarif(hipify([path], Options(fix=True)))))
    assert sarif["version"] == "2.1.0"
    run = sarif["runs"][0]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == ["fast-math", "missing-intrinsic"], "what was fixed is no finding"
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
    first = run["results"][0]
    place = first["locations"][0]["physicalLocation"]
    assert place == {
        "artifactLocation": {"uri": "a.cu"},
        "region": {"startLine": 2, "startColumn": 1},
    }
    assert [result["level"] for result in run["results"]] == ["error", "note"]


def test_json_counts_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.cu"
    path.write_text(SOURCE, "utf-8")
    data = as_json(hipify([path], Options()))
    assert data["left"] == 2
    assert isinstance(data["findings"], list)
    assert len(data["findings"]) == 3
