"""A report for machines: plain JSON, and SARIF for code review tools."""

from __future__ import annotations

from vermilion.hipify.finding import Finding
from vermilion.hipify.hipify import Report, output_name
from vermilion.hipify.rules.catalogue import RULES
from vermilion.version import VERSION

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_json(report: Report) -> dict[str, object]:
    """Return the report's facts by name."""
    return {
        "files": [
            {
                "name": result.file.name,
                "output": output_name(result.file.name),
                "changed": result.changed,
                "read": result.was_read,
                "findings": len(result.findings),
                "silenced": result.silenced,
            }
            for result in report.files
        ],
        "findings": [_finding(finding) for finding in report.findings],
        "checks": [
            {
                "file": check.file,
                "target": check.architecture,
                "ok": check.ok,
                "code_bytes": check.code_bytes,
                "kernels": check.kernels,
            }
            for check in report.checks
        ],
        "not_seen": list(report.not_seen),
        "written": [str(path) for path in report.written],
        "left": sum(finding.is_left for finding in report.findings),
    }


def _finding(finding: Finding) -> dict[str, object]:
    return {
        "rule": finding.rule,
        "level": finding.level,
        "file": finding.file,
        "line": finding.line,
        "column": finding.column,
        "message": finding.message,
        "hint": finding.hint,
        "can_be_fixed": finding.can_be_fixed,
        "fixed": finding.fixed,
    }


def as_sarif(report: Report) -> dict[str, object]:
    """Return the report in SARIF 2.1.0 (OASIS), less what was fixed."""
    left = [finding for finding in report.findings if not finding.fixed]
    used = sorted({finding.rule for finding in left})
    rules = [
        {
            "id": rule,
            "shortDescription": {"text": RULES[rule].title},
            "fullDescription": {"text": RULES[rule].why},
            "help": {"text": RULES[rule].fix},
            "defaultConfiguration": {"level": RULES[rule].level},
        }
        for rule in used
    ]
    driver = {"name": "vermilion hipify", "version": VERSION, "rules": rules}
    results = [_sarif_result(finding, used.index(finding.rule)) for finding in left]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _sarif_result(finding: Finding, index: int) -> dict[str, object]:
    region = {"startLine": finding.line, "startColumn": finding.column}
    place = {"artifactLocation": {"uri": finding.file}, "region": region}
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": finding.level,
        "message": {"text": f"{finding.message}. {finding.hint}"},
        "locations": [{"physicalLocation": place}],
    }
