"""The step table of a program for the sizes that one run has, computed from formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.memory import (
    Life,
    Use,
    barriers_between,
    chunk_of,
    place_lives,
    time_ns,
)
from vermilion.codegen.table import ARENA, SIZE, Check, ObjectCode, ProgramTable
from vermilion.codegen.tensor import SLACK_BYTES, Buffer
from vermilion.errors import OtherSizesError
from vermilion.ir.formula import computed, guard_holds

_PORTS = ("input", "output")


@dataclass(frozen=True)
class SizedTable:
    """The calls of a run, and the shapes of its results, for one size of every symbol."""

    table: ProgramTable
    output_shapes: tuple[tuple[int, ...], ...]
    checks: tuple[Check, ...]

    @property
    def words(self) -> int:
        """Words that the checks of a run write."""
        return sum(check.count for check in self.checks)


@dataclass
class OpenTable:
    """What `open_program` wrote, made ready to compute tables from."""

    about: Mapping[str, Any]
    objects: Sequence[ObjectCode]
    functions: tuple[str, ...] = field(init=False)
    buffers: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Number functions and buffers; see when each buffer of the arena is in use."""
        calls = self.about["calls"]
        self.functions = tuple(dict.fromkeys(call["function"] for call in calls))
        numbers = {name: number for number, name in enumerate(self.functions)}
        self._function_of = np.array([numbers[call["function"]] for call in calls], np.int64)
        ports = [f"{p} {i}" for p in _PORTS for i in range(len(self.about[f"{p}s"]))]
        self.buffers = ("weights", "checks", *ports)
        self._lives = [[len(calls), -1] for _ in self.about["buffers"]]
        for at, call in enumerate(calls):
            for argument in call["arguments"]:
                if argument["place"] == "arena":
                    life = self._lives[argument["index"]]
                    life[0], life[1] = min(life[0], at), max(life[1], at)

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
        except ZeroDivisionError as error:
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
        self._check_extents(numbers, sizes)
        return SizedTable(self._table(numbers), outputs, self._checks(numbers))

    def _unfit(self, sizes: Mapping[str, int]) -> OtherSizesError:
        words = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        return OtherSizesError(
            f"the model cannot be run at the sizes {words}",
            hint="something in it has a size of its own that these go beyond",
        )

    def _check_extents(self, numbers: Sequence[int], sizes: Mapping[str, int]) -> None:
        for call in self.about["calls"]:
            if numbers[call["units"]] < 0:
                raise self._unfit(sizes)
            for low, high, size in call["extents"]:
                if numbers[low] < 0 or numbers[high] > numbers[size]:
                    raise self._unfit(sizes)

    def _checks(self, numbers: Sequence[int]) -> tuple[Check, ...]:
        found, offset = [], 0
        for row in self.about["checks"]:
            count = numbers[row["count"]]
            found.append(Check(offset, count, row["where"], numbers[row["size"]]))
            offset += count
        return tuple(found)

    def _table(self, numbers: Sequence[int]) -> ProgramTable:
        buffers = [Buffer("", numbers[size], "arena") for size in self.about["buffers"]]
        lives = [Life((buffer,), *life) for buffer, life in zip(buffers, self._lives, strict=True)]
        placed, arena_bytes = place_lives(lives)
        at = {id(buffer): offset for buffer, offset in placed}
        offsets = [at[id(buffer)] for buffer in buffers]
        check_offsets = [8 * check.offset for check in self._checks(numbers)]
        ports = {name: number for number, name in enumerate(self.buffers)}
        calls, addresses, uses = [], [], []
        for function, call in zip(self._function_of, self.about["calls"], strict=True):
            if not numbers[call["units"]]:
                continue  # left out at these sizes
            reads: list[Use] = []
            writes: list[Use] = []
            for argument in call["arguments"]:
                place, offset = argument["place"], numbers[argument["offset"]]
                index = argument.get("index", 0)
                kind = writes if argument["written"] else reads
                is_border = call["border"] and argument["written"]
                if place == "arena":
                    low = offsets[index]
                    high = low + buffers[index].size_bytes + SLACK_BYTES
                    kind.append(Use(low, high, index, is_border))
                    addresses.append((ARENA, low + offset))
                elif place == "weights":
                    addresses.append((ports["weights"], argument["base"] + offset))
                elif place == "checks":
                    addresses.append((ports["checks"], check_offsets[index] + offset))
                else:
                    number = ports[f"{place} {index}"]
                    kind.append(Use(-number - 1, -number, -number - 1, is_border))
                    addresses.append((number, offset))
            addresses += [(SIZE, numbers[size]) for size in call["sizes"]]
            uses.append((reads, writes))
            units = numbers[call["units"]]
            whole_ns = time_ns(numbers[call["operations"]], numbers[call["moved"]])
            count = len(call["arguments"]) + len(call["sizes"])
            calls.append([function, units, chunk_of(units, whole_ns), 0, count])
        for row, barrier in zip(calls, barriers_between(uses), strict=True):
            row[3] = int(barrier)
        return ProgramTable(
            tuple(self.objects), arena_bytes, self.functions, self.buffers,
            _rows(calls, 5), _rows(addresses, 2), len(self.about["calls"]),
        )  # fmt: skip


def _rows(rows: Sequence[Sequence[int]], width: int) -> NDArray[np.int64]:
    return np.array(rows, np.int64).reshape(-1, width)
