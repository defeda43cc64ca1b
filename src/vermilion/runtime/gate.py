"""A gate for CI: how much of a model must run on the device."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from vermilion.errors import OptionError, UnsupportedError
from vermilion.runtime.summary import Summary

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

    def check(self, summary: Summary) -> None:
        """Pass or raise. Raises: UnsupportedError where less than asked for is offloaded."""
        if self.quantity == "gops":
            part, whole = summary.offloaded_gops, summary.gops
        else:
            part, whole = float(summary.offloaded_operators), float(summary.operators)
        reached = 100.0 * part / whole if whole else 0.0
        # The summary's own precision decides: 100 % of a sum of floats is not always 100.0.
        if round(reached, 3) < self.percent:
            raise UnsupportedError(
                f"{reached:.3f}% of the {self.quantity} are offloaded to {summary.device}, "
                f"{self.percent:g}% were asked for",
                where="--min-offload",
                hint="`vermilion inspect MODEL --target T` names every node that stays on the CPU",
            )
