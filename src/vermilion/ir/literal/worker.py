"""The worker that opens and runs models that may loop, grow or crash, one order after the other.

`child`, the other side, says what is in an order.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from vermilion.errors import UnsupportedError, VermilionError
from vermilion.ir.limits import Limits
from vermilion.ir.literal.child import no_memory
from vermilion.ir.literal.engine import (
    BehindError,
    Engine,
    Stored,
    check_interpreted,
    open_interpreter,
    open_onnx_runtime,
    open_optimized,
)
from vermilion.process.arrays import TooLargeError, dtype_of, read_values, write_values
from vermilion.process.worker import bound_memory

# How what is out of memory says so: libstdc++, ONNX Runtime's allocators, numpy.
_NO_MEMORY = re.compile(r"bad.?alloc|allocate memory|MemoryError|Unable to allocate", re.IGNORECASE)


class Worker:
    """The models that are open in this process."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._models: dict[int, Engine] = {}

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """Open the model of an order, unless it is open, and run it if it has inputs.

        Raises: MemoryBoundError where it needs more than it may have; what the engine finds wrong.
        """
        for number in order["forget"]:
            self._models.pop(number, None)
        try:
            return self._obeyed(order)
        except VermilionError as error:
            if _NO_MEMORY.search(error.message):
                raise no_memory(order["memory_bytes"], error.where) from error
            raise
        except (MemoryError, TooLargeError) as error:
            raise no_memory(order["memory_bytes"]) from error
        except Exception as error:  # whatever the model made a library raise
            words = f"{type(error).__name__}: {error}"
            if _NO_MEMORY.search(words):
                raise no_memory(order["memory_bytes"]) from error
            raise UnsupportedError(words) from error

    def _obeyed(self, order: dict[str, Any]) -> dict[str, Any]:
        memory_bytes = int(order["memory_bytes"])
        bound_memory(memory_bytes)
        number = int(order["model"])
        engine = self._models.get(number)
        if engine is None:
            engine = self._models[number] = _open(order, self._folder)
        answer: dict[str, Any] = {
            "engine": engine.name,
            "described": [[found.name, found.type, found.shape] for found in engine.outputs],
        }
        if order["inputs"] is not None:
            inputs = read_values(order["inputs"], self._folder / order["in_file"])
            found = engine.run(inputs, order["outputs"])
            out_file = self._folder / order["out_file"]
            answer["outputs"] = write_values(found, out_file, memory_bytes // 2)
        return answer


def _open(order: dict[str, Any], folder: Path) -> Engine:
    proto = onnx.ModelProto.FromString((folder / order["model_file"]).read_bytes())
    weights = read_values(order["weights"], folder / order["weights_file"], mapped=True)
    for name, row in order["mapped"].items():
        weights[name] = _mapped(row)
    stored = Stored(proto, weights, order["folder"], _whole(proto, weights, order["folder"]))
    limits = Limits(order["seconds"], order["seconds"], order["memory_bytes"])
    if not order["ort"]:
        return open_interpreter(stored)
    if order["optimize"]:
        return open_optimized(stored, limits)
    try:
        return open_onnx_runtime(stored, limits)
    except BehindError as behind:
        check_interpreted(stored.whole(), behind)
        return open_interpreter(stored)


def _mapped(row: dict[str, Any]) -> Any:
    import numpy as np

    shape = tuple(row["shape"])
    return np.memmap(row["path"], dtype_of(row["type"]), "r", row["at"], shape)


def _whole(
    proto: onnx.ModelProto, weights: dict[str, Any], folder: str | None
) -> Callable[[], ir.Model]:
    # Kept as it came: ONNX Runtime is handed large weights as inputs.
    serialized = proto.SerializeToString()

    def make() -> ir.Model:
        model: ir.Model = ir.from_proto(onnx.ModelProto.FromString(serialized))
        for name, array in weights.items():
            value = model.graph.initializers[name]
            dtype = value.const_value.dtype if value.const_value is not None else None
            value.const_value = ir.Tensor(array, dtype=dtype, name=name)
        if folder is not None:
            ir.external_data.set_base_dir(model.graph, folder)
        return model

    return make
