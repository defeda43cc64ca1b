"""Whether workers help: beside busy neighbours one thread alone may be faster than several.

A step is over when its last unit is computed. A worker whose core is given to another program in
the middle of a unit keeps all others waiting for that program's time slice, some milliseconds, and
a program has a hundred steps. MobileNetV2 on two cores beside ten busy threads took 32 ms with two
threads and 20 with one.

What is faster is measured, not guessed: where the system takes cores away from this process, a few
runs are the caller's alone, and what took less time goes on. Results are the same bits either way.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

# A try lasts so long, and so many runs at least: times beside neighbours vary by a fifth.
WINDOW_NS = 60_000_000
LEAST_RUNS = 4
# Between two tries, doubled each time that one changes nothing.
FIRST_HOLD_NS = 500_000_000
LAST_HOLD_NS = 2_000_000_000
# Cores taken away in a millisecond of runs from which a try is worth its time.
CROWDED = 0.1
# Less than this of the other's time is faster.
CLEARLY = 0.95


def taken_away() -> int:
    """Return how often a core was given to another program while this process had work for it.

    Source: getrusage(2), `ru_nivcsw`; 0 on systems that do not count it.
    """
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


class Crowding:
    """Decides for one program, from what its runs took, whether the next is the caller's alone."""

    def __init__(
        self,
        clock: Callable[[], int] = time.perf_counter_ns,
        taken: Callable[[], int] = taken_away,
    ) -> None:
        """Begin with all workers. `clock` counts nanoseconds."""
        self.clock = clock
        self.is_alone = False
        self._taken, self._seen = taken, taken()
        self._spent_ns = self._runs = self._units = 0
        self._other_ns = 0.0  # of a unit, in the way that is not tried now
        self._is_trying = False
        self._hold_ns, self._waited_ns = FIRST_HOLD_NS, FIRST_HOLD_NS

    def note(self, begin_ns: int, units: int) -> None:
        """Take in a run of so many units that began then and is over now."""
        self._spent_ns += self.clock() - begin_ns
        self._runs += 1
        self._units += units
        if self._spent_ns >= WINDOW_NS and self._runs >= LEAST_RUNS:
            self._decide(self._spent_ns, self._spent_ns / max(1, self._units))
            self._spent_ns = self._runs = self._units = 0

    def _decide(self, spent_ns: int, unit_ns: float) -> None:
        """Go on, try the other way, or settle what was tried."""
        if self._is_trying:
            is_better = unit_ns < CLEARLY * self._other_ns
            self.is_alone ^= not is_better
            self._hold_ns = FIRST_HOLD_NS if is_better else min(2 * self._hold_ns, LAST_HOLD_NS)
            self._is_trying, self._waited_ns = False, 0
            self._seen = self._taken()
            return
        before, self._seen = self._seen, self._taken()
        self._waited_ns += spent_ns
        is_calm = self._seen - before < CROWDED * spent_ns / 1e6
        if (is_calm and not self.is_alone) or self._waited_ns < self._hold_ns:
            return
        self._other_ns, self._is_trying = unit_ns, True
        self.is_alone = not self.is_alone
