"""What `summary.json` holds, and a gate for CI: how much of a model must run on the device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from vermilion.errors import OptionError, UnsupportedError
from vermilion.runtime.artifact import SUMMARY_JSON_FILE, ArtifactReader
from vermilion.runtime.fields import parse_json
from vermilion.runtime.summary import Summary, summary_from_json

Row = Mapping[str, object]


@dataclass(frozen=True)
class Report:
    """Everything a compilation has to say for itself.

    `nodes` has a row an operator: its name and type, the device, the reason and the hint.
    `verification` compares the compiled model with the model as it came, output by output.
    `passes` has a row a pass of the simplifier: how often it fired, and why it did not.
    `predicted_ms` is modelled, never measured, and stands with its interval; None where what is
    published does not carry a prediction, with the reason for a target that has a model.
    """

    summary: Summary
    nodes: tuple[Row, ...]
    verification: tuple[Row, ...]
    passes: tuple[Row, ...]
    predicted_ms: float | None = None
    predicted_interval_ms: tuple[float, float] | None = None
    predicted_reason: str = ""
    notes: tuple[str, ...] = ()  # what a user should know that went another way than asked for
    machine_code: tuple[Row, ...] = ()  # a row a kernel, of parts whose code object was read

    def prediction(self) -> dict[str, object]:
        """Return the keys of a modelled latency: it, its interval, or why there is none."""
        interval = self.predicted_interval_ms
        return {
            "predicted_ms": self.predicted_ms,
            "predicted_interval_ms": None if interval is None else list(interval),
            "predicted_reason": self.predicted_reason,
        }

    def extra(self) -> dict[str, object]:
        """Return what stands in `summary.json` beside the summary and the nodes."""
        return {
            "verification": {"outputs": [dict(row) for row in self.verification]},
            "passes": [dict(row) for row in self.passes],
            **self.prediction(),
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
    interval = _interval(rows.get("predicted_interval_ms"))
    reason = rows.get("predicted_reason")
    return Report(
        summary=summary_from_json(data, where),
        nodes=_rows(rows.get("nodes")),
        verification=_rows(verification.get("outputs") if isinstance(verification, dict) else None),
        passes=_rows(rows.get("passes")),
        # A latency without its interval, of an older bundle, is none.
        predicted_ms=float(predicted) if isinstance(predicted, int | float) and interval else None,
        predicted_interval_ms=interval,
        predicted_reason=reason if isinstance(reason, str) else "",
        notes=_texts(rows.get("notes")),
        machine_code=_rows(rows.get("machine_code")),
    )


def _rows(value: object) -> tuple[Row, ...]:
    return tuple(row for row in value if isinstance(row, dict)) if isinstance(value, list) else ()


def _interval(value: object) -> tuple[float, float] | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    low, high = value
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return None
    return float(low), float(high)


def _texts(value: object) -> tuple[str, ...]:
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()


Quantity = Literal["gops", "operators"]
_FORM = re.compile(r"(gops|operators)=(\d{1,3}(?:\.\d{1,6})?)%?")


@dataclass(frozen=True)
class OffloadGate:
    """At least `percent` of the model's GOPs or operators must be offloaded."""

    quantity: Quantity
    percent: float

    @classmethod
    def parse(cls, text: str) -> OffloadGate:
        """Read `gops=95%` or `operators=90%`. Raises: OptionError for anything else."""
        match = _FORM.fullmatch(text.strip())
        if match is None or float(match[2]) > 100:
            raise OptionError(
                f"`{text}` is not a gate", where="--min-offload", hint="write `gops=95%`"
            )
        return cls("gops" if match[1] == "gops" else "operators", float(match[2]))

    def check(self, summary: Summary, *, ran: bool = False) -> None:
        """Pass or raise, by what is offloaded.

        `ran` says that every offloaded part was run on the device and seen to run there; without
        it the parts are compiled or modelled, and the message says no more than that.

        Raises: UnsupportedError where it is less than asked for.
        """
        # Where nothing is computed (values are moved alone), operators are what can be counted.
        quantity = self.quantity if summary.gops else "operators"
        if quantity == "gops":
            part, whole = summary.offloaded_gops, summary.gops
        else:
            part, whole = float(summary.offloaded_operators), float(summary.operators)
        reached = 100.0 * part / whole if whole else 100.0
        # The summary's own precision decides: 100 % of a sum of floats is not always 100.0.
        if round(reached, 3) < self.percent:
            done = "ran on" if ran else "are offloaded to"
            raise UnsupportedError(
                f"{reached:.3f}% of the {quantity} {done} {summary.device}, "
                f"{self.percent:g}% were asked for",
                where="--min-offload",
                hint="`vermilion inspect MODEL --target T` names every node that stays on the CPU",
            )
