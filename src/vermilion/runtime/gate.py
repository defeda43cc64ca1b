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

    def check(self, summary: Summary, *, ran: bool = False) -> None:
        """Pass or raise, by what is offloaded.

        `ran` says that every offloaded part was run on the device and seen to run there; without
        it the parts are compiled or modelled, and the message says no more than that.

        Raises: UnsupportedError where it is less than asked for.
        """
        if self.quantity == "gops":
            part, whole = summary.offloaded_gops, summary.gops
        else:
            part, whole = float(summary.offloaded_operators), float(summary.operators)
        reached = 100.0 * part / whole if whole else 0.0
        # The summary's own precision decides: 100 % of a sum of floats is not always 100.0.
        if round(reached, 3) < self.percent:
            done = "ran on" if ran else "are offloaded to"
            raise UnsupportedError(
                f"{reached:.3f}% of the {self.quantity} {done} {summary.device}, "
                f"{self.percent:g}% were asked for",
                where="--min-offload",
                hint="`vermilion inspect MODEL --target T` names every node that stays on the CPU",
            )
