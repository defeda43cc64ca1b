"""A process that puts one file after the other through the whole path, each in a fork of its own.

`python -m mutated_files.path_child FOLDER`: names of files come in as lines, and for each a line of
JSON goes out that says what became of it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from vermilion.api import compile_model
from vermilion.errors import VermilionError
from vermilion.ir.load import load_model
from vermilion.ir.samples import sample_inputs

# Of work, and of waiting: a busy machine makes any file wait.
CPU_SECONDS, SECONDS = 60, 300.0
MEMORY_BYTES = 1 << 30
# Of addresses, which are many more than what is touched: it keeps the machine alive.
_ADDRESS_BYTES = 12 << 30


def take_path(file: Path, scratch: Path) -> dict[str, str]:
    """Load, compile, open and run; return what came of it."""
    try:
        inputs = sample_inputs(load_model(file))
        compiled = compile_model(file, cache_dir=scratch / "cache")
        session = compiled.session(threads=1)
        wanted = {item.name for item in session.get_inputs()}
        session.run(None, {name: array for name, array in inputs.items() if name in wanted})
    except VermilionError as error:
        return {"kind": "error", "detail": f"{type(error).__name__}: {error}"[:400]}
    except BaseException as error:
        own = [f for f in traceback.extract_tb(error.__traceback__) if "vermilion" in f.filename]
        frame = (own or traceback.extract_tb(error.__traceback__))[-1]
        at = f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
        return {"kind": "traceback", "detail": f"{type(error).__name__}: {str(error)[:200]} ({at})"}
    return {"kind": "right", "detail": ""}


def _in_fork(file: Path) -> dict[str, object]:
    begin = time.monotonic()
    with TemporaryDirectory(prefix="mutated-") as name:
        result = Path(name) / "result.json"
        here = psutil.Process().memory_info()
        own = here.rss - getattr(here, "shared", 0)  # a fork begins with it; mapped files it maps
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_BYTES, _ADDRESS_BYTES))
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            result.write_text(json.dumps(take_path(file, Path(name))), encoding="utf-8")
            os._exit(0)
        status, peak = _wait(child, begin)
        used = max(0, peak - own)
        seconds = time.monotonic() - begin
        row: dict[str, object] = {"seconds": round(seconds, 2), "peak_bytes": used}
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            late = number == signal.SIGXCPU or (seconds >= SECONDS and number == signal.SIGKILL)
            kind = "hang" if late else "signal"
            return {**row, "kind": kind, "detail": signal.Signals(number).name}
        if not result.exists():
            return {**row, "kind": "signal", "detail": f"exit code {os.WEXITSTATUS(status)}"}
        found = json.loads(result.read_text(encoding="utf-8"))
        if used > MEMORY_BYTES:
            found = {"kind": "memory", "detail": f"{used >> 20} MiB; {found['detail']}"}
        return {**row, **found}


def _wait(child: int, begin: float) -> tuple[int, int]:
    pause = 0.005
    while True:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            return status, usage.ru_maxrss * 1024
        if time.monotonic() - begin > SECONDS:
            os.kill(child, signal.SIGKILL)
            _, status, usage = os.wait4(child, 0)
            return status, usage.ru_maxrss * 1024
        time.sleep(pause)
        pause = min(0.05, pause * 1.2)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    # What is imported here is not imported in every fork.
    with TemporaryDirectory(prefix="mutated-") as folder:
        take_path(Path(sys.argv[1]), Path(folder) / "none") if len(sys.argv) > 1 else None
    for line in sys.stdin:
        print(json.dumps(_in_fork(Path(line.strip()))), flush=True)
