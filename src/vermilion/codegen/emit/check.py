"""Reading through whole numbers for one that a kernel must not be given: indices, divisors.

Kernels bring indices into range and divide by something else than 0, so that no number does harm to
memory; whether there was one is written down here, and read once when the run is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.arithmetic import KIND_OF_STORAGE, Arithmetic
from vermilion.codegen.emit.builder import Module, Slot
from vermilion.codegen.emit.rows import each_vector
from vermilion.codegen.emit.values import Value, constant
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import STORAGE_BYTES, Storage

# Numbers that a unit reads: fewer are not worth a worker's coming.
_UNIT_ELEMENTS = 8192


@dataclass(frozen=True)
class CheckSpec:
    """`words[unit]` = a number of the unit's that is wrong, 0 where there is none.

    An index is wrong outside `-size … size - 1`, and is what is written. A divisor is wrong if it
    is 0, and 1 is written. The numbers lie side by side.
    """

    what: Literal["index", "divisor"]
    storage: Storage
    count: int
    size: int = 0

    family = "check"

    @property
    def units(self) -> int:
        """Units of work, each with a word of its own."""
        return -(-self.count // _UNIT_ELEMENTS)

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, (source, words), units = begin_kernel(module, name, 2)
        arithmetic = Arithmetic(f, isa.lanes)
        item = STORAGE_BYTES[self.storage]
        with f.loop(*units) as unit:
            first = f.multiply(unit, _UNIT_ELEMENTS)
            place = f.at(source, f.multiply(first, item))
            count = f.minimum(f.subtract(self.count, first), _UNIT_ELEMENTS)
            search = _Search(self, arithmetic)
            for at, mask in each_vector(arithmetic, count):
                search.take(f.at(place, f.multiply(at, item)), mask)
            f.store(search.word(), f.at(words, f.multiply(unit, 8)), align=8)
        f.finish()


class _Search:
    """What was found so far, lane by lane: the least and the greatest index, or a divisor of 0."""

    def __init__(self, spec: CheckSpec, arithmetic: Arithmetic) -> None:
        self.spec = spec
        self.arithmetic = arithmetic
        kind = arithmetic.type(KIND_OF_STORAGE[spec.storage])
        self.zero = Value(kind, "zeroinitializer")
        # 0 is an index into everything.
        self.least, self.greatest = (arithmetic.f.slot(self.zero) for _ in range(2))
        flags = Value(arithmetic.type("bool"), "zeroinitializer")
        self.found = arithmetic.f.slot(flags)

    def take(self, place: Value, mask: Value | None) -> None:
        """Look at a vector; lanes outside the mask are read as 0."""
        f = self.arithmetic.f
        numbers = self.arithmetic.load(self.spec.storage, place, mask=mask)
        if self.spec.what == "index":
            self._keep(self.least, "slt", numbers)
            self._keep(self.greatest, "sgt", numbers)
            return
        is_zero = f.compare("eq", numbers, self.zero)
        if mask is not None:
            is_zero = f.binary("and", is_zero, mask)
        self.found.set(f.binary("or", self.found.get(), is_zero))

    def _keep(self, slot: Slot, predicate: str, numbers: Value) -> None:
        f, known = self.arithmetic.f, slot.get()
        slot.set(f.select(f.compare(predicate, numbers, known), numbers, known))

    def word(self) -> Value:
        """Return what is written down."""
        f = self.arithmetic.f
        if self.spec.what == "divisor":
            return f.convert("zext", self._across("or", self.found.get()), "i64")
        least, greatest = (
            self._across("smin", self.least.get()),
            self._across("smax", self.greatest.get()),
        )
        if least.type != "i64":
            least, greatest = (f.convert("sext", value, "i64") for value in (least, greatest))
        is_below = f.compare("slt", least, f.index(-self.spec.size))
        is_above = f.compare("sge", greatest, f.index(self.spec.size))
        below = f.select(is_below, least, constant("i64", 0))
        return f.select(is_above, greatest, below)

    def _across(self, combine: str, vector: Value) -> Value:
        lanes, element = self.arithmetic.lanes, vector.type.split(" x ")[1][:-1]
        name = f"llvm.vector.reduce.{combine}.v{lanes}{element}"
        return self.arithmetic.f.intrinsic(name, element, [vector])
