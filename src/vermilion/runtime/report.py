"""What `summary.json` holds: the vendor's counts, every node's place, and what was proven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vermilion.runtime.artifact import SUMMARY_JSON_FILE, ArtifactReader
from vermilion.runtime.fields import parse_json
from vermilion.runtime.summary import Summary, summary_from_json

Row = Mapping[str, object]


@dataclass(frozen=True)
class Report:
    """Everything a compilation has to say for itself.

    `verification` compares the compiled model with the model as it came, output by output.
    `predicted_ms` is modelled, never measured; None where nothing was published to fit to.
    """

    summary: Summary
    nodes: tuple[Row, ...]
    verification: tuple[Row, ...]
    passes: tuple[Row, ...]
    predicted_ms: float | None = None
    notes: tuple[str, ...] = ()  # what a user should know that went another way than asked for
    machine_code: tuple[Row, ...] = ()  # a row a kernel, of parts whose code object was read

    def extra(self) -> dict[str, object]:
        """Return what stands in `summary.json` beside the summary and the nodes."""
        return {
            "verification": {"outputs": [dict(row) for row in self.verification]},
            "passes": [dict(row) for row in self.passes],
            "predicted_ms": self.predicted_ms,
            "notes": list(self.notes),
            "machine_code": [dict(row) for row in self.machine_code],
        }


def read_report(reader: ArtifactReader) -> Report:
    """Read the report of an open bundle; its digest was checked when it was opened."""
    where = f"{reader.path}, {SUMMARY_JSON_FILE}"
    data = bytes(reader.read(SUMMARY_JSON_FILE))
    rows = parse_json(data, where)
    rows = rows if isinstance(rows, dict) else {}
    verification = rows.get("verification")
    predicted = rows.get("predicted_ms")
    return Report(
        summary=summary_from_json(data, where),
        nodes=_rows(rows.get("nodes")),
        verification=_rows(verification.get("outputs") if isinstance(verification, dict) else None),
        passes=_rows(rows.get("passes")),
        predicted_ms=float(predicted) if isinstance(predicted, int | float) else None,
        notes=_texts(rows.get("notes")),
        machine_code=_rows(rows.get("machine_code")),
    )


def _rows(value: object) -> tuple[Row, ...]:
    return tuple(row for row in value if isinstance(row, dict)) if isinstance(value, list) else ()


def _texts(value: object) -> tuple[str, ...]:
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()
