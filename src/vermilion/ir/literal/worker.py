"""The child: opens and runs models that may loop, grow or crash, one order after the other.

An order is a line of JSON on its standard input, and each is answered with one on its standard
output (`child`, the other side, says what is in them). All else that is printed goes to a log.
It ends when its standard input does, whatever it is doing, and removes its folder.
"""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import onnx
import onnx_ir as ir

from vermilion.errors import UnsupportedError, VermilionError
from vermilion.ir.limits import Limits
from vermilion.ir.literal.engine import (
    BehindError,
    Engine,
    Stored,
    check_interpreted,
    open_interpreter,
    open_onnx_runtime,
    open_optimized,
)
from vermilion.ir.memory import MemoryBoundError
from vermilion.process.arrays import TooLargeError, dtype_of, read_values, write_values

LOG_FILE = "log.txt"

# A child that nobody has asked for this long ends: a session of a notebook may stand for days.
IDLE_S = 300.0

# How what is out of memory says so: libstdc++, ONNX Runtime's allocators, numpy.
_NO_MEMORY = re.compile(r"bad.?alloc|allocate memory|MemoryError|Unable to allocate", re.IGNORECASE)


def main() -> None:
    """Serve the folder that the first argument names."""
    folder = Path(sys.argv[1])
    # Ctrl-C is the parent's to answer: it ends this process if it wants.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = _private_stdout(folder)
    orders: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(orders, folder), daemon=True).start()
    models: dict[int, Engine] = {}
    _reply(replies, {"ready": os.getpid()})
    while True:
        try:
            order = json.loads(orders.get(timeout=IDLE_S))
        except queue.Empty:
            _end(folder)
        _reply(replies, {"taken": order["model"]})
        for number in order["forget"]:
            models.pop(number, None)
        try:
            answer = _obey(order, folder, models)
        except VermilionError as error:
            answer = _failed(error)
        except (MemoryError, TooLargeError):
            answer = _failed(_no_memory(order["memory_bytes"]))
        except Exception as error:  # whatever the model made a library raise
            answer = _failed(UnsupportedError(f"{type(error).__name__}: {error}"))
        if _NO_MEMORY.search(answer.get("message", "")):
            answer = _failed(_no_memory(order["memory_bytes"], answer.get("where", "")))
        _reply(replies, answer)


def _reply(replies: TextIO, answer: dict[str, Any]) -> None:
    replies.write(json.dumps(answer) + "\n")
    replies.flush()


def _listen(orders: queue.Queue[str], folder: Path) -> None:
    """Pass orders on; when no more can come, end the process in the middle of what it does."""
    for line in sys.stdin:
        orders.put(line)
    _end(folder)


def _end(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _obey(order: dict[str, Any], folder: Path, models: dict[int, Engine]) -> dict[str, Any]:
    memory_bytes = int(order["memory_bytes"])
    _bound_memory(memory_bytes)
    number = int(order["model"])
    engine = models.get(number)
    if engine is None:
        engine = models[number] = _open(order, folder)
    answer: dict[str, Any] = {
        "engine": engine.name,
        "described": [[found.name, found.type, found.shape] for found in engine.outputs],
    }
    if order["inputs"] is not None:
        inputs = read_values(order["inputs"], folder / order["in_file"])
        found = engine.run(inputs, order["outputs"])
        answer["outputs"] = write_values(found, folder / order["out_file"], memory_bytes // 2)
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


def _bound_memory(most_bytes: int) -> None:
    """Let this process take that much more than it has, where the system can hold it to it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return  # the parent watches
    import resource

    lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    used = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = used + most_bytes
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _no_memory(most_bytes: int, place: str = "") -> MemoryBoundError:
    return MemoryBoundError(
        f"its values need more than {most_bytes / 1e9:,.1f} GB at one time",
        where=place,
        hint="bind smaller sizes with `--dim`; if they are fixed in the file, do not trust it",
    )


def _failed(error: VermilionError) -> dict[str, Any]:
    return {
        "failed": type(error).__name__,
        "message": error.message,
        "where": error.where,
        "hint": error.hint,
    }


def _private_stdout(folder: Path) -> TextIO:
    """Keep the real stdout for answers; whatever else prints goes to the log."""
    kept = os.dup(sys.stdout.fileno())
    log = os.open(folder / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    os.close(log)
    return os.fdopen(kept, "w", encoding="utf-8")


if __name__ == "__main__":
    main()
