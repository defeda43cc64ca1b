"""Copies of inner tensors of a program, taken while it runs call by call on one thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.load import KERNEL, LoadedProgram
from vermilion.codegen.table import Call, StepTensor
from vermilion.codegen.tensor import Storage

Array = NDArray[Any]

NUMPY: Mapping[Storage, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "u8": np.dtype(np.uint8),
    "s8": np.dtype(np.int8),
    "u16": np.dtype(np.uint16),
    "s16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "bool": np.dtype(np.bool_),
}


class StepWatcher:
    """Runs a step table call by call and copies the tensors that it is given.

    Of a batch that is computed entry by entry, `tensors` are those of one entry, and `copies` has
    an array for each.
    """

    def __init__(
        self,
        program: LoadedProgram,
        calls: Sequence[Call],
        entries: int,
        tensors: Sequence[StepTensor],
    ) -> None:
        self._kernels = [KERNEL(program.functions[call.function]) for call in calls]
        self._calls = calls
        self._arguments = program.arguments
        self._arena = program.arena
        self._per_entry = len(calls) // entries
        self._due: dict[int, list[StepTensor]] = {}
        for tensor in tensors:
            if tensor.address.place == "arena":  # a caller has the outputs
                self._due.setdefault(tensor.after, []).append(tensor)
        self.copies: dict[str, list[Array]] = {}

    def run(self) -> None:
        """Run all calls once, in order."""
        self.copies = {t.name: [] for due in self._due.values() for t in due}
        at = self._arguments.ctypes.data
        for number, (kernel, call) in enumerate(zip(self._kernels, self._calls, strict=True)):
            kernel(at, 0, call.units)
            at += 8 * len(call.arguments)
            for tensor in self._due.get(number % self._per_entry, ()):
                self.copies[tensor.name].append(self._copy_of(tensor))

    def _copy_of(self, tensor: StepTensor) -> Array:
        dtype = NUMPY[tensor.storage]
        strides = tuple(stride * dtype.itemsize for stride in tensor.strides)
        view: Array = np.ndarray(
            tensor.shape, dtype, self._arena, tensor.address.offset, strides
        )  # fmt: skip
        return view.copy()
