"""The step table of a program for the sizes that one run has, computed from formulas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.memory import (
    Use,
    barriers_between,
    chunks_of,
    meetings,
    places_of,
    times_ns,
)
from vermilion.codegen.table import ARENA, SIZE, Check, ObjectCode, ProgramTable
from vermilion.codegen.tensor import SLACK_BYTES
from vermilion.errors import OtherSizesError
from vermilion.ir.formula import computed, guard_holds

Whole = NDArray[np.int64]
_PORTS = ("input", "output")


@dataclass(frozen=True)
class SizedTable:
    """The calls of a run, and the shapes of its results, for one size of every symbol.

    `run` are the calls that it makes, by number, `places` those of the arena's buffers.
    """

    table: ProgramTable
    output_shapes: tuple[tuple[int, ...], ...]
    checks: tuple[Check, ...]
    run: tuple[int, ...]
    places: tuple[int, ...]

    @property
    def words(self) -> int:
        """Words that the checks of a run write."""
        return sum(check.count for check in self.checks)


@dataclass(frozen=True)
class _Addresses:
    """The addresses of all calls, one after the other, as columns.

    Of each: its call, the caller's buffer, the number of its formula, what is added to that, and
    its tensor of the arena and its check, -1 where it is in none.
    """

    call: Whole
    buffer: Whole
    formula: Whole
    base: Whole
    tensor: Whole
    check: Whole


@dataclass(frozen=True)
class _Touched:
    """Tensors that a call reads and writes, by number: the arena's, then inputs and outputs."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    is_border: bool


@dataclass
class OpenTable:
    """What `open_program` wrote, made ready to compute tables from.

    All that does not depend on a run's sizes is done once: which call touches what, and which
    tensors are in use at the same time. A run that is the first of its sizes waits for the rest.
    """

    about: Mapping[str, Any]
    objects: Sequence[ObjectCode]
    functions: tuple[str, ...] = field(init=False)
    buffers: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Number functions and buffers; see when each buffer of the arena is in use."""
        calls = self.about["calls"]
        self.functions = tuple(dict.fromkeys(call["function"] for call in calls))
        numbers = {name: number for number, name in enumerate(self.functions)}
        self._function = _whole(numbers[call["function"]] for call in calls)
        ports = [f"{p} {i}" for p in _PORTS for i in range(len(self.about[f"{p}s"]))]
        self.buffers = ("weights", "checks", *ports)
        self._units, self._operations, self._moved = (
            _whole(call[key] for call in calls) for key in ("units", "operations", "moved")
        )
        self._count = _whole(len(call["arguments"]) + len(call["sizes"]) for call in calls)
        self._buffer_sizes = _whole(self.about["buffers"])
        extents = [extent for call in calls for extent in call["extents"]]
        self._extents = np.array(extents, np.int64).reshape(-1, 3)
        self._extent_calls = np.repeat(
            np.arange(len(calls)), [len(call["extents"]) for call in calls]
        )
        self._addresses = self._columns()
        self._touched = [self._touched_by(call) for call in calls]
        lives = [(len(calls), -1) for _ in self.about["buffers"]]
        for at, touched in enumerate(self._touched):
            for number in (*touched.reads, *touched.writes):
                if number < len(lives):
                    lives[number] = min(lives[number][0], at), at
        self._lives, self._meetings = lives, meetings(lives)

    def _columns(self) -> _Addresses:
        numbers = {name: number for number, name in enumerate(self.buffers)}
        rows: list[tuple[int, ...]] = []
        for at, call in enumerate(self.about["calls"]):
            for argument in call["arguments"]:
                place, index = argument["place"], argument.get("index", 0)
                offset, base = argument["offset"], argument.get("base", 0)
                if place == "arena":
                    rows.append((at, ARENA, offset, base, index, -1))
                elif place == "checks":
                    rows.append((at, numbers[place], offset, base, -1, index))
                else:
                    name = place if place == "weights" else f"{place} {index}"
                    rows.append((at, numbers[name], offset, base, -1, -1))
            rows += [(at, SIZE, size, 0, -1, -1) for size in call["sizes"]]
        return _Addresses(*np.array(rows, np.int64).reshape(-1, 6).T)

    def _touched_by(self, call: Mapping[str, Any]) -> _Touched:
        count, inputs = len(self.about["buffers"]), len(self.about["inputs"])
        firsts = {"arena": 0, "input": count, "output": count + inputs}
        numbers: dict[bool, list[int]] = {False: [], True: []}
        for argument in call["arguments"]:
            if argument["place"] in firsts:  # weights are read by all, checks by nobody in a run
                number = firsts[argument["place"]] + argument["index"]
                numbers[bool(argument["written"])].append(number)
        return _Touched(tuple(numbers[False]), tuple(numbers[True]), bool(call["border"]))

    def sizes_of(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """Return the size of every symbol in the shapes of the inputs.

        Raises: OtherSizesError where a size is not what the program is made for.
        """
        found: dict[str, int] = {}
        for name, (number, axis, times) in self.about["symbols"].items():
            shape = shapes[number]
            size = shape[axis] if axis < len(shape) else 0
            if size < 1 or size % times:
                port = self.about["inputs"][number]["name"]
                wanted = "1 or more" if times == 1 else f"a multiple of {times}"
                raise OtherSizesError(
                    f"`{port}` has the shape {list(shape)}; dimension {axis} must be {wanted}",
                    hint="pad the input, or compile the model for this size with `--dim`",
                )
            found[name] = size // times
        return found

    def sized(self, shapes: Sequence[tuple[int, ...]]) -> SizedTable:
        """Return the table for inputs of these shapes.

        Raises: OtherSizesError where the shapes contradict each other or the model.
        """
        sizes = self.sizes_of(shapes)
        try:
            numbers = computed(self.about["formulas"], sizes)
            columns = np.array(numbers, np.int64)
        except (ZeroDivisionError, OverflowError) as error:
            raise self._unfit(sizes) from error
        for port, shape in zip(self.about["inputs"], shapes, strict=True):
            wanted = tuple(numbers[size] for size in port["shape"])
            if shape != wanted:
                raise OtherSizesError(
                    f"`{port['name']}` has the shape {list(shape)}; beside the other inputs it "
                    f"must be {list(wanted)}",
                    hint="dimensions of one name have one size",
                )
        outputs = tuple(
            tuple(numbers[size] for size in port["shape"]) for port in self.about["outputs"]
        )
        for difference, sign in self.about["guards"]:
            if not guard_holds(sign, numbers[difference]):
                raise self._unfit(sizes)
        units = columns[self._units]
        run = np.flatnonzero(units > 0)  # others are left out at these sizes
        low, high, size = columns[self._extents].T
        is_beyond = ((low < 0) | (high > size)) & (units > 0)[self._extent_calls]
        if (units < 0).any() or is_beyond.any():
            raise self._unfit(sizes)
        checks = self._checks(numbers)
        places, arena_bytes = self._placed(columns, run)
        table = self._table(columns, checks, run, places, arena_bytes)
        return SizedTable(table, outputs, checks, tuple(run.tolist()), tuple(places))

    def _unfit(self, sizes: Mapping[str, int]) -> OtherSizesError:
        words = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        return OtherSizesError(
            f"the model cannot be run at the sizes {words}",
            hint="something in it has a size of its own that these go beyond",
        )

    def _checks(self, numbers: Sequence[int]) -> tuple[Check, ...]:
        found, offset = [], 0
        for row in self.about["checks"]:
            count = numbers[row["count"]]
            found.append(Check(offset, count, row["where"], numbers[row["size"]]))
            offset += count
        return tuple(found)

    def _table(
        self,
        numbers: Whole,
        checks: Sequence[Check],
        run: Whole,
        places: Sequence[int],
        arena_bytes: int,
    ) -> ProgramTable:
        a = self._addresses
        sizes = numbers[self._buffer_sizes]
        spans = [
            *(
                (place, place + size + SLACK_BYTES)
                for place, size in zip(places, sizes.tolist(), strict=True)
            ),
            *((-number - 1, -number) for number in range(len(self.buffers))),
        ]
        # What is in none has the last place, which is 0.
        offsets = np.array([*places, 0], np.int64)[a.tensor]
        offsets += np.array([8 * check.offset for check in checks] + [0], np.int64)[a.check]
        addresses = np.stack([a.buffer, numbers[a.formula] + a.base + offsets], axis=1)
        barriers = self._barriers(run.tolist(), spans)
        units = numbers[self._units][run]
        whole_ns = times_ns(numbers[self._operations[run]], numbers[self._moved[run]])
        calls = [
            self._function[run], units, chunks_of(units, whole_ns), barriers, self._count[run],
        ]  # fmt: skip
        return ProgramTable(
            tuple(self.objects), arena_bytes, self.functions, self.buffers,
            np.stack(calls, axis=1), addresses[self._is_given(run)], len(self._touched),
        )  # fmt: skip

    def _is_given(self, run: Whole) -> NDArray[np.bool_]:
        """Return which of all arguments are those of calls that are run."""
        is_run = np.zeros(len(self._touched), bool)
        is_run[run] = True
        given: NDArray[np.bool_] = is_run[self._addresses.call]
        return given

    def _placed(self, numbers: Whole, run: Whole) -> tuple[list[int], int]:
        """Return the places of the arena's tensors that a run touches, and the arena's size."""
        sizes = numbers[self._buffer_sizes]
        is_used = np.zeros(len(sizes) + 1, bool)
        is_used[self._addresses.tensor[self._is_given(run)]] = True
        found: list[int] = np.where(is_used[:-1], sizes, -1).tolist()
        return places_of(found, self._lives, self._meetings)

    def _barriers(self, run: Sequence[int], spans: Sequence[tuple[int, int]]) -> Whole:
        uses, borders = (
            [Use(low, high, number, is_border) for number, (low, high) in enumerate(spans)]
            for is_border in (False, True)
        )
        steps = []
        for touched in (self._touched[at] for at in run):
            written = borders if touched.is_border else uses
            steps.append((
                [uses[number] for number in touched.reads],
                [written[number] for number in touched.writes],
            ))  # fmt: skip
        return np.array(barriers_between(steps), np.int64)


def _whole(numbers: Iterable[int]) -> Whole:
    return np.array(list(numbers), np.int64)
