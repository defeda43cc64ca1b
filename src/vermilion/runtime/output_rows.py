"""What the report says of each output: a row, of the sample on which it is furthest off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vermilion.backends.base import Array
from vermilion.proof.check import OutputCheck, agreement_of, nothing_shown

Row = Mapping[str, object]


@dataclass
class OutputRows:
    """The rows of the outputs, by name, with the signal-to-noise ratio of each in dB."""

    found: dict[str, tuple[float, Row]] = field(default_factory=dict)

    def keep(
        self, check: OutputCheck, expected: Array, found: Array, engine: str, amplified: bool,
        stood_in: Row,
    ) -> None:  # fmt: skip
        """Keep the row of an output on one sample, if it is further off than those before.

        `amplified` says that it is within roundings part by part and beyond them from end to end,
        `stood_in` what was run instead of the device.
        """
        known = self.found.get(check.name)
        if known is not None and known[0] <= check.sqnr_db:
            return
        row = agreement_of(check, expected, found).as_json()
        reason = nothing_shown(check, expected, amplified)
        row |= {"status": "not proven" if reason else "proven", "format": check.format}
        row |= {"reason": reason, "against": engine} if reason else {"against": engine}
        if check.numbers < check.places and check.format != "exact":
            row |= {"unlike_places": check.unlike, "number_places": check.numbers}
        if amplified:
            row["amplified"] = True
        self.found[check.name] = check.sqnr_db, row | dict(stood_in)

    def of_samples(self, samples: Sequence[str]) -> tuple[Row, ...]:
        """Return the rows, with the kinds of the samples that they are of, if there were any."""
        rows = (row for _, row in self.found.values())
        return tuple({**row, "samples": list(samples)} if samples else row for row in rows)


def decided_by_roundings(check: OutputCheck) -> str:
    """Return the note on integers that other roundings decide otherwise: a class, an index.

    What they are off by says nothing. They are judged where they are decided: against the literal
    run from the scores on that were computed here.
    """
    differ = f"{check.wrong} of {check.places}" if not check.shape else "their number"
    return (
        f"`{check.name}` is decided by roundings: {differ} differ from the model as it came, "
        "none from the scores that decide it"
    )
