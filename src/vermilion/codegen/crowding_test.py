from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from vermilion.codegen.crowding import (
    FIRST_HOLD_NS,
    LAST_HOLD_NS,
    LEAST_RUNS,
    WINDOW_NS,
    Crowding,
    taken_away,
)

RUN_NS = 10_000_000


@dataclass
class Machine:
    """A machine on which a run takes one time with all workers, and another alone."""

    together_ns: int = RUN_NS
    alone_ns: int = 2 * RUN_NS
    taken_in_a_run: int = 0
    now: int = 0
    taken: int = 0
    runs: list[bool] = field(default_factory=list)

    def crowding(self) -> Crowding:
        return Crowding(clock=lambda: self.now, taken=lambda: self.taken)

    def run(self, crowding: Crowding, total_ns: int) -> int:
        """Run for so long; return how many runs were alone."""
        until, self.runs = self.now + total_ns, []
        while self.now < until:
            begin = self.now
            self.runs.append(crowding.is_alone)
            self.now += self.alone_ns if crowding.is_alone else self.together_ns
            self.taken += self.taken_in_a_run
            crowding.note(begin, 100)
        return sum(self.runs)


def test_a_machine_of_its_own_is_never_tried_alone() -> None:
    machine = Machine()
    assert machine.run(machine.crowding(), 10 * LAST_HOLD_NS) == 0


def test_neighbours_that_do_not_hinder_cost_a_try_now_and_then() -> None:
    machine = Machine(taken_in_a_run=5)
    crowding = machine.crowding()
    first = machine.run(crowding, 3 * WINDOW_NS)
    assert 0 < first <= LEAST_RUNS
    machine.run(crowding, 4 * LAST_HOLD_NS)
    # In the long run, one window of each hold.
    alone = machine.run(crowding, 20 * LAST_HOLD_NS)
    assert 0 < alone * machine.alone_ns < 20 * 2 * WINDOW_NS


def test_where_one_is_faster_it_runs_alone_until_the_neighbours_are_gone() -> None:
    machine = Machine(together_ns=3 * RUN_NS, taken_in_a_run=5)
    crowding = machine.crowding()
    machine.run(crowding, 2 * FIRST_HOLD_NS)
    machine.run(crowding, 5 * LAST_HOLD_NS)
    assert sum(machine.runs) > 0.9 * len(machine.runs)
    machine.together_ns, machine.taken_in_a_run = RUN_NS, 0
    machine.run(crowding, 2 * LAST_HOLD_NS)
    assert machine.run(crowding, LAST_HOLD_NS) == 0


@pytest.mark.parametrize("share", [0.97, 1.0, 1.05])
def test_about_as_fast_changes_nothing(share: float) -> None:
    machine = Machine(alone_ns=int(share * RUN_NS), taken_in_a_run=5)
    crowding = machine.crowding()
    machine.run(crowding, 10 * LAST_HOLD_NS)
    assert sum(machine.runs) < 0.2 * len(machine.runs)


def test_what_is_compared_is_the_time_of_a_unit() -> None:
    now = taken = 0
    crowding = Crowding(clock=lambda: now, taken=lambda: taken)
    for number in range(400):  # twice the work takes twice the time, and says nothing
        units = 100 if number % 2 else 200
        begin, now, taken = now, now + units * RUN_NS // 100, taken + 20
        crowding.note(begin, units)
        assert not crowding.is_alone or crowding._is_trying


def test_what_the_system_counts_only_grows() -> None:
    before = taken_away()
    assert taken_away() >= before >= 0
