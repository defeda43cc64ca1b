"""One of the doors of `doors_bench.py`: a compiled model in Python.

    python door.py session MODEL.rai WORKERS FOLDER...
    python door.py plugin MODEL_ctx.onnx WORKERS FOLDER...    with the plugin `$DOOR_PLUGIN`

What it is called with and answers is in door.c. `plugin` needs numpy and onnxruntime alone.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_WHOLE = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
TYPES = {
    "float": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bool": np.dtype(np.bool_),
    **{name: np.dtype(name) for name in _WHOLE},
}
PROVIDER = "VermilionExecutionProvider"


def open_session(path: str, workers: int) -> Any:
    """Open our session."""
    from vermilion.runtime.session import Session

    return Session(path, threads=workers)


def open_plugin(path: str, workers: int) -> Any:
    """Open a session of ONNX Runtime whose context nodes run in our plugin."""
    import onnxruntime as ort

    ort.register_execution_provider_library("vermilion", os.environ["DOOR_PLUGIN"])
    options = ort.SessionOptions()
    options.intra_op_num_threads = workers
    options.log_severity_level = 3
    devices = [one for one in ort.get_ep_devices() if one.ep_name == PROVIDER]
    options.add_provider_for_devices(devices, {"threads": str(workers)})
    return ort.InferenceSession(path, options, enable_fallback=0)


def taken(session: Any, folder: Path) -> dict[str, Any]:
    """Read a folder's inputs."""
    feeds = {}
    for number, port in enumerate(session.get_inputs()):
        kind = TYPES[port.type.removeprefix("tensor(").removesuffix(")")]
        text = (folder / f"in{number}.shape").read_text().strip()
        shape = [int(size) for size in text.split("x")] if text else []
        data = np.frombuffer((folder / f"in{number}.bin").read_bytes(), kind)
        feeds[port.name] = data.reshape(shape).copy()
    return feeds


def answer(run: Callable[[], object]) -> None:
    """Take turns until there are no more."""
    clock = time.process_time if os.environ.get("DOOR_CLOCK") == "cpu" else time.perf_counter
    print("ready", flush=True)
    for line in sys.stdin:
        runs, begin = int(line), clock()
        for _ in range(runs):
            run()
        print(f"{(clock() - begin) * 1e3 / runs:.6f}", flush=True)


def main() -> None:
    """Run once on every folder's inputs, then as often as is asked for."""
    kind, path, workers, *folders = sys.argv[1:]
    session = {"session": open_session, "plugin": open_plugin}[kind](path, int(workers))
    feeds: dict[str, Any] = {}
    for folder in reversed(folders):  # the first folder's stay
        feeds = taken(session, Path(folder))
        for number, array in enumerate(session.run(None, feeds)):
            file = Path(folder, f"{os.environ['DOOR']}-out{number}.bin")
            file.write_bytes(np.ascontiguousarray(array).tobytes())
    answer(lambda: session.run(None, feeds))


main()
