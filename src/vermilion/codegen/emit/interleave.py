"""A few planes → pixels: what turns a picture's three colour planes into channels last."""

from __future__ import annotations

from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import KIND_OF_STORAGE, Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.values import Value
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.tensor import STORAGE_BYTES, Storage, View
from vermilion.ir.symbolic import is_known

# More planes than this are copied by the general loop, whose vectors then run along channels.
MOST_PLANES = 4


@dataclass(frozen=True)
class InterleaveSpec:
    """Copy images: source strides (image, plane, row) → pixels of `planes` elements.

    The source's columns and the target's planes lie side by side.
    """

    source_storage: Storage
    storage: Storage
    images: int
    planes: int
    rows: int
    columns: int
    source: tuple[int, int, int]
    target: tuple[int, int]

    family = "interleave"

    @property
    def units(self) -> int:
        """One unit a row."""
        return self.images * self.rows

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, (source, target), units = begin_kernel(module, name, 2)
        size_in, size_out = STORAGE_BYTES[self.source_storage], STORAGE_BYTES[self.storage]
        whole = self.columns - self.columns % isa.lanes
        with f.loop(*units) as unit:
            image, row = f.divide(unit, self.rows), f.remainder(unit, self.rows)
            come = f.at(source, f.multiply(image, self.source[0] * size_in))
            come = f.at(come, f.multiply(row, self.source[2] * size_in))
            go = f.at(target, f.multiply(image, self.target[0] * size_out))
            go = f.at(go, f.multiply(row, self.target[1] * size_out))
            with f.loop(0, whole, isa.lanes) as column:
                self._vectors(f, isa.lanes, come, go, column)
            with f.loop(whole, self.columns) as column:
                self._vectors(f, 1, come, go, column)
        f.finish()

    def _vectors(self, f: Function, lanes: int, come: Value, go: Value, column: Value) -> None:
        arithmetic = Arithmetic(f, lanes)
        size = STORAGE_BYTES[self.source_storage]
        planes = [
            arithmetic.load(
                self.source_storage,
                f.at(f.at(come, plane * self.source[1] * size), f.multiply(column, size)),
            )
            for plane in range(self.planes)
        ]
        pixels = self._woven(f, lanes, planes)
        wide = Arithmetic(f, lanes * self.planes)
        place = f.at(go, f.multiply(column, self.planes * STORAGE_BYTES[self.storage]))
        wide.store(self.storage, pixels, place)

    def _woven(self, f: Function, lanes: int, planes: list[Value]) -> Value:
        """Return the planes' elements in turn, as one long vector."""
        element = planes[0].type.split(" x ")[1].rstrip(">")
        long = f"<{lanes * len(planes)} x {element}>"
        joined = planes[0]
        have = lanes
        for plane in planes[1:]:
            # Both sides of a shuffle have one length: the new plane is padded to it.
            padded = self._resized(f, plane, lanes, have, element)
            mask = ", ".join(f"i32 {i}" for i in range(have + lanes))
            type_ = f"<{have + lanes} x {element}>"
            joined = f.emit(
                type_, f"shufflevector {joined}, {padded}, <{have + lanes} x i32> <{mask}>"
            )
            have += lanes
        order = ", ".join(
            f"i32 {plane * lanes + lane}" for lane in range(lanes) for plane in range(len(planes))
        )
        return f.emit(
            long, f"shufflevector {joined}, {joined}, <{lanes * len(planes)} x i32> <{order}>"
        )

    def _resized(self, f: Function, value: Value, lanes: int, size: int, element: str) -> Value:
        if size == lanes:
            return value
        mask = ", ".join(f"i32 {i if i < lanes else 0}" for i in range(size))
        return f.emit(
            f"<{size} x {element}>", f"shufflevector {value}, {value}, <{size} x i32> <{mask}>"
        )


def interleave_step(view: View, target: View, nodes: tuple[str, ...]) -> Step | None:
    """Return the step that copies `view` (N, C, H, W) to channels last, None where none applies."""
    n, c, h, w = view.shape
    same_kind = KIND_OF_STORAGE[view.storage] == KIND_OF_STORAGE[target.storage]
    dense = view.strides[3] == 1 and target.strides[1] == 1 and target.strides[3] == c
    if not (same_kind and dense and is_known(c) and 1 < c <= MOST_PLANES):
        return None
    spec = InterleaveSpec(
        view.storage, target.storage, n, c, h, w,
        (view.strides[0], view.strides[1], view.strides[2]),
        (target.strides[0], target.strides[2]),
    )  # fmt: skip
    return Step(spec, (view, target), (target,), nodes)
