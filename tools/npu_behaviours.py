"""What is reported of a provider that misbehaves, one behaviour after the other, and what is left.

    python tools/npu_behaviours.py [BEHAVIOUR …]

Compiles a part of three nodes with the stand-in of the tests (`tests/fake_provider.py`), loads it
and runs it three times. A row says how many nodes count as run on the NPU, and in which words the
rest is told; then come processes, temporary files and shared memory that were left behind.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from vermilion.backends.base import CompileOptions  # noqa: E402
from vermilion.backends.provider.child import Limits  # noqa: E402
from vermilion.backends.vitisai.backend_test import STRIX, Files, backend, part  # noqa: E402
from vermilion.errors import VermilionError  # noqa: E402
from vermilion.ir.execute import split_weights  # noqa: E402

BEHAVIOURS = (
    "good", "access violation while compiling", "access violation while running", "exception",
    "hang while compiling", "hang while running", "dies when it is closed", "provider missing",
    "everything on the CPU", "no profile", "a plan that nothing supports",
    "two of three on the CPU", "a report of one on the NPU", "a report of all on the CPU",
    "a report that leaves two out", "negative events", "text for a number", "nothing for a list",
    "a negative number", "one entry unwritten", "nothing written", "one entry wrong", "NaN",
    "wrong", "twice", "a tenth", "noise of 13 %", "cuts its files short", "nothing written later",
    "NaN later", "fails later", "names that no other system takes", "writes without end",
    "leaves processes behind",
)  # fmt: skip
LIMITS = Limits(compile_s=20.0, load_s=20.0, run_s=5.0)
NODES = 3


def behave(mode: str, folder: Path) -> tuple[int, str]:
    """Return how many nodes count as run on the NPU, and what else is said."""
    stands = backend(mode, limits=LIMITS)
    one = part()
    try:
        program = stands.compile(one, STRIX, CompileOptions(), folder)
    except VermilionError as error:
        return 0, error.message
    ran, said = NODES - len(program.elsewhere), list(program.notes)
    try:
        loaded = stands.load(
            program, Files(folder, split_weights(one.model)[1]), STRIX, CompileOptions()
        )
        for number in range(1, 4):
            inputs = {"x": np.full((4, 3, 6, 6), number, np.float32)}
            if not np.isfinite(loaded.run(inputs)["y"]).all():
                said.append(f"run {number} gives numbers that are none")
    except VermilionError as error:
        said.append(f"later: {error.message}")
    return ran, "; ".join(said)


def main() -> int:
    """Print a row a behaviour; fail where a process, a file or shared memory is left."""
    shared = Path("/dev/shm")
    before = set(shared.iterdir()) if shared.is_dir() else set()
    left: list[str] = []
    with tempfile.TemporaryDirectory(prefix="behaviours-") as work:
        tempfile.tempdir = str(Path(work, "temporary"))
        Path(tempfile.tempdir).mkdir()
        for number, mode in enumerate(sys.argv[1:] or BEHAVIOURS):
            begin = time.monotonic()
            ran, said = behave(mode, Path(work, str(number)))
            seconds = time.monotonic() - begin
            sys.stdout.write(f"{mode:34} {ran} of {NODES} ran  {seconds:5.1f} s  {said[:200]}\n")
        sys.stdout.flush()
        left += [str(path) for path in Path(tempfile.tempdir).iterdir()]
        tempfile.tempdir = None
    for process in psutil.Process().children(recursive=True):
        if process.status() != psutil.STATUS_ZOMBIE:
            left.append(" ".join(process.cmdline())[:80])
    left += [str(path) for path in (set(shared.iterdir()) if before else set()) - before]
    sys.stdout.write(f"left behind: {', '.join(left) or 'nothing'}\n")
    return bool(left)


if __name__ == "__main__":
    sys.exit(main())
