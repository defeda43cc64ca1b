"""Single kernels: tensors as numpy arrays in strided views, steps compiled and run on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from vermilion.codegen.isa import Isa, isa_of
from vermilion.codegen.kernel import Step
from vermilion.codegen.load import KERNEL, load_functions
from vermilion.codegen.object import compile_object
from vermilion.codegen.program import kernel_text
from vermilion.codegen.tensor import SLACK_BYTES, Storage, View, allocate
from vermilion.codegen.workers import aligned_bytes
from vermilion.hardware.targets.find import find_target

Array = NDArray[Any]

DTYPES: dict[Storage, Any] = {
    "f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16, "u8": np.uint8,
    "s8": np.int8, "u16": np.uint16, "s16": np.int16, "i32": np.int32, "i64": np.int64,
    "bool": np.bool_,
}  # fmt: skip


def isa_for(target: str) -> Isa:
    """Return the instruction set of a target; skips the test where this machine lacks it."""
    place = find_target(target)
    missing = place.features - find_target("cpu").features
    if missing:
        pytest.skip(f"this machine has no {', '.join(sorted(missing))}")
    return isa_of(place)


def _targets(plain: str = "x86-64-v3") -> tuple[str, ...]:
    """Return this processor and, where the generator writes other code for it, a plain one.

    Without AVX-512 the two differ by LLVM's name of the core alone: each kernel would be written,
    compiled and held twice, from the same text.
    """
    here, other = (isa_of(find_target(name)) for name in ("cpu", plain))
    return ("cpu",) if replace(here, llvm_cpu=other.llvm_cpu) == other else ("cpu", plain)


# What tests of generated code run on.
TARGETS = _targets()


class Memory:
    """Bytes for every buffer that is used, and the views on them as arrays."""

    def __init__(self) -> None:
        self._bytes: dict[int, Array] = {}
        self._kept: list[object] = []

    def bytes_of(self, view: View) -> Array:
        """Return the memory of a view's buffer; new memory is full of a byte that is seen."""
        key = id(view.buffer)
        if key not in self._bytes:
            memory = aligned_bytes(view.buffer.size_bytes + SLACK_BYTES)
            memory[:] = 0x7B
            if view.buffer.data is not None:
                memory[: view.buffer.size_bytes] = view.buffer.data
            self._bytes[key] = memory
            self._kept.append(view.buffer)
        return self._bytes[key]

    def array(self, view: View) -> Array:
        """Return a view as an array on its memory."""
        size = view.item_bytes
        start = self.bytes_of(view)[view.offset * size :]
        flat = start[: start.size // size * size].view(DTYPES[view.storage])
        strides = [stride * size for stride in view.strides]
        return np.lib.stride_tricks.as_strided(flat, view.shape, strides)

    def tensor(
        self, name: str, array: Array, storage: Storage = "f32", order: Sequence[int] | None = None
    ) -> View:
        """Return a view that holds `array`, laid out in `order`."""
        view = allocate(name, storage, array.shape, order)
        self.array(view)[...] = array.astype(DTYPES[storage])
        return view

    def run(self, steps: Sequence[Step], isa: Isa) -> None:
        """Run steps one after the other, each in two calls where it has two units."""
        kinds = dict.fromkeys((step.function for step in steps), KERNEL)
        functions = load_functions(compile_object(kernel_text(steps, isa), isa), kinds, isa)
        for step in steps:
            pointers = np.array(
                [
                    self.bytes_of(view).ctypes.data + view.offset * view.item_bytes
                    for view in step.arguments
                ],
                np.int64,
            )
            half = step.spec.units // 2
            for begin, end in ((half, step.spec.units), (0, half)):
                functions[step.function](pointers.ctypes.data, begin, end)
