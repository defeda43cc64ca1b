"""Many mutated files put through the whole path by a few processes, and the table of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory

import onnx_ir as ir

from models import branching_cnn, small_cnn, transformer_block
from mutated_files.mutations import mutate
from random_graphs.batches import environment
from random_graphs.graph_writer import FORMATS
from random_graphs.growth import grow

KINDS = ("right", "error", "traceback", "signal", "hang", "memory")
FAULTS = ("traceback", "signal", "hang", "memory")
_GROWN = 60


@dataclass(frozen=True)
class Mutated:
    """A mutated file: its seed, what was done to it, what became of it."""

    seed: int
    changes: str
    kind: str
    detail: str
    seconds: float
    peak_bytes: int

    @property
    def line(self) -> str:
        """The line that writes the file again, from the folder `tests`."""
        return (
            "from mutated_files.files import file_of; "
            f"open('m.onnx', 'wb').write(file_of({self.seed})[0])"
        )


@cache
def sources() -> Sequence[bytes]:
    """Return the files that are mutated: small networks and random graphs."""
    small = [small_cnn(), small_cnn(bn=True, batch="n"), branching_cnn(), transformer_block()]
    made = [ir.to_proto(model).SerializeToString() for model in small]
    made += [
        grow(seed, FORMATS[seed % len(FORMATS)]).model.SerializeToString()
        for seed in range(_GROWN)
    ]  # fmt: skip
    return [data for data in made if len(data) < 300_000]


def file_of(seed: int) -> tuple[bytes, str]:
    """Return a mutated file and what was done to it."""
    known = sources()
    return mutate(known[seed % len(known)], seed)


def try_files(
    seeds: Sequence[int], jobs: int, told: Callable[[Mutated], None] = lambda one: None
) -> list[Mutated]:
    """Put every file through the path; `jobs` processes at a time."""
    pending: SimpleQueue[int] = SimpleQueue()
    for seed in seeds:
        pending.put(seed)
    sources()
    with ThreadPoolExecutor(jobs) as pool:
        parts = pool.map(lambda number: _work(pending, told), range(jobs))
        return [one for part in parts for one in part]


def _work(pending: SimpleQueue[int], told: Callable[[Mutated], None]) -> list[Mutated]:
    found: list[Mutated] = []
    with TemporaryDirectory(prefix="mutated-files-") as name:
        file, sound = Path(name) / "m.onnx", Path(name) / "sound.onnx"
        sound.write_bytes(sources()[0])
        command = [sys.executable, "-m", "mutated_files.path_child", str(sound)]
        with subprocess.Popen(
            command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            while True:
                try:
                    seed = pending.get_nowait()
                except Empty:
                    child.stdin.close()
                    return found
                data, changes = file_of(seed)
                file.write_bytes(data)
                child.stdin.write(f"{file}\n")
                child.stdin.flush()
                row = json.loads(child.stdout.readline())
                found.append(
                    Mutated(seed, changes, str(row["kind"]), str(row["detail"]),
                            float(row["seconds"]), int(row["peak_bytes"]))
                )  # fmt: skip
                told(found[-1])


def table(found: Sequence[Mutated]) -> str:
    """Return how many files became what, and the most time and memory that one took."""
    kinds = Counter(one.kind for one in found)
    most = max((one.peak_bytes for one in found), default=0)
    longest = max((one.seconds for one in found), default=0.0)
    cells = "  ".join(f"{kind} {kinds[kind]}" for kind in KINDS)
    return f"{len(found)} files: {cells}; at most {longest:.1f} s, {most >> 20} MiB"
